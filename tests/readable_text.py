"""Check that all text on a figure is readable, and what its colors and sizes are."""

import itertools
import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.text import Text

from attnviz.figures.style import (  # noqa: F401
    DARK,
    IMAGE_COLORS,
    LIGHT,
    LUMINANCE,
    SMALL_SIZE,
    TEXT_SIZE,
    theme,
)


def visible_texts(figure):
    """Return (text, bounding box) for all visible text, after drawing."""
    figure.draw_without_rendering()
    hidden = {label for axes in figure.findobj(Axes) for label in labels_not_drawn(axes)}
    return [
        (text, text.get_window_extent())
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and text not in hidden
    ]


def labels_not_drawn(axes):
    """Yield tick labels outside the limits, or of axes that are off."""
    for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        for tick in axis.get_major_ticks():
            if not (axes.axison and min(limits) <= tick.get_loc() <= max(limits)):
                yield from (tick.label1, tick.label2)


def overlap(box, other, points):
    """Return whether two boxes overlap by more than the blank margin of a font box."""
    rim = 0.12 * points
    return (
        min(box.x1, other.x1) - max(box.x0, other.x0) > rim
        and min(box.y1, other.y1) - max(box.y0, other.y0) > rim
    )


def check_texts(figure):
    """Assert that no text leaves the page or covers another; return the texts."""
    texts = visible_texts(figure)
    page = figure.bbox
    for text, box in texts:
        assert box.x0 >= page.x0 - 1, f"{text.get_text()!r} leaves the page on the left"
        assert box.x1 <= page.x1 + 1, f"{text.get_text()!r} leaves the page on the right"
        assert box.y0 >= page.y0 - 1, f"{text.get_text()!r} leaves the page at the bottom"
        assert box.y1 <= page.y1 + 1, f"{text.get_text()!r} leaves the page at the top"
    pixels = figure.dpi / 72
    corners = np.array([box.extents for _, box in texts]).reshape(-1, 2, 2)
    low, high = corners[:, 0], corners[:, 1]
    near = (np.minimum(high[:, None], high) > np.maximum(low[:, None], low)).all(-1)
    slanted = np.array([text.get_rotation() == 45 for text, _ in texts], bool)
    for a, b in np.argwhere(np.triu(near | (slanted[:, None] & slanted), 1)):
        (text_a, box), (text_b, other_box) = texts[a], texts[b]
        if text_a.get_rotation() == text_b.get_rotation() == 45:
            distance = math.dist((box.x1, box.y1), (other_box.x1, other_box.y1)) / math.sqrt(2)
            assert distance >= 0.95 * text_a.get_fontsize() * pixels, (
                text_a.get_text(),
                text_b.get_text(),
            )
            continue
        points = min(text_a.get_fontsize(), text_b.get_fontsize()) * pixels
        assert not overlap(box, other_box, points), (text_a.get_text(), text_b.get_text())
    return texts


def check_layout(figure):
    """Assert the same, and that no axes cover other axes or a text beside them."""
    texts, pixels = check_texts(figure), figure.dpi / 72
    canvases = [axes for axes in figure.axes if not axes.axison and not axes.images]  # of arcs
    for axes in (axes for axes in figure.axes if axes not in canvases):
        area, inside = axes.get_window_extent(), {*axes.texts}
        for text, box in texts:
            covers = text not in inside and overlap(box, area, text.get_fontsize() * pixels)
            assert not covers, f"{text.get_text()!r} covers a map"
    for one, other in itertools.combinations(figure.axes, 2):
        assert not overlap(one.get_window_extent(), other.get_window_extent(), 0)


def labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def page_text(figure):
    return " ".join(text.get_text() for text in figure.texts)
