"""Attentions, stage by stage: our float64 recomputation against the model's own values.

Attentions of one form are measured together, as one attention with the heads of all; the maps of
many heads or long texts are measured some heads at a time. So a short text costs few operators, and
a long one little memory. A result that is read from a file is compared again.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, overload

import torch
from torch import Tensor

from attnviz.agreement.verdict import (
    FLOAT32,
    PRECISIONS,
    REGRESSION,
    SUMMATION,
    Measured,
    Numbers,
    Proof,
    decide,
    dtypes,
    largest_by_head,
    prove_linear,
    regression,
)
from attnviz.errors import InputError
from attnviz.io.export import read_result
from attnviz.results import (
    AgreementReport,
    AttentionRecord,
    AttentionResult,
    Clip,
    HeadProjection,
    LinearAttention,
    LinearReference,
    Reference,
    StageCheck,
    digests_of,
)
from attnviz.results.arguments import checked_scalars
from attnviz.results.base import Savable
from attnviz.results.projection import (
    STAGES,
    begin,
    has_output,
    join_inputs,
    of_one_projection,
    output_of,
    parts_of_output,
    project_all,
    source,
)
from attnviz.runtime.libraries import exact_products, free

CANARY = 1.01  # the factor on the scale that must be caught
Values: TypeAlias = dict[str, Tensor]  # of each stage, heads first
Kind = TypeVar("Kind", bound=Savable)
Maps: TypeAlias = dict[tuple[str, str], Tensor]  # by stage and name
_PROJECTED = STAGES[:3]
_MAPS = STAGES[3:5]
_TERMS = ("capped_bias", "bias", "mask", "sinks")  # of all heads, or one for each
_SIZES = ("largest_by_head", "differences", "own_errors")
_FAR = 88.0  # no logarithm of a weight above the smallest normal number is further from 0
_FIRST_ROWS = 16  # of a map, which tell whether its scores are shifted
_AT_ONCE = 2**18  # numbers of maps that are measured together on a CPU
_BYTES = 14 * 8  # that measuring one takes: 14 maps in float64


def verify(
    records: Sequence[AttentionRecord],
    references: Sequence[Reference],
    *,
    proofs: Sequence[Proof] | None = None,
    digests: Mapping[str, str] | None = None,
    **others: Any,
) -> AgreementReport:
    """Compare every record with what the untouched model computed by itself.

    There is one reference for each record, in the order of execution. `proofs` and `digests` are
    those of the records, where they were made together with those of other texts. `others` are as
    in `report`.
    """
    proofs = prove_all(records, references) if proofs is None else proofs
    dtype = str(records[0].query.dtype).removeprefix("torch.") if records else ""
    device = str(records[0].query.device) if records else ""
    digests = digests_of(records) if digests is None else digests
    return report(proofs, dtype, device, digests=digests, **others)


def report(proofs: Sequence[Proof], dtype: str, device: str, **others: Any) -> AgreementReport:
    """Return the report on the proofs of all attentions, with the `others` of its fields."""
    return AgreementReport(
        checks=tuple(check for proof in proofs for check in proof.checks),
        not_compared=tuple(stage for proof in proofs for stage in proof.not_compared),
        unproven=tuple(proof.place for proof in proofs if proof.unproven),
        dtype=dtype,
        device=device,
        **others,
    )


def prove_all(records: Sequence[AttentionRecord], references: Sequence[Reference]) -> list[Proof]:
    """Compare each record with what the model computed, softmax attentions together."""
    pairs = list(zip(records, references, strict=True))
    softmax = [
        (record, model_values(record, reference))
        for record, reference in pairs
        if not isinstance(reference, LinearReference)
    ]
    proofs = iter(prove(softmax))
    return [
        prove_linear(record, reference)
        if isinstance(record, LinearAttention) and isinstance(reference, LinearReference)
        else next(proofs)
        for record, reference in pairs
    ]


def prove(pairs: Sequence[tuple[AttentionRecord, Values]]) -> list[Proof]:
    """Compare each attention with the model's own values, and check that the canary is caught."""
    checks, caught = compare(pairs)
    # Only the stages after the scale are compared: a wrong Q must not count as a caught canary.
    missed = {
        n: (replace(record, scale=record.scale * CANARY, projection=None, input=None), expected)
        for n, (record, expected) in enumerate(pairs)
        if not caught[n]
    }
    others = zip(missed, compare([*missed.values()])[0], strict=True)
    unproven = {n for n, of_one in others if all(check.passed for check in of_one)}
    return [
        Proof(record.place, of_one, stages_not_compared(record, of_one), n in unproven)
        for n, ((record, _), of_one) in enumerate(zip(pairs, checks, strict=True))
    ]


