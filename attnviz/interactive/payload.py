"""Collect what a page shows of one result, or of two that are compared, as JSON and blocks.

Every head is shown by a map, an overview of a pooled map, or both. How exactly its weights travel
depends on the size of the page: `choose_encodings` decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import ROUND_CEILING, Context
from itertools import accumulate, takewhile
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnviz.analyses.maps.compute import pool, pooled
from attnviz.analyses.maps.heads import choose_word, rank_heads
from attnviz.errors import InputError
from attnviz.interactive.encode import Blocks, Codes, Head
from attnviz.interactive.page import to_script
from attnviz.results import AttentionRecord, AttentionResult, Axis, StreamedAttention
from attnviz.results.words import literal, source

_OVERVIEW_SIDE = 64  # cells of a side of an overview, at most
_OVERVIEW_CELLS = 2_000_000  # of the overviews of all heads, at most
_OVERVIEW_LEVELS = 2**10 - 1
_FINEST, _FINE = 2**16 - 1, 2**12 - 1  # levels of maps
_COARSER = (1440, 1023)  # where queries and keys of all heads do not fit
_HEAD_BYTES = 80  # of JSON about a head, at most, beside its codes and its rule
_NOTES_BYTES = 600  # of the notes, at most
_TITLES = {"cross": "Cross-attention"}

Attention = AttentionRecord | StreamedAttention
HeadKey = tuple[int, int]  # the index of the attention, and the head
Twins = Sequence[Head]  # the same head in each result


class Encoding(NamedTuple):
    """How one head travels: its map in `levels` levels (None: no map), its queries and keys."""

    levels: int | None
    vectors: bool


VECTORS_ONLY, OVERVIEW_ONLY = Encoding(None, True), Encoding(None, False)


def make_payload(
    results: Sequence[AttentionResult], start: dict[str, Any], limit: int
) -> tuple[dict[str, Any], str]:
    """Return the payload of a page, in types that JSON knows, and the text of its blocks.

    Parameters
    ----------
    results : sequence of AttentionResult
        One result, or two of the same shape.
    start : dict
        What is shown first.
    limit : int
        The bytes of payload and blocks, at most.

    Raises
    ------
    InputError
        The limit is too small to show every head.
    """
    attentions = [_without_padding(result) for result in results]
    blocks = Blocks()
    overviews = [_overviews(blocks, of_result) for of_result in attentions]
    heads = _rank(results[0], attentions[0], overviews[0], _encodable(attentions))

    def fill(encodings: Mapping[HeadKey, Encoding]) -> dict[str, Any]:
        exact = [
            _encode({key: pair[number] for key, pair in heads.items()}, encodings, blocks)
            for number in range(len(results))
        ]
        parts = zip(results, attentions, overviews, exact, strict=True)
        shown = [_describe_result(*of_result) for of_result in parts]
        names = name_results(results)
        stack = _stack_name(start["stack"], start["layer"], shown[0]["stacks"])
        worst = max((head["error"] for some in exact for head in some.values()), default=0.0)
        sampled = any(
            heads[key][0].sampled for key, how in encodings.items() if how == VECTORS_ONLY
        )
        return {
            "format": 1,
            "results": [{"name": n, **data} for n, data in zip(names, shown, strict=True)],
            "blocks": blocks.places,
            "start": {**start, "stack": stack},
            "notes": _notes(attentions[0], overviews[0], encodings, worst, sampled),
        }

    smallest = fill(dict.fromkeys(heads, OVERVIEW_ONLY))
    room = limit - len(to_script(smallest)) - blocks.length - _NOTES_BYTES
    encodings = dict(zip(heads, choose_encodings(list(heads.values()), room), strict=True))
    invisible = any(
        overviews[0][index] is None and encoding == OVERVIEW_ONLY
        for (index, _), encoding in encodings.items()
    )
    if room < 0 or invisible:
        raise InputError(
            f"The page is too small to show every head of {results[0].provenance.model}: beside "
            f"its script it has {max(0, limit) / 1e6:.2f} MB. Give it a larger size (size=, "
            "--size)."
        )
    return fill(encodings), blocks.text


def choose_encodings(heads: Sequence[Twins], room: int) -> list[Encoding]:
    """Return the best encodings of all heads that fit.

    In this order: maps with queries and keys of every head; only queries and keys, from which the
    page computes the maps; maps of every head, with queries and keys of the first ones; and where
    none of these fits, exact weights of the first heads and overviews of the others.

    Parameters
    ----------
    heads : sequence of Twins
        The most important first.
    room : int
        Bytes for all of them.
    """
    for encoding in (Encoding(_FINEST, True), Encoding(_FINE, True), VECTORS_ONLY):
        if encoding == VECTORS_ONLY and not all(map(_follow, heads)):
            continue
        if _count_fitting(heads, [encoding] * len(heads), room) == len(heads):
            return [encoding] * len(heads)
    for levels in (_FINEST, _FINE, *_COARSER):
        maps = [Encoding(levels, False)] * len(heads)
        if _count_fitting(heads, maps, room) == len(heads):
            left = room - sum(_sizes(heads, maps))
            count = _count_fitting(heads, [VECTORS_ONLY] * len(heads), left)
            return [Encoding(levels, number < count) for number in range(len(heads))]
    cheapest = [
        VECTORS_ONLY if _follow(twins) and twins[0].vectors_are_smaller else Encoding(_FINE, False)
        for twins in heads
    ]
    count = _count_fitting(heads, cheapest, room)
    return cheapest[:count] + [OVERVIEW_ONLY] * (len(heads) - count)


def _follow(twins: Twins) -> bool:
    return all(head.follows for head in twins)


def _count_fitting(heads: Sequence[Twins], encodings: Sequence[Encoding], room: int) -> int:
    """Return how many of the first heads fit; no head beyond them is encoded."""
    return sum(
        1 for _ in takewhile(lambda size: size <= room, accumulate(_sizes(heads, encodings)))
    )


def _sizes(heads: Sequence[Twins], encodings: Sequence[Encoding]) -> Iterator[int]:
    """Yield the bytes that each head adds to the page, at most; shared keys count once."""
    keys = set()
    for twins, (levels, vectors) in zip(heads, encodings, strict=True):
        size = 0
        for head in twins:
            size += _HEAD_BYTES
            if levels is not None:
                size += head.map(levels).size
            if vectors:
                size += head.query.size + head.key.size + len(to_script(head.rule))
                key = id(head.record), head.key_head
                size -= len(head.key.text) if key in keys else 0
                keys.add(key)
        yield size


def _encode(
    heads: Mapping[HeadKey, Head], encodings: Mapping[HeadKey, Encoding], blocks: Blocks
) -> dict[HeadKey, dict[str, Any]]:
    """Add the heads of one result to the blocks, and return where each lies and how exact it is."""
    exact = {}
    keys: dict[HeadKey, dict[str, Any]] = {}
    for (index, number), head in sorted(heads.items()):
        levels, vectors = encodings[index, number]
        if levels is None and not vectors:
            continue
        key = index, head.key_head
        if vectors and key not in keys:
            keys[key] = blocks.add(head.key)
        exact[index, number] = {
            "map": None if levels is None else blocks.add(head.map(levels)),
            "query": blocks.add(head.query) if vectors else None,
            "key": keys[key] if vectors else None,
            "rule": head.rule if vectors else None,
            "error": head.error_of_vectors if levels is None else head.error_of_map(levels),
        }
    return exact


def _without_padding(result: AttentionResult) -> list[Attention]:
    return [
        attention.at(_real_tokens(attention.query_axis), _real_tokens(attention.key_axis))
        if isinstance(attention, AttentionRecord)
        and (any(attention.query_axis.padding) or any(attention.key_axis.padding))
        else attention
        for attention in result.streamed or result.records
    ]


def _real_tokens(axis: Axis) -> Tensor:
    return (~torch.tensor(axis.padding)).nonzero().flatten()


def _encodable(attentions: Sequence[Sequence[Attention]]) -> dict[HeadKey, Twins]:
    """Return the heads of which each result has more than a summary."""
    heads: dict[HeadKey, Twins] = {}
    for index, twins in enumerate(zip(*attentions, strict=True)):
        records = [
            attention if isinstance(attention, AttentionRecord) else attention.record
            for attention in twins
        ]
        for number in head_numbers(twins[0]):
            pair = [Head(record, number) for record in records if record is not None]
            if len(pair) == len(twins):
                heads[index, number] = pair
    return heads


def _rank(
    result: AttentionResult,
    attentions: Sequence[Attention],
    overviews: Sequence[dict[str, Any] | None],
    heads: Mapping[HeadKey, Twins],
) -> dict[HeadKey, Twins]:
    """Sort the heads: first those without an overview, then by how they relate content words."""
    stack = result.stack().stacks[0]
    ranks = {(s.layer, s.head): rank for rank, s in enumerate(rank_heads(result).scores)}

    def order(key: HeadKey) -> tuple[bool, int]:
        index, head = key
        attention, last = attentions[index], len(ranks)
        rank = ranks.get((attention.layer, head), last) if attention.stack == stack else last
        return overviews[index] is not None, rank

    return {key: heads[key] for key in sorted(heads, key=order)}


def _overviews(blocks: Blocks, attentions: Sequence[Attention]) -> list[dict[str, Any] | None]:
    """Return the pooled maps of a long text; None where the page can show whole maps at once."""
    count = sum(len(head_numbers(attention)) for attention in attentions)
    side = min(_OVERVIEW_SIDE, math.isqrt(_OVERVIEW_CELLS // count))
    return [_overview(blocks, attention, side) for attention in attentions]


def _overview(blocks: Blocks, attention: Attention, side: int) -> dict[str, Any] | None:
    longest = max(len(attention.query_axis), len(attention.key_axis))
    if isinstance(attention, StreamedAttention):
        maps, rows, _ = pooled(attention, [], side)
        cell = rows.side.cell
    elif longest > side:
        cell = -(-longest // side)
        maps = pool(attention.weights().cpu(), cell)
    else:
        return None
    codes = blocks.add(Codes.of_weights(maps, _OVERVIEW_LEVELS))
    return {"cell": cell, "rows": maps.shape[1], "columns": maps.shape[2], "maps": codes}


def head_numbers(attention: Attention) -> tuple[int, ...]:
    """Return the numbers of the heads that an attention has, or that its summary holds."""
    if isinstance(attention, StreamedAttention):
        return attention.kept
    return tuple(range(attention.heads))


def shape(attention: Attention) -> tuple[str, int, tuple[int, ...], int | None, int, int]:
    """Return what two attentions must share so that their weights can be compared.

    Their stack, layer and heads, how many tokens a cell joins (None for whole maps), and the
    numbers of queries and keys without padding.
    """
    cell = attention.summary.cell if isinstance(attention, StreamedAttention) else None
    m, n = (axis.padding.count(False) for axis in (attention.query_axis, attention.key_axis))
    return attention.stack, attention.layer, head_numbers(attention), cell, m, n


def _describe_result(
    result: AttentionResult,
    attentions: Sequence[Attention],
    overviews: Sequence[dict[str, Any] | None],
    exact: Mapping[HeadKey, dict[str, Any]],
) -> dict[str, Any]:
    """Return what a page shows of one result."""
    axes: list[Axis] = []
    for attention in attentions:
        for axis in (attention.query_axis, attention.key_axis):
            if axis not in axes:
                axes.append(axis)
    groups: dict[tuple[str, Axis, Axis], list[dict[str, Any]]] = {}
    for index, attention in enumerate(attentions):
        numbers = head_numbers(attention)
        layer = {
            "layer": attention.layer,
            "heads": numbers,
            "pooled": overviews[index],
            "exact": [exact.get((index, head)) for head in numbers],
        }
        group = attention.stack, attention.query_axis, attention.key_axis
        groups.setdefault(group, []).append(layer)
    stacks = [
        {
            "name": name,
            "title": _TITLES.get(name, name.capitalize()),
            "queries": axes.index(query_axis),
            "keys": axes.index(key_axis),
            "layers": layers,
        }
        for (name, query_axis, key_axis), layers in groups.items()
    ]
    cut = result.provenance.cut_from
    return {
        "source": source(result.provenance),
        "verdict": result.agreement.verdict,
        "summary": result.agreement.summary(),
        "notes": []
        if cut is None
        else [f"The text was cut from {cut} tokens to what the model reads."],
        "axes": [_describe_axis(axis) for axis in axes],
        "stacks": _with_unique_names(stacks),
    }


def _with_unique_names(stacks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the layers to the names of stacks whose layers relate different positions, as in Swin."""
    names = [stack["name"] for stack in stacks]
    for stack in stacks:
        if names.count(stack["name"]) > 1:
            layers = [str(layer["layer"]) for layer in stack["layers"]]
            stack["title"] += f", layer{'s' if layers[1:] else ''} {', '.join(layers)}"
            stack["name"] += f" {layers[0]}"
    return stacks


