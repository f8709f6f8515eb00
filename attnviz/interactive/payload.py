"""Everything that a page shows of one result, or of two that are compared, as JSON and blocks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from attnviz.analyses.maps.compute import pool, pooled
from attnviz.analyses.maps.heads import rank_heads
from attnviz.errors import InputError
from attnviz.interactive.budget import NOTHING, Choice, choose
from attnviz.interactive.describe import (
    Attention,
    Place,
    kept,
    make_notes,
    name_results,
    name_stack,
    show_result,
)
from attnviz.interactive.heads import Head
from attnviz.interactive.page import to_script
from attnviz.interactive.quantize import Blocks, Codes
from attnviz.results import (
    AttentionRecord,
    AttentionResult,
    Axis,
    StreamedAttention,
)

_SIDE, _CELLS = 64, 2_000_000  # of an overview: cells a side, and of all heads together
_LEVELS = 2**10 - 1  # of an overview
# A result, its attentions and their overviews.
Part = tuple[AttentionResult, Sequence[Attention], Sequence[dict[str, Any] | None]]


def make_payload(
    results: Sequence[AttentionResult], start: dict[str, Any], limit: int
) -> tuple[dict[str, Any], str]:
    """Return the payload, in types that JSON knows, and the text of the blocks.

    Parameters
    ----------
    results : one, or two of the same shape. start : what is shown first. limit : bytes of both.

    Raises
    ------
    InputError : the limit has no room for what must be seen of every head.
    """
    attentions = [list(_without_padding(result)) for result in results]
    heads = _heads(attentions)
    blocks = Blocks()
    overviews = [_overviews(blocks, some) for some in attentions]
    parts = list(zip(results, attentions, overviews, strict=True))
    bare = len(to_script([show_result(*part, {}) for part in parts])) + blocks.length
    wanted = _wanted(results[0], attentions[0], overviews[0], heads)
    room = (limit - bare) * 3 // 4
    while True:
        chosen = choose([heads[each] for each in wanted], room)
        filled = deepcopy(blocks)
        payload = _fill(filled, parts, heads, dict(zip(wanted, chosen, strict=True)), start)
        over = len(to_script(payload)) + filled.length - limit
        if over <= 0 or all(each == NOTHING for each in chosen):
            break
        room -= over  # several heads deflate a little worse together
    unseen = any(
        overviews[0][at] is None
        for (at, _), each in zip(wanted, chosen, strict=True)
        if each == NOTHING
    )
    if over > 0 or unseen:
        raise InputError(
            f"Expected room for every head of {results[0].provenance.model}, but beside its script "
            f"the page has {max(0, limit) / 1e6:.2f} MB. Give it a larger size: size=, or --size."
        )
    return payload, "".join(filled.text)


def _fill(
    blocks: Blocks,
    parts: Sequence[Part],
    heads: Mapping[Place, Sequence[Head]],
    chosen: Mapping[Place, Choice],
    start: Mapping[str, Any],
) -> dict[str, Any]:
    """Add what was chosen of each head to the blocks, and return the payload."""
    exact = [
        _exact(blocks, {at: twins[number] for at, twins in heads.items()}, chosen)
        for number in range(len(parts))
    ]
    error = max((each["error"] for some in exact for each in some.values()), default=0.0)
    sampled = any(heads[at][0].sampled for at, how in chosen.items() if how == Choice(None, True))
    shown = [show_result(*part, some) for part, some in zip(parts, exact, strict=True)]
    names = name_results([result for result, *_ in parts])
    _, attentions, overviews = parts[0]
    return {
        "format": 1,
        "results": [{"name": n, **each} for n, each in zip(names, shown, strict=True)],
        "blocks": blocks.places,
        "start": {**start, "stack": name_stack(start["stack"], start["layer"], shown[0]["stacks"])},
        "notes": make_notes(attentions, overviews, chosen, error, sampled),
    }


def _without_padding(result: AttentionResult) -> Iterator[Attention]:
    for each in result.streamed or result.records:
        padded = any(each.query_axis.padding) or any(each.key_axis.padding)
        if isinstance(each, AttentionRecord) and padded:
            yield each.at(_real(each.query_axis), _real(each.key_axis))
        else:
            yield each


def _real(axis: Axis) -> Tensor:
    return (~torch.tensor(axis.padding)).nonzero().flatten()


def _heads(attentions: Sequence[Sequence[Attention]]) -> dict[Place, list[Head]]:
    """Return the heads of which more than a summary was kept, each with its twin."""
    found = {}
    for at, twins in enumerate(zip(*attentions, strict=True)):
        records = [each if isinstance(each, AttentionRecord) else each.record for each in twins]
        for head in kept(twins[0]):
            several = [Head(record, head) for record in records if record is not None]
            if len(several) == len(twins):
                found[at, head] = several
    return found


def _wanted(
    result: AttentionResult,
    attentions: Sequence[Attention],
    overviews: Sequence[dict[str, Any] | None],
    heads: Iterable[Place],
) -> list[Place]:
    """Return the heads: first those without an overview, then as they relate content words."""
    stack = result.stack().stacks[0]
    rank = {(s.layer, s.head): at for at, s in enumerate(rank_heads(result).scores)}

    def place(each: Place) -> tuple[bool, int]:
        found, last = attentions[each[0]], len(rank)
        at = rank.get((found.layer, each[1]), last) if found.stack == stack else last
        return overviews[each[0]] is not None, at

    return sorted(heads, key=place)


def _overviews(blocks: Blocks, attentions: Sequence[Attention]) -> list[dict[str, Any] | None]:
    """Return the pooled maps of a long text; None where whole maps can be seen at once."""
    count = sum(len(kept(each)) for each in attentions)
    side = min(_SIDE, math.isqrt(_CELLS // count))
    return [_overview(blocks, each, side) for each in attentions]


def _overview(blocks: Blocks, each: Attention, side: int) -> dict[str, Any] | None:
    longest = max(len(each.query_axis), len(each.key_axis))
    if isinstance(each, StreamedAttention):
        maps, left, _ = pooled(each, [], side)
        cell = left.side.cell
    elif longest > side:
        cell = -(-longest // side)
        maps = pool(each.weights().cpu(), cell)
    else:
        return None
    codes = blocks.add({"maps": Codes.of_weights(maps, _LEVELS)})
    return {"cell": cell, "rows": maps.shape[1], "columns": maps.shape[2], **codes}


def _exact(
    blocks: Blocks, heads: Mapping[Place, Head], chosen: Mapping[Place, Choice]
) -> dict[Place, dict[str, Any]]:
    """Return what travels of each head, and how far its weights are from the record's.

    The maps of a layer are one block, its queries and keys another.
    """
    found = {}
    for attention in sorted({at for at, _ in heads}):
        some = [at for at in heads if at[0] == attention and chosen[at] != NOTHING]
        levels = {at: level for at in some if (level := chosen[at].levels) is not None}
        maps = blocks.add({at: heads[at].map(level) for at, level in levels.items()})
        both = {at: heads[at] for at in some if chosen[at].vectors}
        queries = {("query", head.head): head.query for head in both.values()}
        keys = {("key", head.key_head): head.key for head in both.values()}
        vectors = blocks.add(queries | keys)
        for at in some:
            head, level = heads[at], levels.get(at)
            found[at] = {
                "map": maps.get(at),
                "query": vectors[("query", head.head)] if at in both else None,
                "key": vectors[("key", head.key_head)] if at in both else None,
                "rule": head.rule if at in both else None,
                "error": head.error_of_vectors if level is None else head.error_of_map(level),
            }
    return found
