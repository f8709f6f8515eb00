"""The table of faults holds what it should: enough of them, each planted, none of them lost."""

import ast
from pathlib import Path

import pytest
import test_planted_in_decoders
import test_planted_in_encoders
import test_planted_in_two_sides
import torch
from faults import FAULTS
from planted import OFTEN

TESTS = Path(__file__).parents[1]
PLANTED_IN = (test_planted_in_encoders, test_planted_in_decoders, test_planted_in_two_sides)
# What is planted in tests that stand elsewhere, since they need what is there.
ELSEWHERE = [
    "differential/test_generation.py::test_a_step_that_is_not_the_model_s_is_caught",
    "differential/test_streaming_gpu.py::TestLaunches::test_a_planted_fault_is_seen",
    "scripts/test_check_architectures.py::test_a_fault_is_seen",
    "analyses/senses/test_separation.py::test_clear_senses_are_all_told_apart_and_one_that_lies_wrong_is_not",
    "formula/test_score_terms.py::test_a_bias_before_the_soft_cap_that_is_left_out_is_caught",
]


@pytest.mark.parametrize("place", OFTEN)
def test_at_least_24_faults_in_each_kind_of_model(place):
    for dtype in (torch.float32, torch.bfloat16):
        found = {fault.name for fault in FAULTS if place in fault.places and dtype in fault.dtypes}
        assert len(found) >= 24


def test_every_fault_is_planted_in_every_place():
    wanted = {(fault.name, place) for fault in FAULTS for place in fault.places}
    planted = {
        (case.values[0].name, case.values[1])
        for tests in PLANTED_IN
        for case in tests.CASES.args[1]
    }
    assert planted == wanted


@pytest.mark.parametrize("test", ELSEWHERE)
def test_what_is_planted_elsewhere_is_still_there(test, tally):
    file, *names = test.split("::")
    found = ast.parse((TESTS / file).read_text(encoding="utf-8")).body
    for name in names:
        (node,) = [each for each in found if getattr(each, "name", None) == name]
        found = getattr(node, "body", [])
    tally.elsewhere(f"tests/{test}")
