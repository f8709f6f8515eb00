"""One attention, stage by stage: our float64 recomputation against the model's own values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnviz.agreement.linear import compare_linear
from attnviz.agreement.verdict import (
    FLOAT32,
    PRECISIONS,
    SUMMATION,
    Measured,
    Numbers,
    Precision,
    bounded_check,
    copy_to_cpu,
    decide,
    dtypes,
    largest_by_head,
    products,
    regression,
    tolerance_of,
)
from attnviz.results import (
    AgreementReport,
    AttentionRecord,
    Clip,
    HeadProjection,
    LinearAttention,
    LinearReference,
    Reference,
    StageCheck,
    digests_of,
)
from attnviz.results.projection import STAGES, begin, output_of, parts_of_output, recompute, source
from attnviz.runtime.precision import exact_products

CANARY = 1.01  # the factor on the scale that must be caught


def verify(
    records: Sequence[AttentionRecord],
    references: Sequence[Reference],
    *,
    in_one_pass: Sequence[Tensor] = (),
    **others: Any,
) -> AgreementReport:
    """Compare every record with what the untouched model computed by itself.

    There is one reference for each record, in the order of execution. `in_one_pass` holds, for a
    generation, the weights (H, m, n) of each attention in a single pass. `others` are as in
    `report`.
    """
    proofs = [
        prove_linear(record, reference)
        if isinstance(record, LinearAttention) and isinstance(reference, LinearReference)
        else prove(record, model_values(record, reference))
        for record, reference in zip(records, references, strict=True)
    ]
    if in_one_pass:
        proofs.append(Proof("", _check_generations(records, in_one_pass), (), False))
    dtype = str(records[0].query.dtype).removeprefix("torch.") if records else ""
    device = str(records[0].query.device) if records else ""
    return report(proofs, dtype, device, digests=digests_of(records), **others)


def report(proofs: Iterable[Proof], dtype: str, device: str, **others: Any) -> AgreementReport:
    """Return the report on the proofs of all attentions, with the `others` of its fields."""
    proofs = list(proofs)
    return AgreementReport(
        checks=tuple(check for proof in proofs for check in proof.checks),
        not_compared=tuple(stage for proof in proofs for stage in proof.not_compared),
        unproven=tuple(proof.place for proof in proofs if proof.unproven),
        dtype=dtype,
        device=device,
        **others,
    )


def _check_generations(
    records: Sequence[AttentionRecord], in_one_pass: Sequence[Tensor]
) -> tuple[StageCheck, ...]:
    """Compare the weights of a generation, step by step, with those of one pass."""
    measured = []
    for record, one_pass in zip(records, in_one_pass, strict=True):
        scores = record.scores()
        weights, rows = record.weights(), real_rows(record, hidden_keys(record))
        differences = (weights.double() - one_pass.double()).masked_fill(~rows[:, None], 0.0)
        measured.append(
            {
                "differences": largest_by_head(differences),
                "largest": weights.abs().max(),
                "score": largest_score(scores, weights),
                "rows": rows.sum(),
            }
        )
    checks = []
    for record, numbers in zip(records, copy_to_cpu(measured), strict=True):
        # The two round in a different order, and rounding errors add up from layer to layer.
        tolerance = tolerance_of("weights", numbers, PRECISIONS[dtypes(record)[1]])
        most, differences = 2 * (record.layer + 1) * tolerance, numbers["differences"]
        count = record.heads * int(numbers["rows"]) * len(record.key_axis)
        checks.append(bounded_check(record, "one pass", differences, most, compared=count))
    return tuple(checks)


@dataclass(frozen=True)
class Proof:
    """The comparison of one attention: what an `AgreementReport` has of all attentions."""

    place: str  # the stack and the layer
    checks: tuple[StageCheck, ...]  # one for each stage that was compared
    not_compared: tuple[tuple[str, str, str], ...]  # place, stage and reason of the others
    unproven: bool  # whether the canary was not caught


def prove(record: AttentionRecord, expected: dict[str, Tensor]) -> Proof:
    """Compare a record with the model's own values, and check that the canary is caught."""
    # Only the stages after the scale are compared: a wrong Q must not count as a caught canary.
    canary = replace(record, scale=record.scale * CANARY, projection=None, input=None)
    # Nearly always its scores are enough to catch it, and they are copied with all else.
    scores = {stage: value for stage, value in expected.items() if stage == "scores"}
    checks, of_scores = decide(_measure(record, expected), _measure(canary, scores))
    unproven = all(check.passed for check in of_scores)
    if unproven:
        others = {stage: value for stage, value in expected.items() if stage != "scores"}
        unproven = all(check.passed for check in compare(canary, others))
    return Proof(record.place, checks, stages_not_compared(record, checks), unproven)


