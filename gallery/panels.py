"""Panels beside each other at two columns of a journal (183 mm), stacked at one (89 mm)."""

import textwrap

import matplotlib.pyplot as plt

from attnviz.figures.style import LIGHT

CLAIM = LIGHT.claim  # the red of what a title says
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
