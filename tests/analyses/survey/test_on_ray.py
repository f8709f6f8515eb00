"""A survey on a Ray cluster with two nodes gives the same numbers, even if processes die.

The cluster is a real one. With `-m long`, surveys run as commands in separate processes, too.
"""

import http.server
import os
import signal
import socketserver
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from families import tiny
from simulated_cuda import SimulatedCuda
from torch.testing import assert_close

import attnviz
from attnviz.analyses.survey.corpus import TextCorpus
from attnviz.analyses.survey.measure import HeadStatistics
from attnviz.analyses.survey.ray import pack, ray_cluster, unpack
from attnviz.errors import InputError
from tests.analyses.survey.english import sentences

# Importing it takes seconds, in each process that collects tests.
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs ray")
pytestmark = [pytest.mark.slow, needs_ray]

_SURVEY = """
import sys
import attnviz.analyses.survey.corpus
from attnviz.__main__ import main
attnviz.analyses.survey.corpus.PART = int(sys.argv.pop(1))
sys.exit(main())
"""


@pytest.fixture(scope="module", params=[32, pytest.param(2000, marks=pytest.mark.long)])
def corpus(request, model, tmp_path_factory):
    """Return a folder with a file of this number of sentences, the chunk size, and its table."""
    folder = tmp_path_factory.mktemp("corpus")
    texts = sentences(2000)[: request.param]
    (folder / "corpus.txt").write_text("\n".join(texts), "utf-8")
    size = request.param // 8
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnviz.analyses.survey.corpus.PART", size)
        attnviz.survey(folder / "corpus.txt", model=model, out=folder / "local")
    return folder, size, table(folder / "local", request.param)


@pytest.fixture
def cluster(monkeypatch, light_path):
    """Yield a cluster of two nodes with one processor each."""
    monkeypatch.setenv("PYTHONPATH", light_path)
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    node = {"num_cpus": 1, "include_log_monitor": False}
    head = {**node, "include_dashboard": False, "no_monitor": True}
    head["_system_config"] = {"health_check_period_ms": 200}  # a dead node is missed at once
    found = Cluster(initialize_head=True, head_node_args=head)
    found.second = found.add_node(**node)
    yield found
    found.shutdown()


def started(folder, size, *arguments):
    command = [sys.executable, "-c", _SURVEY, str(size), "survey", "corpus.txt", *arguments]
    return subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finished(process):
    out, err = process.communicate(timeout=900)
    # Without a network, Ray warns that it looks up the address of the machine in another way.
    lines = [line for line in err.splitlines() if "Failed to determine local IP" not in line]
    assert (process.returncode, lines) == (0, []), err[-2000:]
    return out


def table(folder, texts):
    """Return every value by sentence, head and statistic; check that each occurs once."""
    whole = pq.read_table(folder / "parts")
    assert set(whole["sentence"].to_pylist()) == set(range(texts))
    keys = ["sentence", "stack", "layer", "head", "statistic"]
    assert whole.group_by(keys).aggregate([]).num_rows == whole.num_rows
    return whole


def same(one, other):
    for name in one.schema.names:
        np.testing.assert_array_equal(one[name].to_numpy(), other[name].to_numpy(), name)


def parts_of(folder):
    return list((folder / "parts").glob("*.parquet"))


def wait_for(what, seconds=300):
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def workers():
    """Return the processes that measure chunks."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"ray::_measure_part" in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def at_work(out, parts):
    """Wait until this number of 8 chunks is written and a worker has started the next one."""
    wait_for(lambda: len(parts_of(out)) >= parts and workers())
    assert len(parts_of(out)) < 8


def deaths(cluster, out):
    """Kill a worker and a node while a survey runs."""
    at_work(out, parts=1)
    os.kill(workers()[-1], signal.SIGKILL)
    at_work(out, parts=2)
    cluster.remove_node(cluster.second, allow_graceful=False)


def test_every_sentence_occurs_once_if_processes_die(corpus, cluster, model, monkeypatch, once):
    folder, size, expected = corpus
    monkeypatch.setattr("attnviz.analyses.survey.corpus.PART", size)
    out = folder / "deaths"
    on_ray = {"out": out, "engine": "ray", "address": cluster.address}
    with ThreadPoolExecutor(1) as pool:
        died = pool.submit(deaths, cluster, out)
        attnviz.survey(folder / "corpus.txt", model=model, **on_ray)
    assert died.result() is None
    same(expected, table(out, 8 * size))


@pytest.mark.long
def test_every_sentence_occurs_once_if_the_command_dies_too(corpus, cluster):
    folder, size, expected = corpus
    out = folder / "resumed"
    on_ray = ("-o", out, "--engine", "ray", "--address", cluster.address)
    process = started(folder, size, *on_ray)
    deaths(cluster, out)
    at_work(out, parts=4)
    assert process.poll() is None
    process.kill()
    process.communicate()
    written = {path: path.stat().st_mtime_ns for path in parts_of(out)}
    assert 4 <= len(written) < 8
    finished(started(folder, size, *on_ray, "--resume"))
    same(expected, table(out, 8 * size))
    assert {path: path.stat().st_mtime_ns for path in written} == written


@pytest.mark.long
def test_an_address_of_another_service_is_refused(tmp_path):
    (tmp_path / "corpus.txt").write_text("one two\n")
    with socketserver.TCPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_address[1]}"
        process = started(tmp_path, 8, "--engine", "ray", "--address", address)
        out, err = process.communicate(timeout=120)
        server.shutdown()
    assert (process.returncode, out) == (2, "")
    # Ray prints warnings before this line.
    assert f"No Ray cluster answers at {address}: Failed to connect" in err.splitlines()[-1]


# --------------------------------------------------------------------------------------- GPUs


def measured(model, heads=None):
    """Return the statistics of a few texts, and the heads that measured them."""
    texts = list(TextCorpus(model, ["one two three", "the train left the station"]))
    heads = heads or HeadStatistics(model.checkpoint, model.attend("one two").records)
    return heads.measure(texts), heads


def test_a_model_on_the_second_gpu_is_measured_on_the_only_gpu_of_a_worker(tokenizer):
    module = tiny("bert")
    expected, _ = measured(model := attnviz.load(module, tokenizer=tokenizer))
    with SimulatedCuda(devices=2):
        _, heads = measured(attnviz.load(module.to("cuda:1"), tokenizer=tokenizer))
        packed = pack(heads)
    with SimulatedCuda():
        heads = unpack(packed)
        assert heads.checkpoint.device == torch.device("cuda:0")
        found, _ = measured(model, heads)
    assert_close(found.value, expected.value, equal_nan=True)
    with pytest.raises(InputError, match="Device 'cuda' is not available: PyTorch finds 0"):
        unpack(packed)


@pytest.mark.long
def test_a_cluster_without_a_gpu_is_refused_for_a_model_on_a_gpu(tokenizer, tmp_path):
    with SimulatedCuda():
        model = attnviz.load(tiny("bert").to("cuda"), tokenizer=tokenizer)
        with pytest.raises(InputError, match="The model is on cuda:0, and the Ray cluster has no"):
            attnviz.survey(["one two"], model=model, engine="ray", out=tmp_path / "out")
    import ray

    assert not ray.is_initialized()
    assert not (tmp_path / "out").exists()


def test_a_model_on_several_devices_is_refused():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    with SimulatedCuda():
        model[1].to("cuda")
        with (
            pytest.raises(InputError, match="A model on cpu, cuda:0 cannot be sent"),
            ray_cluster(None, model),
        ):
            pass
