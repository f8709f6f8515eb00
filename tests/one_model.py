"""Examples load the same few models again and again: read each from the disk once.

They attend to the same few texts, too: run such a model on each text once.
"""

from functools import cache

import pytest

from attnviz.analyses.survey import corpus
from attnviz.attribution import reference
from attnviz.models.checkpoint import load_checkpoint
from attnviz.models.named import NAMED
from attnviz.pipeline import attend

_load = cache(load_checkpoint)
_done = {}  # by module, of the models that were read once


def load_once(source=None, **options):
    """Return a model by its name as it was read the first time; others are loaded."""
    if (source is None or source in [*NAMED]) and all(
        value is None or isinstance(value, str) for value in options.values()
    ):
        found = _load(source, **options)
        _done.setdefault(found.module, {})
        return found
    return load_checkpoint(source, **options)


@pytest.fixture(autouse=True)
def one_model(monkeypatch):
    monkeypatch.setattr(attend, "load_checkpoint", load_once)


@pytest.fixture(autouse=True)
def one_run(monkeypatch):
    run = attend.run

    def run_once(checkpoint, inputs, options):
        done = _done.get(checkpoint.module)
        if done is None or inputs.pictures or inputs.sounds or inputs.arguments:
            return run(checkpoint, inputs, options)
        key = id(checkpoint.processors), checkpoint.special_tokens, repr((inputs, options))
        if key not in done:
            done[key] = checkpoint, run(checkpoint, inputs, options)
        return [*done[key][1]]

    for module in (attend, corpus, reference):
        monkeypatch.setattr(module, "run", run_once)
