"""The layouts in which a module may store the matrices of its heads.

Side by side, one head after the other, in groups: each layout is read as a stack of matrices, heads
first, a view of the module's own parameters wherever strides allow it. Where the shapes are
ambiguous, all layouts are returned, the likeliest first; the recorded numbers decide (match.py).
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
    fused_linear,
    linear_child,
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
    """The recorded sizes: H query heads, and the widths d_k and d_v of a head."""

    heads: int
    key: int
    value: int


def layouts(module: nn.Module, stage: str, sizes: Sizes) -> Iterator[HeadProjection]:
    """Return the ways in which `module` may project to its queries, keys or values."""
    yield from _separate(module, stage, sizes)
    yield from _latent(module, stage, sizes)
    if (linear := fused_linear(module)) is not None:
        for heads in _fused(linear, stage, sizes, sizes.heads):
            bias = getattr(module, f"{stage[0]}_bias", None)  # stored beside the matrix
            size = len(heads.weight) * heads.weight.shape[-1]
            if isinstance(bias, Tensor) and heads.bias is None and bias.numel() == size:
                yield replace(heads, bias=bias.detach().reshape(len(heads.weight), -1))
            yield heads
    for _, name in KEY_AND_VALUE:
        if stage != "query" and (linear := linear_child(module, name)) is not None:
            yield from _fused(linear, stage, sizes, 0)


def gates(module: nn.Module, sizes: Sizes) -> Iterator[Gate]:
    """Return the gates that may stand between the heads of `module` and W^O."""
    gate_projections = []
    if (linear := linear_child(module, *GATES)) is not None:
        width, rest = divmod(linear.weight.shape[-1], sizes.heads)
        if not rest and width in (1, sizes.value):
            gate_projections.append(_cut(linear, 1, 0, sizes.heads, width))
    query = linear_child(module, *(names[0] for names in SEPARATE))
    if query is not None and query.weight.shape[-1] == sizes.heads * (sizes.key + sizes.value):
        gate_projections.append(_cut(query, sizes.heads, sizes.key, 1, sizes.value))
        gate_projections.append(_cut(query, 1, sizes.heads * sizes.key, sizes.heads, sizes.value))
    for gate in gate_projections:
        bias = getattr(module, "gate_bias", None)  # stored beside the matrix, one for each head
        if isinstance(bias, Tensor) and gate.bias is None and bias.numel() == sizes.heads:
            gate = replace(gate, bias=bias.detach().reshape(-1, 1).expand(gate.weight.shape[::2]))
        yield Gate(gate.weight, gate.bias, "sigmoid")
        yield Gate(gate.weight, gate.bias, "softplus")


def _separate(module: nn.Module, stage: str, sizes: Sizes) -> Iterator[HeadProjection]:
    width = sizes.value if stage == "value" else sizes.key
    if stage == "query":
        children = [linear_child(module, names[0]) for names in (*SEPARATE, *KEY_AND_VALUE)]
    elif stage == "key":
        children = [linear_child(module, names[1]) for names in SEPARATE]
    else:  # values may be the keys before norm and rotation
        children = [linear_child(module, names[2], names[1]) for names in SEPARATE]
    for linear in children:
        if linear is None or linear.weight.shape[-1] % width:
            continue
        count = linear.weight.shape[-1] // width
        if stage == "query" and count == 2 * sizes.heads:  # a gate as wide as the queries
            yield _cut(linear, sizes.heads, 0, 1, width)
            yield _cut(linear, 1, 0, sizes.heads, width)
        else:
            yield _cut(linear, 1, 0, count, width)


def _fused(linear: Linear, stage: str, sizes: Sizes, heads: int) -> Iterator[HeadProjection]:
    """Split one matrix of `heads` query heads, and of as many key heads as fit.

    It consists of n blocks that each hold the queries, keys and values of some heads: n = 1 is side
    by side, n = H head by head, n = G group by group.
    """
    remaining = linear.weight.shape[-1] - heads * sizes.key
    key_heads, rest = divmod(remaining, sizes.key + sizes.value)
    if rest or key_heads < 1 or heads % key_heads:
        return
    counts = {"query": heads, "key": key_heads, "value": key_heads}
    widths = {"query": sizes.key, "key": sizes.key, "value": sizes.value}
    for order in (STAGES, ("query", "value", "key")):
        for blocks in _blocks(math.gcd(heads, key_heads)):
            lengths = [counts[name] // blocks * widths[name] for name in order]
            starts = dict(zip(order, accumulate(lengths, initial=0), strict=False))
            yield _cut(linear, blocks, starts[stage], counts[stage] // blocks, widths[stage])


def _blocks(most: int) -> list[int]:
    divisors = [n for n in range(1, most + 1) if most % n == 0]
    return sorted(divisors, key=lambda n: n not in (1, most))


def _latent(module: nn.Module, stage: str, sizes: Sizes) -> Iterator[HeadProjection]:
    """Return the heads of latent attention, which read a narrow, normed vector instead of X."""
    names = LATENT_QUERY if stage == "query" else LATENT_KEY_AND_VALUE
    down, up = linear_child(module, *names[0]), linear_child(module, *names[2])
    if down is None or up is None:
        return
    rank, width = up.weight.shape
    narrow = Linear(down.weight[:, :rank], None if down.bias is None else down.bias[:rank])
    rotated = Linear(down.weight[:, rank:], None if down.bias is None else down.bias[rank:])
    unshared = sizes.key - rotated.weight.shape[-1]  # the features of a key of one head alone
    expected = sizes.key if stage == "query" else unshared + sizes.value
    if unshared < 0 or width != sizes.heads * expected:
        return
    for norm in [*norms(module, names[1], 1, rank), None]:
        before: tuple[Linear | Norm, ...] = (narrow,) if norm is None else (narrow, norm)
        if stage == "query":
            yield replace(_cut(up, sizes.heads, 0, 1, sizes.key), before=before)
        elif stage == "key":
            heads = _cut(up, sizes.heads, 0, 1, unshared)
            yield replace(heads, before=before, beside=rotated)
        else:
            yield replace(_cut(up, sizes.heads, unshared, 1, sizes.value), before=before)


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
