"""Weakened rules of the checks, and which planted faults would find each of them.

A weakened rule compares less, or less finely. A pair of a fault and a model finds it if, under this
rule, the fault is not caught or is named wrongly.
"""

import torch
from planting import LAYER


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


# The heads of a check that fail under each weakened rule, and a pair of a fault and a model that
# finds it
RULES = {
    "no query": (without("query"), "two_heads_swapped", "bloom", torch.float32),
    "no key": (without("key"), "key_and_value_swapped", "minilm", torch.float32),
    "no value": (without("value"), "value_bias_left_out", "qwen2", torch.float32),
    "no scores": (without("scores"), "scale_left_out", "llama", torch.float16),
    "no weights": (without("weights"), "softmax_in_base_two", "minilm", torch.float32),
    "no output": (without("output"), "output_matrix_transposed", "gpt2", torch.float32),
    "no differences": (
        lambda check: steep(check) | other(check),
        *("mask_shifted_by_one", "mistral", torch.bfloat16),
    ),
    "no slopes of heads": (
        lambda check: far(check) | other(check),
        *("weights_transposed", "t5/cross", torch.float32),
    ),
    "no hidden keys": (
        lambda check: far(check) | steep(check) | (other(check) if check.hidden_zero else set()),
        *("weights_transposed", "t5/decoder", torch.float32),
    ),
    "tolerances × 3": (within(3), "scale_one_percent_off", "bloom", torch.bfloat16),
    "tolerances × 10": (within(10), "bias_left_out", "mpt", torch.bfloat16),
    "tolerances × 100": (within(100), "bias_left_out", "deberta-v2", torch.bfloat16),
    "head 0 only": (only(0), "value_bias_left_out", "qwen2", torch.float32),
    "head 1 only": (only(1), "the_layer_before", "gpt2", torch.float32),
}


def is_found(rule, fault, checks):
    """Return whether a fault finds a weakened rule, given its checks in one text.

    Under the rule it is not caught, or not named as `expect_caught` demands.
    """
    failures = ((check, RULES[rule][0](check)) for check in checks)
    first, heads = next(((check, heads) for check, heads in failures if heads), (None, set()))
    return first is None or not (
        first.layer == LAYER and first.stage in fault.stages and heads >= set(fault.heads)
    )
