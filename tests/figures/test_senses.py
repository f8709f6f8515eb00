"""The senses figure: the finding as its title, three planes, some sentences, no overlap."""

import itertools
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from readable_text import visible_texts

import attnviz
from attnviz.analyses.senses.plot import shown_states
from attnviz.figures import style
from figures.test_layout import check_layout

WORDS = [
    "bank",
    *(pytest.param(word, marks=pytest.mark.long) for word in ("apple", "check", "mouse", "light")),
]


class Made(dict):
    """What a function makes of each key that is asked for, once."""

    def __init__(self, make):
        self.make = make

    def __missing__(self, key):
        self[key] = self.make(key)
        return self[key]


@pytest.fixture(scope="module")
def results(model):
    return Made(lambda word: attnviz.senses(word, model=model))


@pytest.fixture(scope="module")
def figures(results):
    """Return the figure of each word, only to look at."""
    return Made(lambda word: attnviz.plot.senses(results[word]))


def words_on(figure):
    return [text.get_text() for text, _ in visible_texts(figure)]


def said_on(figure):
    return " ".join(words_on(figure))


def planes(figure):
    """Return the axes with dots, and the positions of the dots in each panel."""
    found = []
    for axes in figure.axes:
        dots = [c.get_offsets() for c in axes.collections if isinstance(c, PathCollection)]
        if axes.axison and dots:
            found.append((axes, np.concatenate(dots)))
    return found


