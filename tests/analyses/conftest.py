"""What tests of analyses share: a small corpus, and runs of models on the same texts.

The corpus has repeated tokens, commas, and texts of different lengths.
"""

import copy
import inspect

import pytest
from one_run import Runs, share_runs

import attnviz
from tests.analyses.survey.english import sentences

TEXTS = [
    "the train left the station on time, and nobody noticed.",
    "She sat by the bank of the river.",
    "my sister saw the cat and the cat saw my sister again",
    "Rain.",
    "an old man, a young woman, a small dog and a bird waited for the train to the north",
    "the committee that met on Monday described the letter before the meeting started, as always.",
    "I love apple phones",
    "a red apple and a green apple lay on the table, and a red apple fell",
] * 5


@pytest.fixture(scope="session")
def texts():
    """Return forty texts, eight of them distinct."""
    return TEXTS


@pytest.fixture(scope="session")
def found(texts, model):
    """Return the survey of the bundled model on 64 texts."""
    return attnviz.survey([*texts[:8], *sentences(56)], model=model)


@pytest.fixture(scope="package", autouse=True)
def _runs(model):
    runs = Runs()
    with pytest.MonkeyPatch.context() as patch:
        share_runs(patch, runs, model=model)
        yield runs


@pytest.fixture(autouse=True)
def _runs_once(request, _runs):
    """Run anew in a test that asks for `anew`, or that changes something and not for `once`."""
    asked = {*inspect.signature(request.function).parameters}
    _runs.anew = "anew" in asked or ("monkeypatch" in asked and "once" not in asked)
    yield
    _runs.anew = False


@pytest.fixture
def anew():
    """Let the models run each time."""


@pytest.fixture
def once():
    """Let no model run twice, because what the test changes is no part of a run."""


@pytest.fixture
def without_changed_words():
    """Leave out what a shift measures by changing single words."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnviz.analyses.shift.compute.intervene", lambda *_: {})
        yield


@pytest.fixture
def without_bos(bare_tokenizer):
    """A tokenizer that adds no special tokens, and has no BOS token yet."""
    assert bare_tokenizer.bos_token is None
    return copy.deepcopy(bare_tokenizer)