def _stack_name(stack: str, layer: int, stacks: Sequence[dict[str, Any]]) -> str:
    """Return the unique name of the stack that has a layer."""
    for data in stacks:
        layers = [described["layer"] for described in data["layers"]]
        if layer in layers and data["name"] in (stack, f"{stack} {layers[0]}"):
            return str(data["name"])
    return stack


def _describe_axis(axis: Axis) -> dict[str, Any]:
    return {
        "labels": axis.labels,
        "words": axis.words,
        "wordLabels": axis.word_labels,
        "special": [index for index, special in enumerate(axis.special) if special],
        "word": choose_word(axis),
        "second": axis.segments.index(1) if 1 in axis.segments else None,
    }


def name_results(results: Sequence[AttentionResult]) -> list[str]:
    """Return a name for each result: its input, else its model, else a number."""
    provenances = [result.provenance for result in results]
    inputs = [" ".join((p.text or p.image or p.audio or "").split()) for p in provenances]
    for candidates in (inputs, [p.model for p in provenances]):
        names = [literal(name, 40) for name in candidates]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({number})" for number, name in enumerate(names, 1)]


def _notes(
    attentions: Sequence[Attention],
    overviews: Sequence[dict[str, Any] | None],
    encodings: Mapping[HeadKey, Encoding],
    worst: float,
    sampled: bool,
) -> list[str]:
    """Return what of the weights the page holds, and how exactly.

    worst : the largest error. sampled : whether it was measured in some rows only.
    """
    notes = []
    heads = sum(len(head_numbers(attention)) for attention in attentions)
    exact = sum(encoding != OVERVIEW_ONLY for encoding in encodings.values())
    vectors = sum(encoding.vectors for encoding in encodings.values())
    cells = sorted({overview["cell"] for overview in overviews if overview is not None} - {1})
    if cells:
        sizes = " or ".join(f"{cell} × {cell}" for cell in cells)
        notes.append(
            f"In overviews a cell joins {sizes} weights, columns summed and rows averaged."
        )
    if exact:
        which = "Weights" if exact == heads else f"Exact weights of {exact} of {heads} heads"
        where = ", measured in some of their rows" if sampled else ""
        notes.append(
            f"{which} are within {_round_up(worst)} of those recomputed from the model{where}."
        )
    if pooled_only := len(encodings) - exact:
        notes.append(
            f"The page holds only pooled maps of {pooled_only} heads; view(result, size=…) allows "
            "it more megabytes."
        )
    if without_record := heads - len(encodings):
        notes.append(
            f"The model run stored only pooled maps of {without_record} heads; "
            "attend(…, exact=[layer]) stores all of a layer."
        )
    if vectors < exact:
        notes.append(
            f"The page holds queries and keys of {vectors or 'none'} of {heads} heads, for the "
            "steps; view(result, size=…) allows more."
        )
    return notes


def _round_up(error: float) -> str:
    """Return an error with two digits, which it does not exceed."""
    return f"{float(Context(prec=2, rounding=ROUND_CEILING).create_decimal(error)):.1e}"
