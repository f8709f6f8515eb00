"""The sentence above a map: words exactly above their columns, and arcs between the right ones."""

import itertools
import math
import re
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_hex
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from readable_text import LIGHT, check_texts

import attnviz
from attnviz.figures.arcs import sentences_of

CAPTAIN = (
    "The old captain who had sailed around the world told the young sailor that the storm would "
    "pass before the ship could reach the harbour where his sister waited with her three small "
    "children and a letter from their father"
)
SEVEN, TWENTY_FIVE, FORTY = (" ".join(CAPTAIN.split()[:count]) for count in (7, 25, 40))


@pytest.fixture(scope="module", params=(SEVEN, TWENTY_FIVE, FORTY), ids=(7, 25, 40))
def drawn(request, model):
    return attnviz.attention_map(model.attend(request.param), layer=1, head=6)


def above(ax):
    """Return the words above a map, in their order, and the number of the claim."""
    texts = ax.figure.axes[1].texts
    numbers = [text for text in texts if re.fullmatch(r"\d+%", text.get_text())]
    return ax.get_xticklabels(), numbers


def middles(ax):
    """Return where the words above a map are, in inches from the left."""
    boxes = [text.get_window_extent() for text in above(ax)[0]]
    return np.array([(box.x0 + box.x1) / 2 / ax.figure.dpi for box in boxes])


def arcs(ax, canvas=None):
    """Return the (start, end, color, width) of each arc, in inches of the page."""
    canvas = canvas or ax.figure.axes[1]
    curves = [patch for patch in canvas.patches if isinstance(patch, PathPatch)]
    return [
        (
            *curve.get_path().vertices[[0, -1], 0],
            to_hex(curve.get_edgecolor()),
            curve.get_linewidth(),
        )
        for curve in curves
    ]


def ends(ax, arc):
    """Return the words at which an arc begins and ends."""
    return tuple(int(abs(middles(ax) - x).argmin()) for x in arc[:2])


def claimed(ax):
    """Return the row and the column of the red frame."""
    (frame,) = [one for one in ax.patches if to_hex(one.get_edgecolor()) == LIGHT.claim]
    box = frame.get_path().get_extents()
    return int(box.y0), int(box.x0)


@pytest.mark.parametrize("width", [89, 183])
def test_the_claim_is_an_arc_a_frame_and_two_bold_words(drawn, width):
    if width == 89 and len(drawn.rows) > 33:
        pytest.skip("its words have no room")
    ax = attnviz.plot.heatmap(drawn, width=width)
    check_texts(ax.figure)
    (red,) = [arc for arc in arcs(ax) if arc[2] == LIGHT.claim]
    row, column = claimed(ax)
    assert ends(ax, red) == (row, column)
    assert red[3] == max(arc[3] for arc in arcs(ax))
    words, (number,) = above(ax)
    assert number.get_text() == f"{drawn.weights[row, column]:.0%}"
    assert [n for n, word in enumerate(words) if word.get_fontweight() == "bold"] == sorted(
        (row, column)
    )
    bold = [one for one in ax.get_yticklabels() if one.get_fontweight() == "bold"]
    assert [label.get_text() for label in bold] == [drawn.rows[row]]
    title = ax.figure.texts[0].get_text()
    assert title == f"“{drawn.rows[row]}” looks back at “{drawn.columns[column]}”"
    assert [text.get_text() for text in words] == list(drawn.columns)


def test_arcs_are_the_largest_weights_between_words(drawn):
    weights = drawn.weights.clone()
    links = weights.fill_diagonal_(0)[1:-1, 1:-1]  # of no special token
    order = [divmod(n, links.shape[1]) for n in links.flatten().argsort(descending=True).tolist()]
    ax = attnviz.plot.heatmap(drawn, width=183)
    found = {ends(ax, arc) for arc in arcs(ax)}
    expected = [(row + 1, column + 1) for row, column in order[:5]]
    least = max(0.12, float(links.max()) / 4, 1.5 / len(weights))
    assert found == {cell for cell in expected if weights[cell] >= least}
    for arc in arcs(ax):
        assert arc[3] == pytest.approx(0.35 + 2.6 * float(weights[ends(ax, arc)]), abs=1e-5)


