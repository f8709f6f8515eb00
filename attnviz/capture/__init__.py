"""Model and inputs → records: what every attention of a model saw, and what it answered.

Two runs of the same untouched model. `record` (recording.py) watches transformers' attention
interface and takes q, k, v, mask and scale of every attention module. `observe` (reference.py)
runs the model again with `output_attentions=True` and keeps what it computed by itself. Nothing
of one run enters the other, so comparing them is a proof and not a tautology.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from attnviz.attention import split_heads
from attnviz.capture.projections import find_projections
from attnviz.capture.recording import AttentionCall, record
from attnviz.capture.reference import Observation, observe
from attnviz.capture.unchanged import unchanged
from attnviz.records import AttentionRecord, Axis, Reference


@dataclass(frozen=True, eq=False)
class Capture:
    """The attentions of one text: what was recorded, and what the model computed by itself."""

    records: tuple[AttentionRecord, ...]
    references: tuple[Reference, ...]


def capture(model: nn.Module, inputs: Mapping[str, Tensor], axes: Sequence[Axis]) -> list[Capture]:
    """Run `model` twice on a batch and return the attentions of each text in it.

    Parameters
    ----------
    model : a transformers model; left exactly as it was found, also after an exception.
    inputs : what its forward takes, N texts padded to one length.
    axes : the N texts' positions.

    Raises
    ------
    ModelError : no attention, or fewer recorded than the model executed.
    """
    with unchanged(model):
        calls = record(model, inputs, find_projections(model))
    with unchanged(model):
        observations = observe(model, inputs, calls)
    return [
        Capture(
            tuple(_to_record(call, layer, n, axis) for layer, call in enumerate(calls)),
            tuple(_to_reference(observation, n) for observation in observations),
        )
        for n, axis in enumerate(axes)
    ]


def _to_record(call: AttentionCall, layer: int, n: int, axis: Axis) -> AttentionRecord:
    return AttentionRecord(
        path=call.path,
        call=call.call,
        layer=layer,
        stack="decoder" if call.causal else "encoder",
        kind="self",
        query_axis=axis,
        key_axis=axis,
        query=call.query[n],
        key=call.key[n],
        value=call.value[n],
        scale=call.scale,
        soft_cap=call.soft_cap,
        bias=None if call.bias is None else _item(call.bias, n),
        mask=None if call.mask is None else _item(call.mask, n)[..., : call.key.shape[-2]],
        sinks=call.sinks,
        input=None if call.input is None else call.input[n],
        projection=call.projection,
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
