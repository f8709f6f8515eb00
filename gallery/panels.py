"""Panels beside each other at two columns of a journal (183 mm), stacked at one (89 mm)."""

import textwrap

import matplotlib.pyplot as plt

from attnviz.figures.style import LIGHT

CLAIM = LIGHT.claim  # the red of what a title says
FIRST, SECOND = LIGHT.sides[:2]  # toward the first of two regions, and toward the second
WIDTH = 183


def panels(title, beside, stacked, **look):
    """Return a figure with a title, and its axes, sorted by letter.

    beside, stacked : the mosaic, the ratios of its columns and rows, and the height over the width.
    """
    mosaic, columns, rows, height = beside if WIDTH > 127 else stacked
    look |= {"width_ratios": columns, "height_ratios": rows, "layout": "constrained"}
    size = WIDTH / 25.4, height * WIDTH / 25.4
    figure, axes = plt.subplot_mosaic(mosaic, figsize=size, **look)
    rows = 1 + 2 * len(title) // WIDTH  # of equal length
    figure.suptitle(textwrap.fill(title, len(title) // rows + 6), x=0.01, ha="left")
    return figure, *(axes[letter] for letter in sorted(axes))


def write(ax, *names, **look):
    """Write names into axes, each at a place and in a color: (x, y, name, color)."""
    for x, y, name, color in names:
        ax.text(x, y, name, color=color, **look)


def from_here(ax, at, height):
    """Mark where that begins which the title says, at a height from 0 to 1."""
    ax.axvline(at, color=CLAIM, lw=0.8, zorder=1)
    look = {"color": CLAIM, "weight": "bold", "size": 6, "va": "center"}
    ax.text(at, height, " from here on", transform=ax.get_xaxis_transform(), **look)


def plain_numbers(*axes):
    """Write numbers beside an axis as they are, not as powers."""
    for axis in axes:
        axis.set_major_formatter("{x:g}")