def with_weights(drawn, cells, **changes):
    """Return a map with some weights, and the rest of each row spread evenly over the others."""
    weights = torch.zeros(drawn.weights.shape)
    for cell, weight in cells.items():
        weights[cell] = weight
    rest, others = 1 - weights.sum(1, keepdim=True), (weights == 0).sum(1, keepdim=True)
    weights = torch.where(weights == 0, rest / others, weights)
    return replace(drawn, weights=weights, **changes)


def test_no_arc_begins_or_ends_at_what_says_nothing(train):
    drawn = attnviz.attention_map(train, layer=0, head=4)
    cells = {(1, 0): 0.95, (0, 3): 0.9, (8, 4): 0.9, (3, 8): 0.9, (5, 2): 0.6, (2, 2): 0.9}
    ax = attnviz.plot.heatmap(with_weights(drawn, cells))
    assert [ends(ax, arc) for arc in arcs(ax)] == [(5, 2)]
    unread = tuple("left [UNK]" if n == 3 else "" for n in range(9))
    sides = tuple(replace(side, unknown=unread) for side in drawn.sides)
    cells = {(3, 2): 0.9, (2, 3): 0.9, (6, 5): 0.4}
    ax = attnviz.plot.heatmap(with_weights(drawn, cells, sides=sides))
    assert [ends(ax, arc) for arc in arcs(ax)] == [(6, 5)]
    causal = {
        "masked": torch.ones(9, 9).triu(1).bool(), "starts_with_sink": True,
        "special_rows": (), "special_columns": (),
    }  # fmt: skip
    ax = attnviz.plot.heatmap(with_weights(drawn, {(4, 0): 0.9, (6, 5): 0.4}, **causal))
    assert [ends(ax, arc) for arc in arcs(ax)] == [(6, 5)]
    words, _ = above(ax)
    assert words[0].get_color() == LIGHT.gray


def test_what_was_asked_for_is_drawn_even_if_it_is_little(model):
    result = model.attend(TWENTY_FIVE)
    drawn = attnviz.attention_map(result, layer=1, head=6)
    from attnviz.analyses.maps.plot import SelectedMap, draw_heatmap

    cell = drawn.rows.index("ship"), drawn.rows.index("captain")
    ax = draw_heatmap(SelectedMap(drawn, asked=cell), width=183)
    (red,) = [arc for arc in arcs(ax) if arc[2] == LIGHT.claim]
    assert ends(ax, red) == claimed(ax) == cell
    assert ax.figure.texts[0].get_text() == "“ship” hardly looks back at “captain”"


@pytest.mark.parametrize("row", [40, 41, 59])
def test_the_row_of_a_claim_keeps_its_label_where_others_are_left_out(model, row):
    words = " ".join(f"{word}" for word in (CAPTAIN.replace("The", "the").split() * 2)[:70])
    drawn = attnviz.attention_map(model.attend(words), layer=1, head=6)
    ax = attnviz.plot.heatmap(with_weights(drawn, {(row, 20): 0.9}), width=183)
    labels = ax.get_yticklabels()
    assert len(labels) < len(drawn.rows)
    (bold,) = [label for label in labels if label.get_fontweight() == "bold"]
    assert (bold.get_text(), bold.get_position()[1]) == (drawn.rows[row], row + 0.5)
    assert above(ax)[0][row].get_fontweight() == "bold"
    check_texts(ax.figure)


def test_a_head_that_follows_a_rule_has_all_its_arcs_in_red_and_one_outline(train):
    ax = attnviz.plot.heatmap(train, layer=0, head=2)  # of the previous word
    assert {ends(ax, arc) for arc in arcs(ax)} == {(n, n - 1) for n in range(2, 8)}
    assert {arc[2] for arc in arcs(ax)} == {LIGHT.claim}
    assert max(arc[3] for arc in arcs(ax)) < 1.6
    assert above(ax)[1] == []
    (outline,) = [one for one in ax.patches if to_hex(one.get_edgecolor()) == LIGHT.claim]
    assert outline.get_path().get_extents().extents.tolist() == [1, 2, 7, 8]


