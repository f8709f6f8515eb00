"""Each planted fault is caught, and named: in both stacks of an encoder–decoder and between."""

from faults import FAULTS
from planted import cases

CASES = cases(FAULTS, "t5", "bart", "marian", "mbart", "mt5", "pegasus")


@CASES
def test_each_planted_fault_is_caught_and_named(fault, place, dtype, see_caught):
    see_caught(fault, place, dtype)
