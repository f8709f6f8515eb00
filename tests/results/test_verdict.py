"""The short verdict of captions claims what the whole verdict claims, and no more."""

from dataclasses import replace

import pytest

import attnviz
from attnviz.figures.layout import Ruler
from attnviz.figures.style import FULL_WIDTH, MARGIN, MM, SMALL_SIZE
from attnviz.results import InputCheck


@pytest.fixture(scope="module")
def streamed(model):
    text = "the train left the station on time, and it came back late in the night. " * 8
    return attnviz.attend(text, model=model, mode="streamed")


@pytest.mark.parametrize("name", ["train", "streamed"])
def test_a_short_verdict_fits_into_one_line_of_a_page(name, request):
    report = request.getfixturevalue(name).agreement
    room = FULL_WIDTH * MM - 2 * MARGIN
    assert Ruler().width(f"{report.summary(short=True)}.", SMALL_SIZE) < room
    assert Ruler().width(report.summary(), SMALL_SIZE) > room


def test_a_short_verdict_names_what_was_compared_and_what_was_not(train, streamed):
    said = train.agreement.summary(short=True)
    assert said.startswith("verified: 72 recomputed heads match the model's own float32 weights")
    assert said.endswith("projections, positions (6 layers) and output agree")
    some = replace(streamed.agreement, rows=(61, 358)).summary(short=True)
    assert "in 61 of 358 rows (17\xa0% of the weights); projections" in some
    read = streamed.agreement.output.tokens
    assert f"output for the first {read} tokens agree; not compared: positions" in some
    left_out = replace(train.agreement, not_compared=(("layer 0", "output", "hidden"),))
    assert "; not compared: output" in left_out.summary(short=True)
    positions = train.agreement.positions
    some = replace(train.agreement, positions=replace(positions, tokens=3, layers=1))
    assert "; projections, 3 of 7 positions (first layer) and output" in some.summary(short=True)
    assert "3 of 7 positions in the first layer" in some.summary()
    saved = replace(train.agreement, saved="2026-01-01", recomputed=("weights",))
    assert saved.summary(short=True).startswith("verified when saved on 2026-01-01: 72")
    assert saved.summary(short=True).endswith("; recomputed now: weights")


def test_other_verdicts_are_the_same_in_short(train):
    first, *others = train.agreement.checks
    for report in (
        replace(train.agreement, altered=True),
        replace(train.agreement, unproven=("layer 0",)),
        replace(train.agreement, given=True),
        replace(train.agreement, checks=(replace(first, failed_heads=(3,)), *others)),
    ):
        assert report.verdict != "verified"
        assert report.summary(short=True) == report.summary()


def test_labels_in_doubt_are_not_verified(train):
    positions = replace(train.agreement.positions, doubt="no labels")
    report = replace(train.agreement, positions=positions)
    assert report.verdict == "positions not verified"
    for said in (report.summary(), *report.captions()):
        assert said.startswith(
            "POSITIONS NOT VERIFIED: no labels; all that was compared agrees: 72"
        )
        assert "positions in" not in said
        assert "positions (" not in said


def test_what_reached_the_model_is_a_part_of_the_verdict(train):
    read = InputCheck(False, ("position_ids was dropped",), ("我", "力"), ("not ",), 6)
    report = replace(train.agreement, input=read)
    for said in (report.summary(), *report.captions()):
        assert "input: not as the model's own call: position_ids was dropped" in said
        assert "2 of 6 words unknown to the tokenizer: 我, 力; no token covers not " in said
    assert report.parts["input"] == "differs"
    assert report.coverage["unknown_words"] == ["我", "力"]
    equal = replace(report, input=InputCheck(True))
    assert "; input, projections, positions in 6 layers and" in equal.summary()
    assert attnviz.AgreementReport.joined([report, equal]).input == read
    assert attnviz.AgreementReport.joined([report, replace(report, input=None)]).input is None
    assert replace(report, input=None).parts["input"] == "not compared"


def test_coverage_says_what_was_tried(train, streamed):
    whole, some = train.agreement.coverage, streamed.agreement.coverage
    assert (whole["heads"], whole["positions"], whole["not_compared"]) == (72, [7, 7, 6], [])
    assert whole["output_shows_attention"] is True
    assert (some["positions"], some["not_compared"]) == (None, ["positions"])