def test_what_was_generated_is_apart_italic_and_named(train):
    drawn = attnviz.attention_map(train, layer=0, head=4)
    text = "the train left the"
    made = replace(drawn.provenance, text=text, generated="station on time")
    ax = attnviz.plot.heatmap(with_weights(drawn, {(5, 2): 0.9}, provenance=made))
    check_texts(ax.figure)
    words, _ = above(ax)
    assert [n for n, word in enumerate(words) if word.get_style() == "italic"] == [5, 6, 7, 8]
    assert np.diff(ax.get_yticks()).argmax() == 4
    named = {text.get_text(): text.get_style() for text in ax.figure.axes[2].texts}
    assert named == {"prompt": "normal", "generated": "italic"}


def test_a_right_to_left_sentence_runs_from_the_right(model):
    result = model.attend("غادر القطار المحطة في الوقت المحدد")
    ax = attnviz.plot.heatmap(result, layer=2, head=9)
    check_texts(ax.figure)
    places = middles(ax).tolist()
    assert places == sorted(places, reverse=True)
    assert ax.xaxis_inverted()
    assert ax.yaxis.get_ticks_position() == "right"
    (red,) = [arc for arc in arcs(ax) if arc[2] == LIGHT.claim]
    assert ends(ax, red) == claimed(ax) == (5, 2)
    mesh = next(one for one in ax.collections if isinstance(one, QuadMesh))
    assert float(mesh.get_array()[5, 2]) == pytest.approx(0.44, abs=0.005)


def test_one_head_of_a_few_words_is_as_wide_as_a_column(train, model):
    def width(result, **how):
        return attnviz.plot.heatmap(result, **how).figure.get_size_inches()[0] * 25.4

    assert width(train, layer=1, head=2) == pytest.approx(89)
    assert width(train) == pytest.approx(183)  # with all heads
    assert width(train, layer=1, head=2, width=120) == pytest.approx(120)
    assert width(model.attend(TWENTY_FIVE), layer=1, head=2) == pytest.approx(183)


CURIE = (
    "Marie Curie was born in Warsaw in 1867. She moved to Paris to study physics, because the "
    "university in Warsaw did not admit women. There she met Pierre, who gave her a corner of his "
    "laboratory. Together they discovered two elements, polonium and radium. Her daughter Irene "
    "worked in the same laboratory and won the same prize. Both of them died of the radiation that "
    "they had studied."
)


@pytest.mark.parametrize("width", [89, 140])
def test_a_longer_text_is_written_out_with_boxes_around_what_is_claimed(model, width):
    drawn = attnviz.attention_map(model.attend(CURIE), layer=0, head=1)
    ax = attnviz.plot.heatmap(drawn, width=width)
    check_texts(ax.figure)
    text = ax.figure.axes[0]
    words = [one for one in ax.figure.artists if isinstance(one, Text)]
    assert [one.get_text() for one in words] == list(drawn.rows[1:-1])
    numbers = [one.get_text() for one in text.texts if re.fullmatch(r"\d", one.get_text())]
    assert numbers == list("123456")
    boxes = {"--": [], "-": []}
    for box in text.patches:
        if isinstance(box, Rectangle) and to_hex(box.get_edgecolor()) == LIGHT.claim:
            x, y = box.get_center()
            places = [math.dist((x, y), middle(one, ax.figure)) for one in words]
            line = "-" if box.get_linestyle() in ("-", "solid") else "--"
            boxes[line].append(words[int(np.argmin(places))].get_text())
    assert boxes == {"--": ["won"], "-": ["prize"]}
    assert ax.figure.texts[0].get_text() == "“won” looks ahead to “prize”"
    row, column = drawn.rows.index("won"), drawn.rows.index("prize")
    shares = [one.get_text() for one in text.texts if to_hex(one.get_color()) == LIGHT.claim]
    assert shares == [f"{drawn.weights[row, column]:.0%}"]
    assert max(arc[3] for arc in arcs(ax, text) if arc[2] == LIGHT.claim) == pytest.approx(
        0.4 + 2.2 * float(drawn.weights[row, column])
    )


