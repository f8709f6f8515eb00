"""Rounding of large scores: it explains small differences of weights, and no fault of the scale."""

import pytest
import torch

from attnviz import agreement
from attnviz.agreement.compare import CANARY
from attnviz.results import AttentionRecord, Axis, Reference

TEXT = Axis.numbered(8)


@pytest.fixture
def large():
    """An attention whose scores are integers near 80, which our own run computes exactly."""
    key = torch.zeros(2, 8, 16)
    query = torch.zeros(2, 8, 16)
    query[..., 0] = 1.0
    key[..., 0] = 78 + torch.arange(8) % 3
    return AttentionRecord(
        path="layer",
        call=0,
        stack="encoder",
        layer=0,
        query_axis=TEXT,
        key_axis=TEXT,
        query=query,
        key=key,
        value=torch.ones(2, 8, 16),
        scale=1.0,
        through_interface=True,
    )


def verdict(record, change):
    """Compare with what a model with other scores would compute."""
    scores = change(record.scores(dtype=torch.float64))
    reference = Reference(scores.softmax(-1), scores=scores)
    return agreement.verify([record], [reference], versions={}, weights_sha256="")


def test_a_score_may_be_off_by_units_in_its_last_place(large):
    eps = torch.finfo(torch.float32).eps
    signs = torch.tensor([1.0, -1.0]).repeat(4)
    report = verdict(large, lambda scores: scores * (1 + eps * signs))
    assert report.verdict == "verified", report.summary()
    weights = report.checks[-1]
    assert weights.stage == "weights"
    assert weights.largest_difference > 2e-6
    assert max(weights.own_errors) < 1e-6
    assert not verdict(large, lambda scores: scores * (1 + 10 * eps * signs)).checks[-1].passed


def test_a_scale_that_is_one_percent_off_is_caught(large):
    for check in verdict(large, lambda scores: scores * CANARY).checks:
        assert not check.passed
    assert not verdict(large, lambda scores: scores).unproven
