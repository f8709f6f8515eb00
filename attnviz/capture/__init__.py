"""Model and inputs → records: what every attention of a model saw, and what it answered.

Two runs of the same untouched model. `record` (recording.py) watches transformers' attention
interface and takes q, k, v, mask and scale of every attention module. `observe` (reference.py)
runs the model again with `output_attentions=True` and keeps what it computed by itself. Nothing
of one run enters the other, so comparing them is a proof and not a tautology.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from attnviz.attention import split_heads
from attnviz.capture.projections import find_holders, understood
from attnviz.capture.recording import AttentionCall, record
from attnviz.capture.reference import Observation, observe
from attnviz.capture.unchanged import unchanged
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
    axes: Sequence[Axis],
    target_axes: Sequence[Axis] | None = None,
) -> list[Capture]:
    """Run `model` twice on a batch and return the attentions of each text in it.

    Parameters
    ----------
    model : a transformers model; left exactly as it was found, also after an exception.
    inputs : what its forward takes, N texts padded to one length.
    axes : the N texts' positions.
    target_axes : in an encoder–decoder, the positions of what the decoder reads.

    Raises
    ------
    ModelError : no attention, or fewer recorded than the model executed.
    """
    with _one_at_a_time:
        with unchanged(model):
            calls = record(model, inputs, find_holders(model))
        with unchanged(model):
            observations = observe(model, inputs, calls)
    captures = []
    for n, axis in enumerate(axes):
        target = None if target_axes is None else target_axes[n]
        references = tuple(_to_reference(observation, n) for observation in observations)
        records = (
            understood(found, call.holder, reference.head_output)
            for found, call, reference in zip(
                _to_records(calls, n, axis, target), calls, references, strict=True
            )
        )
        captures.append(Capture(tuple(records), references))
    return captures


def _to_records(
    calls: Sequence[AttentionCall], n: int, axis: Axis, target: Axis | None
) -> Iterator[AttentionRecord]:
    """Number the layers of each stack, and give every call the axes that it relates."""
    layers: Counter[str] = Counter()
    for call in calls:
        in_decoder = call.causal if target is None else "decoder" in call.path.split(".")
        queries = target if target is not None and in_decoder else axis
        cross = call.key_input is not None
        stack = "cross" if cross else "decoder" if in_decoder else "encoder"
        yield _to_record(call, n, stack, layers[stack], queries, axis if cross else queries)
        layers[stack] += 1


def _to_record(
    call: AttentionCall, n: int, stack: str, layer: int, queries: Axis, keys: Axis
) -> AttentionRecord:
    seen = len(queries), len(keys)
    return AttentionRecord(
        path=call.path,
        call=call.call,
        layer=layer,
        stack=stack,
        query_axis=queries,
        key_axis=keys,
        query=call.query[n],
        key=call.key[n],
        value=call.value[n],
        scale=call.scale,
        soft_cap=call.soft_cap,
        bias=None if call.bias is None else _item(call.bias, n)[..., : seen[1]],
        mask=None if call.mask is None else _item(call.mask, n)[..., : seen[1]].expand(-1, *seen),
        sinks=call.sinks,
        input=None if call.input is None else call.input[n],
        key_input=None if call.key_input is None else call.key_input[n],
        rotation=None
        if call.rotation is None
        else (_item(call.rotation[0], n), _item(call.rotation[1], n)),
    )


def _item(tensor: Tensor, n: int) -> Tensor:
    """Return what belongs to text n; one row may serve the whole batch."""
    return tensor[n if len(tensor) > 1 else 0]


def _to_reference(seen: Observation, n: int) -> Reference:
    head_output = seen.head_output
    if head_output is not None:
        head_output = split_heads(head_output[n], seen.weights.shape[1])
    return Reference(
        weights=seen.weights[n],
        scores=None if seen.scores is None else seen.scores[n],
        head_output=head_output,
        output=None if seen.output is None else seen.output[n],
    )
