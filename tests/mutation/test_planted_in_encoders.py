"""Each planted fault is caught, and named: in models that read both ways."""

from faults import FAULTS
from planted import cases

CASES = cases(FAULTS, "minilm", "bert", "roformer", "mpnet", "deberta-v2")


@CASES
def test_each_planted_fault_is_caught_and_named(fault, place, dtype, see_caught):
    see_caught(fault, place, dtype)
