"""Where an attention stands in its model: its stack, its layer, and what its positions are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from attnviz.capture.attention_call import AttentionCall
from attnviz.results import Axis

# The names of modules that read an input of their own kind, or relate two sequences.
_TOWERS = {
    "vision": ("vision", "visual", "image"),
    "audio": ("audio", "speech", "sound"),
    "text": ("text",),
}
_CROSS = ("cross", "encoder_attn", "encdec", "enc_dec")
_READS = {"vision": "image", "audio": "audio", "text": "text"}


@dataclass(frozen=True, eq=False)
class Place:
    """The stack and layer of an attention, and the axes of its queries and keys."""

    stack: str
    layer: int
    query_axis: Axis
    key_axis: Axis


@dataclass(frozen=True)
class AttentionOutline:
    """What the place of an attention follows from.

    Attributes
    ----------
    path : str
        Its module.
    queries, keys : int
        How many.
    cross : bool
        Whether its keys come from another sequence.
    causal : bool
        Whether no query reads a later key.
    """

    path: str
    queries: int
    keys: int
    cross: bool
    causal: bool

    @classmethod
    def of(cls, call: AttentionCall) -> AttentionOutline:
        """Return the outline of a call."""
        attention = call.attention
        return cls(
            call.path,
            attention.query.shape[-2],
            attention.key.shape[-2],
            call.inputs.key_input is not None,
            attention.is_causal,
        )


def place(
    outlines: Iterable[AttentionOutline], text_index: int, axes: Mapping[str, Sequence[Axis]]
) -> Iterator[Place]:
    """Number the layers of each stack, and find the axes that each attention of a text relates."""
    text_axes = {kind: batch_axes[text_index] for kind, batch_axes in axes.items()}
    layers: Counter[str] = Counter()
    for outline in outlines:
        stack = _stack(outline, two_sided="target" in text_axes)
        m, n = outline.queries, outline.keys
        queries = _axis(text_axes, m, _preferred(stack, text_axes))
        others = sorted(text_axes, key=lambda kind: text_axes[kind] is queries)
        keys = queries if stack != "cross" and m == n else _axis(text_axes, n, others)
        yield Place(stack, layers[stack], queries, keys)
        layers[stack] += 1


def _stack(outline: AttentionOutline, *, two_sided: bool) -> str:
    path = outline.path.lower()
    names = path.split(".")
    if outline.cross or any(cross in path for cross in _CROSS):
        return "cross"
    for tower, prefixes in _TOWERS.items():
        if any(name.startswith(prefix) for name in names for prefix in prefixes):
            return tower
    if "decoder" in names or (outline.causal and not two_sided):
        return "decoder"
    return "encoder"


def _preferred(stack: str, axes: Mapping[str, Axis]) -> list[str]:
    """Return the kinds of input that the queries of a stack may be, the likeliest first."""
    first = _READS.get(stack) or ("target" if stack in ("decoder", "cross") else None)
    return sorted(axes, key=lambda kind: kind != first)


def _axis(axes: Mapping[str, Axis], length: int, kinds: Sequence[str]) -> Axis:
    matching = (axes[kind] for kind in kinds if len(axes[kind]) == length)
    return next(matching, None) or Axis.numbered(length)
