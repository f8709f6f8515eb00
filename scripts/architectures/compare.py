"""Compare every attention that attnviz captures with the one that the model executed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import nn

from attnviz.agreement import verify
from attnviz.capture import Capture, capture
from attnviz.errors import ModelError
from attnviz.results import AttentionRecord, Reference
from attnviz.results.recompute import STAGES

ORDER = ("verified", "not proven", "failed")
NONE = "executes no softmax over products of queries and keys"


def compare(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """Capture what a model executes on its inputs and compare all of it.

    Returns
    -------
    attentions : how many were captured. paths : how many at each module. reached : by what they
    were, "interface", "operators" or "both". difference : the largest |ours - the model's| of all
    weights in float32. stages : which are compared in every attention. verdict and why : the worst
    of all attentions, and its summary unless that is "verified". Only `unread`, the reason, where
    capture raises.
    """
    try:
        captures = capture(model, inputs)
    except ModelError as error:
        message = " ".join(str(error).split())
        return {"attentions": 0} if NONE in message else {"unread": message}
    pairs = [pair for one in captures for pair in zip(one.records, one.references, strict=True)]
    ways = {record.through_interface for record, _ in pairs}
    stages, verdict, why = _agreement(captures)
    return {
        "attentions": len(captures[0].records),
        "paths": dict(Counter(record.path for record in captures[0].records)),
        "reached": "both" if len(ways) > 1 else "interface" if True in ways else "operators",
        "difference": max(map(difference, *zip(*pairs, strict=True))),
        "stages": stages,
        "verdict": verdict,
        "why": why,
    }


def difference(record: AttentionRecord, reference: Reference) -> float:
    """Return the largest difference of weights, over all rows that see anything; inf for nan."""
    weights = record.weights()
    rows = torch.ones(weights.shape[:2], dtype=torch.bool)
    if record.mask is not None:  # a row that sees nothing is uniform or nan, and means nothing
        hidden = record.mask <= torch.finfo(record.mask.dtype).min / 2
        rows = ~hidden.expand_as(weights).all(-1)
    if not rows.any():
        return 0.0
    largest = (weights - reference.weights)[rows].abs().max().item()
    return largest if largest == largest else float("inf")


def _agreement(captures: list[Capture]) -> tuple[list[str], str, str]:
    """Return the stages that are compared in every attention, and the worst verdict.

    An attention counts over all texts: what is all padding in one of them shows nothing there.
    """
    compared, worst, why = set(STAGES), 0, ""
    for attention in zip(
        *(zip(c.records, c.references, strict=True) for c in captures), strict=True
    ):
        reports = [verify([a], [b], versions={}, weights_sha256="") for a, b in attention]
        compared &= {check.stage for report in reports for check in report.checks}
        verdicts = [report.verdict for report in reports]
        said = "failed" if "failed" in verdicts else max(verdicts)  # verified where one text is
        if ORDER.index(said) > worst:
            worst, why = ORDER.index(said), reports[verdicts.index(said)].summary()
    return [stage for stage in STAGES if stage in compared], ORDER[worst], why
