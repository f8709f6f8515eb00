"""Weakened rules of the checks, and which planted faults would find each of them.

A weakened rule compares less, or less finely. A pair of a fault and a model finds it if, under this
rule, the fault is not caught or is named wrongly.
"""

import torch
from planting import LAYER

STAGES = ("query", "key", "value", "scores", "weights", "output")


def beyond(errors, tolerances, times=1):
    """Return the heads whose error is not within the tolerance; NaN is not."""
    pairs = enumerate(zip(errors, tolerances, strict=True))
    return {head for head, (error, most) in pairs if not abs(error) <= most * times}


def far(check, times=1):
    return beyond(check.differences, check.tolerances, times)


def steep(check, times=1):
    heads = beyond(check.slope_errors, check.slope_tolerances, times)
    return {0 for _ in heads} if check.stage == "output" else heads  # of its one entry


def other(check):
    """Return the heads that fail for another reason: hidden keys, or the slope of the layer."""
    return set(check.failed_heads) - far(check) - steep(check)


def without(stage):
    return lambda check: set() if check.stage == stage else set(check.failed_heads)


def within(times):
    return lambda check: (
        far(check, times) | steep(check, times) | (set() if check.hidden_zero else other(check))
    )


def only(head):
    return lambda check: {head} & set(check.failed_heads)


# The heads of a check that fail under each weakened rule
WEAKENED = {
    **{f"no {stage}": without(stage) for stage in STAGES},
    "no differences": lambda check: steep(check) | other(check),
    "no slopes of heads": lambda check: far(check) | other(check),
    "no hidden keys": lambda check: (
        far(check) | steep(check) | (other(check) if check.hidden_zero else set())
    ),
    "tolerances × 3": within(3),
    "tolerances × 10": within(10),
    "tolerances × 100": within(100),
    **{f"head {head} only": only(head) for head in range(2)},
}


# A pair of a fault and a model that finds each of them
FOUND_BY = {
    "no query": ("two_heads_swapped", "bloom", torch.float32),
    "no key": ("key_and_value_swapped", "minilm", torch.float32),
    "no value": ("value_bias_left_out", "qwen2", torch.float32),
    "no scores": ("scale_left_out", "llama", torch.float16),
    "no weights": ("softmax_in_base_two", "minilm", torch.float32),
    "no output": ("output_matrix_transposed", "gpt2", torch.float32),
    "no differences": ("mask_shifted_by_one", "mistral", torch.bfloat16),
    "no slopes of heads": ("weights_transposed", "t5/cross", torch.float32),
    "no hidden keys": ("weights_transposed", "t5/decoder", torch.float32),
    "tolerances × 3": ("scale_one_percent_off", "bloom", torch.bfloat16),
    "tolerances × 10": ("bias_left_out", "mpt", torch.bfloat16),
    "tolerances × 100": ("bias_left_out", "deberta-v2", torch.bfloat16),
    "head 0 only": ("value_bias_left_out", "qwen2", torch.float32),
    "head 1 only": ("the_layer_before", "gpt2", torch.float32),
}


def weaknesses_found(fault, checks):
    """Return the weakened rules that a fault finds, given its checks in one text."""
    return [name for name, rule in WEAKENED.items() if not _named(fault, checks, rule)]


def _named(fault, checks, rule):
    """Return whether a fault is caught and named under a rule, as `expect_caught` demands."""
    failures = ((check, rule(check)) for check in checks)
    first, heads = next(((check, heads) for check, heads in failures if heads), (None, set()))
    return first is not None and (
        first.layer == LAYER and first.stage in fault.stages and heads >= set(fault.heads)
    )
