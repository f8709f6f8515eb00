"""Model and inputs → records: what every attention of a model saw, and what it answered.

The untouched model runs twice, watched in the same way (recording.py). The records come from the
first run, what they are compared with from the second. Nothing of one run enters the other, so
comparing them is a proof and not a tautology.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from attnviz.capture.calls import AttentionCall
from attnviz.capture.placing import Place, place
from attnviz.capture.projections import find_holders, understood
from attnviz.capture.recording import record
from attnviz.capture.unchanged import unchanged
from attnviz.errors import ModelError
from attnviz.records import AttentionRecord, Axis, Reference

# A run hooks the model and watches functions that all threads share.
_one_at_a_time = threading.Lock()


@dataclass(frozen=True, eq=False)
class Capture:
    """The attentions of one text: what was recorded, and what the model computed by itself."""

    records: tuple[AttentionRecord, ...]
    references: tuple[Reference, ...]


def capture(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    axes: Mapping[str, Sequence[Axis]] | None = None,
) -> list[Capture]:
    """Run `model` twice on a batch and return the attentions of each text in it.

    Parameters
    ----------
    model : a transformers model; left exactly as it was found, also after an exception.
    inputs : what its forward takes, N texts padded to one length.
    axes : the positions of the N texts, by kind of input: "text", "image", "audio", and "target"
        for what the decoder of an encoder–decoder reads. Positions of which nothing is said are
        numbered.

    Raises
    ------
    ModelError : no attention, or one that cannot be read.
    """
    count = _count(model, inputs)
    with _one_at_a_time:
        holders = find_holders(model)
        with unchanged(model):
            calls = record(model, inputs, holders, count)
        with unchanged(model):
            again = record(model, inputs, holders, count)
    if [call.path for call in calls] != [call.path for call in again]:
        raise ModelError(
            f"Expected {type(model).__name__} to execute the same attentions in every run, but two "
            "runs on the same input differ. This model cannot be verified."
        )
    return [
        Capture(
            tuple(
                _to_record(call, n, where)
                for call, where in zip(calls, place(calls, n, axes or {}), strict=True)
            ),
            tuple(_to_reference(call, n) for call in again),
        )
        for n in range(count)
    ]


def _to_record(call: AttentionCall, n: int, where: Place) -> AttentionRecord:
    seen, arrived = call.attention, call.arrived
    size = seen.query.shape[-2], seen.key.shape[-2]
    found = AttentionRecord(
        path=call.path,
        call=call.call,
        layer=where.layer,
        stack=where.stack,
        query_axis=where.query_axis,
        key_axis=where.key_axis,
        query=_item(seen.query, n),
        key=_item(seen.key, n),
        value=_item(seen.value, n),
        scale=seen.scale,
        soft_cap=seen.soft_cap,
        capped_bias=None if seen.capped_bias is None else _item(seen.capped_bias, n),
        bias=None if seen.bias is None else _item(seen.bias, n),
        mask=None if seen.mask is None else _item(seen.mask, n).expand(-1, *size),
        sinks=_item(seen.sinks, n) if seen.sinks is not None and seen.sinks.dim() > 1 else seen.sinks,
        input=None if arrived.input is None else _item(arrived.input, n),
        key_input=None if arrived.key_input is None else _item(arrived.key_input, n),
        rotation=None
        if arrived.rotation is None
        else (_item(arrived.rotation[0], n), _item(arrived.rotation[1], n)),
        through_interface=call.through_interface,
    )
    heads = [None if part is None else _item(part, n) for part in (seen.head_output, call.given)]
    return understood(found, call.holder, *heads)


def _to_reference(call: AttentionCall, n: int) -> Reference:
    return Reference(
        weights=_item(call.attention.weights, n),
        scores=_item(call.attention.scores, n),
        head_output=None
        if call.attention.head_output is None
        else _item(call.attention.head_output, n),
        output=None if call.output is None else _item(call.output, n),
    )


def _count(model: nn.Module, inputs: Mapping[str, Tensor]) -> int:
    """Return how many texts (images, sounds) a batch holds."""
    tensors = {name: given for name, given in inputs.items() if isinstance(given, Tensor)}
    main = str(getattr(model, "main_input_name", ""))
    return len(tensors.get(main, next(iter(tensors.values()), [None])))


def _item(tensor: Tensor, n: int) -> Tensor:
    """Return what belongs to text n; one row may serve the whole batch."""
    return tensor[n if len(tensor) > 1 else 0]
