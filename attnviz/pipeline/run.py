"""From what was given to results: whole maps or streamed ones."""

from __future__ import annotations

from typing import Literal, TypeAlias

from attnviz.capture import memory_budget
from attnviz.errors import InputError
from attnviz.inputs import Batch, Inputs, encode
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.processors import has_text_decoder, input_kinds
from attnviz.pipeline.streamed import Wanted, head_counts, streamed_result
from attnviz.pipeline.whole import whole_results
from attnviz.results import AttentionResult
from attnviz.runtime.translate import lacking

Mode: TypeAlias = Literal["auto", "full", "streamed"]
_WHOLE = 160_000_000  # weights of all heads that are kept whole: 1,024 tokens of GPT-2


def run(
    checkpoint: Checkpoint, given: Inputs, *, truncate: bool, mode: Mode, wanted: Wanted
) -> list[AttentionResult]:
    """Return the results of one batch.

    Raises
    ------
    InputError : an unknown mode, one that what was given cannot be read in, or no memory for it.
    """
    with lacking(memory_budget(checkpoint.module)):
        return _run(checkpoint, given, truncate=truncate, mode=mode, wanted=wanted)


def _run(
    checkpoint: Checkpoint, given: Inputs, *, truncate: bool, mode: Mode, wanted: Wanted
) -> list[AttentionResult]:
    if mode not in ("auto", "full", "streamed"):
        raise InputError(f"Expected mode to be auto, full or streamed, got {mode!r}.")
    lone = given.pictures is None and given.sounds is None and given.generate is None
    text = lone and input_kinds(checkpoint.module) == ("text",)
    text = text and not has_text_decoder(checkpoint.module, checkpoint.module.config)
    if mode == "streamed" and not text:
        raise InputError(
            'Expected a text by itself for a model that reads nothing else with mode="streamed"; '
            "images, sounds, targets and generated texts have whole maps. Leave mode out."
        )
    reduced = wanted.cells is not None or wanted.top > 0  # of which only streamed maps know
    if reduced and (mode == "full" or not text):
        raise InputError(
            "Expected cells and top for a streamed text only, got them for whole maps. Leave them "
            'out, or mode="full".'
        )
    if mode != "streamed" and not reduced:
        batch = _encode(checkpoint, given, truncate)
        if mode == "full" or not text or _weights(checkpoint, batch) <= _WHOLE:
            if text:
                _expect_room(checkpoint, batch)
            return whole_results(checkpoint, given, batch)
        if len(batch.axes["text"]) == 1:
            return [streamed_result(checkpoint, given, batch, wanted)]
    return [
        streamed_result(checkpoint, one, _encode(checkpoint, one, truncate), wanted)
        for one in given.one_by_one()
    ]


def _encode(checkpoint: Checkpoint, given: Inputs, truncate: bool) -> Batch:
    return encode(
        checkpoint,
        given.texts,
        given.pairs,
        given.targets,
        image=given.pictures[0] if given.pictures else None,
        sound=given.sounds[0] if given.sounds else None,
        truncate=truncate,
        generating=given.generate is not None,
    )


def _expect_room(checkpoint: Checkpoint, batch: Batch) -> None:
    """Refuse a text of which not even the scores and the weights of one layer can be held.

    Whether those of all layers can is seen when the first has run (capture/recording.py).
    """
    texts, length = batch.inputs["input_ids"].shape
    size = 2 * texts * head_counts(checkpoint)[1] * length**2 * checkpoint.module.dtype.itemsize
    memory_budget(checkpoint.module).expect(size)


def _weights(checkpoint: Checkpoint, batch: Batch) -> int:
    """Return how many weights the maps of one text of a batch hold."""
    layers, heads = head_counts(checkpoint)
    return layers * heads * max(len(axis) for axis in batch.axes["text"]) ** 2