def prove_linear(record: LinearAttention, reference: LinearReference) -> Proof:
    """Compare a linear attention with the model's own run, and check that canaries are caught."""
    checks, unnoticed = compare_linear(record, reference)
    reasons = {"output projection": "the projection after linear attention is not followed"}
    if unnoticed:
        reasons["arguments"] = f"1 % of {', '.join(unnoticed)} would go unnoticed in this precision"
    left_out = tuple((record.place, stage, reason) for stage, reason in reasons.items())
    return Proof(record.place, checks, left_out, all(c.stage != "arguments" for c in checks))


def stages_not_compared(
    record: AttentionRecord, checks: tuple[StageCheck, ...]
) -> tuple[tuple[str, str, str], ...]:
    """Return (place, stage, reason) of every stage that was not compared."""
    compared = {check.stage for check in checks}
    reasons = dict.fromkeys(STAGES, "the model does not show its own value")
    for stage in ("query", "key", "value", "output"):
        reasons[stage] = "the module's projections are not of a kind that attnviz recognizes"
    return tuple((record.place, stage, reasons[stage]) for stage in STAGES if stage not in compared)


def model_values(record: AttentionRecord, reference: Reference) -> dict[str, Tensor]:
    """Return the model's own value of each stage, heads first, in float64."""
    output = None if reference.output is None else reference.output.unsqueeze(0)
    values = {
        "query": record.query,
        "key": record.key,
        "value": record.value,
        "scores": reference.scores,
        "weights": reference.weights,
        "head output": reference.head_output,
        "output": output,
    }
    return {stage: value.double() for stage, value in values.items() if value is not None}


def compare(record: AttentionRecord, expected: dict[str, Tensor]) -> tuple[StageCheck, ...]:
    """Compare each stage for which the model's own value is known."""
    return decide(_measure(record, expected))[0]


