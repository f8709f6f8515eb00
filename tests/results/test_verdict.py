"""The short verdict of captions claims what the whole verdict claims, and no more."""

from dataclasses import replace

import pytest

import attnviz
from attnviz.figures.layout import Ruler
from attnviz.figures.style import FULL_WIDTH, MARGIN, MM, SMALL_SIZE


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
    assert said.endswith("projections, positions (first layer) and output agree")
    some = replace(streamed.agreement, rows=(61, 358)).summary(short=True)
    assert "in 61 of 358 rows (17\xa0% of the weights); projections" in some
    assert some.endswith(f"output for the first {streamed.agreement.output.tokens} tokens agree")
    left_out = replace(train.agreement, not_compared=(("layer 0", "output", "hidden"),))
    assert "; not compared: output" in left_out.summary(short=True)
    doubtful = replace(
        train.agreement, positions=replace(train.agreement.positions, doubt="no labels")
    )
    assert "POSITIONS NOT VERIFIED: no labels" in doubtful.summary(short=True)
    assert "positions (" not in doubtful.summary(short=True)
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
