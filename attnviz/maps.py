"""What a map shows: the weights of one head or of all, as they are drawn, and what was left out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attnviz.errors import InputError, whole_number
from attnviz.records import AttentionMap, AttentionResult, HeadMaps, Special, one_result
from attnviz.words import Units, word_weights

_MOST_WEIGHTS = 100_000_000  # of all heads together, in an overview


def make_map(
    result: AttentionResult,
    *,
    layer: int,
    head: int | Sequence[int],
    words: bool = True,
    special: Special = "keep",
    notes: Sequence[str] = (),
) -> AttentionMap:
    """Return the map of one head, or the mean of several heads of one layer, as it is drawn.

    Parameters
    ----------
    words : merge pieces into words.
    special : "keep" the special tokens; "hide" them (rows then no longer sum to 1); or "remove"
        them and renormalise every row to sum to 1.
    notes : what else the caption should say.

    Raises
    ------
    InputError : no such layer or head, an unknown `special`, or nothing left to draw.
    """
    result = one_result(result)
    several = head if isinstance(head, Sequence) else (head,)
    heads = tuple(dict.fromkeys(whole_number(each, "a head") for each in several))
    if not heads:
        raise InputError(
            "Expected at least one head, got none. Name a head, or several to average."
        )
    for each in heads:
        result.check_head(layer, each)
    weights, rows, columns = word_weights(result.record(layer), words=words)
    weights = weights[list(heads)].mean(0)
    said = [*_cutting(result), *notes, *_merging(rows, columns)]
    weights, rows, columns = _treat_special(weights, rows, columns, special, said)
    boundary = rows.boundary(), columns.boundary()
    return AttentionMap(
        weights=weights,
        rows=rows.labels,
        columns=columns.labels,
        stack=result.record(layer).stack,
        layer=layer,
        heads=heads,
        notes=tuple(said),
        agreement=result.agreement,
        provenance=result.provenance,
        boundary=boundary,
        special_rows=rows.special,
        special_columns=columns.special,
        sides=(rows.side, columns.side),
        image=result.image,
    )


def make_maps(
    result: AttentionResult,
    *,
    layer: int | None = None,
    words: bool = True,
    special: Special = "keep",
) -> HeadMaps:
    """Return the maps of all heads, of all layers or of one, as they are drawn.

    Parameters are those of `make_map`.

    Raises
    ------
    InputError : no such layer, an unknown `special`, or layers that differ in their heads.
    """
    result = one_result(result)
    records = result.stack().records if layer is None else (result.record(layer),)
    sizes = {(record.heads, len(record.query_axis), len(record.key_axis)) for record in records}
    if len(sizes) > 1:
        raise InputError(
            "Expected layers with the same number of heads and positions, got different ones. "
            "Choose one layer at a time."
        )
    weights, rows, columns = zip(*(word_weights(r, words=words) for r in records), strict=True)
    said = [*_cutting(result), *_merging(rows[0], columns[0])]
    stacked, left, across = _treat_special(torch.stack(weights), rows[0], columns[0], special, said)
    return HeadMaps(
        weights=stacked,
        rows=left.labels,
        columns=across.labels,
        stack=records[0].stack,
        layers=tuple(record.layer for record in records),
        notes=tuple(said),
        agreement=result.agreement,
        provenance=result.provenance,
        sides=(left.side, across.side),
    )


def make_overview(
    result: AttentionResult, *, words: bool = True, special: Special = "keep"
) -> HeadMaps | None:
    """Return the maps of all heads to be drawn beside one of them, or None.

    None where they cannot stand side by side: layers differ in their heads or in what they relate,
    or there is more than a picture of them could show.
    """
    shapes = {(r.heads, len(r.query_axis), len(r.key_axis)) for r in result.stack()}
    count = sum(r.heads * len(r.query_axis) * len(r.key_axis) for r in result.stack())
    if len(shapes) > 1 or count > _MOST_WEIGHTS:
        return None
    return make_maps(result, words=words, special=special)


def _cutting(result: AttentionResult) -> list[str]:
    if result.provenance.cut_from is None:
        return []
    kept = sum(not padded for padded in result.records[0].key_axis.padding)
    return [f"text cut from {result.provenance.cut_from} to {kept} tokens"]


def _merging(rows: Units, columns: Units) -> list[str]:
    if any(len(at) > 1 for at in rows.positions + columns.positions):
        return ["word pieces merged (columns summed, rows averaged)"]
    return []


def _treat_special(
    weights: Tensor, rows: Units, columns: Units, special: Special, said: list[str]
) -> tuple[Tensor, Units, Units]:
    """Keep, hide or remove the special tokens, and say so."""
    if special not in ("keep", "hide", "remove"):
        raise InputError(f"Expected special to be keep, hide or remove, got {special!r}.")
    if special == "keep" or not any(rows.special + columns.special):
        return weights, rows, columns
    names = ", ".join(
        dict.fromkeys(
            label
            for side in (rows, columns)
            for label, is_special in zip(side.labels, side.special, strict=True)
            if is_special
        )
    )
    weights = weights[..., ~torch.tensor(rows.special), :][..., ~torch.tensor(columns.special)]
    left = weights.sum(-1, keepdim=True)
    lost = f"{1 - left.mean().item():.0%} of the weight"
    if special == "remove":
        weights = weights / left.clamp(min=torch.finfo(left.dtype).tiny)
        said.append(f"{names} removed ({lost}), rows renormalised to 1")
    else:
        said.append(f"{names} hidden ({lost}), rows not renormalised")
    return weights, rows.without_special(), columns.without_special()