@exact_products()
def _measure(record: AttentionRecord, expected: dict[str, Tensor]) -> list[Measured]:
    """Measure each stage for which the model's own value is known; wait for no number."""
    if not expected:
        return []
    fine, coarse = dtypes(record)
    last = max(expected, key=STAGES.index)
    ours, in_fine = recompute(record, torch.float64, last), recompute(record, fine, last)
    in_coarse = in_fine if coarse == fine else recompute(record, coarse, last)
    # Queries that are padding or fully masked have no meaning. Among the operators, nor have keys
    # that no query reads: some modules set them to zero.
    hidden, whole = hidden_keys(record), record.mask is None
    whole = whole and not any(record.query_axis.padding + record.key_axis.padding)
    rows, unread = real_rows(record, hidden), hidden.all(-2).all(0)
    read = torch.ones_like(unread) if record.through_interface else ~unread
    ignored = ~rows[:, None]
    score = {"score": largest_score(ours["scores"], ours["weights"])} if "weights" in ours else {}
    rounding = _of_rounded_scores(ours["scores"], ours["weights"], ignored) if score else None
    summed = _of_summed_values(record, ours["weights"], rows) if "head output" in ours else None
    heads, measured = ours.get("head output"), []
    if summed is not None and {"output", "head output"} <= expected.keys() & ours.keys():
        # The errors of long sums would carry over, by as much as W^O amplifies them.
        ours["output"] = output_of(record, expected["head output"].double())
        in_coarse["output"] = output_of(record, expected["head output"].to(coarse))
    for stage in STAGES:
        if stage not in ours or stage not in expected:
            continue
        run, dtype = (in_fine, fine) if stage in ("scores", "weights") else (in_coarse, coarse)
        precision = PRECISIONS[dtype]
        compared = read if stage in ("key", "value") else rows
        # Ours, the model's, and our own run in its precision. Each map is dropped when measured.
        triple = [ours.pop(stage), expected[stage], run.pop(stage).double()]
        triple = [values.contiguous() for values in triple]
        width = triple[0].numel() // triple[0].shape[1]
        numbers = score | {"largest": _rounded(record, stage, triple[0]).abs().max()}
        if stage == "scores":
            triple = comparable_scores(record, triple, hidden | ignored)
        elif not whole:
            triple = [values.masked_fill(~compared[:, None], 0.0) for values in triple]
        x, y, z = triple
        if stage == "weights":
            assert rounding is not None
            numbers["rounding"] = rounding
            numbers |= _measure_logarithms(x, y, z, hidden, precision)
        elif stage == "head output" and summed is not None:
            numbers["summed"] = summed
        dy, dz = y - x, z - x
        del triple, y, z
        numbers |= {
            "differences": largest_by_head(dy),
            "own_errors": largest_by_head(dz),
            "largest_by_head": largest_by_head(x),
            "rows": compared.sum(),
        }
        if stage not in ("scores", "weights"):  # their slope is that of the log weights
            numbers |= regression(x, dy, dz, (1, 2))
        if stage == "output":
            assert heads is not None
            numbers |= _measure_contributions(record, heads, dy, dz, ignored)
        measured.append(Measured(record, stage, precision, width, numbers))
    return measured


def _rounded(record: AttentionRecord, stage: str, values: Tensor) -> Tensor:
    """Return the numbers that are rounded in a stage: of a clipped projection those before it."""
    part: HeadProjection | None = getattr(record.projection, stage, None)
    X = source(record, stage)
    if stage not in ("query", "key", "value") or part is None or X is None:
        return values
    return begin(part, X.double()) if any(isinstance(s, Clip) for s in part.after) else values


def comparable_scores(
    record: AttentionRecord, triple: Sequence[Tensor], hidden: Tensor
) -> list[Tensor]:
    """Return scores that can be compared: 0 where hidden, and centered if the model shifts them."""
    count, shifted = (~hidden).sum(-1, keepdim=True).clamp(min=1), None
    if record.sinks is None and record.through_interface:
        # Some models subtract the largest score of each row before the softmax.
        largest = triple[1].masked_fill(hidden, -torch.inf).amax(-1)
        shifted = ~((largest != 0) & (largest != -torch.inf)).any()
    centered = []
    for scores in triple:
        visible = scores.masked_fill(hidden, 0.0)  # else any huge number
        mean = visible.sum(-1, keepdim=True) / count
        if shifted is not None:
            mean = mean.where(shifted, 0.0)
        centered.append(visible.sub_(mean).masked_fill_(hidden, 0.0))
    return centered


def _measure_logarithms(
    ours: Tensor, model: Tensor, run: Tensor, hidden: Tensor, precision: Precision
) -> Numbers:
    """Measure what weights alone have: the slope of their logarithms, and exact zeros."""
    leaking = ((ours != 0) | (model != 0)) & hidden
    # Below the smallest normal number of the dtype a logarithm is mostly rounding.
    unusable = hidden | ~(torch.minimum(ours, torch.minimum(run, model)) > precision.tiny)
    count = (~unusable).sum(-1, keepdim=True).clamp(min=1)

    def centered_log(weights: Tensor) -> Tensor:
        """Return log weights minus their row's mean, which are centered scores up to rounding."""
        logs = weights.masked_fill(unusable, 1.0).log_()
        return logs.sub_(logs.sum(-1, keepdim=True) / count).masked_fill_(unusable, 0.0)

    x = centered_log(ours)
    dy, dz = centered_log(model).sub_(x), centered_log(run).sub_(x)
    return {"leaking": leaking.flatten(1).any(1), **regression(x, dy, dz, (1, 2), (0, 1, 2))}