@pytest.mark.parametrize("word", [WORDS[0], *WORDS[1:3]])
def test_every_occurrence_is_drawn_without_context_at_its_best_and_at_the_output(
    results, figures, word
):
    result = results[word]
    drawn = planes(figures[word])
    assert shown_states(result) == [0, result.best, 6]
    assert len(drawn) == 3
    for (axes, places), state in zip(drawn, shown_states(result), strict=True):
        expected = result.plane[state].numpy()
        assert sorted(map(tuple, places.tolist())) == sorted(map(tuple, expected.tolist()))
        box = axes.get_window_extent()
        (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
        assert (x1 - x0) / box.width == pytest.approx((y1 - y0) / box.height, rel=1e-3)
        assert x0 < places[:, 0].min() <= places[:, 0].max() < x1


@pytest.mark.parametrize(("best", "count", "width"), [(0, 2, 89), (6, 2, 183), (3, 3, 89)])
def test_states_that_coincide_are_drawn_once(results, best, count, width):
    figure = attnviz.plot.senses(replace(results["bank"], best=best), width=width)
    check_layout(figure)
    assert len(planes(figure)) == count


def test_dots_closer_to_another_sense_are_hollow_and_the_legend_says_so(results, figures):
    result, figure = results["bank"], figures["bank"]
    for (axes, _), state in zip(planes(figure), shown_states(result), strict=True):
        hollow = [
            len(dots.get_offsets())
            for dots in axes.collections
            if isinstance(dots, PathCollection) and tuple(dots.get_facecolor()[0][:3]) == (1, 1, 1)
        ]
        assert sum(hollow) == int((result.right[state] <= 0.5).sum())
    assert "hollow: nearer to another sense" in words_on(figure)
    perfect = replace(result, right=torch.ones_like(result.right))
    assert "hollow" not in said_on(attnviz.plot.senses(perfect))


def test_the_number_of_a_dot_is_that_of_its_sentence(results, figures):
    """Each number stands on the occurrence whose sentence has it."""
    result, figure = results["bank"], figures["bank"]
    lines = {}
    for text in figure.texts:
        top = round(text.get_position()[1], 6)
        lines.setdefault(top, []).append((text.get_position()[0], text.get_text()))
    sentences = {one.sentence: n for n, one in enumerate(result.occurrences)}
    numbered = {}
    for line in lines.values():
        words = [word for _, word in sorted(line)]
        starts = [n for n, word in enumerate(words) if word.isdigit()]
        for start, end in itertools.pairwise([*starts, len(words)]):
            sentence = " ".join(words[start + 1 : end])
            whole = [one for one in sentences if sentence and one.startswith(sentence)]
            if len(whole) == 1:
                numbered[words[start]] = sentences[whole[0]]
    assert sorted(numbered) == ["1", "2", "3", "4", "5", "6"]
    count = 0
    for (axes, _), state in zip(planes(figure), shown_states(result), strict=True):
        for text in axes.texts:
            place = result.plane[state][numbered[text.get_text()]].tolist()
            assert text.get_position() == pytest.approx(tuple(place))
            count += 1
    assert count >= 9  # of 18; some would cover each other


def test_the_most_attended_word_of_each_sentence_has_the_color_of_its_sense(results, figures):
    result, figure = results["bank"], figures["bank"]
    colors = dict(zip(result.senses, style.LIGHT.cycle, strict=False))
    for sense, color in colors.items():
        bold = {
            text.get_text().rstrip(".,?!;")
            for text in figure.texts
            if to_hex(text.get_color()) == color and text.get_fontweight() == "bold"
        }
        attended = {one.strongest for one in result.occurrences if one.sense == sense}
        assert len(bold) == 3
        assert bold <= attended


@pytest.mark.parametrize("word", WORDS)
def test_the_title_is_the_finding(results, figures, word):
    """It holds at the output, and in each layer from the one that it names."""
    result = results[word]
    since, output = result.since, result.scores[-1]
    assert 1 <= since < 6
    assert all(score.p_value <= 0.01 and score.low > 0.5 / 1.5 for score in result.scores[since:])
    assert result.scores[since - 1].p_value > 0.01
    senses = " and ".join([", ".join(result.senses[:-1]), result.senses[-1]])
    better = "not clearly" if output.accuracy > result.context.accuracy else "no"
    assert result.splits_since is None
    assert result.headline == (
        f"From layer {since} on, “{word}” tells {senses} apart, but {better} better than the other "
        f"words alone: output {output.accuracy:.0%} right, chance {1 / len(result.senses):.0%}, "
        f"other words {result.context.accuracy:.0%}"
    )
    assert result.headline in said_on(attnviz.plot.senses(result, width=89))
    count = round(output.accuracy * len(result.occurrences))
    said = said_on(figures[word])
    assert result.headline in said
    assert f"At the output {count} of {len(result.occurrences)} are nearest" in said
    assert f"{result.scores[0].accuracy:.0%} without context" in said
    assert f"{result.context.accuracy:.0%} by the other words alone without attention" in said
    assert f"without attention (p = {result.p_beyond[-1]:.2g})." in said


def with_p_values(result, p_values, **changed):
    scores = [
        replace(score, p_value=p, low=0.6 if p <= 0.01 else 0.3)
        for score, p in zip(result.scores, p_values, strict=True)
    ]
    return replace(result, scores=tuple(scores), **changed)


def beside(result, *, wrong):
    """Return a result that is right in all states, and whose other words are wrong at first."""
    right = (torch.arange(len(result.occurrences)) >= wrong).float()
    context = replace(result.context, accuracy=right.mean().item())
    return replace(
        result, right=torch.ones_like(result.right), context=context, context_right=right
    )


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (0, "tells river and money apart, but no better than the other words alone: "),
        (5, "tells river and money apart, but not clearly better than the other words alone: "),
        (6, "splits into river and money: "),
    ],
)
def test_a_word_splits_only_where_it_beats_the_other_words_in_a_paired_test(results, wrong, found):
    bank = beside(results["bank"], wrong=wrong)  # the output is right in all of its 20
    assert bank.p_beyond[-1] == pytest.approx(2 / 2**wrong if wrong else 1)
    assert (bank.splits_since is not None) == (wrong == 6)
    since = bank.splits_since or bank.since
    assert bank.headline.startswith(f"From layer {since} on, “bank” {found}output 100% right")
    assert replace(bank, context_right=None).headline.startswith("From layer 1 on, “bank” tells ")


def test_the_layers_of_a_split_are_all_beyond_the_other_words(results):
    bank = beside(results["bank"], wrong=6)
    worse = bank.right.clone()
    worse[3, 6:12] = 0
    assert replace(bank, right=worse).headline.startswith("From layer 4 on, “bank” splits into")


def test_titles_of_other_findings(results):
    bank = beside(results["bank"], wrong=10)
    output = with_p_values(bank, [1, 1, 0.001, 1, 1, 1, 0.001])
    assert output.headline == (
        "At the output, “bank” splits into river and money: 100% right, chance 50%"
    )
    at_once = with_p_values(bank, [0.001] * 7)
    assert at_once.headline.startswith("“bank” differs between river and money before any context")
    lost = with_p_values(bank, [1, 1, 0.001, 0.001, 0.001, 0.001, 0.02], p_best=0.001)
    never = with_p_values(bank, [1, 1, 0.02, 1, 1, 1, 0.02], p_best=0.3)
    for result, p in ((lost, "0.001"), (never, "0.3")):
        assert result.headline == (
            "No split of “bank” into river and money can be shown at the output: 100% right, "
            "chance 50%"
        )
        assert f"The best of 7 states, entering layer 2, has 100% (p = {p} over all)." in said_on(
            attnviz.plot.senses(result)
        )
    few = replace(bank, occurrences=bank.occurrences[:13])  # ten of one sense
    assert few.chance == pytest.approx(10 / 13)