def middle(text, figure):
    """Return the middle of a text in inches from the top left corner of the page."""
    box = text.get_window_extent()
    _, high = figure.get_size_inches()
    return (box.x0 + box.x1) / 2 / figure.dpi, high - (box.y0 + box.y1) / 2 / figure.dpi


HARBOR = (
    "The old harbor was quiet that morning. Fishermen mended their nets and drank coffee. A ferry "
    "crossed the bay with three passengers. The captain greeted the fishermen as he always did. "
    "Nobody knew that the ferry would be sold."
)


def shares_of(drawn):
    """Return how the words of each sentence share their weight between words, in percent."""
    words = [n for n, special in enumerate(drawn.special_rows) if not special]
    ends = [n + 1 for n in words if drawn.rows[n] == "."]
    parts = list(itertools.pairwise([words[0], *ends]))
    assert ends[-1] == words[-1] + 1
    sums = np.array(
        [[float(drawn.weights[a:b, c:d].double().sum()) for c, d in parts] for a, b in parts]
    )
    return 100 * sums / sums.sum(1, keepdims=True)


@pytest.mark.parametrize("width", [183, 89])
def test_sentences_of_a_longer_text_share_their_weight_among_sentences(model, width):
    result = model.attend(HARBOR)
    drawn = attnviz.attention_map(result, layer=2, head=9)
    ax = attnviz.plot.heatmap(drawn, width=width)
    labels = {one: [label.get_text() for label in one.get_xticklabels()] for one in ax.figure.axes}
    (panel,) = (one for one, numbers in labels.items() if numbers == list("12345"))
    written = [text.get_text() for text in panel.texts]
    shares = shares_of(drawn)
    assert written == [f"{share:.0f}" for share in shares.ravel()]
    assert shares.max() > 2 * shares.min()  # not all alike
    named = [label.get_text() for label in panel.get_yticklabels()]
    first = [""] * 5 if width == 183 else [" The", " Fish", " A f", " The", " Nob"]
    assert [label[: 1 + len(word)] for label, word in zip(named, first, strict=True)] == [
        f"{n}{word}" for n, word in enumerate(first, 1)
    ]
    assert all((label == label[:1]) is (width == 183) for label in named)
    plt.close("all")


LONG = (
    "The old harbor was quiet. Fishermen mended their nets. A ferry crossed the bay. The captain "
    "greeted them. Nobody knew the plan. The mayor had sold it. Gulls sat on the roof. A child fed "
    "the gulls. Its mother read a letter. The letter was from the mayor. It came from the city. "
    "The ferry would sail no more. The captain read the letter twice. Then he went home."
)


@pytest.mark.parametrize("width", [183, 89])
def test_the_rows_of_a_long_text_are_its_sentences(model, width):
    drawn = attnviz.attention_map(model.attend(LONG), layer=2, head=9)
    ax = attnviz.plot.heatmap(drawn, width=width)
    check_texts(ax.figure)
    shares = shares_of(drawn)
    assert shares.shape == (14, 14)
    mesh = next(one for one in ax.collections if isinstance(one, QuadMesh))
    np.testing.assert_allclose(100 * np.asarray(mesh.get_array()), shares, atol=1e-3)
    assert [one.get_text()[:5] for one in ax.get_yticklabels()][9:12] == ["10 Th", "11 It", "12 Th"]
    words = [one for one in ax.figure.artists if isinstance(one, Text)]
    numbers = [int(one.get_text()) for one in ax.figure.axes[0].texts if one.get_text().isdigit()]
    sentences = LONG.replace(".", " .").replace(". ", ".\n").splitlines()
    written = iter(words)
    for number in numbers:  # only sentences with links are written
        line = [next(written) for _ in sentences[number - 1].split()]
        assert " ".join(one.get_text() for one in line) == sentences[number - 1]
        assert any(one.get_fontweight() == "bold" for one in line)
    assert not [*written]
    plt.close("all")


def test_the_scale_of_a_map_of_sentences_can_be_set(model):
    drawn = attnviz.attention_map(model.attend(LONG), layer=2, head=9)
    ax = attnviz.plot.heatmap(drawn, vmax=0.5, cmap="magma", annot=False)
    mesh = next(one for one in ax.collections if isinstance(one, QuadMesh))
    assert (mesh.norm.vmax, mesh.get_cmap().name, len(ax.texts)) == (0.5, "magma", 0)
    plt.close("all")


