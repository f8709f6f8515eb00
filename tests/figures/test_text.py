"""The text as a figure: words in their lines, on the colors of their numbers."""

from dataclasses import replace

import numpy as np
import pytest
from families import tiny
from golden.saved_results import SAVED
from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from readable_text import DARK, LIGHT, check_texts

import attnviz
from attnviz import plot
from figures.test_grammar import contrast

CODE = "def mean(numbers):\n    total = 0\n\n    return total / len(numbers)"
HEBREW = "הרכבת יצאה מהתחנה בזמן, וכל train station נשארה ריקה"
PROSE = "The master watched as another crowded train left for the coast, while children laughed. "


@pytest.fixture(scope="module")
def causal(tokenizer):
    return attnviz.load(tiny("gpt2"), tokenizer=tokenizer)


@pytest.fixture(scope="module")
def moved():
    return attnviz.load_result(SAVED / "shift.safetensors")


@pytest.fixture(scope="module")
def masked():
    return attnviz.load_result(SAVED / "explain-masked.safetensors")


def map_of(model, text, layer=0, head=1, *, generate=None, special="keep"):
    result = model.attend(text, generate=generate)
    return attnviz.attention_map(result, layer=layer, head=head, special=special)


def words_of(figure):
    """Return the words, in their order in the text."""
    return [artist for artist in figure.artists if isinstance(artist, Text)]


def behind(figure):
    """Return the color behind each word, None without one."""
    patches = [p for p in figure.axes[0].patches if isinstance(p, Rectangle)]
    fills = [patch for patch in patches if patch.get_fill()]

    def fill(word):
        x, y = word.get_position()
        return next(
            (p.get_facecolor() for p in fills if p.get_bbox().contains(x + 0.004, y - 0.01)), None
        )

    return [fill(word) for word in words_of(figure)]


def boxes(figure):
    """Return the color and the line of the box around each word that has one."""
    found = {}
    for patch in figure.axes[0].patches:
        if not patch.get_fill():
            (word,) = (w for w in words_of(figure) if patch.get_bbox().contains(*w.get_position()))
            line = "dashed" if patch.get_linestyle() not in ("solid", "-") else "solid"
            found[word.get_text()] = to_hex(patch.get_edgecolor()), line
    return found


def lines_of(figure):
    """Return the words of each line, from left to right."""
    lines = {}
    for word in words_of(figure):
        x, y = word.get_position()
        lines.setdefault(round(y, 4), []).append((x, word.get_text()))
    return [[word for _, word in sorted(line)] for _, line in sorted(lines.items())]


def test_a_word_is_on_the_color_of_its_weight(train):
    drawn = attnviz.attention_map(train, layer=0, head=4)
    figure = plot.text(drawn)
    assert [word.get_text() for word in words_of(figure)] == list(drawn.columns)
    assert figure.texts[0].get_text() == "“station” looks back at “train”: 70%"
    row = drawn.weights[drawn.rows.index("station")]
    is_word = drawn.is_word[1]
    top, fills = row[is_word].max(), behind(figure)
    for n, weight in enumerate(row.tolist()):
        colors = LIGHT.weights if is_word[n] else LIGHT.neutral
        np.testing.assert_allclose(fills[n], colors(weight / float(top)), atol=0.01)
    claim = LIGHT.claim, "solid"
    assert boxes(figure) == {"train": claim, "station": (LIGHT.ink, "dashed")}
    bold = [word.get_text() for word in words_of(figure) if word.get_fontweight() == "bold"]
    assert bold == ["train", "station"]


@pytest.mark.parametrize("query", ["saw#2", 10])
def test_the_query_is_chosen_by_its_word_or_its_place(model, query):
    drawn = map_of(model, "The cat saw the dog, and the dog saw the cat.", 5, 3)
    figure = plot.text(drawn, query=query)
    (asked,) = (n for n, word in enumerate(words_of(figure)) if word.get_text() == "saw" and n > 5)
    row = drawn.weights[asked].masked_fill(~drawn.is_word[1], 0)
    row[asked] = 0
    best = int(row.argmax())
    assert f"{float(row[best]):.0%}" in figure.texts[0].get_text()
    assert drawn.columns[best] in figure.texts[0].get_text()


def test_what_comes_later_is_gray_without_a_color(causal):
    drawn = map_of(causal, "the train left the station", 1, special="remove")
    figure = plot.text(drawn, query=2)
    assert [fill is None for fill in behind(figure)] == [n > 2 for n in range(5)]
    assert {word.get_color() for word in words_of(figure)[3:]} == {LIGHT.muted}
    assert "come later: they are not read" in " ".join(text.get_text() for text in figure.texts)
    first = behind(figure)[0]
    assert np.ptp(first[:3]) < 0.01  # the sink is gray


def test_what_is_out_of_a_sliding_window_does_not_come_later(tokenizer):
    windowed = tiny("mistral")
    windowed.config.sliding_window = 3
    drawn = map_of(attnviz.load(windowed, tokenizer=tokenizer), "the old train left the station")
    for query, said in ((5, "Gray words are not read."), (2, "Gray words come later")):
        figure = plot.text(drawn, query=query)
        assert said in " ".join(text.get_text() for text in figure.texts)


def test_the_title_names_no_word_that_could_not_be_read(causal):
    figure = plot.text(map_of(causal, "the train left"), query="[CLS]")
    assert figure.texts[0].get_text() == "“[CLS]” looks at itself: 100%"


