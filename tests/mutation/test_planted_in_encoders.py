"""Each planted fault is caught and named in bidirectional models."""

from faults import FAULTS
from planting import cases

CASES = cases(FAULTS, "minilm", "bert", "roformer", "mpnet", "deberta-v2")


@CASES
def test_each_planted_fault_is_caught_and_named(fault, place, dtype, see_caught):
    see_caught(fault, place, dtype)
