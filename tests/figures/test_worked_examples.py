"""The figure of a worked example: every number in its cell, inconsistent numbers framed."""

import json
from collections import Counter

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import same_color
from matplotlib.patches import Rectangle

import attnviz
from attnviz.errors import InputError
from attnviz.figures.style import LIGHT
from figures.test_layout import check_layout

OWN = {
    "title": "pay $5: one head, _causal_",
    "tokens": ["$5", "train_", "\\left"],
    "X": [[1.0, 0.5, 0.2, 0.1], [0.9, 1.1, 0.1, -0.4], [0.1, 0.2, 1.0, 0.5]],
    "W_q": [[1, 0], [0, 1], [1, 0], [0, 1]],
    "W_k": [[1, 0], [0, 1], [0, 1], [1, 0]],
    "W_v": [[1, 0], [0, 1], [1, 1], [0, 1]],
    "mask": "causal",
    "printed": {"weights": [[1, 0, 0], [0.43, 0.57, 0], [0.33, 0.38, 0.29]]},
}
WRONG_SCORES = "2 wrong, 13 inherit errors"
NAMES = ["cat", "likes", "phones", "own"]


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.json"
    path.write_text(json.dumps(OWN), encoding="utf-8")
    return attnviz.example(file=path)


@pytest.fixture
def worked(request, own):
    return own if request.param == "own" else attnviz.example(request.param)


def framed(figure, color):
    return [
        patch
        for patch in figure.findobj(Rectangle)
        if same_color(patch.get_edgecolor(), color) and not patch.get_fill()
    ]


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("width", [89, 183])
@pytest.mark.parametrize("worked", NAMES, indirect=True)
def test_nothing_overlaps(worked, width):
    check_layout(attnviz.plot.example(worked, width=width))


def test_a_wide_matrix_has_no_numbers_in_its_cells(tmp_path):
    size = 30
    path = tmp_path / "wide.json"
    matrix = [[(i * j) % 7 / 10 for j in range(size)] for i in range(size)]
    path.write_text(json.dumps({"Q": matrix, "K": matrix}), encoding="utf-8")
    figure = attnviz.plot.example(attnviz.example(file=path), width=89)
    check_layout(figure)
    assert not any(ax.texts for ax in figure.axes)


@pytest.mark.parametrize("worked", NAMES, indirect=True)
def test_frames_have_the_color_of_the_state_of_their_cell(worked):
    figure = attnviz.plot.example(worked)
    cells = Counter()
    for stage in worked.stages:
        follows, linked = stage.from_inputs_follows, stage.from_printed_follows
        if follows is None:
            continue
        nearest = follows if linked is None else linked
        cells["does not follow"] += int((~nearest).sum())
        if linked is not None:
            cells["inherited"] += int((linked & ~follows).sum())
            cells["within rounding"] += int((linked & follows & ~stage.from_printed_exactly).sum())
    for state, name, color in (
        ("does not follow", "wrong: an error begins here", LIGHT.claim),
        ("inherited", "inherits an error", LIGHT.gray),
        ("within rounding", "within rounding", LIGHT.cycle[2]),
    ):
        assert len(framed(figure, color)) == cells[state]
        legend = [text for text in figure.texts if same_color(text.get_color(), color)]
        marks = [text for text in legend if text.get_text() == "□"]
        assert len(marks) == bool(cells[state])
        assert (name in [text.get_text() for text in figure.texts]) == bool(marks)


def test_each_printed_number_stands_in_its_cell():
    figure = attnviz.plot.example("likes")
    given, printed, ours = ([text.get_text() for text in ax.texts] for ax in figure.axes)
    assert given == ["0.9", "0.1", "0.0", "0.2", "0.8", "0.1", "0.0", "0.3", "0.7"]
    assert printed == ["0.82", "0.15", "0.03", "0.17", "0.74", "0.09", "0.05", "0.25", "0.70"]
    assert ours[:3] == ["0.539", "0.242", "0.219"]


def test_stages_stand_in_order_with_formula_shape_and_counts():
    figure = attnviz.plot.example("phones")
    texts = [text.get_text() for text in figure.texts]
    titles = ["1 Queries Q", "2 Keys K", "3 Values V", "4 Scores", "5 Scaled scores"]
    titles += ["6 Weights W", "7 Attention vectors A", "8 All heads, side by side"]
    assert [text for text in texts if text in titles] == titles
    assert "QKᵀ / √2" in texts
    title = "The example has 15 errors in its keys, values and scores, and 45 inherited ones"
    assert texts[0] == title
    assert [text for text in texts if "wrong" in text][1:] == ["7 wrong", "6 wrong", WRONG_SCORES]
    assert texts.count("all follow") == 1
    assert "from printed V and weights" in texts
    assert "matrices of the second head are not given" in " ".join(texts)
    caption = " ".join(texts[-2:])
    assert "12 of 72 printed cells follow from the inputs" in caption
    assert "Slips: K, V, scores." in caption
    assert "Own code in float64, no model." in caption


def test_printed_and_computed_cells_are_in_one_row():
    figure = attnviz.plot.example("likes", width=120)
    figure.draw_without_rendering()
    boxes = [ax.get_position() for ax in figure.axes]
    assert len({(round(box.y0, 6), round(box.y1, 6), round(box.width, 6)) for box in boxes}) == 1
    texts = [text.get_text() for text in figure.texts]
    assert texts[0] == "None of the example's 9 weights follows from its scores"
    assert [text for text in texts if text in ("printed", "computed")] == ["printed", "computed"]


def test_unchecked_cells_have_a_number_and_no_color():
    axes = attnviz.plot.example("phones").axes
    blank = [np.isnan(np.ma.filled(ax.collections[0].get_array(), np.nan)) for ax in axes]
    (printed,) = (ax for ax, cells in zip(axes, blank, strict=True) if cells.any())
    assert sum(int(cells.sum()) for cells in blank) == 8
    texts = [text.get_text() for text in printed.texts]
    assert texts[:4] == ["1.128", "1.034", "0.99", "1.03"]  # each with its own digits


def test_tokens_are_literal(own):
    figure = attnviz.plot.example(own)
    ticks = Counter(label.get_text() for ax in figure.axes for label in ax.get_yticklabels())
    assert ticks["$5"] == ticks["\\left"] > 5
    assert figure.texts[1].get_text() == OWN["title"]


def test_it_has_the_requested_width_and_keeps_the_style():
    before = dict(plt.rcParams)
    assert attnviz.plot.example("cat", width=89).get_size_inches()[0] == pytest.approx(89 / 25.4)
    assert dict(plt.rcParams) == before


def test_an_unknown_name_or_width_is_refused():
    with pytest.raises(InputError, match="Did you mean phones"):
        attnviz.plot.example("phone")
    with pytest.raises(InputError, match="The width must be 40 to 2000 mm, not 10"):
        attnviz.plot.example("cat", width=10)
