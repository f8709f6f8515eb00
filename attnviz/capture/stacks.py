"""Where an attention stands in its model: which stack, which layer, and what its positions are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from attnviz.capture.attention_call import AttentionCall
from attnviz.results import Axis

# How modules are called that read an input of their own kind, or relate two.
_TOWERS = {
    "vision": ("vision", "visual", "image"),
    "audio": ("audio", "speech", "sound"),
    "text": ("text",),
}
_CROSS = ("cross", "encoder_attn", "encdec", "enc_dec")
_READS = {"vision": "image", "audio": "audio", "text": "text"}


@dataclass(frozen=True, eq=False)
class Place:
    """Which layer of which stack, and what the queries and keys are."""

    stack: str
    layer: int
    query_axis: Axis
    key_axis: Axis


@dataclass(frozen=True)
class Outline:
    """Of an attention what its place follows from.

    queries, keys : how many. crossing : whether its keys were handed to it as another sequence.
    causal : whether no query sees what comes after it.
    """

    path: str
    queries: int
    keys: int
    crossing: bool
    causal: bool

    @classmethod
    def of(cls, call: AttentionCall) -> Outline:
        """Return that of a call."""
        seen = call.attention
        return cls(
            call.path,
            seen.query.shape[-2],
            seen.key.shape[-2],
            call.arrived.key_input is not None,
            seen.is_causal,
        )


def place(
    outlines: Iterable[Outline], n: int, axes: Mapping[str, Sequence[Axis]]
) -> Iterator[Place]:
    """Number the layers of each stack, and give every call of text n the axes that it relates."""
    own = {kind: of_all[n] for kind, of_all in axes.items()}
    layers: Counter[str] = Counter()
    for seen in outlines:
        stack = _stack(seen, two_sided="target" in own)
        m, n_keys = seen.queries, seen.keys
        queries = _axis(own, m, _preferred(stack, own))
        others = sorted(own, key=lambda kind: own[kind] is queries)
        keys = queries if stack != "cross" and m == n_keys else _axis(own, n_keys, others)
        yield Place(stack, layers[stack], queries, keys)
        layers[stack] += 1


def _stack(seen: Outline, *, two_sided: bool) -> str:
    path = seen.path.lower()
    parts = path.split(".")
    if seen.crossing or any(name in path for name in _CROSS):
        return "cross"
    for tower, names in _TOWERS.items():
        if any(part.startswith(name) for part in parts for name in names):
            return tower
    if "decoder" in parts or (seen.causal and not two_sided):
        return "decoder"
    return "encoder"


def _preferred(stack: str, own: Mapping[str, Axis]) -> list[str]:
    """Return the kinds of input that the queries of a stack may be, the likeliest first."""
    first = _READS.get(stack) or ("target" if stack in ("decoder", "cross") else None)
    return sorted(own, key=lambda kind: kind != first)


def _axis(own: Mapping[str, Axis], length: int, kinds: Sequence[str]) -> Axis:
    return next((own[kind] for kind in kinds if len(own[kind]) == length), None) or Axis.numbered(
        length
    )
