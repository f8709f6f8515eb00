"""A result of whole maps: what they follow from is kept, and all of it compared."""

from __future__ import annotations

from torch import Tensor

from attnviz.agreement import verify
from attnviz.capture import Capture, capture, capture_generation
from attnviz.capture.windows import place_windows
from attnviz.errors import ModelError
from attnviz.inputs import (
    Batch,
    Inputs,
    continue_axis,
    expect_tokens_left,
    generated_text,
)
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.processors import has_text_decoder
from attnviz.pipeline.provenance import provenance, versions
from attnviz.results import AttentionResult, Axis


def whole_results(checkpoint: Checkpoint, given: Inputs, batch: Batch) -> list[AttentionResult]:
    """Return the results of a batch, with records of which the maps follow."""
    sha256, ran = checkpoint.current_sha256(), versions()
    captures, generated = _capture(checkpoint, batch, given.generate)
    results = []
    for n, found in enumerate(captures):
        records = tuple(
            place_windows(checkpoint.module, batch.inputs, record) for record in found.records
        )
        proof = verify(
            records,
            found.references,
            in_one_pass=found.in_one_pass,
            versions=ran,
            weights_sha256=sha256,
        )
        source = provenance(checkpoint, given, batch, n, proof, generated)
        results.append(AttentionResult(records, proof, source, batch.image))
    return results


def _capture(
    checkpoint: Checkpoint, batch: Batch, generate: int | None
) -> tuple[list[Capture], str | None]:
    """Capture a batch as it is, or one input and what the model goes on to say."""
    model = checkpoint.module
    if generate is None:
        return capture(model, batch.inputs, batch.axes), None
    if (tokenizer := checkpoint.tokenizer) is None:
        raise ModelError(
            f"Expected a model that says text, but {checkpoint.name} has no tokenizer."
        )
    two_sided = has_text_decoder(model, model.config)
    kind = "target" if two_sided else "text"
    heard = None if two_sided else batch.axes["text"][0]
    expect_tokens_left(checkpoint, 1 if heard is None else len(heard), generate)

    def axes_of(read: Tensor) -> dict[str, tuple[Axis, ...]]:
        return {**batch.axes, kind: (continue_axis(tokenizer, heard, read),)}

    found, ids = capture_generation(model, batch.inputs, generate, axes_of)
    return [found], generated_text(tokenizer, ids[1 if heard is None else len(heard) :])
