"""What the goldens share: the widths of texts in figures, and the runs of one model."""

import pytest
from one_run import remember_runs

from attnviz.pipeline import attend


@pytest.fixture(scope="package", autouse=True)
def _each_run_once():
    with pytest.MonkeyPatch.context() as patch:
        remember_runs(patch, attend)
        yield
