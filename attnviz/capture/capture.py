"""Model and inputs → records: what every attention of a model saw, and what it answered.

The untouched model runs twice, watched in the same way (recording.py). The records come from the
first run, what they are compared with from the second. Nothing of one run enters the other, so
comparing them is a proof and not a tautology.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnviz.capture.attention_call import AttentionCall
from attnviz.capture.generation import generate, stitch, whole_inputs
from attnviz.capture.projections import understood
from attnviz.capture.restore import readable, unchanged
from attnviz.capture.run_model import running
from attnviz.capture.stacks import Outline, Place, place
from attnviz.capture.two_runs import count_texts, expect_same, run_watched
from attnviz.errors import ModelError
from attnviz.results import AttentionRecord, Axis, Reference


@dataclass(frozen=True, eq=False)
class Capture:
    """The attentions of one text: what was recorded, and what the model computed by itself.

    in_one_pass : for a generation, the weights (H, m, n) of a single pass over all of it.
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
    model : a transformers model; left exactly as it was found, also after an exception.
    inputs : what its forward takes, N texts padded to one length.
    axes : the positions of the N texts, by kind of input: "text", "image", "audio", and "target"
        for what the decoder of an encoder–decoder reads. Positions of which nothing is said are
        numbered.

    Raises
    ------
    ModelError : no attention, or one that cannot be read.
    """
    count = count_texts(model, inputs)

    def forward() -> object:
        return model(**inputs)

    calls, again = run_watched(model, count, forward, forward)
    expect_same(model, calls, again)
    with readable(call.holder for call in calls):
        return [
            Capture(
                tuple(
                    _to_record(call, n, where)
                    for call, where in zip(
                        calls, place(map(Outline.of, calls), n, axes or {}), strict=True
                    )
                ),
                tuple(_to_reference(call, n) for call in again),
            )
            for n in range(count)
        ]


def capture_generation(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    tokens: int,
    axes_of: Callable[[Tensor], Mapping[str, Sequence[Axis]]],
) -> tuple[Capture, Tensor]:
    """Let `model` continue one text, greedily, and return each step's attention stitched into one.

    Parameters
    ----------
    model, inputs : as in `capture`, of one text.
    tokens : how many are generated at most.
    axes_of : given the ids (T,) that a decoder read, the axes as in `capture`.

    Returns
    -------
    The attentions, with those of one pass over the whole beside them, and the ids (T + 1,) of all
    that was read and said; for an encoder–decoder, of what its decoder read and said.

    Raises
    ------
    ModelError : as in `capture`; or what a step sees changes in later steps.
    """
    said: list[Tensor] = []

    def by_steps() -> None:
        said.append(generate(model, inputs, tokens))

    def in_one_pass() -> object:
        return model(**whole_inputs(model, inputs, said[0][None, :-1]))

    runs = run_watched(model, 1, by_steps, by_steps, in_one_pass)
    calls, again = (stitch(run) for run in runs[:2])
    whole = {call.path: call for call in runs[2]}
    expect_same(model, calls, again)
    expect_same(model, calls, [whole[call.path] for call in calls if call.path in whole])
    where = place(map(Outline.of, calls), 0, axes_of(said[0][:-1]))
    with readable(call.holder for call in calls):
        records = tuple(_to_record(call, 0, here) for call, here in zip(calls, where, strict=True))
    found = Capture(
        records,
        tuple(_to_reference(call, 0) for call in again),
        tuple(whole[call.path].attention.weights[0] for call in calls),
    )
    return found, said[0]


def hidden_states(model: nn.Module, inputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """Run `model` once and return what enters each of its L layers, and its output.

    Parameters
    ----------
    model, inputs : as in `capture`; the model is left exactly as it was found.

    Returns
    -------
    L + 1 tensors (N, T, d_model): first the embeddings, last what the model hands on.

    Raises
    ------
    ModelError : the model does not show them, or they differ in size from layer to layer.
    """
    with unchanged(model), torch.no_grad(), running(model):
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
        sinks=_item(seen.sinks, n)
        if seen.sinks is not None and seen.sinks.dim() > 1
        else seen.sinks,
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


def _item(tensor: Tensor, n: int) -> Tensor:
    """Return what belongs to text n; one row may serve the whole batch."""
    return tensor[n if len(tensor) > 1 else 0]