@pytest.mark.parametrize("width", [183, 89])
@pytest.mark.parametrize("head", [(0, 1), (0, 4), (2, 9), (5, 3)], ids=lambda one: f"{one}")
def test_shares_touch_neither_words_nor_boxes_nor_arcs_nor_each_other(model, head, width):
    for text in (CURIE, LONG):
        drawn = attnviz.attention_map(model.attend(text), layer=head[0], head=head[1])
        figure = attnviz.plot.heatmap(drawn, width=width).figure
        figure.draw_without_rendering()
        canvas, inch = figure.axes[0], figure.dpi
        shares = [one for one in canvas.texts if one.get_text().endswith("%")]
        boxes = [one.get_window_extent() for one in canvas.patches if isinstance(one, Rectangle)]
        assert len(shares) > len(boxes) // 4  # at most one is left out
        lines = [
            one.get_path().transformed(one.get_transform())
            for one in canvas.patches
            if isinstance(one, PathPatch)
        ]
        places = [inked(one) for one in shares]
        for n, place in enumerate(places):
            others = [*places[:n], *boxes]
            assert not place.count_overlaps(others), (text[:9], shares[n].get_text())
            assert not any(line.intersects_bbox(place, filled=False) for line in lines)
        for word in figure.artists:
            if isinstance(word, Text):
                baseline = word.get_transform().transform((word._x, word._y))[1]
                box = word.get_window_extent()
                box = Bbox.from_extents(
                    box.x0, baseline - 0.02 * inch, box.x1, baseline + 0.07 * inch
                )
                assert not box.count_overlaps(places), word.get_text()
    plt.close("all")


def inked(number):
    """Return the box of the digits of a text, without the blank rows of its font."""
    box = number.get_window_extent()
    _, y = number.get_transform().transform(number.get_position())
    points = number.get_fontsize() * number.figure.dpi / 72
    return Bbox.from_extents(box.x0, y, box.x1, y + 0.73 * points)


@pytest.mark.parametrize("width", [183, 89])
def test_what_was_generated_is_apart_in_a_longer_text(model, width):
    drawn = attnviz.attention_map(model.attend(HARBOR), layer=2, head=9)
    prompt, generated = HARBOR[: HARBOR.index(" as he")], "as he always did. Nobody knew"
    made = replace(drawn.provenance, text=prompt, generated=HARBOR[len(prompt) + 1 :])
    figure = attnviz.plot.heatmap(replace(drawn, provenance=made), width=width).figure
    check_texts(figure)
    words = [one for one in figure.artists if isinstance(one, Text)]
    italic = [one.get_text() for one in words if one.get_style() == "italic"]
    assert " ".join(italic).replace(" .", ".").startswith(generated)
    named = [
        [(one.get_text(), one.get_style()) for one in ax.texts if one.get_text().isalpha()]
        for ax in figure.axes
    ]
    both = [("prompt", "normal"), ("generated", "italic")]
    assert [one for one in named if one] == [both, both]  # in the text and below its sentences
    numbers = [one.get_text() for one in figure.axes[0].texts if one.get_text().isdigit()]
    assert numbers == list("123456")  # the generated text begins a line
    plt.close("all")


def test_sentences_end_at_points_that_are_not_in_names(model):
    def split(text, **how):
        drawn = attnviz.attention_map(model.attend(text, **how), layer=2, head=9)
        numbers = sentences_of(drawn)
        sides = zip(drawn.rows, numbers, strict=True)
        by_number = itertools.groupby(sides, lambda one: one[1])
        return ["".join(word for word, _ in group) for number, group in by_number if number >= 0]

    text = "Dr. Smith met Mr. Brown at 5 p.m. in St. Louis. He waited... Then (at last) he left."
    assert split(text) == [
        "Dr.SmithmetMr.Brownat5p.m.inSt.Louis.", "Hewaited...", "Then(atlast)heleft.",
    ]  # fmt: skip
    assert split("The cat sat", pair="a dog ran. It barked") == [
        "Thecatsat", "adogran.", "Itbarked",
    ]  # fmt: skip
