"""Panels beside each other at two columns of a journal (183 mm), stacked at one (89 mm)."""

import textwrap

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.colors import LinearSegmentedColormap, LogNorm

from attnviz.figures.style import LIGHT
from attnviz.results.text import fraction

CLAIM = LIGHT.claim  # the red of what a title says
GRAY, FAINT = LIGHT.gray, LIGHT.faint  # what a title does not speak of, and what stands behind
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
    """Write names into axes, each at a place and in a color: (x, y, name, color). Red is bold."""
    for x, y, name, color in names:
        bold = {"weight": "bold"} if color == CLAIM else {}
        ax.text(x, y, name, color=color, **bold | look)


def from_here(ax, at, height):
    """Mark where that begins which the title says, at a height from 0 to 1."""
    ax.axvline(at, color=CLAIM, lw=0.8, zorder=1)
    look = {"color": CLAIM, "weight": "bold", "size": 6, "va": "center"}
    ax.text(at, height, " from here on", transform=ax.get_xaxis_transform(), **look)


def bracket(ax, x, low, high, name, color=CLAIM, **look):
    """Mark what lies between two numbers, with its name to the right."""
    ends = {"arrowstyle": "|-|, widthA=.3, widthB=.3", "shrinkA": 0, "shrinkB": 0, "color": color}
    ax.annotate("", (x, low), (x, high), arrowprops=ends, annotation_clip=False)
    middle = (low * high) ** 0.5 if ax.get_yscale() == "log" else (low + high) / 2
    look = {"color": color, "weight": "bold", "va": "center", "annotation_clip": False} | look
    ax.annotate(name, (x, middle), (6, 0), textcoords="offset points", **look)


def point(ax, at, start, name):
    """Write in red what a place is, with a line up to its name."""
    ax.plot([at[0]] * 2, [at[1], start[1]], color=CLAIM, lw=0.8)
    ax.text(*start, name, color=CLAIM, weight="bold", size=6, va="bottom")


def name_axes(ax, title, x, y, **look):
    """Write a panel's title and the names of its axes; logarithmic ones have plain numbers."""
    ax.set(title=title, xlabel=x, ylabel=y, **look)
    plain_numbers(*(axis for axis in (ax.xaxis, ax.yaxis) if axis.get_scale() == "log"))


def percents(ax):
    """Write shares beside the logarithmic y axis as percentages."""
    ax.yaxis.set_major_formatter(lambda y, _: f"{100 * y:g}%")
    ax.minorticks_off()


def counts(ax, title, names, some, whole):
    """Draw how many of how many each has, in red: what the title sums up."""
    ax.barh(names, whole, 0.6, color=FAINT)
    ax.barh(names, some, 0.6, color=CLAIM)
    for y, (n, of) in enumerate(zip(some, whole, strict=True)):
        ax.text(of, y, f"  {n} of {of}", color=CLAIM, weight="bold", size=6, va="center")
    ax.set(title=title, ylim=(len(names) - 0.5, -0.5), xticks=[])
    bare(ax)


def stacked_bars(ax, parts, colors):
    """Draw percentages side by side, a bar for each row, with names above and sums at the ends."""
    end = 0 * sum(parts.values())
    for (name, values), color in zip(parts.items(), colors, strict=True):
        bars = ax.barh(range(len(values)), values, 0.7, end, color=color)
        ax.text(end[0], -0.5, name, color=color, size=6, weight="bold")
        end = end + values
    ax.bar_label(bars, [f"{one:.0f}%" for one in end], padding=2, size=6)


def bare(*axes):
    """Draw no frame and no ticks."""
    for ax in axes:
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)


def gray_map(ax, shares, **names):
    """Draw shares that say nothing about words: in grays, from 0 to 100%, with their numbers."""
    sns.heatmap(100 * shares, annot=True, cmap="Greys", vmin=0, vmax=100, cbar=False, ax=ax)
    for number, share in zip(ax.texts, shares.flat, strict=True):
        number.set_color("white" if share > 0.6 else LIGHT.ink)
    ax.tick_params(axis="y", rotation=0)
    ax.set(**names)


