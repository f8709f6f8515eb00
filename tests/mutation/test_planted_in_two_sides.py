"""Each planted fault is caught and named in encoder–decoders: both stacks and cross-attention."""

from faults import FAULTS
from planting import cases

CASES = cases(FAULTS, "t5", "bart", "marian", "mbart", "mt5", "pegasus")


@CASES
def test_each_planted_fault_is_caught_and_named(fault, place, dtype, see_caught):
    see_caught(fault, place, dtype)
