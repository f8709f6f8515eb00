"""Each planted fault is caught and named in causal models."""

from faults import FAULTS
from planting import cases

GROUPED = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gpt-oss")


CASES = cases(FAULTS, "gpt2", *GROUPED, "bloom", "falcon", "gpt-j", "gpt-neo", "mpt")


@CASES
def test_each_planted_fault_is_caught_and_named(fault, place, dtype, see_caught):
    see_caught(fault, place, dtype)
