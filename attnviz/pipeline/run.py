"""Run a model on one batch: encode, capture, verify, and return the results."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version

from torch import Tensor

from attnviz.agreement import verify
from attnviz.capture import Capture, capture, capture_generation, memory_budget
from attnviz.capture.windows import place_windows
from attnviz.errors import InputError, ModelError
from attnviz.inputs import (
    Batch,
    Inputs,
    continue_axis,
    encode,
    expect_tokens_left,
    generated_text,
)
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.processors import has_text_decoder, input_kinds
from attnviz.pipeline.options import AttendOptions
from attnviz.pipeline.streamed import head_counts, stream
from attnviz.results import AgreementReport, AttentionResult, Axis, Provenance
from attnviz.runtime.libraries import translate

_MOST_WHOLE_WEIGHTS = 160_000_000  # of all heads: 1,024 tokens of GPT-2


def run(checkpoint: Checkpoint, inputs: Inputs, options: AttendOptions) -> list[AttentionResult]:
    """Return the results of one batch, with whole maps or reduced ones.

    Raises
    ------
    InputError
        The options do not fit the inputs, or there is not enough memory.
    """
    can_stream = _can_stream(checkpoint, inputs)
    if options.mode == "streamed" and not can_stream:
        raise InputError(
            'Expected a text by itself for a model that reads nothing else with mode="streamed"; '
            "images, sounds, targets and generated texts have whole maps. Leave mode out."
        )
    if options.are_for_reduced_maps and (options.mode == "full" or not can_stream):
        raise InputError(
            "Expected cells and top for a streamed text only, got them for whole maps. Leave them "
            'out, or mode="full".'
        )
    with translate(memory_budget(checkpoint.module)):
        if options.mode != "streamed" and not options.are_for_reduced_maps:
            batch = _encode(checkpoint, inputs, options)
            is_whole = options.mode == "full" or not can_stream
            if is_whole or _weight_count(checkpoint, batch) <= _MOST_WHOLE_WEIGHTS:
                if can_stream:
                    _expect_memory(checkpoint, batch)
                return _whole_results(checkpoint, inputs, batch)
            if len(batch.axes["text"]) == 1:
                return [_streamed_result(checkpoint, inputs, batch, options)]
        return [
            _streamed_result(checkpoint, single, _encode(checkpoint, single, options), options)
            for single in inputs.one_by_one()
        ]


def _can_stream(checkpoint: Checkpoint, inputs: Inputs) -> bool:
    """Tell whether the maps can be reduced: one text for a model that reads nothing else."""
    module = checkpoint.module
    is_text = inputs.pictures is None and inputs.sounds is None and inputs.generate is None
    reads_text_only = input_kinds(module) == ("text",)
    return is_text and reads_text_only and not has_text_decoder(module, module.config)


def _encode(checkpoint: Checkpoint, inputs: Inputs, options: AttendOptions) -> Batch:
    return encode(
        checkpoint,
        inputs.texts,
        inputs.pairs,
        inputs.targets,
        image=inputs.pictures[0] if inputs.pictures else None,
        sound=inputs.sounds[0] if inputs.sounds else None,
        truncate=options.truncate,
        generating=inputs.generate is not None,
    )


def _expect_memory(checkpoint: Checkpoint, batch: Batch) -> None:
    """Raise InputError if not even the scores and the weights of one layer fit in memory.

    The recorder checks the memory for all layers when the first has run.
    """
    texts, length = batch.inputs["input_ids"].shape
    size = 2 * texts * head_counts(checkpoint)[1] * length**2 * checkpoint.module.dtype.itemsize
    memory_budget(checkpoint.module).expect(size)


def _weight_count(checkpoint: Checkpoint, batch: Batch) -> int:
    """Return how many weights the maps of one text of a batch hold."""
    layers, heads = head_counts(checkpoint)
    return layers * heads * max(len(axis) for axis in batch.axes["text"]) ** 2


def _streamed_result(
    checkpoint: Checkpoint, inputs: Inputs, batch: Batch, options: AttendOptions
) -> AttentionResult:
    attentions, report = stream(checkpoint, batch, options, versions())
    source = _provenance(checkpoint, inputs, batch, 0, report, None)
    return AttentionResult((), report, source, streamed=attentions)


def _whole_results(checkpoint: Checkpoint, inputs: Inputs, batch: Batch) -> list[AttentionResult]:
    """Return the results of a batch, with records from which the whole maps follow."""
    sha256, module = checkpoint.current_sha256(), checkpoint.module
    if inputs.generate is None:
        captures, generated = capture(module, batch.inputs, batch.axes), None
    else:
        captured, generated = _capture_generation(checkpoint, batch, inputs.generate)
        captures = [captured]
    results = []
    for n, captured in enumerate(captures):
        records = tuple(place_windows(module, batch.inputs, record) for record in captured.records)
        report = verify(
            records,
            captured.references,
            in_one_pass=captured.in_one_pass,
            versions=versions(),
            weights_sha256=sha256,
        )
        source = _provenance(checkpoint, inputs, batch, n, report, generated)
        results.append(AttentionResult(records, report, source, batch.image))
    return results


def _capture_generation(
    checkpoint: Checkpoint, batch: Batch, generate: int
) -> tuple[Capture, str | None]:
    """Capture one input and the tokens that the model generates after it; return their text too."""
    module, tokenizer = checkpoint.module, checkpoint.tokenizer
    if tokenizer is None:
        raise ModelError(
            f"Expected a model that generates text, but {checkpoint.name} has no tokenizer."
        )
    has_decoder = has_text_decoder(module, module.config)
    kind = "target" if has_decoder else "text"
    prompt = None if has_decoder else batch.axes["text"][0]
    prompt_length = 1 if prompt is None else len(prompt)
    expect_tokens_left(checkpoint, prompt_length, generate)

    def axes_of(ids: Tensor) -> dict[str, tuple[Axis, ...]]:
        return {**batch.axes, kind: (continue_axis(tokenizer, prompt, ids),)}

    captured, ids = capture_generation(module, batch.inputs, generate, axes_of)
    return captured, generated_text(tokenizer, ids[prompt_length:])


def versions() -> dict[str, str]:
    """Return the versions of attnviz, torch and transformers."""
    return {name: _version(name) for name in ("attnviz", "torch", "transformers")}


_version = cache(version)  # it reads a file


def _provenance(
    checkpoint: Checkpoint,
    inputs: Inputs,
    batch: Batch,
    n: int,
    report: AgreementReport,
    generated: str | None,
) -> Provenance:
    """Return the provenance of the result of input n of a batch."""
    return Provenance(
        model=checkpoint.name,
        weights_sha256=report.weights_sha256,
        text=inputs.texts[n] if inputs.texts else None,
        pair=inputs.pairs[n] if inputs.pairs else None,
        dtype=report.dtype,
        device=report.device,
        versions=report.versions,
        target=inputs.targets[n] if inputs.targets else None,
        cut_from=batch.cut_from[n],
        image=inputs.pictures[0].name if inputs.pictures else None,
        audio=batch.sound,
        generated=generated,
    )
