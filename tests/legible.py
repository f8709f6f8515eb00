"""Whether all that is written on a figure can be read."""

import itertools
import math

from matplotlib.axes import Axes
from matplotlib.text import Text


def visible_texts(figure):
    """Return (text, its box) for all that is written, after drawing."""
    figure.canvas.draw()
    hidden = {label for axes in figure.findobj(Axes) for label in labels_not_drawn(axes)}
    return [
        (text, text.get_window_extent())
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and text not in hidden
    ]


def labels_not_drawn(axes):
    """Yield the labels of ticks outside of the limits, or of an axis that is off."""
    for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        for tick in axis.get_major_ticks():
            if not (axes.axison and min(limits) <= tick.get_loc() <= max(limits)):
                yield from (tick.label1, tick.label2)


def overlap(one, other, points):
    """Return whether two boxes share more than the blank rim that every font box has."""
    rim = 0.12 * points
    return (
        min(one.x1, other.x1) - max(one.x0, other.x0) > rim
        and min(one.y1, other.y1) - max(one.y0, other.y0) > rim
    )


def check_texts(figure):
    """Assert that no text leaves the page and none covers another; return the texts."""
    texts = visible_texts(figure)
    page = figure.bbox
    for text, box in texts:
        assert box.x0 >= page.x0 - 1, f"{text.get_text()!r} leaves the page on the left"
        assert box.x1 <= page.x1 + 1, f"{text.get_text()!r} leaves the page on the right"
        assert box.y0 >= page.y0 - 1, f"{text.get_text()!r} leaves the page at the bottom"
        assert box.y1 <= page.y1 + 1, f"{text.get_text()!r} leaves the page at the top"
    pixels = figure.dpi / 72
    for (one, box), (other, other_box) in itertools.combinations(texts, 2):
        if one.get_rotation() == other.get_rotation() == 45:
            apart = math.dist((box.x1, box.y1), (other_box.x1, other_box.y1)) / math.sqrt(2)
            assert apart >= 0.95 * one.get_fontsize() * pixels, (one.get_text(), other.get_text())
            continue
        points = min(one.get_fontsize(), other.get_fontsize()) * pixels
        assert not overlap(box, other_box, points), (one.get_text(), other.get_text())
    return texts
