"""What every result keeps to: its parts fit each other, and its verdict follows from its numbers.

What a run makes keeps to it by how it is made; what a file holds may not.
"""

from __future__ import annotations

import math
from functools import singledispatch

from torch import Tensor, uint8

from attnviz.analyses.maps.result import AttentionMap, HeadMaps
from attnviz.results.attention_record import AttentionRecord
from attnviz.results.attention_result import AttentionResult
from attnviz.results.axis import Axis, AxisGeometry
from attnviz.results.map_summary import MapSummary
from attnviz.results.report import AgreementReport, StageCheck
from attnviz.results.streamed import StreamedAttention


@singledispatch
def broken(record: object) -> str:
    """Return the rule that a record breaks, in words; nothing where it keeps to all."""
    return ""


def _first(rules: dict[str, bool]) -> str:
    return next((rule for rule, kept in rules.items() if not kept), "")


@broken.register
def _(axis: Axis) -> str:
    several = (axis.words, axis.special, axis.padding, axis.segments, axis.patches, axis.seconds)
    count = len(axis.word_labels)
    return _first(
        {
            "one entry of each kind for each label": all(
                each is None or len(each) == len(axis) for each in several
            ),
            "words that have a label": all(at is None or 0 <= at < count for at in axis.words),
        }
    )


@broken.register
def _(check: StageCheck) -> str:
    heads, slopes = len(check.differences), len(check.slope_errors)
    several = (*check.tolerances, *check.slope_tolerances, check.slope_tolerance or 1.0)
    if check.slope_tolerance == 0 or any(each <= 0 for each in several):
        return "tolerances above 0"
    if not (heads == len(check.tolerances) == len(check.own_errors) > 0):
        return "a tolerance and an error for each difference"
    if slopes != len(check.slope_tolerances):
        return "a tolerance for each slope"
    agrees = check.finite and check.hidden_zero
    agrees &= all(d <= t for d, t in zip(check.differences, check.tolerances, strict=True))
    errors = [*zip(check.slope_errors, check.slope_tolerances, strict=True)]
    if check.slope_error is not None and check.slope_tolerance is not None:
        errors.append((check.slope_error, check.slope_tolerance))
    agrees &= all(abs(error) <= tolerance for error, tolerance in errors)
    return "" if agrees or check.failed_heads else "failed heads where numbers do not agree"


@broken.register
def _(record: AttentionRecord) -> str:
    parts = (record.query, record.key, record.value)
    if not all(each.dim() == 3 and each.numel() and each.is_floating_point() for each in parts):
        return "queries, keys and values of three dimensions, none of them empty"
    (H, G), m, n = (record.heads, record.key_heads), len(record.query_axis), len(record.key_axis)
    read = None if record.visible is None else record.visible.keys
    terms = (record.capped_bias, record.bias, record.mask)
    return _first(
        {
            "a query for each label of its rows": record.query.shape[1:2] == (m,),
            "a key and a value for each label of its columns": record.key.shape[:2]
            == record.value.shape[:2]
            == (G, n),
            "queries as wide as keys": record.query.shape[2:] == record.key.shape[2:],
            "as many query heads for each key head": H % G == 0,
            "a scale that is a number": math.isfinite(record.scale),
            "score terms of its shape": all(_is(each, {1, H}, {m}, {n}) for each in terms),
            "sinks of its shape": _is(record.sinks, {H}) or _is(record.sinks, {H}, {m}),
            "inputs of its shape": _has(record.input, m) and _has(record.key_input, n),
            "a rotation of its shape": all(_has(each, m) for each in record.rotation or ()),
            "a rule for each key": _is(read, {n}),
        }
    )


