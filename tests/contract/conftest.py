"""What the calls share: runs of tiny models on the same texts.

The common words of a vocabulary are found once, too. `doctor` runs no other model.
"""

import pytest
from one_run import Runs, corpus, reference, share_runs

from attnviz.analyses import doctor


@pytest.fixture(scope="package", autouse=True)
def _each_run_once():
    """Run a model once on the same texts, and none for `doctor`."""
    with pytest.MonkeyPatch.context() as patch:
        share_runs(patch, Runs(), (corpus, reference))
        patch.setattr(doctor, "_try_out", lambda: ({"cpu": "1 of 1 cores"}, "verified: all heads"))
        yield
