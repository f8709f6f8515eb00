"""The figure of a worked example: every number in its cell, inconsistent numbers framed."""

import json
from collections import Counter

import pytest
from matplotlib.colors import same_color
from matplotlib.patches import Rectangle
from readable_text import LIGHT, check_layout

import attnviz

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


@pytest.mark.parametrize("width", [89, 183])
def test_nothing_overlaps(own, width):
    check_layout(attnviz.plot.example(own, width=width))


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
        ("does not follow", "wrong", LIGHT.claim),
        ("inherited", "inherited", LIGHT.gray),
        ("within rounding", "within rounding", LIGHT.cycle[2]),
    ):
        assert len(framed(figure, color)) == cells[state]
        legend = [text for text in figure.texts if same_color(text.get_color(), color)]
        marks = [text for text in legend if text.get_text() == "□"]
        assert len(marks) == bool(cells[state])
        assert (name in [text.get_text() for text in figure.texts]) == bool(marks)


def test_tokens_are_literal(own):
    figure = attnviz.plot.example(own)
    ticks = Counter(label.get_text() for ax in figure.axes for label in ax.get_yticklabels())
    assert ticks["$5"] == ticks["\\left"] > 5
    assert figure.texts[1].get_text() == OWN["title"]
