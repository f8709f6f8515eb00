"""The figures of the tests say much the same: measure each text once in each font."""

import matplotlib as mpl
import pytest

from attnviz.figures.layout import Ruler

_start, _widths = Ruler.__init__, {}


def start_with_known(ruler):
    """Start with the widths that were measured in the fonts of the style."""
    _start(ruler)
    fonts = tuple(mpl.rcParams["font.family"]), mpl.rcParams["figure.dpi"]
    ruler._widths = _widths.setdefault(fonts, {})


@pytest.fixture(scope="package", autouse=True)
def one_ruler():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ruler, "__init__", start_with_known)
        yield
