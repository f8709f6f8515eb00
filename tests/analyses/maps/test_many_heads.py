"""Overviews of models with more heads than a figure has room for maps."""

import itertools
from collections import Counter
from dataclasses import replace

import matplotlib.pyplot as plt
import pytest
import torch
from figures.sentences.maps import rules_of
from matplotlib.colors import to_hex
from matplotlib.text import Text
from rich.console import Console

import attnviz
from attnviz.analyses.maps.plot import SelectedMap, draw_heatmap

WORDS = ("He", "walked", "to", "the", "river", "and", "sat", "down")
LLAMA = 80, 64  # layers and heads of Llama-70B


@pytest.fixture(scope="module")
def maps(model):
    """Return maps of 80 × 64 heads, of which four are known."""
    drawn = attnviz.head_maps(attnviz.attend("the train left the station", model=model))
    T = len(WORDS)
    masked = torch.ones(T, T).triu(1).bool()
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(*LLAMA, T, T, generator=generator)
    weights = scores.masked_fill(masked, -torch.inf).softmax(-1)
    weights[2, 3] = torch.eye(T)
    weights[2, 4] = torch.eye(T).roll(1, 0)
    weights[2, 4, 0] = torch.eye(T)[0]
    weights[2, 5] = torch.eye(T)[0]
    side = replace(drawn.sides[0])
    return replace(
        drawn,
        weights=weights,
        rows=WORDS,
        columns=WORDS,
        layers=tuple(range(LLAMA[0])),
        special_rows=(False,) * T,
        special_columns=(False,) * T,
        masked=masked,
        starts_with_sink=True,
        sides=(side, side),
    )


def colors_of_key(figure):
    """Return the color of the square before each name of a key."""
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    return {
        name.get_text(): to_hex(mark.get_color())
        for mark, name in itertools.pairwise(texts)
        if mark.get_text() == "■"
    }


@pytest.mark.parametrize("width", [89, 183])
def test_5120_heads_fit_a_page_and_the_map_keeps_half_of_it(maps, width):
    figure = attnviz.plot.heads(maps, width=width)
    assert figure.get_size_inches()[1] <= 247 / 25.4
    cells = figure.axes[0].images[0].get_array()
    assert cells.shape == (LLAMA[1], LLAMA[0], 3)
    assert (cells[5, 2] < cells[0, 2].max()).all(), "the head on the first word is dark gray"
    key = colors_of_key(figure)
    for head, name in ((4, "previous (2)"), (5, "first word (1)"), (3, "itself (1)")):
        assert to_hex(cells[head, 2]) == key[name]  # all of its attention goes there
    drawn = attnviz.attention_map(
        attnviz.from_weights(maps.weights[0, :1, None].transpose(0, 1), tokens=list(WORDS)),
        layer=0,
        head=0,
    )
    drawn = replace(drawn, provenance=maps.provenance, stack=maps.stack)
    page = draw_heatmap(SelectedMap(drawn, overview=maps), width=width).figure
    of_map, summary = page.axes[0].get_position(), page.axes[-1].get_position()
    assert of_map.width * of_map.height > summary.width * summary.height
    assert page.get_size_inches()[1] <= 247 / 25.4
    plt.close("all")


def test_fewer_heads_keep_their_maps(maps):
    few = replace(maps, weights=maps.weights[:20, :10], layers=tuple(range(20)))
    (mosaic, *_) = attnviz.plot.heads(few).axes
    assert len(mosaic.collections[0].get_paths()) == 200
    assert mosaic.get_xlabel() == "layer"


def test_a_terminal_says_how_to_see_the_maps_of_all_heads(maps, model):
    """The caption of the figure, which may be printed, does not."""
    console = Console(width=200)
    hint = "; name a layer to see the maps of all its heads"
    with console.capture() as many:
        console.print(maps)
    assert many.get().rstrip().endswith(f"80 × 64 heads, 8 × 8 weights each{hint}")
    with console.capture() as few:
        console.print(attnviz.head_maps(attnviz.attend("the train left", model=model)))
    assert few.get().rstrip().endswith("weights each")
    figure = attnviz.plot.heads(maps)
    assert "name a layer" not in " ".join(text.get_text() for text in figure.texts).lower()
    plt.close(figure)


@pytest.mark.parametrize("width", [89, 183])
def test_tiles_too_small_for_a_word_have_the_color_of_their_family(train, width):
    figure = attnviz.plot.heatmap(train, layer=0, head=2, overview=True, width=width).figure
    (ax,) = (one for one in figure.axes if one.get_xlabel() == "head")
    _, marks = ax.collections
    corners = [mark.get_extents().min for mark in marks.get_paths()]
    colors = map(to_hex, marks.get_facecolors())
    marked = {(int(y), int(x)): color for (x, y), color in zip(corners, colors, strict=True)}
    maps = attnviz.head_maps(train)
    families = {divmod(n, 12): one[0] for n, one in enumerate(rules_of(maps, maps.weights)) if one}
    key = colors_of_key(figure)
    named = {name: f"{name} ({n})" for name, n in Counter(families.values()).items()}
    assert marked == {head: key[named[name]] for head, name in families.items()}
