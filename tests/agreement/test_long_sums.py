"""Rounding of long sums: the order of adding explains small differences of αV, and no fault."""

import pytest
import torch

from attnviz import agreement
from attnviz.results import AttentionRecord, Axis, Reference

KEYS = 1500


@pytest.fixture
def long():
    """Ten queries over 1,500 keys, whose values cancel each other one by one.

    Our own sum stays small on the way, whatever order the processor's library adds in.
    """
    generator = torch.Generator().manual_seed(0)
    signs = torch.tensor([1.0, -1.0]).repeat(KEYS // 2)[:, None]
    return AttentionRecord(
        path="layer",
        call=0,
        stack="cross",
        layer=0,
        query_axis=Axis.numbered(10),
        key_axis=Axis.numbered(KEYS),
        query=torch.randn(2, 10, 16, generator=generator),
        key=torch.randn(2, KEYS, 16, generator=generator),
        value=signs * (1 + torch.rand(2, KEYS, 64, generator=generator)),
        scale=0.25,
        through_interface=True,
    )


def one_after_the_other(record):
    """Return αV as a float32 loop adds it up: all positive values, then all negative ones."""
    weights = record.weights(dtype=torch.float64).float()
    products = weights[..., None] * record.value[:, None]
    products = torch.cat([products[:, :, ::2], products[:, :, 1::2]], dim=2)
    return torch.from_numpy(products.numpy().cumsum(2, dtype="float32")[:, :, -1])


def check(record, head_output):
    weights = record.weights(dtype=torch.float64).float()
    reference = Reference(weights=weights, scores=None, head_output=head_output, output=None)
    report = agreement.verify([record], [reference], versions={}, weights_sha256="")
    (found,) = [check for check in report.checks if check.stage == "head output"]
    return found


def test_the_order_of_a_long_sum_explains_a_difference(long):
    found = check(long, one_after_the_other(long))
    assert found.passed
    largest = long.weights(dtype=torch.float64) @ long.value.double()
    short = 18 * torch.finfo(torch.float32).eps * float(largest.abs().max())
    assert found.largest_difference > short + 3 * max(found.own_errors)
    assert max(found.tolerances) < 5e-5


def test_a_value_that_is_off_is_caught(long):
    assert not check(long, one_after_the_other(long) * 1.0001).passed
    wrong = one_after_the_other(long)
    wrong[1, 3, 5] += 1e-4
    assert check(long, wrong).failed_heads == (1,)
