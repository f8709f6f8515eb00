"""What a map shows: the weights of one head or of all, as they are drawn, and what was left out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attnviz.analyses.maps.pooled import (
    expect_kept,
    expect_part,
    pooled,
    streamed_map,
)
from attnviz.analyses.maps.result import AttentionMap, HeadMaps
from attnviz.errors import InputError, whole_number
from attnviz.results import AttentionResult, Special, StreamedAttention, one_result
from attnviz.results.words import TokenGroups, word_weights

_TILE = 64  # cells a side of the maps of all heads of a long text
_MOST_WEIGHTS = 100_000_000  # of all heads together, in an overview


def attention_map(
    result: AttentionResult,
    *,
    layer: int,
    head: int | Sequence[int],
    words: bool = True,
    special: Special = "keep",
    rows: slice | None = None,
    columns: slice | None = None,
    notes: Sequence[str] = (),
) -> AttentionMap:
    """Return the map of one head, or the mean of several heads of one layer, as it is drawn.

    The map of a long text that was streamed is pooled: a cell joins several tokens, the weights of
    its columns summed and of its rows averaged. A part of it is exact.

    Parameters
    ----------
    words : merge pieces into words.
    rows, columns : a part of the map, counted from 0: words, or tokens where it was streamed.
    special : "keep" the special tokens; "hide" them (rows then no longer sum to 1); or "remove"
        them and renormalise every row to sum to 1.
    notes : what else the caption should say.

    Raises
    ------
    InputError : no such layer or head, an unknown `special`, or nothing left to draw.
    """
    result = one_result(result, streamed=True)
    several = head if isinstance(head, Sequence) else (head,)
    heads = tuple(dict.fromkeys(whole_number(each, "a head") for each in several))
    if not heads:
        raise InputError(
            "Expected at least one head, got none. Name a head, or several to average."
        )
    for each in heads:
        result.check_head(layer, each)
    found = result.layer(layer)
    said = [*_cutting(result), *notes]
    if isinstance(found, StreamedAttention):
        expect_kept(special)
        weights, left, across = streamed_map(found, heads, rows, columns, said)
    else:
        weights, left, across = word_weights(found, words=words)
        weights = weights[list(heads)].mean(0)
        said += _merging(left, across)
        weights, left, across = _treat_special(weights, left, across, special, said)
        weights, left, across = _part(weights, left, across, rows, columns, said)
    return AttentionMap(
        weights=weights,
        rows=left.labels,
        columns=across.labels,
        stack=found.stack,
        layer=layer,
        heads=heads,
        notes=tuple(said),
        agreement=result.agreement,
        provenance=result.provenance,
        boundary=(left.boundary(), across.boundary()),
        special_rows=left.special,
        special_columns=across.special,
        sides=(left.side, across.side),
        image=result.image,
    )


def head_maps(
    result: AttentionResult,
    *,
    layer: int | None = None,
    words: bool = True,
    special: Special = "keep",
) -> HeadMaps:
    """Return the maps of all heads, of all layers or of one, as they are drawn.

    Parameters are those of `attention_map`.

    Raises
    ------
    InputError : no such layer, an unknown `special`, or layers that differ in their heads.
    """
    result = one_result(result, streamed=True)
    if result.streamed:
        return _streamed_maps(result, layer, special)
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
    if result.streamed:
        whole = {(each.kept, each.heads) for each in result.stack().streamed}
        return head_maps(result) if len(whole) == 1 else None
    shapes = {(r.heads, len(r.query_axis), len(r.key_axis)) for r in result.stack()}
    count = sum(r.heads * len(r.query_axis) * len(r.key_axis) for r in result.stack())
    if len(shapes) > 1 or count > _MOST_WEIGHTS:
        return None
    return head_maps(result, words=words, special=special)


def _streamed_maps(result: AttentionResult, layer: int | None, special: Special) -> HeadMaps:
    """Return the pooled maps of the heads that were kept."""
    expect_kept(special)
    stack = result.stack()
    found = stack.streamed if layer is None else (stack.layer(layer),)
    every = [each for each in found if isinstance(each, StreamedAttention)]
    said = _cutting(result)
    weights, left, across = zip(*(pooled(each, said, _TILE) for each in every), strict=True)
    return HeadMaps(
        weights=torch.stack(weights),
        rows=left[0].labels,
        columns=across[0].labels,
        stack=every[0].stack,
        layers=tuple(each.layer for each in every),
        notes=tuple(dict.fromkeys(said)),
        agreement=result.agreement,
        provenance=result.provenance,
        sides=(left[0].side, across[0].side),
        heads=every[0].kept,
    )


def _part(
    weights: Tensor,
    left: TokenGroups,
    across: TokenGroups,
    rows: slice | None,
    columns: slice | None,
    said: list[str],
) -> tuple[Tensor, TokenGroups, TokenGroups]:
    """Cut a part out of a map, and say so."""
    if rows is None and columns is None:
        return weights, left, across
    cut = [
        expect_part(part, len(side.labels), name)
        for part, side, name in ((rows, left, "rows"), (columns, across, "columns"))
    ]
    said.append(
        " and ".join(
            f"{name} {part.start} to {part.stop - 1} of {len(side.labels)}"
            for part, side, name in zip(cut, (left, across), ("rows", "columns"), strict=True)
        )
    )
    return (
        weights[cut[0], cut[1]],
        left.at(range(*cut[0].indices(len(left.labels)))),
        across.at(range(*cut[1].indices(len(across.labels)))),
    )


def _cutting(result: AttentionResult) -> list[str]:
    if result.provenance.cut_from is None:
        return []
    first = (result.streamed or result.records)[0]
    kept = sum(not padded for padded in first.key_axis.padding)
    return [f"text cut from {result.provenance.cut_from} to {kept} tokens"]


def _merging(rows: TokenGroups, columns: TokenGroups) -> list[str]:
    if any(len(at) > 1 for at in rows.positions + columns.positions):
        return ["word pieces merged (columns summed, rows averaged)"]
    return []


def _treat_special(
    weights: Tensor, rows: TokenGroups, columns: TokenGroups, special: Special, said: list[str]
) -> tuple[Tensor, TokenGroups, TokenGroups]:
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
