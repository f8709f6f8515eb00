"""Compare every captured attention with the one that the model executed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from attnviz.agreement import check_output, verify
from attnviz.capture.capture import Capture, capture
from attnviz.errors import ModelError
from attnviz.results import AttentionRecord, Axis, OutputCheck, Reference
from attnviz.results.projection import STAGES

ORDER = ("verified", "not proven", "failed")
NONE = "executes no softmax over products of queries and keys"


def compare(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """Capture what a model executes on its inputs and compare all of it.

    Returns
    -------
    attentions : number of captured softmax attentions. linear : number of linear ones.
    paths : number of softmax attentions per module.
    reached : how they were captured: "interface", "operators" or "both"; "functions" if all are
        linear.
    difference : largest |ours - the model's| over all weights, in float32; of linear attention,
        between M v and the layer's own output, relative to its largest number.
    stages : stages compared in every attention.
    notes : softmaxes that are no attention, and what is not compared.
    random : why two runs of the model differ, if they do.
    verdict, why : the worst verdict over all attentions, and its summary unless it is "verified".
    unread : the reason, and the only key, if capture raises.
    """
    try:
        captures = capture(model, inputs)
    except ModelError as error:
        message = " ".join(str(error).split())
        return {"attentions": 0} if NONE in message else {"unread": message}
    pairs = [
        pair
        for captured in captures
        for pair in zip(captured.records, captured.references, strict=True)
    ]
    softmax = [record for record in captures[0].records if not record.signed]
    linear = len(captures[0].records) - len(softmax)
    ways = {record.through_interface for record in softmax}
    reached = "both" if len(ways) > 1 else "interface" if True in ways else "operators"
    layers = len({record.path for record in captures[0].records})
    outputs = check_output(captures[0].outputs, _axes(inputs), len(captures), layers, {})
    drawn = [o.reason for o in outputs if o and o.repeated and not o.repeated <= o.tolerance]
    stages, verdict, why = _agreement(captures, outputs)
    return {
        "attentions": len(softmax),
        "linear": linear,
        "paths": dict(Counter(record.path for record in softmax)),
        "reached": reached if softmax else "functions",
        "difference": max(map(difference, *zip(*pairs, strict=True))),
        "stages": stages,
        "notes": list(captures[0].notes),
        **({"random": drawn[0]} if drawn else {}),
        "verdict": verdict,
        "why": why,
    }


def _axes(inputs: dict[str, Any]) -> dict[str, list[Axis]]:
    """Return the axes of padded texts, so that the output at padding is not compared."""
    ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    if ids is None or mask is None or ids.dim() != 2 or ids.shape != mask.shape:
        return {}
    padding = [tuple(row) for row in (mask == 0).tolist()]
    return {"text": [replace(Axis.numbered(len(row)), padding=row) for row in padding]}


def difference(record: AttentionRecord, reference: Reference) -> float:
    """Return the largest weight difference over all rows with a visible key; inf for nan.

    Of linear attention, that of M v from the layer's own output, relative to its largest number.
    """
    weights = record.weights()
    if record.signed:
        own = reference.head_output.double()
        off = (weights.double() @ record.value.double() - own).abs().max() / own.abs().max()
        return float("inf") if off.isnan() else off.item()
    rows = torch.ones(weights.shape[:2], dtype=torch.bool)
    if record.mask is not None:  # a fully masked row is uniform or nan and carries no information
        hidden = record.mask <= torch.finfo(record.mask.dtype).min / 2
        rows = ~hidden.expand_as(weights).all(-1)
    if not rows.any():
        return 0.0
    largest = (weights - reference.weights)[rows].abs().max().item()
    return largest if largest == largest else float("inf")


def _agreement(
    captures: list[Capture], outputs: list[OutputCheck | None]
) -> tuple[list[str], str, str]:
    """Return the stages that are compared in every attention, and the worst verdict.

    The stages are those of softmax attention, if there is any.
    An attention is judged over all texts: a text that is all padding there proves nothing.
    """
    compared, worst, why = set(STAGES), 0, ""
    only_linear = all(record.signed for record in captures[0].records)
    for attention in zip(
        *(zip(c.records, c.references, strict=True) for c in captures), strict=True
    ):
        reports = [
            verify([a], [b], output=output, versions={}, weights_sha256="")
            for (a, b), output in zip(attention, outputs, strict=True)
        ]
        if only_linear or not attention[0][0].signed:
            compared &= {check.stage for report in reports for check in report.checks}
        verdicts = [report.verdict for report in reports]
        verdict = "failed" if "failed" in verdicts else max(verdicts)  # verified if one text is
        if ORDER.index(verdict) > worst:
            worst, why = ORDER.index(verdict), reports[verdicts.index(verdict)].summary()
    return [stage for stage in STAGES if stage in compared], ORDER[worst], why
