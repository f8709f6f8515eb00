"""All texts of a batch at once: for numbers of many texts, where a record of each takes long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from attnviz.capture.calls import AttentionCall
from attnviz.capture.placing import Outline, Place, place
from attnviz.capture.runs import count_texts, run_watched
from attnviz.records import AttentionRecord, Axis


@dataclass(frozen=True, eq=False)
class Watched:
    """One attention of a batch of N texts, in one run of the untouched model.

    record : of the heads of all texts, one text after the other: N · H of them. weights : (N, H, m,
    n), what the model's own softmax gave.
    """

    record: AttentionRecord
    weights: Tensor

    def recompute(self) -> Tensor:
        """Return our weights, (N, H, m, n), float32 or wider."""
        return self.record.weights().reshape(self.weights.shape)


def watch(
    model: nn.Module, inputs: Mapping[str, Tensor], axes: Mapping[str, Sequence[Axis]] | None = None
) -> list[Watched]:
    """Run `model` once on a batch and return every attention of all texts together.

    Parameters and errors are those of `capture`; of the axes, those of the first text are taken.
    """
    count = count_texts(model, inputs)
    (calls,) = run_watched(model, count, lambda: model(**inputs))
    where = place(map(Outline.of, calls), 0, axes or {})
    return [_of_all(call, count, here) for call, here in zip(calls, where, strict=True)]


def _of_all(call: AttentionCall, count: int, where: Place) -> Watched:
    """Lay the heads of all texts side by side: a head is grouped with the keys of its own text."""
    seen = call.attention
    N, H, m, n = count, seen.query.shape[1], seen.query.shape[-2], seen.key.shape[-2]

    def heads(term: Tensor | None, *shape: int) -> Tensor | None:
        return None if term is None else term.expand(N, *shape).flatten(0, 1)

    sinks = seen.sinks
    if sinks is not None:
        sinks = sinks.repeat(N) if sinks.dim() == 1 else sinks.flatten(0, 1)
    record = AttentionRecord(
        path=call.path,
        call=call.call,
        layer=where.layer,
        stack=where.stack,
        query_axis=where.query_axis,
        key_axis=where.key_axis,
        query=seen.query.expand(N, -1, -1, -1).flatten(0, 1),
        key=seen.key.expand(N, -1, -1, -1).flatten(0, 1),
        value=seen.value.expand(N, -1, -1, -1).flatten(0, 1),
        scale=seen.scale,
        soft_cap=seen.soft_cap,
        capped_bias=heads(seen.capped_bias, H, m, n),
        bias=heads(seen.bias, H, m, n),
        mask=heads(seen.mask, H, m, n),
        sinks=sinks,
        through_interface=call.through_interface,
    )
    return Watched(record, seen.weights.expand(N, H, m, n))
