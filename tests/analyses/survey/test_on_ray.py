"""A survey on a real Ray cluster with two nodes gives the same numbers, even if processes die."""

import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import psutil
import pyarrow.parquet as pq
import pytest
import torch
from families import tiny
from simulated_cuda import SimulatedCuda
from torch.testing import assert_close

import attnviz
from attnviz import InputError
from attnviz.analyses.survey.corpus import TextCorpus
from attnviz.analyses.survey.measure import HeadStatistics, pack, ray_cluster, unpack
from attnviz.runtime import listening
from tests.analyses.survey.english import sentences

# Importing it takes seconds, in each process that collects tests.
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs ray")
pytestmark = [pytest.mark.slow, needs_ray]


SENTENCES, PARTS = 32, 8


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


def table(folder):
    """Return every value by sentence, head and statistic; check that each occurs once."""
    whole = pq.read_table(folder / "texts.parquet")
    assert set(whole["sentence"].to_pylist()) == set(range(SENTENCES))
    keys = ["sentence", "stack", "layer", "head", "statistic"]
    assert whole.group_by(keys).aggregate([]).num_rows == whole.num_rows
    return whole


def at_work(done, parts):
    """Wait until so many parts are done and the next is begun; return those who measure."""
    end = time.monotonic() + 300
    while True:
        assert time.monotonic() < end
        finished = len(done)
        ours = {one.pid for one in psutil.Process().children(recursive=True)}
        every = [one for one in psutil.process_iter(["cmdline"]) if one.pid in ours]
        found = [one for one in every if "_measure_part" in " ".join(one.info["cmdline"] or ())]
        if finished >= parts and found:
            assert finished < PARTS
            return found
        time.sleep(0.05)


def deaths(cluster, done):
    """Kill a worker and a node while a survey runs."""
    at_work(done, parts=1)[-1].kill()
    at_work(done, parts=2)
    cluster.remove_node(cluster.second, allow_graceful=False)


def test_every_sentence_occurs_once_if_processes_die(cluster, model, tmp_path, monkeypatch, once):
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    monkeypatch.setattr("attnviz.analyses.survey.corpus.PART", SENTENCES // PARTS)
    texts, local, out = sentences(2000)[:SENTENCES], tmp_path / "local", tmp_path / "deaths"
    attnviz.survey(texts, model=model, out=local)
    done = set()  # of the parts that are measured, what is said of each

    def hear(step, share):
        done.update([step] if "a second" in step else [])

    with ThreadPoolExecutor(1) as pool, listening(hear):
        died = pool.submit(deaths, cluster, done)
        attnviz.survey(texts, model=model, out=out, engine="ray")
    assert died.result() is None
    assert table(out).to_pandas().equals(table(local).to_pandas())


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
            ray_cluster(model),
        ):
            pass
