"""The table of faults is complete: enough faults, and each of them planted."""

import ast
from pathlib import Path

import pytest
import test_planted_in_decoders
import test_planted_in_encoders
import test_planted_in_two_sides
import torch
from faults import FAULTS
from planting import MAIN_PLACES

TESTS = Path(__file__).parents[1]
PLANTED_IN = (test_planted_in_encoders, test_planted_in_decoders, test_planted_in_two_sides)
# Tests elsewhere that also plant faults, because they need local helpers.
ELSEWHERE = [
    "differential/test_generation.py::test_steps_that_read_otherwise_are_caught",
    "differential/test_streaming_gpu.py::TestLaunches::test_a_planted_fault_is_detected",
    "scripts/test_check_architectures.py::test_a_fault_is_detected",
    "analyses/senses/test_senses_in_models.py::test_clear_senses_are_separated_except_a_misplaced_vector",
    "formula/test_score_terms.py::test_a_missing_bias_before_the_soft_cap_is_caught",
]


@pytest.mark.parametrize("place", MAIN_PLACES)
def test_at_least_24_faults_in_each_kind_of_model(place):
    for dtype in (torch.float32, torch.bfloat16):
        names = {fault.name for fault in FAULTS if place in fault.places and dtype in fault.dtypes}
        assert len(names) >= 24


def test_every_fault_is_planted_in_every_place():
    expected = {(fault.name, place) for fault in FAULTS for place in fault.places}
    planted = {
        (case.values[0].name, case.values[1])
        for tests in PLANTED_IN
        for case in tests.CASES.args[1]
    }
    assert planted == expected


@pytest.mark.parametrize("test", ELSEWHERE)
def test_tests_elsewhere_still_exist(test, tally):
    file, *names = test.split("::")
    body = ast.parse((TESTS / file).read_text(encoding="utf-8")).body
    for name in names:
        (node,) = [statement for statement in body if getattr(statement, "name", None) == name]
        body = getattr(node, "body", [])
    tally.elsewhere(f"tests/{test}")