@broken.register
def _(kept: MapSummary) -> str:
    H, m = kept.entropy.shape if kept.entropy.dim() == 2 else (0, 0)
    n = kept.received.shape[-1] if kept.received.dim() == 2 else 0
    rows, columns = (-(-length // max(kept.cell, 1)) for length in (m, n))
    of_rows = (kept.distance, kept.itself, kept.previous, kept.first, kept.marked, kept.lse)
    return _first(
        {
            "cells of one row or more, and something in them": min(kept.cell, H, m, n) > 0,
            "a number for each key": _is(kept.received, {H}, {n}),
            "a number for each row": all(_is(each, {H}, {m}) for each in of_rows),
            "a number for each cell": _is(kept.mean, {H}, {rows}, {columns})
            and kept.mean.shape == kept.largest.shape,
            "a flag for each row": _is(kept.empty, {m}),
            "a weight for each of the top keys": kept.top_keys.shape[:2] == (H, m)
            and kept.top_keys.shape == kept.top_weights.shape,
        }
    )


@broken.register
def _(kept: StreamedAttention) -> str:
    size = (len(kept.kept), len(kept.query_axis), len(kept.key_axis))
    return _first(
        {
            "a summary of its shape": (*kept.summary.entropy.shape, kept.summary.received.shape[-1])
            == size,
            "heads that it has": all(0 <= head < kept.heads for head in kept.kept),
            "a record of its shape": kept.record is None
            or (kept.record.heads, len(kept.record.query_axis), len(kept.record.key_axis))
            == (kept.heads, *size[1:]),
        }
    )


@broken.register
def _(result: AttentionResult) -> str:
    records = [*result.records, *(each.record for each in result.streamed if each.record)]
    return _first(
        {
            "one attention or more": len(result) > 0,
            "an image in colours": _is_image(result.image),
            "numbers where it says that they were verified": not _verified(result.agreement)
            or all(map(_is_finite, records)),
        }
    )


@broken.register
def _(drawn: AttentionMap) -> str:
    m, n = len(drawn.rows), len(drawn.columns)
    return _first(
        {
            "a weight for each pair of labels": _is(drawn.weights, {m}, {n})
            and drawn.weights.is_floating_point()
            and drawn.weights.numel() > 0,
            "special tokens among its labels": len(drawn.special_rows) in (0, m)
            and len(drawn.special_columns) in (0, n),
            "a place for each label": _lies(drawn.sides[0], m) and _lies(drawn.sides[1], n),
            "an image in colours": _is_image(drawn.image),
            "numbers where it says that they were verified": not _verified(drawn.agreement)
            or bool(drawn.weights.isfinite().any()),
        }
    )


@broken.register
def _(maps: HeadMaps) -> str:
    m, n, weights = len(maps.rows), len(maps.columns), maps.weights
    heads = weights.shape[1] if weights.dim() == 4 else 0
    return _first(
        {
            "a weight for each pair of labels": _is(weights, {len(maps.layers)}, {heads}, {m}, {n})
            and weights.is_floating_point()
            and weights.numel() > 0,
            "a number for each head": len(maps.heads) in (0, heads),
            "a place for each label": _lies(maps.sides[0], m) and _lies(maps.sides[1], n),
            "numbers where it says that they were verified": not _verified(maps.agreement)
            or bool(weights.isfinite().any()),
        }
    )


def _is(tensor: Tensor | None, *sizes: set[int]) -> bool:
    """Tell whether each dimension has one of the sizes that it may have; None has any."""
    if tensor is None:
        return True
    shape = tensor.shape
    return len(shape) == len(sizes) and all(map(set.__contains__, sizes, shape))


def _has(tensor: Tensor | None, positions: int) -> bool:
    return tensor is None or (tensor.dim() == 2 and len(tensor) == positions)


def _is_image(image: Tensor | None) -> bool:
    return image is None or (
        image.dim() == 3 and image.shape[2] == 3 and image.dtype == uint8 and image.numel() > 0
    )


def _lies(side: AxisGeometry, count: int) -> bool:
    return all(each is None or len(each) == count for each in (side.patches, side.seconds))


def _verified(agreement: AgreementReport) -> bool:
    return agreement.verdict == "verified"


def _is_finite(record: AttentionRecord) -> bool:
    """Tell whether what was compared is a number: all but padding."""
    pairs = ((record.query, record.query_axis), (record.key, record.key_axis))
    return all(
        bool(tensor[:, [not each for each in axis.padding]].isfinite().all())
        for tensor, axis in pairs
    )
