"""Figures in figures of others: layout engines, parts, sizes of text, words of seaborn."""

import itertools

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import seaborn as sns
from golden.saved_results import SAVED
from matplotlib.text import Text
from readable_text import check_layout, check_texts

import attnviz


@pytest.fixture(params=[None, "tight", "constrained", "tight_layout", "facets"])
def three(request):
    """Three axes of a figure, and what places them when all is drawn."""
    if request.param == "facets":
        grid = sns.FacetGrid(pd.DataFrame({"head": [0, 1, 2]}), col="head")
        grid.set_titles("")
        return grid.axes.ravel(), grid.tight_layout
    engine = None if request.param == "tight_layout" else request.param
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), layout=engine)
    return axes, figure.tight_layout if request.param == "tight_layout" else figure.canvas.draw


@pytest.mark.filterwarnings("error:This figure includes Axes")
def test_no_engine_lays_anything_on_something_else(train, three):
    axes, place = three
    for ax, (layer, head) in zip(axes, [(0, 1), (0, 4), (1, 8)], strict=True):
        attnviz.plot.heatmap(train, layer=layer, head=head, ax=ax)
    place()
    figure = axes[0].figure
    figure.canvas.draw()
    check_texts(figure)
    boxes = [ax.get_tightbbox() for ax in figure.axes]
    pairs = itertools.combinations(boxes, 2)
    assert not any(one.padded(-2).overlaps(other.padded(-2)) for one, other in pairs)
    for ax, bar in zip(axes, figure.axes[3:], strict=True):  # as tall as its map
        assert bar.get_window_extent().height == pytest.approx(ax.get_window_extent().height)


def test_pages_fill_parts_of_a_figure(train):
    whole = plt.figure(figsize=(12, 3))
    left, right = whole.subfigures(1, 2)
    assert attnviz.plot.heads(train, figure=left) is left
    assert attnviz.plot.steps(train, layer=0, head=1, figure=right) is right
    whole.canvas.draw()
    check_texts(whole)
    assert whole.get_size_inches()[1] > 6  # the steps are taller than 3 inches
    alone = attnviz.plot.heads(train, width=left.bbox.width / left.dpi * 25.4)
    for one, other in zip(left.axes, alone.axes, strict=True):
        sizes = [ax.get_window_extent().size / ax.figure.dpi for ax in (one, other)]
        assert sizes[0] == pytest.approx(sizes[1], abs=0.01)
    assert left.get_label() == alone.get_label()


@pytest.mark.parametrize("width", [3.4, 12])
@pytest.mark.parametrize("name", ["senses", "shift", "ablate"])
def test_what_is_computed_fills_a_figure_too(name, width):
    result = attnviz.load_result(SAVED / f"{name}.safetensors")
    figure = plt.figure(figsize=(width, 4))
    assert getattr(attnviz.plot, name)(result, figure=figure) is figure
    figure.canvas.draw()
    check_layout(figure)


def test_a_figure_has_a_width_of_its_own(train):
    figure = plt.figure(figsize=(4, 1))
    assert attnviz.plot.heads(train, figure=figure) is figure
    assert figure.get_size_inches()[0] == pytest.approx(4)
    with pytest.raises(attnviz.InputError, match="figure has its own width"):
        attnviz.plot.heads(train, figure=figure, width=89)


@pytest.mark.parametrize("context", ["talk", "poster"])
def test_text_follows_the_context(train, context):
    """All sizes of a page grow alike, whether seaborn sets the context or attnviz."""
    plain = attnviz.plot.heads(train, layer=1)
    with sns.plotting_context(context):
        scale = mpl.rcParams["font.size"] / 10
        larger = attnviz.plot.heads(train, layer=1, width=183 * scale)
        ax = attnviz.plot.heatmap(
            train, layer=0, head=4, ax=plt.figure(figsize=(9, 8)).add_subplot()
        )
    for one, other in zip(plain.findobj(mpl.text.Text), larger.findobj(mpl.text.Text), strict=True):
        assert other.get_text() == one.get_text()
        assert other.get_fontsize() == pytest.approx(scale * one.get_fontsize())
    assert larger.get_size_inches() == pytest.approx(scale * plain.get_size_inches(), rel=1e-3)
    assert {text.get_fontsize() for text in ax.get_xticklabels()} == {7 * scale}
    check_texts(larger)
    check_texts(ax.figure)
    with attnviz.plot.style(context=context, scale=2):
        assert mpl.rcParams["font.size"] == 7 * {"talk": 1.875, "poster": 2.5}[context] * 2


def test_a_figure_without_its_caption_keeps_it_as_its_label(train):
    figure = attnviz.plot.heads(train, caption="none")
    full = attnviz.plot.heads(train, caption="full")
    said = " ".join(text.get_text() for text in figure.texts)
    assert "erified" not in said
    assert figure.get_label() == full.get_label()
    assert "output of the model as loaded" in figure.get_label()


def test_the_words_of_seaborn(train):
    how = {"layer": 0, "head": 4, "annot": True}
    ax = attnviz.plot.heatmap(train, **how, fmt=".1%", annot_kws={"size": 4}, square=True)
    assert f"{train.weights(0, 4)[0, 0]:.1%}" in [text.get_text() for text in ax.texts]
    assert {text.get_fontsize() for text in ax.texts} == {4}
    figure, ax = plt.subplots()
    attnviz.plot.heatmap(train, ax=ax, **how, cbar_kws={"label": "share"})
    assert figure.axes[1].get_ylabel() == "share"
    figure = attnviz.plot.heatmap(train, layer=0, head=4, figsize=(4, 4)).figure
    assert figure.get_size_inches()[0] == pytest.approx(4)


@pytest.mark.parametrize("fmt", ["zz", "d", ".2q"])
def test_a_format_of_no_weight_is_refused(train, fmt):
    said = rf'^fmt=\W{fmt}\W formats no weight\. Write .*"\.0%"'
    with pytest.raises(attnviz.InputError, match=said):
        attnviz.plot.heatmap(train, layer=0, head=4, annot=True, fmt=fmt)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("mask", 'special="hide"'),
        ("center", "TwoSlopeNorm"),
        ("robust", "vmax="),
        ("xticklabels", "Set other labels on the axes"),
        ("layers", "Use layer="),
        ("figure", "give ax="),
        ("cbar_axes", "Did you mean cbar_ax"),
    ],
)
def test_other_words_are_answered_by_name(train, word, hint):
    with pytest.raises(attnviz.InputError, match=hint):
        attnviz.plot.heatmap(train, **{word: True})


@pytest.mark.parametrize("width", [60, 90])
def test_a_figure_twice_as_large_is_the_same_picture(width):
    """Each text keeps its place beside lines and cells."""
    result = attnviz.attend("the train left the station on time")

    def places(scale):
        with attnviz.plot.style(scale=scale):
            options = {"layer": 2, "head": 8, "caption": "none", "width": width * scale}
            figure = attnviz.plot.heatmap(result, **options).figure
        figure.canvas.draw()
        texts = [one for one in figure.findobj(Text) if one.get_text() and one.get_visible()]
        to_shares = figure.transFigure.inverted()
        return {
            (n, one.get_text()): to_shares.transform(one.get_window_extent()).mean(0)
            for n, one in enumerate(texts)
        }

    small, large = places(1), places(2)
    assert small.keys() == large.keys()
    for label, place in small.items():
        assert np.abs(place - large[label]).max() < 0.02, label  # widths are hinted
