"""Examples load the same few models again and again: read each from the disk once.

They attend to the same few texts, too: run such a model on each text once.
"""

from functools import cache

import pytest
from one_run import Runs, share_runs

from attnviz.models import NAMED
from attnviz.models.checkpoint import load_checkpoint
from attnviz.pipeline import attend

_load, _runs = cache(load_checkpoint), Runs()


def load_once(source=None, **options):
    """Return a model by its name as it was read the first time; others are loaded."""
    if (source is None or source in [*NAMED]) and all(
        value is None or isinstance(value, str) for value in options.values()
    ):
        return _load(source, **options)
    return load_checkpoint(source, **options)


@pytest.fixture(autouse=True)
def one_model(monkeypatch):
    monkeypatch.setattr(attend, "load_checkpoint", load_once)


@pytest.fixture(autouse=True)
def one_run(monkeypatch):
    share_runs(monkeypatch, _runs)
