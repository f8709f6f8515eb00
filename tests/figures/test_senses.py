"""The senses figure: the finding as its title, a thread for each sentence, no overlap."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.text import Text
from readable_text import LIGHT, check_layout, visible_texts

import attnviz
from figures.sentences.facts import facts_of
from figures.sentences.words import margins


@pytest.fixture(scope="module")
def bank(model):
    return attnviz.senses("bank", model=model)


@pytest.fixture(scope="module")
def drawn_bank(bank):
    """The figure of the word, only to look at."""
    return attnviz.plot.senses(bank)


def words_on(figure):
    return [text.get_text() for text, _ in visible_texts(figure)]


def said_on(figure):
    return " ".join(words_on(figure))


def lines_of(figure, name):
    return [line for axes in figure.axes for line in axes.lines if line.get_label() == name]


def drawn(figure, kind):
    """Return the line of each occurrence, a "thread" or a "leader", in inches of the page."""
    lines = [line for axes in figure.axes for line in axes.lines]
    named = [line for line in lines if line.get_label().startswith(f"{kind} ")]
    return {int(line.get_label().split()[1]): line for line in named}


def end_of(line):
    return line.get_ydata()[-1]


def pieces_of(figure):
    return [artist for artist in figure.artists if isinstance(artist, Text)]


def rows_of(figure):
    """Return the sentences that are written, as {height in inches: text from left to right}."""
    rows = {}
    for text in pieces_of(figure):
        x, y = text.get_position()
        rows.setdefault(round(y, 4), []).append((x, text.get_text()))
    return {y: "".join(text for _, text in sorted(row)) for y, row in rows.items()}


@pytest.mark.parametrize("width", [89, 183])
def test_each_thread_ends_in_its_own_sentence(bank, width):
    result = bank
    figure = attnviz.plot.senses(result, width=width)
    threads, leaders, rows = drawn(figure, "thread"), drawn(figure, "leader"), rows_of(figure)
    assert set(threads) == set(leaders) == set(range(len(result.occurrences)))
    assert len(rows) == len(result.occurrences)
    for n, one in enumerate(result.occurrences):
        assert leaders[n].get_ydata()[0] == pytest.approx(end_of(threads[n]))
        nearest = min(rows, key=lambda y: abs(y - end_of(leaders[n])))
        assert abs(nearest - end_of(leaders[n])) < 0.04
        assert rows[nearest].strip("…") in one.sentence
        assert one.word in rows[nearest]
    order = sorted(threads, key=lambda n: end_of(threads[n]))
    ends = [end_of(leaders[n]) for n in order]
    assert ends == sorted(ends)  # no leader crosses another
    apart = np.diff(sorted(rows))
    assert apart.min() * 72 > 6.8  # points: more than a line


@pytest.mark.parametrize("raw", [False, True])
def test_margins_are_differences_of_cosines_without_the_sentence_itself(model, raw):
    for senses in (THREE, {name: THREE[name] for name in ("river", "money")}):
        result = attnviz.senses("bank", senses, model=model, raw=raw)
        np.testing.assert_allclose(result.margins, margins(facts_of(result)), atol=1e-9)
        signs = [-1 if len(senses) == 2 and one.sense == "money" else 1
                 for one in result.occurrences]  # fmt: skip
        np.testing.assert_allclose(result.heights, result.margins * torch.tensor(signs))


def test_the_scale_gives_the_margin_at_the_end_of_each_thread(bank, drawn_bank):
    result, threads = bank, drawn(drawn_bank, "thread")
    small = [text for text, _ in visible_texts(drawn_bank) if text.get_fontsize() == 5]
    marks = [text for text in small if text.get_text() != "margin"]
    assert len(marks) < len(small)
    heights, margins = zip(
        *sorted((text.get_position()[1], float(text.get_text())) for text in marks), strict=True
    )
    ends = [end_of(threads[n]) for n in range(len(result.occurrences))]
    zero = end_of(lines_of(drawn_bank, "decision")[0])
    slope = margins[0] / (zero - heights[0])  # the second sense is mirrored
    assert slope == pytest.approx(margins[-1] / (heights[-1] - zero), rel=1e-6)
    found = slope * (zero - np.array(ends))
    assert found == pytest.approx(result.heights[-1].numpy(), abs=1e-6)


def test_the_second_sense_lies_below_the_decision(bank, drawn_bank):
    result, threads = bank, drawn(drawn_bank, "thread")
    (decision,) = lines_of(drawn_bank, "decision")
    for n, one in enumerate(result.occurrences):
        above = threads[n].get_ydata() < end_of(decision)
        assert (above == ((result.right[:, n] == 1).numpy() == (one.sense == "river"))).all()


def test_sentences_that_end_on_the_wrong_side_are_dashed_and_open(bank):
    result = bank
    right = result.right.clone()
    right[-1, 3] = 0
    figure = attnviz.plot.senses(replace(result, right=right))
    threads = drawn(figure, "thread")
    assert [n for n, line in threads.items() if line.is_dashed()] == [3]
    is_open = [n for n, t in threads.items() if to_hex(t.get_markerfacecolor()) == "#ffffff"]
    assert is_open == [3]
    assert "Dashed: ends on the wrong side." in said_on(figure)
    assert "Dashed" not in said_on(attnviz.plot.senses(result))


def test_what_a_decoder_does_not_read_is_gray_and_sentences_alike_have_no_thread(bank):
    notes = ("the model reads from left to right: the word attends only to words before it",)
    right = bank.right.clone()
    right[:, [0, 2, 10, 12]] = float("nan")
    occurrences = tuple(replace(one, strongest="") for one in bank.occurrences)
    result = replace(bank, alike=(0, 2, 10, 12), notes=notes, right=right, occurrences=occurrences)
    figure = attnviz.plot.senses(result)
    check_layout(figure)
    assert set(drawn(figure, "thread")) == set(range(20)) - {0, 2, 10, 12}
    said = said_on(figure)
    assert "alike up to “bank”, not read further: in no score" in said
    assert "(river 8, money 8 counted)" in said
    texts = pieces_of(figure)
    gray = {text.get_text() for text in texts if to_hex(text.get_color()) == LIGHT.gray}
    unread = {one.sentence[one.end :] for one in occurrences}
    assert gray == unread | {occurrences[n].sentence[: occurrences[n].start] for n in result.alike}
    assert "alike" not in said_on(attnviz.plot.senses(bank))


def test_of_many_sentences_a_sample_is_written_and_the_figure_says_so(bank):
    times = 4
    many = replace(
        bank,
        occurrences=tuple(
            replace(one, sentence=f"{one.sentence} {n}")
            for n in range(times)
            for one in bank.occurrences
        ),
        vectors=bank.vectors.repeat(1, times, 1),
        right=bank.right.repeat(1, times),
        context_right=bank.context_right.repeat(times),
    )
    for width, most in ((183, 60), (89, 46)):
        figure = attnviz.plot.senses(many, width=width)
        check_layout(figure)
        assert len(drawn(figure, "thread")) == 80
        assert len(drawn(figure, "leader")) == len(rows_of(figure)) == most
        assert f"Written out are {most} of 80" in said_on(figure)
        assert set(many.hesitating) <= set(drawn(figure, "leader"))
    assert figure.get_size_inches()[1] * 25.4 <= 247


THREE = {
    "river": ["We sat on the bank.", "The bank was muddy.", "Grass covers the bank of a creek."],
    "money": ["The bank lent money.", "She owns a bank.", "His loan came from a bank."],
    "blood": ["The blood bank was closed.", "He gave to a blood bank.", "A bank kept their blood."],
}


def test_three_senses_have_a_strip_each_with_its_share(model):
    result = attnviz.senses("bank", THREE, model=model)
    figure = attnviz.plot.senses(result)
    threads = drawn(figure, "thread")
    colors = {n: to_hex(line.get_color()) for n, line in threads.items()}
    for n, sense in enumerate(result.senses):
        members = [k for k, one in enumerate(result.occurrences) if one.sense == sense]
        assert {colors[k] for k in members} == {LIGHT.sides[n]}
        assert f"{int(result.right[-1, members].sum())} of 3" in words_on(figure)
    ends = {n: [threads[k].get_ydata()[-1] for k, one in enumerate(result.occurrences)
                if one.sense == sense] for n, sense in enumerate(result.senses)}  # fmt: skip
    assert max(ends[0]) < min(ends[1])
    assert max(ends[1]) < min(ends[2])


def test_a_sentence_is_cut_around_its_word(bank):
    text = "On the far side of a very long road, the old bank of the town kept its coins in a vault"
    start = text.index("bank")
    attended = {"attended": (("coins", 1.0),), "strongest": "coins"}
    one = bank.occurrences[0]
    one = replace(one, sentence=text, start=start, end=start + 4, **attended)
    parts = one.parts(lambda shown: len(shown) <= 40)
    assert "".join(text for text, _ in parts) == "…old bank of the town kept its coins in…"
    assert [kind for text, kind in parts if text in ("bank", "coins")] == ["word", "attended"]
    assert "".join(text for text, _ in one.parts(lambda shown: len(shown) <= 13)) == "…bank of the…"
    assert "".join(text for text, _ in one.parts(lambda shown: False)) == "…bank…"
    assert "".join(text for text, _ in one.parts(lambda shown: True)) == text


def test_the_best_is_the_earliest_of_equals(bank):
    accuracies = [score.accuracy for score in bank.scores]
    assert accuracies.count(max(accuracies)) == 3
    assert bank.best == accuracies.index(max(accuracies)) == 2


def test_unusual_names_and_sentences_are_drawn_literally(bank):
    names = ("$a_1$", "an uncommonly long name for a sense " * 3)
    found = bank
    renamed = [
        replace(one, sense=names[found.senses.index(one.sense)], strongest="$x^2$")
        for one in found.occurrences
    ]
    long = "Donaudampfschifffahrtsgesellschaft " * 8
    renamed[0] = replace(renamed[0], sentence=f"bank $x^2$ {long}".strip(), start=0, end=4)
    changed = replace(found, senses=names, occurrences=tuple(renamed))
    figure = attnviz.plot.senses(changed, width=89)
    check_layout(figure)
    assert {"$a_1$", "$x^2$"} <= {text.strip() for text in words_on(figure)}
    assert "…" in said_on(figure)


def test_a_deep_model_has_a_strip_of_accuracy_and_names_some_layers(bank):
    found, many = bank, 33
    deep = replace(
        found,
        scores=(found.scores * 5)[:many],
        vectors=found.vectors.repeat(5, 1, 1)[:many],
        right=torch.cat([found.right] * 5)[:many],
        best=18,
    )
    p_values = [1] * 17 + [0.001] * 16
    scores = [
        replace(score, p_value=p, low=0.6 if p < 1 else 0.3)
        for score, p in zip(deep.scores, p_values, strict=True)
    ]
    deep = replace(deep, scores=tuple(scores))
    for width in (89, 183):
        figure = attnviz.plot.senses(deep, width=width, caption="full")
        check_layout(figure)
        said = words_on(figure)
        assert {"static", "5", "10", "17", "25", "output", "guess", "100%"} <= {*said}
        assert not {"1", "2", "16", "18"} & {*said}
        assert f"{deep.scores[-1].accuracy:.0%} on their own side" in said