def test_a_target_without_words_is_drawn(tokenizer):
    model = attnviz.load(tiny("bart"), tokenizer=tokenizer)
    result = attnviz.explain("the train left the station", model=model)
    assert all(result.special[result.stacks.index("target") :])
    for figure in (plot.text(result), plot.explain(result)):
        said = [word.get_text() for word in words_of(figure)]
        assert said[0] == "source:"
        assert said[-2:] == ["target:", f"→ {result.target} {result.share}"]


def test_lines_and_indents_of_code_are_kept(causal):
    figure = plot.text(map_of(causal, CODE, special="remove"))
    assert ["".join(line) for line in lines_of(figure)] == [
        "".join(line.split()) for line in CODE.splitlines() if line
    ]
    lefts = [min(w.get_position()[0] for w in words_of(figure) if w.get_text() == name)
             for name in ("def", "return")]  # fmt: skip
    assert lefts[1] > lefts[0] + 0.1
    tops = sorted({round(word.get_position()[1], 4) for word in words_of(figure)})
    steps = np.diff(tops)
    assert steps[1] == pytest.approx(2 * steps[0])  # a blank line


def test_marks_stand_at_their_words(model):
    figure = plot.text(map_of(model, "(a cat, don't you know?)" * 5, 2, 2), width=60)
    for line in lines_of(figure):
        assert line[0] not in (",", "?", ")")
        assert line[-1] != "("


def test_a_text_from_right_to_left_begins_at_the_right(model):
    figure = plot.text(map_of(model, HEBREW), width=89)
    first, *_ = lines_of(figure)
    words = HEBREW.split()
    assert first.index(words[0]) > first.index(words[1])
    assert first.index("train") + 1 == first.index("station")  # words in the other direction
    check_texts(figure)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_word_has_contrast(model, moved, masked, theme):
    colors = {"light": LIGHT, "dark": DARK}[theme]
    with plot.style(theme=theme):
        results = [map_of(model, PROSE, layer, head) for layer, head in ((0, 1), (3, 4), (5, 3))]
        figures = [plot.text(one) for one in (*results, moved, masked)]
    for figure in figures:
        for word, fill in zip(words_of(figure), behind(figure), strict=True):
            ground = colors.ground if fill is None else fill[:3]
            assert contrast(word.get_color(), ground) >= 4.5, word.get_text()


@pytest.mark.parametrize("width", [60, 89, 183])
@pytest.mark.parametrize("text", ["the bank", PROSE + "x" * 90, PROSE * 20])
def test_no_word_leaves_the_page_or_covers_another(model, width, text):
    drawn = map_of(model, text, 2, 3)
    check_texts(plot.text(drawn, width=width))


def test_words_add_to_both_sides_of_a_shift(moved):
    figure = plot.text(moved)
    shares = moved.shares(moved.parts)
    kept = [n for n, special in enumerate(moved.special) if not special]
    largest = max(abs(shares[n]) for n in moved.sources)
    for n, fill in zip(kept, behind(figure), strict=True):
        if n in moved.sources:
            side = LIGHT.sides[shares[n] < 0]
            weight = abs(shares[n]) / largest
            expected = 1 + weight * (np.array(to_rgb(side)) - 1)
            np.testing.assert_allclose(fill[:3], expected, atol=0.02)
        else:
            assert fill is None
    assert figure.texts[0].get_text() in moved.headline


def test_effects_and_contributions_to_a_prediction_differ(masked):
    by_default, measured, contributed = (
        plot.text(masked, **how) for how in ({}, {"measured": True}, {"measured": False})
    )
    assert behind(by_default) == behind(measured) != behind(contributed)
    (target,) = (w for w in words_of(measured) if w.get_text() == f"{masked.target} {masked.share}")
    assert target.get_fontstyle() == "italic"
    unmeasured = replace(masked, causal={})
    with pytest.raises(attnviz.InputError, match="measured=True"):
        plot.text(unmeasured, measured=True)
    plot.text(unmeasured)


def test_effects_that_are_printed_as_nothing_are_pale(masked, moved):
    """The colors do not end at the largest effect if it is none to speak of."""
    lost = {name: effect * 1e-3 for name, effect in masked.causal.items()}
    none = replace(masked, causal=lost, agreement=replace(masked.agreement, digest=None))
    assert none.headline.startswith("No word alone changes")
    far, near = (
        min(min(fill[:3]) for fill in behind(plot.text(one)) if fill) for one in (masked, none)
    )
    assert far < 0.3 < 0.9 < near


def test_a_repeated_word_has_its_number_in_the_table(causal):
    result = attnviz.explain("the train left the old station", target="on", model=causal)
    texts = [text.get_text() for text in plot.explain(result).texts]
    assert {"the#1", "the#2"} <= {*texts}


def test_what_the_model_wrote_is_italic(causal):
    drawn = map_of(causal, "the train left", generate=3)
    words = words_of(plot.text(drawn))
    start = drawn.generated_from
    assert start is not None
    assert {word.get_fontstyle() for word in words[:start]} == {"normal"}
    assert {word.get_fontstyle() for word in words[start:]} == {"italic"}


def test_a_generated_word_is_asked_where_the_title_is_about_these(causal):
    drawn = map_of(causal, "the train left", generate=3)
    even = replace(drawn, weights=(~drawn.masked).float() / (~drawn.masked).sum(1, keepdim=True))
    figure = plot.text(even)
    assert figure.texts[0].get_text() == "No generated word stands out"
    (asked,) = boxes(figure)
    words = [word.get_text() for word in words_of(figure)]
    assert asked in words[drawn.generated_from :]
