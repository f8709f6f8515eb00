"""Errors of rounded position biases are alike in all rows, so that they do not average out."""

import torch
from families import tiny

import attnviz

TEXT = "explain answers why a model predicted a token or a class:"


def test_a_slope_that_rounded_biases_turn_is_no_fault(model):
    """The slope over a layer of this tiny Funnel is off by 4.7e-3 in bfloat16."""
    funnel = attnviz.load(tiny("funnel", torch.bfloat16), tokenizer=model.tokenizer)
    checks = funnel.attend(TEXT).agreement.checks
    slopes = {(one.stack, one.layer): abs(one.slope_error) for one in checks if one.slope_error}
    assert 0.004 < max(slopes.values()) < 0.005
    assert all(check.passed for check in checks)