def stages_not_compared(
    record: AttentionRecord, checks: tuple[StageCheck, ...]
) -> tuple[tuple[str, str, str], ...]:
    """Return (place, stage, reason) of every stage that was not compared."""
    compared = {check.stage for check in checks}
    reasons = dict.fromkeys(STAGES, "the model does not show its own value")
    for stage in (*_PROJECTED, "output"):
        reasons[stage] = "the module's projections are not of a kind that attnviz recognizes"
    return tuple((record.place, stage, reasons[stage]) for stage in STAGES if stage not in compared)


def model_values(record: AttentionRecord, reference: Reference) -> Values:
    """Return the model's own value of each stage, heads first."""
    output = None if reference.output is None else reference.output.unsqueeze(0)
    of_heads = reference.scores, reference.weights, reference.head_output, output
    values = zip(STAGES, (record.query, record.key, record.value, *of_heads), strict=True)
    return {stage: value for stage, value in values if value is not None}


def compare(
    pairs: Sequence[tuple[AttentionRecord, Values]],
) -> tuple[list[tuple[StageCheck, ...]], list[bool]]:
    """Return the checks of the known stages of each attention, and if scores show the canary."""
    of_form: dict[object, list[int]] = {}
    for n, (record, expected) in enumerate(pairs):
        of_form.setdefault(form(record, expected), []).append(n)
    measured: list[Measured] = []
    for numbers in of_form.values():
        # The texts of one module stand side by side.
        numbers.sort(key=lambda n: (pairs[n][0].path, pairs[n][0].call))
        first = pairs[numbers[0]][0]
        size = max(first.heads * math.prod(first.size), first.query.numel(), first.value.numel())
        step = max(1, _limit(first) // size)
        for start in range(0, len(numbers), step):
            some = numbers[start : start + step]
            measured += _measure(some, *zip(*(pairs[n] for n in some), strict=True))
    checks: list[tuple[StageCheck, ...]] = [() for _ in pairs]
    caught = [False for _ in pairs]
    for one, n, check in decide(measured):
        if one.planted:
            caught[n] = not check.passed
        else:
            checks[n] += (check,)
    return checks, caught


def _limit(record: AttentionRecord) -> int:
    """Return how many numbers of maps are measured at once: a quarter of a GPU's free memory."""
    device = record.query.device
    memory = (free(device) or 0) if device.type != "cpu" else 0
    return max(_AT_ONCE, memory // 4 // _BYTES)


def form(record: AttentionRecord, expected: Values) -> object:
    """Return what attentions that are measured together have in common."""
    own = {"path", "call", "layer", "stack", "query_axis", "key_axis", "projection", "rotation"}
    values = {name: value for name, value in vars(record).items() if name not in own} | expected
    forms = {n: (x.shape, x.dtype, x.device) for n, x in values.items() if isinstance(x, Tensor)}
    others = {n: x for n, x in values.items() if isinstance(x, float | bool | None)}
    unlike = [id(x) for n, x in values.items() if n not in forms.keys() | others.keys()]
    made = record.projection
    known = made and [part is not None for part in vars(made).values()]
    is_padded = any(record.query_axis.padding + record.key_axis.padding)
    plain = (*forms.items(), *others.items())
    return (type(record), *expected, *plain, *unlike, str(known), is_padded)


def join(records: Sequence[AttentionRecord]) -> AttentionRecord:
    """Return one attention with the heads of all, which are of one form."""
    first = records[0]
    if len(records) == 1:
        return first

    def joined(name: str) -> Tensor | None:
        terms = [getattr(record, name) for record in records]
        if terms[0] is None:
            return None
        if name in _TERMS and len(terms[0]) == 1:
            terms = [term.expand(first.heads, *term.shape[1:]) for term in terms]
        return torch.cat(terms)

    of_all: dict[str, Any] = {name: joined(name) for name in (*_PROJECTED, *_TERMS)}
    return replace(first, projection=None, input=None, key_input=None, **of_all)


def _of_heads(record: AttentionRecord, heads: slice) -> AttentionRecord:
    """Return the attention of some heads, all of those that share their keys."""
    shared = record.heads // record.key_heads
    keys = slice(heads.start // shared, heads.stop // shared)
    cut: dict[str, Any] = {name: getattr(record, name) for name in _TERMS}
    cut = {name: x if x is None or len(x) == 1 else x[heads] for name, x in cut.items()}
    key, value = record.key[keys], record.value[keys]
    return replace(record, query=record.query[heads], key=key, value=value, **cut)


@dataclass(frozen=True, eq=False)
class Visible:
    """What is compared of L attentions that are measured together.

    Queries that are padding or fully masked have no meaning. Among the operators, nor have keys
    that no query reads: some modules set them to zero.
    """

    hidden: Tensor | None  # which keys must have weight exactly 0, (1 or all heads, m, n), if any
    rows: Tensor  # the queries (L, m) that are compared
    read: Tensor  # and the keys (L, n)

    @classmethod
    def of(cls, records: Sequence[AttentionRecord], mask: Tensor | None) -> Visible:
        """Return it for attentions of one form; mask : that of all heads."""
        first, device = records[0], records[0].query.device
        m, n = first.size
        if mask is None and not any(first.query_axis.padding + first.key_axis.padding):
            every = torch.ones(len(records), max(m, n), dtype=torch.bool, device=device)
            return cls(None, every[:, :m], every[:, :n])
        padding = torch.tensor([r.query_axis.padding for r in records], device=device)
        unread = torch.tensor([r.key_axis.padding for r in records], device=device)
        hidden = unread[:, None, None].expand(-1, 1, m, n)
        if mask is not None:
            low = torch.finfo(mask.dtype).min / 2
            hidden = hidden | (mask <= low).view(len(records), -1, m, n)
        rows, read = ~padding & ~hidden.all(-1).any(1), ~hidden.all(-2).all(1)
        if first.through_interface:
            read = torch.ones_like(read)
        if len(records) > 1:
            hidden = hidden.expand(-1, first.heads, m, n)
        return cls(hidden.flatten(0, 1), rows, read)

    @cached_property
    def shown(self) -> Tensor | None:
        """Return 1 where a weight is compared and may be above 0, else 0; None where all are."""
        if (hidden := self.hidden) is None:
            return None
        rows = self.rows.repeat_interleave(len(hidden) // len(self.rows), 0)
        return (~hidden & rows.unsqueeze(-1)).float()

    def compared(self, stage: str) -> Tensor:
        """Return the rows (L, T) of a stage that are compared."""
        return self.read if stage in ("key", "value") else self.rows

    def ignored(self, stage: str, heads: int) -> Tensor | None:
        """Return the rows (heads, T, 1) of a stage that are not compared; None where all are."""
        if self.hidden is None:
            return None
        flags = ~self.compared(stage)
        return flags[:, None].expand(-1, heads // len(flags), -1).reshape(heads, -1, 1)


@exact_products()
def _measure(
    numbers: Sequence[int], records: Sequence[AttentionRecord], expected: Sequence[Values]
) -> list[Measured]:
    """Measure the known stages of attentions of one form; wait for no number."""
    joined, count, measured = join(records), len(records), []
    fine, coarse = dtypes(joined)
    values = {stage: cat(of_one[stage] for of_one in expected) for stage in expected[0]}
    visible = Visible.of(records, joined.mask)

    def add(
        stage: str, dtype: torch.dtype, width: int, found: Numbers, *, planted: bool = False
    ) -> None:
        of_each = {name: number.reshape(count, -1) for name, number in found.items()}
        of_each["rows"] = visible.compared(stage).sum(1, keepdim=True)
        precision = PRECISIONS[dtype]
        measured.append(Measured(numbers, records, stage, precision, width, of_each, planted))

    known = [stage for stage in _PROJECTED if stage in values]
    # A model may convert to float32 what it has projected in less.
    parts_of = (vars(r.projection).values() for r in records if r.projection)
    weights = [part.weight.dtype for parts in parts_of for part in parts if hasattr(part, "weight")]
    projected = max({coarse, *weights} & PRECISIONS.keys(), key=lambda one: PRECISIONS[one].eps)
    ours, run = (project_all(records, dtype, known) for dtype in (torch.float64, projected))
    for stage in (stage for stage in known if stage in ours[0]):
        x, y, z = (cat(of_one[stage] for of_one in side) for side in (ours, expected, run))
        found = _measure_vectors(x, y, z, visible.ignored(stage, len(x)))
        parts: list[tuple[HeadProjection, Any]] = [
            (getattr(record.projection, stage), source(record, stage)) for record in records
        ]
        if any(isinstance(step, Clip) for step in parts[0][0].after):  # rounded before, not after
            unclipped = torch.cat([begin(part, X.double()) for part, X in parts])
            found["largest"] = largest_by_head(unclipped)
        add(stage, projected, len(x) // count * x.shape[-1], found)
    if not values.keys() - set(_PROJECTED):
        return measured
    if (scores := values.get("scores")) is not None:
        values["shifted"] = is_shifted(joined, scores, visible.hidden, count)
    # All heads that share their keys, and as many of them as fit.
    shared, size = joined.heads // joined.key_heads, math.prod(joined.size)
    step = max(1, _limit(joined) // (size * shared)) * shared
    blocks = [
        _measure_maps(joined, values, visible, slice(start, min(start + step, joined.heads)))
        for start in range(0, joined.heads, step)
    ]
    maps = _by_head(blocks, visible.ignored("weights", joined.heads))
    score = {"score": maps["", "score"]}
    width = joined.heads // count * len(joined.key_axis)
    for stage in (stage for stage in _MAPS if stage in values):
        found = {name: number for (of, name), number in maps.items() if of == stage}
        add(stage, fine, width, found | score)
    if scores is not None:  # nearly always those of the first heads are enough
        wrong = replace(joined, scale=joined.scale * CANARY)
        expected_scores = {"scores": scores, "shifted": values["shifted"]}
        first = slice(0, joined.heads if count > 1 else min(step, 2 * shared))
        some = _by_head([_measure_maps(wrong, expected_scores, visible, first)], None)
        found = {name: number for (_, name), number in some.items()}
        add("scores", fine, width, found | {"largest": maps["scores", "largest"]}, planted=True)
    if ("ours", "head output") not in maps:
        return measured
    x, z = maps["ours", "head output"], maps["run", "head output"]
    sums = {"summed": maps["", "summed"]} if ("", "summed") in maps else {}
    model = values.get("head output")
    if model is not None:
        found = _measure_vectors(x, model, z, visible.ignored("head output", len(x)))
        add("head output", coarse, joined.heads // count * x.shape[-1], found | score | sums)
    if "output" in values and has_output(records[0]):
        # The errors of long sums would carry over, by as much as W^O amplifies them.
        before = [x, z] if model is None or not sums else [model.double(), model.to(coarse)]
        split = [side.view(count, -1, *side.shape[1:]) for side in (*before, x)]
        found = _measure_output(records, split, values["output"], visible.ignored("output", count))
        add("output", coarse, values["output"].shape[-1], found | score)
    return measured


def cat(parts: Iterable[Tensor], dim: int = 0) -> Tensor:
    """Join tensors; one alone is not copied."""
    first, *others = parts
    return torch.cat([first, *others], dim) if others else first


def _measure_vectors(x: Tensor, y: Tensor, z: Tensor, ignored: Tensor | None) -> Numbers:
    """Measure vectors (heads, T, d): ours, the model's, and those of our own run."""
    values = x.new_empty(3, *x.shape)
    values[0], values[1], values[2] = x, y, z
    if ignored is not None:
        values.masked_fill_(ignored, 0.0)
    values[1:] -= values[0]
    values = values.flatten(2)
    found = regression(values)
    sizes = values.abs_().amax(-1)
    found["count"] = values[0].sign_().sum(-1)  # several times faster than != 0
    largest = sizes[0] if ignored is None else largest_by_head(x)
    return found | dict(zip(_SIZES, sizes, strict=True)) | {"largest": largest}


def _differences(x: Tensor, y: Tensor, z: Tensor, room: Tensor | None = None) -> Iterator[Tensor]:
    """Yield y - x, then z - x in the same memory, in the precision of x.

    room : a tensor like x to overwrite. Fresh memory costs several times an operation in a cache.
    """
    room = torch.empty_like(x) if room is None else room
    return (room.copy_(other).sub_(x) for other in (y, z))


def _measure_maps(joined: AttentionRecord, values: Values, visible: Visible, heads: slice) -> Maps:
    """Measure the scores and weights of some heads; return the numbers by stage, and outputs."""
    record, shown = _of_heads(joined, heads), visible.shown
    shown = shown[heads] if shown is not None and len(shown) > 1 else shown
    fine, coarse = dtypes(joined)
    ours, run = (record.scores(dtype=dtype) for dtype in (torch.float64, fine))
    # A GPU would have to be waited for.
    centered = ours.device.type != "cpu" or bool("scores" in values and values["shifted"].any())
    measured: Maps = {("", "ends"): (ends := _ends(ours, None, centered))}
    if "scores" in values:
        both = _differences(ours, values["scores"][heads], run)
        errors = [_ends(difference, shown, centered) for difference in both]
        of_ours = ends if shown is None else _ends(ours, shown, centered)
        measured["scores", "ends"] = torch.stack((of_ours, *errors), 1)
        measured["scores", "shifted"] = values["shifted"][heads]
    if "weights" not in values:
        return measured
    weights = record.weights(dtype=torch.float64, scores=ours)
    run = record.weights(dtype=fine, scores=run)
    rounded, logs = weights.float(), torch.empty(3, *ours.shape, device=ours.device)
    # Those of ours, up to a number for each row; then those of the others.
    logs[0].copy_(ours.sub_(ends[..., :1])).nan_to_num_(0.0, neginf=-_FAR)
    lowest = rounded.sign().mul_(logs[0]).amin(-1)  # of those with a weight
    measured["", "rows"] = torch.stack((lowest, weights.amax(-1)), -1)
    model = values["weights"][heads]
    for log, difference in zip(logs[1:], _differences(weights, model, run, ours), strict=True):
        log.copy_(difference)
    found = _of_weights(rounded, model, run, logs, shown, PRECISIONS[fine].tiny)
    measured |= {("weights", name): number for name, number in found.items()}
    if not values.keys() & {"head output", "output"}:
        return measured
    if coarse != fine:
        run = record.weights(dtype=coarse)
    for name, one in (("ours", weights), ("run", run)):
        measured[name, "head output"] = record.mix(one)
    n = len(record.key_axis)
    if math.sqrt(n) * FLOAT32 > SUMMATION:  # shorter sums are covered by it
        # A model that reads one query at a time adds up n products α·V one after the other. Each
        # step is off by half an eps of Σ α|V| at most, and all n by λ√n such errors: by the
        # probabilistic bound of Higham and Mary (2019), λ = 6 is exceeded once in 3e7 sums.
        sums = replace(record, value=record.value.abs()).mix(rounded).amax(-1, keepdim=True)
        measured["", "summed"] = sums * (6 * math.sqrt(n) / 2)
    return measured


def _by_head(blocks: Sequence[Maps], ignored: Tensor | None) -> Maps:
    """Join blocks of heads; return what is largest in each head, and its sums, from its rows."""
    maps = {name: cat(block[name] for block in blocks) for name in blocks[0]}
    top, bottom, _ = maps.pop(("", "ends")).unbind(-1)
    if ("scores", "ends") in maps:
        high, low, mean = maps.pop(("scores", "ends")).unbind(-1)
        mean = mean.where(maps.pop(("scores", "shifted")), 0.0)
        sizes = (high - mean).maximum(mean - low).amax(-1).unbind(1)
        maps |= {("scores", name): size for name, size in zip(_SIZES, sizes, strict=True)}
        maps["scores", "largest"] = top.abs().maximum(bottom.abs()).amax(1)
    if ("weights", "rows") in maps:
        lowest, most = maps.pop(("", "rows")).unbind(-1)
        largest_scores = top.abs().maximum((top + lowest).abs()).where(most > 0, 0.0)
        maps["", "score"] = largest_scores.amax(1)
        maps["weights", "largest"] = most.amax(1)
        # If all scores s of a row are off by δ·|s| at most, a weight w moves by 2·δ·max|s|·w(1-w).
        # Weights sum to 1 at most, so this is most for the largest of a row.
        moved = 2 * largest_scores * most * (1 - most)
        count, off, *rows = maps.pop(("weights", "rows")).unbind(-1)
        maps["weights", "count"] = (count * (count > 1)).sum(1)
        centered = maps["weights", "zz"] - (off**2 / count.clamp(min=1)).sum(1)
        maps["weights", "zz"] = centered.clamp(min=0)
        names = ("rounding", *_SIZES, "leaking")
        for name, row in zip(names, (moved, most, *rows), strict=True):
            maps["weights", name] = row.unsqueeze(-1)
    for key, number in maps.items():  # what is left of rows
        if number.dim() == 3 and key[1] != "head output":
            read = number if ignored is None else number.masked_fill(ignored, 0.0)
            maps[key] = read.amax((1, 2))
    return maps


def _ends(scores: Tensor, shown: Tensor | None, centered: bool) -> Tensor:
    """Return the largest, the least and, if `centered`, the mean score of each row; else 0."""
    if shown is None:
        rows = *scores.shape[:-1], 1
        mean = scores.mean(-1, keepdim=True) if centered else scores.new_zeros(rows)
    else:  # what is hidden may be any number
        sums = scores.masked_fill(shown == 0, 0.0).sum(-1, keepdim=True)
        mean = sums / shown.sum(-1, keepdim=True).clamp(min=1)
        scores = scores.where(shown > 0, mean)
    return torch.cat((scores.amax(-1, keepdim=True), scores.amin(-1, keepdim=True), mean), -1)


def is_shifted(joined: AttentionRecord, scores: Tensor, hidden: Tensor | None, n: int) -> Tensor:
    """Return for each head whether its model shifts each row of scores: (heads, 1, 1).

    Some subtract the largest score of a row before the softmax, in all heads of an attention.
    """
    if joined.sinks is not None or not joined.through_interface:
        return torch.ones(len(scores), 1, 1, dtype=torch.bool, device=scores.device)
    for rows in (_FIRST_ROWS, None) if scores.device.type == "cpu" else (None,):
        seen = scores[:, :rows]
        if hidden is not None:
            seen = seen.masked_fill(hidden[:, :rows], -torch.inf)
        largest = seen.amax(-1).reshape(n, -1)
        shifted = ~((largest != 0) & (largest != -torch.inf)).any(1)
        if rows is not None and not shifted.any():
            break  # nearly always
    return shifted[:, None].expand(-1, len(scores) // n).reshape(-1, 1, 1)


def _of_weights(
    ours: Tensor, model: Tensor, run: Tensor, logs: Tensor, shown: Tensor | None, tiny: float
) -> Numbers:
    """Measure what weights alone have: the slope of their logarithms, and exact zeros.

    ours : (heads, m, n), rounded to float32. logs : of ours, up to a number for each row, and the
    differences y - x and z - x, (3, heads, m, n), rounded to float32 after they were computed.
    They are overwritten: log y - log x = log1p((y - x) / x).

    Returns the sums of each head, and of its "rows" (heads, m, 5): the number and the sum of the
    logarithms of z, the largest differences of y and z, and the largest weight that should be 0.
    """
    errors = logs[1:].abs().amax(-1)
    leaking = torch.zeros_like(errors[0])
    # Below the smallest normal number of the dtype a logarithm is mostly rounding.
    usable = torch.minimum(model, run).float()
    usable = torch.minimum(usable, ours, out=usable).gt_(tiny)
    if shown is not None:
        leaking = ours.maximum(model.abs()).nan_to_num_(1.0, 1.0).mul_(1 - shown).amax(-1)
        usable *= shown
    # -inf where the model's weight is less than 1e-7 of ours, and NaN where both are 0.
    logs[1:].div_(ours).log1p_().nan_to_num_(0.0, _FAR, -_FAR)
    logs *= usable
    count = usable.sum(-1, keepdim=True)
    # Centered in each row, x are centered scores up to rounding; so y need not be centered.
    logs[0].sub_(logs[0].sum(-1, keepdim=True) / count.clamp(min=1)).mul_(usable)
    rows = torch.stack((count.squeeze(-1), logs[2].sum(-1), *errors, leaking), -1)
    return {"rows": rows, **regression(logs.flatten(2))}


def _measure_output(
    records: Sequence[AttentionRecord], heads: list[Tensor], model: Tensor, ignored: Tensor | None
) -> Numbers:
    """Measure the output, and the slope of what each head adds to it.

    In the sum of all heads, rounding hides a small error in the W^O of one.

    heads : the outputs of the heads (L, H, m, d_v) from which the output follows, in float64 and in
    the model's precision; and ours, for what each head adds.
    """
    m, groups, start = heads[0].shape[2], [], 0
    for same in of_one_projection(records):
        some = slice(start, start := start + len(same))
        # The tokens of all texts together: (H, N·m, d_v).
        sides = [side[some].transpose(0, 1).flatten(1, 2) for side in heads]
        groups.append((some, join_inputs(same), sides))
    x, z = (
        cat(output_of(one, sides[n]).view(-1, m, model.shape[-1]) for _, one, sides in groups)
        for n in (0, 1)
    )
    found = _measure_vectors(x, model, z, ignored)
    differences = torch.stack((model - x, z - x))
    if ignored is not None:
        differences.masked_fill_(ignored, 0.0)
    differences = differences.flatten(2)  # (2, L, m·d_model)
    found["of heads zz"] = torch.linalg.vecdot(differences[1], differences[1])
    sizes: list[Tensor] = []
    products: list[Tensor] = []
    for some, one, sides in groups:
        across, of_group = differences[:, some].permute(1, 2, 0).float(), []
        for part in parts_of_output(one, sides[2].float()):
            added = part.view(len(part), -1, m, part.shape[-1])  # (h, N, m, d_model)
            if ignored is not None:
                added.masked_fill_(ignored[some], 0.0)
            size = torch.linalg.vector_norm(added, dim=-1).transpose(0, 1)  # (N, h, m)
            of_group.append((size, added.flatten(2).transpose(0, 1) @ across))  # (N, h, 2)
        for whole, parts in zip((sizes, products), zip(*of_group, strict=True), strict=True):
            whole.append(cat(parts, 1))
    of_rows, (xy, xz) = torch.cat(sizes), torch.cat(products).unbind(-1)
    sums = of_rows.square().sum(-1), xy, xz, (of_rows != 0).sum(-1) * model.shape[-1]
    names = [f"of heads {name}" for name in REGRESSION[:4]]
    return found | dict(zip(names, sums, strict=True))


@overload
def load_result(path: str | os.PathLike[str], kind: type[Kind]) -> Kind: ...
@overload
def load_result(path: str | os.PathLike[str]) -> Any: ...
@checked_scalars
def load_result(path: str | os.PathLike[str], kind: type[Savable] = Savable) -> Any:
    """Read a result that `save_result` wrote as .safetensors: the same, bit for bit, on the CPU.

    Q, K and V of whole maps are recomputed. If the numbers are not those that were verified when
    the result was saved, its agreement says so.

    Parameters
    ----------
    path : str or path
        The file.
    kind : type, optional
        The type that the result must have, such as `AttentionResult`. A type checker then knows it.

    Returns
    -------
    Savable
        The result, of the type that was saved.

    Raises
    ------
    InputError
        There is no such file, it holds no result or one of another type, it changed since it was
        written, or a newer version of attnviz wrote it.

    Examples
    --------
    >>> import attnviz
    >>> from tempfile import TemporaryDirectory
    >>> moved = attnviz.shift("bank", "We sat on the bank of the river.")
    >>> with TemporaryDirectory() as folder:
    ...     moved.save(f"{folder}/bank.safetensors")
    ...     again = attnviz.load_result(f"{folder}/bank.safetensors")
    >>> again.headline == moved.headline
    True
    """
    if not (isinstance(kind, type) and issubclass(kind, Savable)):
        raise InputError(f"kind must be a type such as AttentionResult, not {kind!r:.60}.")
    result = read_result(Path(path))
    if not isinstance(result, kind):
        way = "Save one: verify -o FILE" if kind is AttentionResult else "Name another file"
        raise InputError(f"{path} holds {type(result).__name__}, not {kind.__name__}. {way}.")
    if isinstance(result, AttentionResult) and not result.agreement.given:
        report = verify_saved(result)
        if report.verdict != result.agreement.verdict:
            result = replace(result, agreement=replace(report, recomputed=()))
    return result


def verify_saved(result: AttentionResult) -> AgreementReport:
    """Recompute Q, K and V of every record from what the result holds, and return the new report.

    The model's own values of the other stages are not part of a result: their checks stay, and the
    digests say whether Q and K, from which the weights follow, are those that were checked.
    """
    report = result.checked_agreement
    values = [{s: getattr(record, s).double() for s in _PROJECTED} for record in result.records]
    checks_of, _ = compare([*zip(result.records, values, strict=True)])
    again = {(c.path, c.layer, c.stage): c for checks in checks_of for c in checks}
    recomputed = tuple(stage for stage in _PROJECTED if any(key[-1] == stage for key in again))
    checks = [again.pop((c.path, c.layer, c.stage), c) for c in report.checks]
    return replace(report, checks=(*checks, *again.values()), recomputed=recomputed)
