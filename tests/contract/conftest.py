"""What the calls share: runs of tiny models on the same texts, and the process that loads torch.

The common words of a vocabulary are found once, too.
"""

from functools import cache

import pytest
from one_run import Runs, corpus, reference, share_runs

from attnviz.analyses import doctor


@pytest.fixture(scope="package", autouse=True)
def _each_run_once():
    """Run a model once on the same texts, and load torch once for `doctor`."""
    with pytest.MonkeyPatch.context() as patch:
        share_runs(patch, Runs(), (corpus, reference))
        patch.setattr(doctor, "_tried", cache(doctor._tried))
        yield
