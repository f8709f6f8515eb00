"""`heatmap` in figures of the user, with their scale and colors; several heads side by side."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import LogNorm

import attnviz


def test_one_scale_for_several_axes(train):
    _, axes = plt.subplots(1, 2, layout="constrained")
    for head, ax in enumerate(axes):
        attnviz.plot.heatmap(train, layer=1, head=head, ax=ax, vmin=0.1, vmax=0.9)
        (mesh,) = ax.collections  # special tokens too
        assert (mesh.norm.vmin, mesh.norm.vmax) == (0.1, 0.9)
        np.testing.assert_array_equal(mesh.get_array(), train.weights(1, head))


def test_only_one_end_of_the_scale(train):
    ax = attnviz.plot.heatmap(train, layer=1, head=0, vmin=0.05)
    assert ax.collections[0].norm.vmax == pytest.approx(train.weights(1, 0).max().item())


def test_norm_and_colors_reach_cells_numbers_and_bar(train):
    ax = attnviz.plot.heatmap(train, layer=1, head=0, norm=LogNorm(1e-3, 1), cmap="magma")
    (mesh,) = ax.collections
    assert isinstance(mesh.norm, LogNorm)
    assert mesh.cmap.name == "magma"
    for text in ax.texts:
        x, y = (int(place) for place in text.get_position())
        red, green, blue, _ = mesh.to_rgba(mesh.get_array()[y, x])
        is_dark = 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.45
        assert (text.get_color() == "white") == is_dark
    assert mesh.get_edgecolor() is not None


def test_numbers_bar_and_title_are_optional(train):
    ax = attnviz.plot.heatmap(train, layer=1, head=0, annot=False, cbar=False, title="mine")
    assert len(ax.texts) == 0
    assert ax.figure.axes[0] is ax
    assert "train" in [text.get_text() for text in ax.get_xticklabels()]
    said = [text.get_text() for text in ax.figure.texts]
    assert said[0] == "mine"
    assert any(line.startswith("Layer 1, head 0.") for line in said)
    figure, (left, right) = plt.subplots(1, 2)
    attnviz.plot.heatmap(train, layer=1, head=0, ax=left, cbar_ax=right, title="mine", annot=True)
    assert figure.axes == [left, right]
    assert left.get_title(loc="left") == "mine"
    assert left.get_title(loc="center") == ""
    assert len(left.texts) > 9


def test_other_arguments_reach_pcolormesh(train):
    ax = attnviz.plot.heatmap(train, layer=1, head=0, edgecolors="red", linewidth=2.0)
    for mesh in ax.collections:
        assert mesh.get_linewidth() == [2.0]
        assert mpl.colors.to_hex(mesh.get_edgecolor()[0]) == "#ff0000"
