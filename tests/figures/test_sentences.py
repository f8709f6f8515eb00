"""Every title, caption, headline and sentence in a terminal names the numbers of its result.

A pattern recognizes each sentence, and every slot of it is computed once more from raw arrays
(tests/figures/sentences). A sentence that no pattern has fails: a new one brings its check.
"""

import re
from dataclasses import replace
from functools import cache
from itertools import islice

import pytest
import torch
from one_model import one_model  # noqa: F401

from figures.sentences import gallery, gallery_fetched, gallery_networks, gallery_texts  # noqa: F401
from figures.sentences.cases import ANALYSES, RUNS
from figures.sentences.invented import INVENTED
from figures.sentences.reading import NUMBER, Patterns, agrees, mistakes, read_all, read_lines


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Use one thread, because sums over several threads round in a different order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    cases_of.cache_clear()
    vars(RUNS).clear()
    gallery.forget()


@cache
def cases_of(analysis):
    return (*ANALYSES[analysis](),)


@pytest.mark.parametrize("analysis", ANALYSES)
def test_every_sentence_of_the_goldens_names_the_numbers_of_its_result(analysis):
    problems = [problem for case in cases_of(analysis) for problem in case.problems()]
    assert not problems, "\n".join(problems)


SEEDS = {"explain": 4, "survey": 3, "compare": 3, "explore": 1}  # which draw figures


@pytest.mark.parametrize("analysis", INVENTED)
def test_sentences_about_invented_numbers_name_them(analysis):
    """Other branches than those of the goldens: signs, ties, words on which runs disagree."""
    problems = [
        f"seed {seed}: {problem}"
        for seed in range(SEEDS.get(analysis, 20))
        for case in INVENTED[analysis](torch.Generator().manual_seed(seed))
        for problem in case.problems()
    ]
    assert not problems, "\n".join(problems)


# Trained again in 40 seconds, and then only its rough sizes are compared
TRAINED = {"fig29_linear_attention": pytest.mark.long}
STEMS = [pytest.param(stem, marks=TRAINED.get(stem, ())) for stem in gallery.CHECKS]


@pytest.mark.parametrize("stem", STEMS)
def test_the_title_the_caption_and_the_file_of_a_figure_name_what_the_model_gives(stem):
    """Those of fetched models are in tests/real."""
    found = gallery.problems(stem, RUNS.model, gallery.text_of(stem))
    found += gallery.problems_of_file(stem, RUNS.model)
    assert not found, "\n".join(found)


def test_every_figure_of_the_gallery_is_checked():
    assert gallery.built().keys() == gallery.CHECKS.keys() | gallery.FETCHED.keys()


@pytest.mark.parametrize("stem", gallery.built())
def test_a_check_stands_for_every_comparing_word_of_a_docstring(stem):
    _, vouched_for = gallery.check_of(stem)
    assert gallery.comparing_words(gallery.docstring(stem)) == vouched_for


# --- what is planted is found

SWAPPED = {
    "most": "least", "falls": "rises", "raises": "lowers", "lowers": "raises", "more": "less",
    "largest": "smallest", "All": "None", "No": "Every", "first": "last", "best": "worst",
    "verified": "failed", "agree": "differ", "agrees": "differs", "pulled": "pushed",
    "toward": "from", "moves": "holds", "layers": "heads", "removed": "kept", "previous": "next",
    "special": "other", "Mean": "Largest", "without": "with", "nearest": "farthest",
    "fewest": "most", "short": "long", "adds": "takes", "takes": "adds",
}  # fmt: skip
SWAP = re.compile(rf"\b({'|'.join(SWAPPED)})\b")
# A number, but not a rounding error: those differ by machine.
EXACT = re.compile(r"(?<![\w.,⁻·−-])\d+(?:\.\d+)?(?![\d.,]*[\d·e⁻])")


