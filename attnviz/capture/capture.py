"""From a model and its inputs to records: the inputs and outputs of every attention.

The untouched model runs twice, recorded in the same way (recorder.py). The records come from the
first run, the references that they are compared with from the second. Nothing of one run enters the
other, so comparing them is a proof and not a tautology.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnviz.capture.attention_call import AttentionCall
from attnviz.capture.generation import full_inputs, generate, stitch
from attnviz.capture.projections import match_projections
from attnviz.capture.recorder import batch_size, expect_same, model_errors, record_runs
from attnviz.capture.restore import restoring, weights_in_memory
from attnviz.capture.stacks import AttentionOutline, Place, place
from attnviz.errors import ModelError
from attnviz.results import AttentionRecord, Axis, Reference


@dataclass(frozen=True, eq=False)
class Capture:
    """The attentions of one text.

    Attributes
    ----------
    records : tuple of AttentionRecord
        All that our weights follow from, from the first run.
    references : tuple of Reference
        The model's own values, from the second run.
    in_one_pass : tuple of Tensor
        For a generation, the weights (H, m, n) of a single pass over the whole text.
    """

    records: tuple[AttentionRecord, ...]
    references: tuple[Reference, ...]
    in_one_pass: tuple[Tensor, ...] = ()


def capture(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    axes: Mapping[str, Sequence[Axis]] | None = None,
) -> list[Capture]:
    """Run `model` twice on a batch and return the attentions of each text in it.

    Parameters
    ----------
    model : nn.Module
        A transformers model. It is restored exactly, also after an exception.
    inputs : mapping
        The arguments of its forward, N texts padded to one length.
    axes : mapping of sequences of Axis
        The positions of the N texts, by kind of input: "text", "image", "audio", and "target" for
        the input of an encoder–decoder's decoder. Other positions are numbered.

    Returns
    -------
    list of Capture
        One for each text.

    Raises
    ------
    ModelError
        The model has no attention, or one that cannot be read.
    """
    texts = batch_size(model, inputs)

    def forward() -> object:
        return model(**inputs)

    calls, again = record_runs(model, texts, forward, forward)
    expect_same(model, calls, again)
    with weights_in_memory(call.module for call in calls):
        return [
            Capture(
                _to_records(calls, text_index, axes or {}),
                tuple(_to_reference(call, text_index) for call in again),
            )
            for text_index in range(texts)
        ]


def capture_generation(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    tokens: int,
    axes_of: Callable[[Tensor], Mapping[str, Sequence[Axis]]],
) -> tuple[Capture, Tensor]:
    """Let `model` continue one text greedily, and join the attentions of all steps into one map.

    Parameters
    ----------
    model, inputs
        As in `capture`, of one text.
    tokens : int
        The most tokens to generate.
    axes_of : callable
        Takes the ids (T,) that a decoder read, returns the axes as in `capture`.

    Returns
    -------
    capture : Capture
        The attentions, with those of one pass over the whole text.
    ids : Tensor
        (T + 1,), the text and its continuation; for an encoder–decoder, those of its decoder.

    Raises
    ------
    ModelError
        As in `capture`; or the keys of a step change in later steps.
    """
    generated: list[Tensor] = []

    def by_steps() -> None:
        generated.append(generate(model, inputs, tokens))

    def in_one_pass() -> object:
        return model(**full_inputs(model, inputs, generated[0][None, :-1]))

    runs = record_runs(model, 1, by_steps, by_steps, in_one_pass)
    calls, again = (stitch(run) for run in runs[:2])
    one_pass = {call.path: call for call in runs[2]}
    expect_same(model, calls, again)
    expect_same(model, calls, [one_pass[call.path] for call in calls if call.path in one_pass])
    with weights_in_memory(call.module for call in calls):
        records = _to_records(calls, 0, axes_of(generated[0][:-1]))
    captured = Capture(
        records,
        tuple(_to_reference(call, 0) for call in again),
        tuple(one_pass[call.path].attention.weights[0] for call in calls),
    )
    return captured, generated[0]


def hidden_states(model: nn.Module, inputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """Run `model` once and return the hidden states: the input of each layer, and the last output.

    Parameters
    ----------
    model, inputs
        As in `capture`.

    Returns
    -------
    tuple of Tensor
        L + 1 tensors (N, T, d_model) for L layers: the embeddings first.

    Raises
    ------
    ModelError
        The model does not return them, or they differ in size from layer to layer.
    """
    with restoring(model), torch.no_grad(), model_errors(model):
        states = getattr(model(**inputs, output_hidden_states=True), "hidden_states", None)
    if not states:
        raise ModelError(
            f"Expected {type(model).__name__} to show its hidden states, but it does not. "
            "Choose another model."
        )
    if len({state.shape for state in states}) > 1:
        raise ModelError(
            f"Expected {type(model).__name__} to keep every position from layer to layer, but it "
            "joins some of them. Choose another model."
        )
    return tuple(states)


def _to_records(
    calls: Sequence[AttentionCall], text_index: int, axes: Mapping[str, Sequence[Axis]]
) -> tuple[AttentionRecord, ...]:
    """Return the records of one text of a batch."""
    places = place(map(AttentionOutline.of, calls), text_index, axes)
    return tuple(
        _to_record(call, text_index, position) for call, position in zip(calls, places, strict=True)
    )


def _to_record(call: AttentionCall, text_index: int, position: Place) -> AttentionRecord:
    attention, inputs = call.attention, call.inputs

    def select(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else _of_text(tensor, text_index)

    size = attention.query.shape[-2], attention.key.shape[-2]
    mask, sinks, rotation = select(attention.mask), attention.sinks, inputs.rotation
    record = AttentionRecord(
        path=call.path,
        call=call.call,
        layer=position.layer,
        stack=position.stack,
        query_axis=position.query_axis,
        key_axis=position.key_axis,
        query=_of_text(attention.query, text_index),
        key=_of_text(attention.key, text_index),
        value=_of_text(attention.value, text_index),
        scale=attention.scale,
        soft_cap=attention.soft_cap,
        capped_bias=select(attention.capped_bias),
        bias=select(attention.bias),
        mask=None if mask is None else mask.expand(-1, *size),
        sinks=select(sinks) if sinks is not None and sinks.dim() > 1 else sinks,
        input=select(inputs.input),
        key_input=select(inputs.key_input),
        rotation=None
        if rotation is None
        else (_of_text(rotation[0], text_index), _of_text(rotation[1], text_index)),
        through_interface=call.through_interface,
    )
    return match_projections(
        record, call.module, select(attention.head_output), select(call.merged_heads)
    )


def _to_reference(call: AttentionCall, text_index: int) -> Reference:
    head_output, output = call.attention.head_output, call.output
    return Reference(
        weights=_of_text(call.attention.weights, text_index),
        scores=_of_text(call.attention.scores, text_index),
        head_output=None if head_output is None else _of_text(head_output, text_index),
        output=None if output is None else _of_text(output, text_index),
    )


def _of_text(tensor: Tensor, text_index: int) -> Tensor:
    """Return the part of one text; a batch may share one."""
    return tensor[text_index if len(tensor) > 1 else 0]
