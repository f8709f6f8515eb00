"""What the calls share: runs of tiny models on the same texts, and the process that loads torch."""

from functools import cache

import pytest
from one_ruler import one_ruler  # noqa: F401

from attnviz.analyses.doctor import compute
from attnviz.analyses.survey import corpus
from attnviz.attribution import reference


@pytest.fixture(scope="package", autouse=True)
def _each_run_once():
    """Run a model once on the same texts, and load torch once for `doctor`."""
    done, run = {}, corpus.run

    def run_once(checkpoint, inputs, options):
        if inputs.pictures or inputs.sounds or inputs.arguments:
            return run(checkpoint, inputs, options)
        key = checkpoint, repr((inputs, options))
        if key not in done:
            done[key] = run(checkpoint, inputs, options)
        return [*done[key]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "run", run_once)
        patch.setattr(reference, "run", run_once)
        patch.setattr(compute, "_load_torch", cache(compute._load_torch))
        yield