def test_occurrences_in_no_score_are_gray_and_have_no_number(results, figures):
    bank = results["bank"]
    result = replace(bank, alike=(0, 2, 10, 12))
    figure = attnviz.plot.senses(result)
    assert "gray: alike up to the word, not counted" in words_on(figure)
    assert bank.occurrences[0].sentence not in said_on(figure)
    assert "(river 8, money 8 counted)" in said_on(figure)
    for axes, _ in planes(figure):
        faces = [to_hex(d.get_facecolor()[0]) for d in axes.collections if len(d.get_offsets())]
        assert faces.count(to_hex(style.LIGHT.faint)) == 4
    assert "gray:" not in said_on(figures["bank"])


def test_the_best_is_the_earliest_of_equals_and_the_others_are_named(results, figures):
    bank = results["bank"]
    accuracies = [score.accuracy for score in bank.scores]
    assert accuracies.count(max(accuracies)) == 3
    assert bank.best == accuracies.index(max(accuracies)) == 2
    assert bank.as_good == (4, 6)
    assert "100% right, the first of 3 that are best" in said_on(figures["bank"])
    worse = [replace(score, accuracy=0.9 * score.accuracy) for score in bank.scores]
    worse[2] = replace(bank.scores[2], accuracy=0.93)
    alone = replace(bank, scores=tuple(worse))
    assert alone.as_good == ()
    assert "93% right, best" in words_on(attnviz.plot.senses(alone))


@pytest.mark.parametrize("word", WORDS)
def test_the_numbers_are_the_measured_ones(results, word):
    result = results[word]
    said = words_on(attnviz.plot.senses(result, caption="full", width=240))
    assert f"other words alone {result.context.accuracy:.2f}" in said
    assert f"without context {result.scores[0].accuracy:.2f}" in said
    assert f"chance {result.chance:.2f}" in said
    assert f"output {result.scores[-1].accuracy:.2f}" in said
    caption = " ".join(said)
    assert f"read by {result.provenance.model}" in caption
    assert f"p = {result.p_best:.4f} over all layers" in caption
    assert "chosen on the same sentences" in caption
    assert result.agreement.summary()[1:60] in caption
    for sense in result.senses:
        assert sense in said


@pytest.mark.parametrize(
    "width",
    [40, 89, *(pytest.param(width, marks=pytest.mark.long) for width in (60, 120, 183)), 300],
)
@pytest.mark.parametrize("word", WORDS[:2])
def test_nothing_overlaps_and_a_column_is_no_taller_than_a_page(results, word, width):
    figure = attnviz.plot.senses(results[word], width=width)
    check_layout(figure)
    if width >= 89:
        assert figure.get_size_inches()[1] * 25.4 <= 247
    plt.close(figure)


@pytest.mark.parametrize("width", [89, pytest.param(183, marks=pytest.mark.long)])
def test_unusual_names_and_sentences_are_drawn_literally(results, width):
    names = ("$a_1$", "an uncommonly long name for a sense " * 3)
    found = results["bank"]
    renamed = [
        replace(one, sense=names[found.senses.index(one.sense)], strongest="$x^2$")
        for one in found.occurrences
    ]
    long = "Donaudampfschifffahrtsgesellschaft " * 8
    renamed[0] = replace(renamed[0], sentence=f"bank $x^2$ {long}".strip(), start=0, end=4)
    renamed = [
        replace(one, sentence=renamed[0].sentence, start=0, end=4) if n < 10 else one
        for n, one in enumerate(renamed)
    ]
    changed = replace(found, senses=names, occurrences=tuple(renamed))
    figure = attnviz.plot.senses(changed, width=width)
    check_layout(figure)
    assert {"$a_1$", "$x^2$"} <= {*words_on(figure)}
    assert "…" in said_on(figure)


def test_a_deep_model_has_three_planes_too(results):
    found, many = results["bank"], 33
    deep = replace(
        found,
        scores=(found.scores * 5)[:many],
        plane=found.plane.repeat(5, 1, 1)[:many],
        right=torch.cat([found.right] * 5)[:many],
        explained=(found.explained * 5)[:many],
        plane_accuracy=(found.plane_accuracy * 5)[:many],
        best=18,
    )
    figure = attnviz.plot.senses(deep, width=89, caption="full")
    check_layout(figure)
    assert len(planes(figure)) == 3
