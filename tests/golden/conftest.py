"""What the goldens share: the runs of one model."""

import pytest
from one_run import Runs

from attnviz.pipeline import attend


@pytest.fixture(scope="package", autouse=True)
def _each_run_once():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attend, "run", Runs())
        yield
