"""What tests of analyses share: a small corpus, and runs of models on the same texts.

The corpus has repeated tokens, commas, and texts of different lengths.
"""

import inspect
from collections import defaultdict
from weakref import WeakKeyDictionary

import pytest
from matplotlib import rcParams

import attnviz
from attnviz.analyses.survey import corpus
from attnviz.attribution import reference
from attnviz.figures.layout import Ruler
from attnviz.pipeline import attend
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


class Runs:
    """Runs each model once on the same texts, as long as nothing in it changes.

    anew : run every time.
    """

    def __init__(self):
        self.done, self.run, self.anew = WeakKeyDictionary(), attend.run, False

    def __call__(self, checkpoint, inputs, options):
        if self.anew or inputs.pictures or inputs.sounds or inputs.arguments:
            return self.run(checkpoint, inputs, options)
        module = checkpoint.module
        hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in module.modules()]
        owned = [one for m in module.modules() for one in vars(m).values()]
        numbers = [one for one in owned if isinstance(one, (int, float))]  # such as a scale
        state = checkpoint.current_sha256(), module.config._attn_implementation, hooks, numbers
        key = repr((state, inputs, options))
        done = self.done.setdefault(checkpoint, {})
        if key not in done:
            done[key] = self.run(checkpoint, inputs, options)
        return [*done[key]]


@pytest.fixture(scope="package", autouse=True)
def _runs(model):
    runs, load = Runs(), attend.load

    def load_once(name=None, **how):
        plain = name is None and all(value in (None, "auto", "parse") for value in how.values())
        return load(name, **how) if runs.anew or not plain else model

    with pytest.MonkeyPatch.context() as patch:
        for module in (attend, corpus, reference):
            patch.setattr(module, "run", runs)
        patch.setattr(attend, "load", load_once)
        yield runs


@pytest.fixture(scope="package", autouse=True)
def _texts_measured_once():
    """Let all figures know the widths of texts that one of them has measured."""
    widths, init = defaultdict(dict), Ruler.__init__

    def remembering(ruler):
        init(ruler)
        ruler._widths = widths[repr((rcParams["font.family"], rcParams["font.sans-serif"]))]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ruler, "__init__", remembering)
        yield


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
