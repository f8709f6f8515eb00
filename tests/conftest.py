"""Fixtures for all tests: the real model, and shape checks at run time."""

import copy
import gc
import os
import sys
from pathlib import Path
from unittest.mock import patch

if "PYTEST_XDIST_WORKER" in os.environ:  # workers and their subprocesses share the cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import jaxtyping
import pytest
import torch
from hypothesis import HealthCheck, settings

# Check the shapes in the signatures of the formula while the tests of these folders run.
SHAPED = {"formula", "property", "streaming"}
jaxtyping.install_import_hook(
    ["attnviz.formula.attention", "attnviz.formula.projection"], "beartype.beartype"
)

sys.modules["rfc3987_syntax"] = None  # jsonschema would read a grammar of addresses for seconds

import attnviz  # noqa: E402
from attnviz.models import NAMED  # noqa: E402

TESTS = Path(__file__).parent
sys.path[:0] = [str(TESTS), str(TESTS.parent / "scripts")]
from one_model import load_once  # noqa: E402
from pairing import mark_the_rest_as_long  # noqa: E402

# The same few examples every time; with `-m long`, many new ones. A busy machine is not a failure.
_SLOW = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", max_examples=40, derandomize=True, **_SLOW)
settings.register_profile("long", max_examples=1700, **_SLOW)


def pytest_configure(config):
    settings.load_profile("long" if config.option.markexpr == "long" else "ci")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Freeze what the imports create, and collect garbage less often, for a collection is slow."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(5_000, 20, 50)
        gc.enable()


# The files that take longest, longest first: at the end, one worker would wait for the other.
LONGEST = (
    "test_style.py", "test_readme.py", "test_gallery.py", "test_cheat_sheet.py", "test_serving.py",
    "test_view.py", "test_families.py", "test_streaming_gpu.py", "test_catalogue.py",
    "test_keywords.py", "test_options.py", "test_on_ray.py", "test_operators.py",
    "test_verify.py", "test_simulated_cuda.py", "test_explain.py", "test_senses.py",
    "test_shift.py", "test_ablate.py", "test_checkpoints.py", "test_jupyter.py",
    "test_planted_streams.py", "test_notebooks.py", "test_served_page.py", "test_golden.py",
    "test_on_a_device.py",
)  # fmt: skip

# Folders whose files share what takes long to start or to load: one process runs all of them.
TOGETHER = ("tests/real/", "tests/robustness/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give each worker whole files, or all files of a folder in TOGETHER."""
    from xdist.scheduler import LoadFileScheduling

    class ByFolder(LoadFileScheduling):
        def _split_scope(self, nodeid):
            folder = next(filter(nodeid.startswith, TOGETHER), None)
            return folder or super()._split_scope(nodeid)

    return ByFolder(config, log) if config.getvalue("dist") == "loadfile" else None


# `-m fast`: the folders of the formula and the data, the goldens and the properties
FAST = {"formula", "golden", "inputs", "io", "pipeline", "property", "results"}
NOT_FAST = ("long", "slow", "browser", "real", "gpu")


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items):
    """Start with the longest files, and keep pairs of each product."""
    order = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))
    mark_the_rest_as_long(items)
    for item in items:
        if item.path.parent.name in FAST and not any(map(item.get_closest_marker, NOT_FAST)):
            item.add_marker("fast")
        if isinstance(item, pytest.DoctestItem):
            _skip_without_models(item)
            item.runtest = patch("attnviz.pipeline.attend.load_checkpoint", load_once)(item.runtest)


def _skip_without_models(item):
    """Skip an example that loads a model of scripts/fetch_models.py where it is not there."""
    source = "".join(example.source for example in item.dtest.examples)
    named = [name for name in NAMED if f'model="{name}"' in source]
    missing = not all(NAMED[name].is_here for name in named)
    if missing and os.environ.get("ATTNVIZ_MODELS") != "required":
        item.add_marker(pytest.mark.skip(f"run 'python scripts/fetch_models.py {named[0]}'"))


def pytest_runtest_setup(item):
    jaxtyping.config.update("jaxtyping_disable", item.path.parent.name not in SHAPED)
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(autouse=True)
def _close_figures():
    """Close the figures of a test, because pyplot keeps every figure open."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture(scope="session")
def light_path(tmp_path_factory):
    """The PYTHONPATH of processes in which jsonschema reads no grammar of addresses, as here."""
    folder = tmp_path_factory.mktemp("light")
    (folder / "rfc3987_syntax.py").write_text("raise ImportError")
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture
def simulated_gpu():
    """A CUDA device that counts what it does and refuses what CUDA refuses (simulated_cuda.py)."""
    from simulated_cuda import SimulatedCuda

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with SimulatedCuda() as gpu:
        yield gpu


@pytest.fixture(scope="session")
def model():
    """The bundled all-MiniLM-L6-v2 model."""
    return attnviz.load()


@pytest.fixture(autouse=True)
def _shared_model_stays(request):
    """Fail a test that leaves the model of all tests with another attention."""
    if "model" not in request.fixturenames:
        yield
        return
    module = getattr(request.getfixturevalue("model"), "module", None)
    config = getattr(module, "config", None)
    before = getattr(config, "_attn_implementation", None)
    yield
    assert getattr(config, "_attn_implementation", None) == before


@pytest.fixture(scope="session")
def tokenizer(model):
    """The bundled model's tokenizer."""
    return model.tokenizer


@pytest.fixture(scope="session")
def bare_tokenizer(tokenizer):
    """The bundled model's tokenizer without special tokens around a text."""
    from tokenizers.processors import TemplateProcessing

    bare = copy.deepcopy(tokenizer)
    bare.backend_tokenizer.post_processor = TemplateProcessing(single="$A", pair="$A $B")
    return bare


@pytest.fixture(scope="session")
def small(tokenizer):
    """A tiny encoder, which no test changes."""
    from families import tiny

    return attnviz.load(tiny("bert"), tokenizer=tokenizer)


@pytest.fixture(scope="session")
def train(model):
    """All attentions of the bundled model on "the train left the station on time"."""
    return attnviz.attend("the train left the station on time", model=model)


@pytest.fixture(scope="session")
def pair(model):
    """All attentions of the bundled model on a pair of sentences."""
    return attnviz.attend(
        "the train left the station on time", pair="it arrived too late", model=model
    )