def planted(text):
    """Yield a text with one word or one number wrong."""
    for match in SWAP.finditer(text):
        yield text[: match.start()] + SWAPPED[match[0]] + text[match.end() :]
    for match in EXACT.finditer(text):
        digits = len(match[0].partition(".")[2])
        wrong = 1.4 * float(match[0]) + 3 * 10.0**-digits
        yield f"{text[: match.start()]}{wrong:.{digits}f}{text[match.end() :]}"


def with_text(case, wrong, text):
    """Return a case in which one text, or one line of a figure, is another one."""
    if text in case.texts:
        return replace(case, texts=(wrong,), groups=())
    group = next(lines for lines in case.groups if text in lines)
    lines = tuple(wrong if line == text else line for line in group)
    return replace(case, texts=(), groups=(lines,))


FAULTS = 12  # of each analysis: a few of its sentences


@pytest.mark.parametrize("analysis", ANALYSES)
def test_a_wrong_number_and_a_swapped_word_are_found(analysis):
    pairs = [
        (case, text, wrong)
        for case in cases_of(analysis)
        for text in (*case.texts, *(line for lines in case.groups for line in lines))
        if len(text) > 30 and not text.startswith("$")
        for wrong in planted(text)
    ]
    chosen = pairs[:: max(1, len(pairs) // FAULTS)]
    assert len(chosen) >= FAULTS
    missed = [wrong for case, text, wrong in chosen if not with_text(case, wrong, text).problems()]
    assert not missed, "\n".join(missed)


@pytest.mark.parametrize("stem", STEMS)
def test_a_wrong_number_in_the_gallery_is_found(stem):
    wrong = [*planted(gallery.text_of(stem))]
    for text in islice(wrong, 0, None, max(1, len(wrong) // 3)):
        assert gallery.problems(stem, RUNS.model, text), text


@pytest.mark.parametrize("analysis", ANALYSES)
def test_a_sentence_that_no_pattern_has_is_found(analysis):
    case = cases_of(analysis)[0]
    new = "Most heads of this model look at verbs."
    assert read_all(new, case.facts, case.patterns)
    assert replace(case, texts=(f"{case.texts[0]} {new}",) if case.texts else (new,)).problems()


def test_a_slot_that_nothing_checks_is_a_mistake():
    patterns = Patterns()
    patterns.sentence("It has <count> heads of <all>.")(lambda facts, said: {"count": 2})
    (problem,) = read_all("It has 2 heads of 3.", None, patterns)
    assert "nothing checks <all>" in problem


def test_a_name_of_a_docstring_that_nothing_checks_is_a_mistake():
    pattern = gallery.from_template("It has {count} heads of {all}.", lambda _, said: {"count": 2})
    (problem,) = mistakes(pattern, None, pattern.regex.match("It has 2 heads of 3.").groupdict())
    assert "nothing checks" in problem


@pytest.mark.parametrize(
    ("said", "is_right", "is_wrong"),
    [
        ("0.17", 0.1749, 0.1751), ("−0.43", -0.4260, 0.43), ("81%", 0.8149, 0.8151),
        ("12 %", 0.124, 0.126), ("2·10⁻⁷", 2.4e-7, 2.6e-7), ("10⁻⁶", 1.4e-6, 1.6e-6),
        ("4.6e-07", 4.64e-7, 4.66e-7), ("2,190", 2190, 2191), (".05", 0.054, 0.056),
        ("100%", 1.0, 0.99), ("–", float("nan"), 0.0),
    ],
)  # fmt: skip
def test_a_number_is_as_precise_as_it_is_written(said, is_right, is_wrong):
    assert re.fullmatch(NUMBER, said)
    assert agrees(said, is_right)
    assert not agrees(said, is_wrong)


def test_lines_of_a_figure_are_read_as_paragraphs_and_labels():
    patterns = Patterns()
    patterns.sentence("It has <count> heads.")(lambda facts, said: {"count": 2})

    def is_label(line, facts):
        return line.isdigit()

    assert not read_lines(["7", "It has", "2 heads.", "8"], None, patterns, is_label)
    assert read_lines(["7", "It has", "3 heads.", "8"], None, patterns, is_label)
    assert read_lines(["It has", "2 heads.", "More."], None, patterns, is_label)
