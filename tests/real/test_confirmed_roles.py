"""Roles of SmolLM2's heads are confirmed by ablation."""

import pytest

import attnviz

pytestmark = [pytest.mark.real, pytest.mark.long]


def test_four_roles_are_confirmed(smollm2):
    result = attnviz.survey(probe="induction,previous,duplicate,sink", model=smollm2)
    confirmations = {one.role: one for one in result.confirmations}
    assert all(one.confirmed for one in confirmations.values())
    induction, previous = confirmations["induction"], confirmations["previous token"]
    assert (18, 6) in induction.heads
    assert {(16, 0), (11, 1)} <= set(previous.heads)
    assert induction.accuracy > 0.7
    for one in (induction, previous):
        assert one.accuracy_without < 0.2
        assert min(one.random_accuracies) > 0.5
    assert result.checked_agreement.verdict == "verified"


def test_the_heads_that_read_the_subject_are_confirmed_and_name_movers_are_not(smollm2):
    (retrieval,) = attnviz.survey(probe="retrieval", model=smollm2).confirmations
    result = attnviz.survey(probe="ioi,inhibition", model=smollm2)
    mover, inhibition = result.confirmations
    assert retrieval.confirmed
    assert {(18, 6), (22, 7)} <= set(retrieval.heads)
    assert retrieval.accuracy_without < min(retrieval.random_accuracies)
    assert inhibition.confirmed
    assert inhibition.heads == ((20, 0), (23, 3), (25, 2))
    assert inhibition.accuracy_without < 0.8
    assert min(inhibition.random_accuracies) > 0.95
    assert not mover.confirmed
    assert {(22, 7), (23, 0), (23, 7), (24, 4)} <= set(mover.heads)
    assert result.name_of("name mover") == "looks like “name mover”, not confirmed"