def _measure_contributions(
    record: AttentionRecord, heads: Tensor, dy: Tensor, dz: Tensor, ignored: Tensor
) -> Numbers:
    """Measure the slope of what each head adds to the output, on the differences of the output.

    In the sum of all heads, rounding hides a small error in the W^O of one.
    """
    blocks = [
        {name: term.sum((1, 2)) for name, term in products(x, dy, dz)}
        for x in (part.masked_fill_(ignored, 0.0) for part in parts_of_output(record, heads))
    ]
    sums = {name: torch.cat([block[name] for block in blocks]) for name in blocks[0]}
    sums["zz"] = (dz**2).sum((1, 2))  # the same for all heads
    return {f"of heads {name}": values for name, values in sums.items()}


def largest_score(scores: Tensor, weights: Tensor) -> Tensor:
    """Return the largest size of a score that has a weight."""
    return torch.where(weights > 0, scores.abs(), 0.0).max()


def _of_rounded_scores(scores: Tensor, weights: Tensor, ignored: Tensor) -> Tensor:
    """Return by how many eps of a score its rounding may move a weight, at most in each head.

    If every score s of a row is off by δ·|s| at most, a weight w moves by 2·δ·max|s|·w(1 - w).
    """
    largest = torch.where(weights > 0, scores.abs(), 0.0).amax(-1)
    steepest = (weights * (1 - weights)).amax(-1)
    return (2 * largest * steepest).masked_fill(ignored.squeeze(-1), 0.0).amax(-1)


def _of_summed_values(record: AttentionRecord, weights: Tensor, rows: Tensor) -> Tensor | None:
    """Return by how many eps the order of a long sum may move αV, at most in each head.

    A model that reads one query at a time adds up n products α·V one after the other. Each step is
    off by half an eps of Σ α|V| at most, and all n by λ√n such errors: by the probabilistic bound
    of Higham and Mary (2019), λ = 6 is exceeded once in 3e7 sums. None for the short sums that
    `SUMMATION` covers.
    """
    n = len(record.key_axis)
    if math.sqrt(n) * FLOAT32 <= SUMMATION:
        return None
    sums = record.join_shared(weights) @ record.value.to(weights).abs()
    sums = sums.view(*record.query.shape[:2], -1).masked_fill(~rows[:, None], 0.0)
    return sums.amax((1, 2)) * (6 * math.sqrt(n) / 2)


def hidden_keys(record: AttentionRecord) -> Tensor:
    """Return which keys must have weight exactly 0, by mask or by padding: (1 or H, m, n)."""
    m, n = len(record.query_axis), len(record.key_axis)
    hidden = _flags(record.key_axis.padding, record.query.device).expand(1, m, n)
    if record.mask is not None:
        hidden = hidden | (record.mask <= torch.finfo(record.mask.dtype).min / 2)
    return hidden


def real_rows(record: AttentionRecord, hidden: Tensor) -> Tensor:
    """Return which queries (m,) are not padding and not fully masked."""
    padding = _flags(record.query_axis.padding, hidden.device)
    return ~padding & ~hidden.all(-1).any(0)


def _flags(padding: tuple[bool, ...], device: torch.device) -> Tensor:
    """Return the flags of an axis on a device; they are copied only where one is True."""
    if any(padding):
        return torch.tensor(padding, device=device)
    return torch.zeros(len(padding), dtype=torch.bool, device=device)
