"""How the matrices of the heads are laid out in what a module holds: every way that may be meant.

Side by side, one head after the other, in groups: each is read as a stack of matrices with the
heads first, a view of the module's own wherever strides allow it. Where the shapes leave it open,
all ways are returned, the likeliest first: what the model computed tells which it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from torch import Tensor, nn

from attnviz.capture.projections.find import (
    GATES,
    KEY_AND_VALUE,
    LATENT_KEY_AND_VALUE,
    LATENT_QUERY,
    SEPARATE,
    fused,
    held,
    norms,
)
from attnviz.results import (
    Gate,
    HeadProjection,
    Linear,
    Norm,
)

STAGES = ("query", "key", "value")


@dataclass(frozen=True)
class Sizes:
    """What was recorded: H query heads, and the widths d_k and d_v of a head."""

    heads: int
    key: int
    value: int


def layouts(module: nn.Module, stage: str, sizes: Sizes) -> Iterator[HeadProjection]:
    """Return the ways in which `module` may project to its queries, keys or values."""
    yield from _separate(module, stage, sizes)
    yield from _latent(module, stage, sizes)
    if (linear := fused(module)) is not None:
        for part in _fused(linear, stage, sizes, sizes.heads):
            bias = getattr(module, f"{stage[0]}_bias", None)  # kept beside the matrix
            size = len(part.weight) * part.weight.shape[-1]
            if isinstance(bias, Tensor) and part.bias is None and bias.numel() == size:
                yield replace(part, bias=bias.detach().reshape(len(part.weight), -1))
            yield part
    for _, name in KEY_AND_VALUE:
        if stage != "query" and (linear := held(module, name)) is not None:
            yield from _fused(linear, stage, sizes, 0)


def gates(module: nn.Module, sizes: Sizes) -> Iterator[Gate]:
    """Return the gates that may stand between the heads of `module` and W^O."""
    found = []
    if (linear := held(module, *GATES)) is not None:
        width, rest = divmod(linear.weight.shape[-1], sizes.heads)
        if not rest and width in (1, sizes.value):
            found.append(_cut(linear, 1, 0, sizes.heads, width))
    both = held(module, *(names[0] for names in SEPARATE))
    if both is not None and both.weight.shape[-1] == sizes.heads * (sizes.key + sizes.value):
        found.append(_cut(both, sizes.heads, sizes.key, 1, sizes.value))
        found.append(_cut(both, 1, sizes.heads * sizes.key, sizes.heads, sizes.value))
    for part in found:
        bias = getattr(module, "gate_bias", None)  # kept beside the matrix, one for each head
        if isinstance(bias, Tensor) and part.bias is None and bias.numel() == sizes.heads:
            part = replace(part, bias=bias.detach().reshape(-1, 1).expand(part.weight.shape[::2]))
        yield Gate(part.weight, part.bias, "sigmoid")
        yield Gate(part.weight, part.bias, "softplus")


def _separate(module: nn.Module, stage: str, sizes: Sizes) -> Iterator[HeadProjection]:
    width = sizes.value if stage == "value" else sizes.key
    if stage == "query":
        found = [held(module, names[0]) for names in (*SEPARATE, *KEY_AND_VALUE)]
    elif stage == "key":
        found = [held(module, names[1]) for names in SEPARATE]
    else:  # values may be the keys as they are before norm and rotation
        found = [held(module, names[2], names[1]) for names in SEPARATE]
    for linear in found:
        if linear is None or linear.weight.shape[-1] % width:
            continue
        count = linear.weight.shape[-1] // width
        if stage == "query" and count == 2 * sizes.heads:  # a gate as wide as the queries
            yield _cut(linear, sizes.heads, 0, 1, width)
            yield _cut(linear, 1, 0, sizes.heads, width)
        else:
            yield _cut(linear, 1, 0, count, width)


def _fused(linear: Linear, stage: str, sizes: Sizes, heads: int) -> Iterator[HeadProjection]:
    """Split one matrix of `heads` query heads, and of as many key heads as there is room for.

    It consists of n blocks that each hold the queries, keys and values of some heads: n = 1 is side
    by side, n = H head by head, n = G group by group.
    """
    room = linear.weight.shape[-1] - heads * sizes.key
    shared, rest = divmod(room, sizes.key + sizes.value)
    if rest or shared < 1 or heads % shared:
        return
    counts = {"query": heads, "key": shared, "value": shared}
    widths = {"query": sizes.key, "key": sizes.key, "value": sizes.value}
    for order in (STAGES, ("query", "value", "key")):
        for blocks in _blocks(math.gcd(heads, shared)):
            lengths = [counts[name] // blocks * widths[name] for name in order]
            starts = dict(zip(order, accumulate(lengths, initial=0), strict=False))
            yield _cut(linear, blocks, starts[stage], counts[stage] // blocks, widths[stage])


def _blocks(most: int) -> list[int]:
    divisors = [n for n in range(1, most + 1) if most % n == 0]
    return sorted(divisors, key=lambda n: n not in (1, most))


def _latent(module: nn.Module, stage: str, sizes: Sizes) -> Iterator[HeadProjection]:
    """Read the heads of latent attention: from a narrow, normed vector that replaces X."""
    names = LATENT_QUERY if stage == "query" else LATENT_KEY_AND_VALUE
    down, up = held(module, *names[0]), held(module, *names[2])
    if down is None or up is None:
        return
    rank, width = up.weight.shape
    narrow = Linear(down.weight[:, :rank], None if down.bias is None else down.bias[:rank])
    turning = Linear(down.weight[:, rank:], None if down.bias is None else down.bias[rank:])
    own = sizes.key - turning.weight.shape[-1]  # the features of a key that are no other head's
    expected = sizes.key if stage == "query" else own + sizes.value
    if own < 0 or width != sizes.heads * expected:
        return
    for norm in [*norms(module, names[1], 1, rank), None]:
        before: tuple[Linear | Norm, ...] = (narrow,) if norm is None else (narrow, norm)
        if stage == "query":
            yield replace(_cut(up, sizes.heads, 0, 1, sizes.key), before=before)
        elif stage == "key":
            part = _cut(up, sizes.heads, 0, 1, own)
            yield replace(part, before=before, beside=turning)
        else:
            yield replace(_cut(up, sizes.heads, own, 1, sizes.value), before=before)


def _cut(linear: Linear, blocks: int, start: int, count: int, width: int) -> HeadProjection:
    """Return `count` heads of each of the equal blocks of a matrix, from column `start` on."""

    def heads(columns: Tensor) -> Tensor:
        block = columns.reshape(*columns.shape[:-1], blocks, -1)
        block = block[..., start : start + count * width]
        return block.reshape(*block.shape[:-1], count, width).flatten(-3, -2)

    return HeadProjection(
        weight=heads(linear.weight).movedim(-2, 0),
        bias=None if linear.bias is None else heads(linear.bias),
    )
