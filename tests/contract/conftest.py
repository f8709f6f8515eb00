"""What the calls share: runs of tiny models on the same texts, and the process that loads torch."""

from functools import cache

import pytest
from one_run import Runs

from attnviz.analyses.doctor import compute
from attnviz.analyses.survey import corpus
from attnviz.attribution import reference


@pytest.fixture(scope="package", autouse=True)
def _each_run_once():
    """Run a model once on the same texts, and load torch once for `doctor`."""
    with pytest.MonkeyPatch.context() as patch:
        runs = Runs()
        for module in (corpus, reference):
            patch.setattr(module, "run", runs)
        patch.setattr(compute, "_load_torch", cache(compute._load_torch))
        yield