def frame_cells(ax, cells, high=1):
    """Frame what the title says: cells of a map, each by its row and column."""
    for row, column in cells:
        look = {"ec": CLAIM, "fill": False, "lw": 1.2, "clip_on": False, "zorder": 4}
        ax.add_patch(plt.Rectangle((column, row), 1, high, **look))


def signed_map(ax, matrix, labels, claimed, **names):
    """Draw weights as shares of the sizes of their row, on one scale; frame the claimed cells."""
    shares = matrix / abs(matrix).sum(-1, keepdims=True)
    mesh = sns.heatmap(
        shares, cmap=LIGHT.values, vmin=-1, vmax=1, cbar=False, ax=ax, mask=shares == 0,
        xticklabels=labels, yticklabels=labels, square=True,
    ).collections[0]  # fmt: skip
    size = len(matrix)  # later tokens, which are hidden: a staircase
    later = [(n + 1, n + k) for n in range(size) for k in (0, 1)]
    look = {"fc": "none", "ec": "0.85", "hatch": "/////", "lw": 0}
    ax.add_patch(plt.Polygon([*later, (size, 0)], **look))
    frame_cells(ax, claimed)
    ax.tick_params(length=0, rotation=0)
    ax.set(**names)
    return mesh


def maps_with_claim(figure, axes, maps, claimed, low, side, label):
    """Draw maps of weights, a logarithmic scale from `low` to 1, with the claimed cells in red."""
    reds = LinearSegmentedColormap.from_list("claim", ["white", CLAIM, "#4a0410"])
    look = {"norm": LogNorm(low, 1, clip=True), "extent": (0, side, side, 0), "aspect": "auto"}
    for ax, weights in zip(axes, maps, strict=True):
        red = ax.imshow(np.where(claimed, weights, np.nan), cmap=reds, **look)
        blue = ax.imshow(np.where(claimed, np.nan, weights), cmap=LIGHT.weights, **look)
    bar = {"ax": axes, "pad": 0.01, "aspect": 40}
    figure.colorbar(red, format="{x:.0%}", label=label, **bar)
    figure.colorbar(blue, **bar).ax.tick_params(which="both", right=False, labelright=False)


def frame_words(above, ax, words, begins, ends, inside):
    """Frame in red where words are spoken, and write how much of the weight of a row is there."""
    look = {"align": "edge", "fc": "none", "ec": CLAIM, "clip_on": False}
    above.bar(begins, 1.2, ends - begins, -0.6, **look)
    ax.bar(begins, 1, ends - begins, np.arange(len(words)) - 0.5, **look)
    for row, (word, begin, share) in enumerate(zip(words, begins, inside, strict=True)):
        above.text(begin, 0.72, word)
        write(ax, (ends[-1], row, f"  {share:.0%}", CLAIM), va="center")
    above.axis("off")
    write(above, (ends[-1], 0, "  in the\n  frame", CLAIM), va="center")


def bar_below(axes, cells, label):
    """Draw a color bar of shares below axes."""
    look = {"location": "bottom", "aspect": 40, "pad": 0.02, "format": "{x:.0%}"}
    axes[0].figure.colorbar(cells, ax=axes, label=label, **look)


def arrow(ax, x, start, end, name):
    """Draw an arrow up or down, and by how much: what the title says is different."""
    look = {"arrowstyle": "->", "color": CLAIM, "shrinkA": 2, "shrinkB": 0}
    ax.annotate("", (x, end), (x, start), arrowprops=look)
    name = f"  {name} {'+' * bool(end > start)}{fraction(float(end - start))}"
    ax.text(x, (start + end) / 2, name, color=CLAIM, weight="bold", va="center")


def path(ax, y, low, high, color, x=None, **look):
    """Draw a line with its intervals."""
    x = range(len(y)) if x is None else x
    ax.fill_between(x, low, high, color=color, alpha=0.15, lw=0)
    ax.plot(x, y, color=color, clip_on=False, **look)


def shares(*axes):
    """Let axes go up from 0 to 100%."""
    for ax in axes:
        ax.set_ylim(0, 1)
        ax.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")


def plain_numbers(*axes):
    """Write numbers beside an axis as they are, not as powers."""
    for axis in axes:
        axis.set_major_formatter("{x:g}")
