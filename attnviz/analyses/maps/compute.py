"""Compute the maps that figures show: of one head or of all, of words or of pooled tokens.

The map of a long text is streamed: it is pooled as a whole and exact in parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.analyses.maps.result import AttentionMap, HeadMaps
from attnviz.errors import InputError, whole_number
from attnviz.results import (
    AttentionResult,
    Axis,
    AxisGeometry,
    Landmark,
    Special,
    StreamedAttention,
    cell_sizes,
    one_result,
)
from attnviz.results.words import TokenGroups, word_weights

_TILE = 64  # cells a side of the maps of all heads of a long text
_MOST_WEIGHTS = 100_000_000  # of all heads together, in an overview
_MOST_CELLS = 2**24  # of an exact part of a long text
_WORDS, _LETTERS = 3, 24  # of a landmark at most


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
    """Return the attention map of one head, or the mean map of several heads of one layer.

    The streamed map of a long text is pooled: a cell covers several tokens, whose columns are
    summed and whose rows are averaged. Parts of it are exact.

    Parameters
    ----------
    result : AttentionResult
        From `attend`.
    layer : int
        The layer, counted from 0.
    head : int or sequence of int
        The head, counted from 0, or several heads to average.
    words : bool, default True
        Whether to merge word pieces into words.
    special : {"keep", "hide", "remove"}
        Whether to keep special tokens, to hide them (rows then no longer sum to 1), or to remove
        them and renormalize every row to sum to 1.
    rows, columns : slice, optional
        A part of the map, counted from 0: words, or tokens if the map was streamed.
    notes : sequence of str, optional
        Further notes for the caption.

    Returns
    -------
    AttentionMap
        The weights with the labels of rows and columns.

    Raises
    ------
    InputError
        The layer or head does not exist, `special` is unknown, or the part is empty.
    """
    result = one_result(result, streamed=True)
    several = head if isinstance(head, Sequence) else (head,)
    heads = tuple(dict.fromkeys(whole_number(number, "a head") for number in several))
    if not heads:
        raise InputError(
            "Expected at least one head, got none. Name a head, or several to average."
        )
    for number in heads:
        result.check_head(layer, number)
    attention = result.layer(layer)
    all_notes = [*_truncation_note(result), *notes]
    if isinstance(attention, StreamedAttention):
        _check_special(special)
        weights, left, across = _streamed_map(attention, heads, rows, columns, all_notes)
    else:
        weights, left, across = word_weights(attention, words=words)
        weights = weights[list(heads)].mean(0)
        all_notes += _merging_note(left, across)
        weights, left, across = _treat_special(weights, left, across, special, all_notes)
        weights, left, across = _part(weights, left, across, rows, columns, all_notes)
    return AttentionMap(
        weights=weights,
        rows=left.labels,
        columns=across.labels,
        stack=attention.stack,
        layer=layer,
        heads=heads,
        notes=tuple(all_notes),
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
    """Return the attention maps of all heads, of all layers or of one.

    Parameters
    ----------
    result : AttentionResult
        From `attend`.
    layer : int, optional
        The layer, counted from 0. By default all layers.
    words : bool, default True
        Whether to merge word pieces into words.
    special : {"keep", "hide", "remove"}
        As in `attention_map`.

    Returns
    -------
    HeadMaps
        The weights of all heads, with the labels of rows and columns.

    Raises
    ------
    InputError
        The layer does not exist, `special` is unknown, or the layers have different numbers of
        heads or positions.
    """
    result = one_result(result, streamed=True)
    if result.streamed:
        return _pooled_maps(result, layer, special)
    records = result.stack().records if layer is None else (result.record(layer),)
    sizes = {(record.heads, len(record.query_axis), len(record.key_axis)) for record in records}
    if len(sizes) > 1:
        raise InputError(
            "Expected layers with the same number of heads and positions, got different ones. "
            "Choose one layer at a time."
        )
    weights, rows, columns = zip(*(word_weights(r, words=words) for r in records), strict=True)
    notes = [*_truncation_note(result), *_merging_note(rows[0], columns[0])]
    stacked, left, across = _treat_special(
        torch.stack(weights), rows[0], columns[0], special, notes
    )
    return HeadMaps(
        weights=stacked,
        rows=left.labels,
        columns=across.labels,
        stack=records[0].stack,
        layers=tuple(record.layer for record in records),
        notes=tuple(notes),
        agreement=result.agreement,
        provenance=result.provenance,
        sides=(left.side, across.side),
    )


def make_overview(
    result: AttentionResult, *, words: bool = True, special: Special = "keep"
) -> HeadMaps | None:
    """Return the maps of all heads for an overview beside one map, or None.

    None if the layers have different heads or sequences, or if there are too many weights.
    """
    if result.streamed:
        heads = {(layer.kept, layer.heads) for layer in result.stack().streamed}
        return head_maps(result) if len(heads) == 1 else None
    shapes = {(r.heads, len(r.query_axis), len(r.key_axis)) for r in result.stack()}
    count = sum(r.heads * len(r.query_axis) * len(r.key_axis) for r in result.stack())
    if len(shapes) > 1 or count > _MOST_WEIGHTS:
        return None
    return head_maps(result, words=words, special=special)


def _pooled_maps(result: AttentionResult, layer: int | None, special: Special) -> HeadMaps:
    """Return the pooled maps of the heads that were streamed."""
    _check_special(special)
    stack = result.stack()
    layers = stack.streamed if layer is None else (stack.layer(layer),)
    streamed = [attention for attention in layers if isinstance(attention, StreamedAttention)]
    notes = _truncation_note(result)
    weights, left, across = zip(
        *(pooled(attention, notes, _TILE) for attention in streamed), strict=True
    )
    return HeadMaps(
        weights=torch.stack(weights),
        rows=left[0].labels,
        columns=across[0].labels,
        stack=streamed[0].stack,
        layers=tuple(attention.layer for attention in streamed),
        notes=tuple(dict.fromkeys(notes)),
        agreement=result.agreement,
        provenance=result.provenance,
        sides=(left[0].side, across[0].side),
        heads=streamed[0].kept,
    )


def _part(
    weights: Tensor,
    left: TokenGroups,
    across: TokenGroups,
    rows: slice | None,
    columns: slice | None,
    notes: list[str],
) -> tuple[Tensor, TokenGroups, TokenGroups]:
    """Return a part of a map, with a note on it."""
    if rows is None and columns is None:
        return weights, left, across
    ranges = [
        _check_part(part, len(groups.labels), name)
        for part, groups, name in ((rows, left, "rows"), (columns, across, "columns"))
    ]
    notes.append(
        " and ".join(
            f"{name} {part.start} to {part.stop - 1} of {len(groups.labels)}"
            for part, groups, name in zip(ranges, (left, across), ("rows", "columns"), strict=True)
        )
    )
    return (
        weights[ranges[0], ranges[1]],
        left.at(range(*ranges[0].indices(len(left.labels)))),
        across.at(range(*ranges[1].indices(len(across.labels)))),
    )


def _truncation_note(result: AttentionResult) -> list[str]:
    if result.provenance.cut_from is None:
        return []
    first = (result.streamed or result.records)[0]
    count = sum(not padded for padded in first.key_axis.padding)
    return [f"text cut from {result.provenance.cut_from} to {count} tokens"]


def _merging_note(rows: TokenGroups, columns: TokenGroups) -> list[str]:
    if any(len(pieces) > 1 for pieces in rows.positions + columns.positions):
        return ["word pieces merged (columns summed, rows averaged)"]
    return []


def _treat_special(
    weights: Tensor, rows: TokenGroups, columns: TokenGroups, special: Special, notes: list[str]
) -> tuple[Tensor, TokenGroups, TokenGroups]:
    """Keep, hide or remove special tokens, with a note."""
    if special not in ("keep", "hide", "remove"):
        raise InputError(f"Expected special to be keep, hide or remove, got {special!r}.")
    if special == "keep" or not any(rows.special + columns.special):
        return weights, rows, columns
    names = ", ".join(
        dict.fromkeys(
            label
            for groups in (rows, columns)
            for label, is_special in zip(groups.labels, groups.special, strict=True)
            if is_special
        )
    )
    weights = weights[..., ~torch.tensor(rows.special), :][..., ~torch.tensor(columns.special)]
    sums = weights.sum(-1, keepdim=True)
    lost = f"{1 - sums.mean().item():.0%} of the weight"
    if special == "remove":
        weights = weights / sums.clamp(min=torch.finfo(sums.dtype).tiny)
        notes.append(f"{names} removed ({lost}), rows renormalised to 1")
    else:
        notes.append(f"{names} hidden ({lost}), rows not renormalised")
    return weights, rows.without_special(), columns.without_special()


def landmarks(axis: Axis, start: int, stop: int, most: int = 10) -> tuple[Landmark, ...]:
    """Return at most `most` positions from `start` to `stop`, in steps of a round number.

    >>> [mark.position for mark in landmarks(Axis.numbered(2345), 0, 2345)]
    [0, 500, 1000, 1500, 2000]
    """
    step = _round_up((stop - start) / most)
    first = -(-start // step) * step
    return tuple(Landmark(start, _first_words(axis, start)) for start in range(first, stop, step))


def _round_up(step: float) -> int:
    """Return the next of 1, 2, 5, 10, 20, 50 and so on."""
    power = int(10 ** math.floor(math.log10(max(step, 1))))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step)


def _first_words(axis: Axis, start: int) -> str:
    """Return the first words from a position on."""
    words: list[int] = []
    for word in axis.words[start:]:
        if word is not None and word not in words:
            words.append(word)
        if len(words) == _WORDS:
            break
    label = " ".join(axis.word_labels[word] for word in words)
    return label if len(label) <= _LETTERS else f"{label[:_LETTERS]}…"


def _check_special(special: Special) -> None:
    """Raise InputError for special tokens to be removed from pooled maps."""
    if special != "keep":
        raise InputError(
            f"Expected special tokens to be kept in the map of a long text, got {special!r}: they "
            "are pooled with others. To leave them out, choose rows and columns."
        )


def _check_part(part: slice | None, length: int, name: str) -> slice:
    """Return a slice from start to stop, of everything for None; raise InputError if invalid."""
    if part is None:
        return slice(0, length)
    start, stop, step = part.indices(length)
    outside = (part.stop or 0) > length or (part.start or 0) < -length
    if start >= stop or step != 1 or outside:
        got = ":".join("" if end is None else str(end) for end in (part.start, part.stop))
        raise InputError(
            f"Expected {name} from 0 to {length}, as START:STOP without STOP itself, got {got}."
        )
    return slice(start, stop)


def _streamed_map(
    attention: StreamedAttention,
    heads: tuple[int, ...],
    rows: slice | None,
    columns: slice | None,
    notes: list[str],
) -> tuple[Tensor, TokenGroups, TokenGroups]:
    """Return the mean map of some heads: pooled, or exact for a part."""
    if rows is None and columns is None:
        weights, left, across = pooled(attention, notes)
        return weights[[attention.of_head(head) for head in heads]].mean(0), left, across
    axes = attention.query_axis, attention.key_axis
    ranges = [
        _check_part(part, len(axis), name)
        for part, axis, name in zip((rows, columns), axes, ("rows", "columns"), strict=True)
    ]
    m, n = (part.stop - part.start for part in ranges)
    if m * n > _MOST_CELLS:
        raise InputError(
            f"Expected a part of at most {_MOST_CELLS:,} weights, got {m:,} × {n:,}. Choose fewer "
            "rows or columns, or none for the pooled map."
        )
    crops = [attention.crop(head, ranges[0], ranges[1]).cpu() for head in heads]
    weights = torch.stack(crops).mean(0)
    notes.append(
        f"exact weights of tokens {ranges[0].start:,} to {ranges[0].stop - 1:,} for tokens "
        f"{ranges[1].start:,} to {ranges[1].stop - 1:,}, of {len(axes[0]):,}"
    )
    left, across = (_pooled_groups(axis, part, 1) for axis, part in zip(axes, ranges, strict=True))
    return weights, left, across


def pooled(
    attention: StreamedAttention, notes: list[str], most: int | None = None
) -> tuple[Tensor, TokenGroups, TokenGroups]:
    """Return the pooled maps of the streamed heads, (heads, rows, columns). Rows sum to 1.

    A cell covers several tokens, like a word its pieces: columns are summed, rows averaged.

    most : the largest number of rows and columns; by default as many as the summary has.
    """
    summary, axes = attention.summary, (attention.query_axis, attention.key_axis)
    m, n = map(len, axes)
    factor = 1 if most is None else -(-max(summary.mean.shape[1:]) // most)
    heights, widths = (cell_sizes(length, summary.cell) for length in (m, n))
    area = summary.mean.cpu() * heights[:, None] * widths  # the weight in each cell
    cell = summary.cell * factor
    weights = _sum_cells(area, factor) / cell_sizes(m, cell)[:, None]
    if cell > 1:
        notes.append(
            f"each cell joins {cell} × {cell} of the {m:,} × {n:,} weights (columns "
            "summed, rows averaged)"
        )
    left, across = (_pooled_groups(axis, slice(0, len(axis)), cell) for axis in axes)
    return weights, left, across


def pool(weights: Tensor, cell: int) -> Tensor:
    """Pool cell × cell weights of (H, m, n): columns are summed, rows averaged."""
    return _sum_cells(weights, cell) / cell_sizes(weights.shape[1], cell)[:, None]


def _sum_cells(weights: Tensor, cell: int) -> Tensor:
    """Sum cell × cell weights of (H, m, n); the last row and column may have fewer."""
    H, m, n = weights.shape
    padded = pad(weights, (0, -n % cell, 0, -m % cell))
    return padded.reshape(H, -(-m // cell), cell, -(-n // cell), cell).sum((2, 4))


def _pooled_groups(axis: Axis, part: slice, cell: int) -> TokenGroups:
    """Return the tokens of the rows or columns of a pooled map."""
    starts = range(part.start, part.stop, cell)
    positions = [tuple(range(start, min(start + cell, part.stop))) for start in starts]
    return TokenGroups(
        positions=tuple(positions),
        labels=tuple(axis.labels[start] for start in starts),
        special=tuple(all(axis.special[i] for i in cells) for cells in positions),
        segments=tuple(axis.segments[start] for start in starts),
        side=AxisGeometry(
            landmarks=landmarks(axis, part.start, part.stop), start=part.start, cell=cell
        ),
    )
