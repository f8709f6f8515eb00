"""From what was given to results: encode, capture, prove; whole maps or streamed ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from math import isqrt
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from attnviz import agreement
from attnviz.capture import (
    Capture,
    Kept,
    Sample,
    Streamed,
    capture,
    capture_generation,
    capture_streamed,
)
from attnviz.checkpoints import Checkpoint, is_two_sided, kinds_read
from attnviz.errors import InputError, ModelError, whole_number
from attnviz.inputs import (
    Batch,
    Given,
    continue_axis,
    encode,
    expect_room,
    place_windows,
    said_text,
)
from attnviz.metrics import content_positions
from attnviz.records import (
    AgreementReport,
    AttentionResult,
    Axis,
    Provenance,
    StreamedAttention,
)

Mode: TypeAlias = Literal["auto", "full", "streamed"]
_WHOLE = 2**26  # weights of all heads that are kept whole
_CELLS, _POOLED = 500, 2**23  # a side of a pooled map, and cells of all heads together: 64 MB
_SAMPLED, _FEWEST = 2**18, 4  # weights of a layer that are compared with the model's own, and rows


@dataclass(frozen=True)
class Wanted:
    """What is kept of a streamed text: which layers and heads, cells and top keys."""

    layers: Sequence[int] | None = None
    heads: Sequence[int] | None = None
    cells: int | None = None
    top: int = 0


def run(
    checkpoint: Checkpoint, given: Given, *, truncate: bool, mode: Mode, wanted: Wanted
) -> list[AttentionResult]:
    """Return the results of one batch.

    Raises
    ------
    InputError : an unknown mode, or one that what was given cannot be read in.
    """
    if mode not in ("auto", "full", "streamed"):
        raise InputError(f"Expected mode to be auto, full or streamed, got {mode!r}.")
    lone = given.images is None and given.sounds is None and given.generate is None
    text = lone and kinds_read(checkpoint.module) == ("text",)
    text = text and not is_two_sided(checkpoint.module, checkpoint.module.config)
    if mode == "streamed" and not text:
        raise InputError(
            'Expected a text by itself for a model that reads nothing else with mode="streamed"; '
            "images, sounds, targets and generated texts have whole maps. Leave mode out."
        )
    if mode != "streamed":
        batch = _encode(checkpoint, given, truncate)
        if mode == "full" or not text or _weights(checkpoint, batch) <= _WHOLE:
            return _whole(checkpoint, given, batch)
    return [_streamed(checkpoint, one, truncate, wanted) for one in given.one_by_one()]


def _encode(checkpoint: Checkpoint, given: Given, truncate: bool) -> Batch:
    return encode(
        checkpoint,
        given.texts,
        given.pairs,
        given.targets,
        image=given.images[0] if given.images else None,
        sound=given.sounds[0] if given.sounds else None,
        truncate=truncate,
        generating=given.generate is not None,
    )


def _heads(checkpoint: Checkpoint) -> tuple[int, int]:
    """Return how many layers a model has, and heads in each, as far as its config says so."""
    config = checkpoint.module.config
    names = "num_hidden_layers", "num_attention_heads"
    layers, heads = (int(getattr(config, name, None) or 12) for name in names)
    return layers, heads


def _weights(checkpoint: Checkpoint, batch: Batch) -> int:
    layers, heads = _heads(checkpoint)
    return layers * heads * sum(len(axis) ** 2 for axis in batch.axes["text"])


def _whole(checkpoint: Checkpoint, given: Given, batch: Batch) -> list[AttentionResult]:
    """Keep what whole maps follow from, and compare them as a whole."""
    sha256, versions = checkpoint.current_sha256(), _versions()
    captures, generated = _capture(checkpoint, batch, given.generate)
    results = []
    for n, found in enumerate(captures):
        records = tuple(
            place_windows(checkpoint.module, batch.inputs, record) for record in found.records
        )
        proof = agreement.verify(
            records,
            found.references,
            in_one_pass=found.in_one_pass,
            versions=versions,
            weights_sha256=sha256,
        )
        source = _provenance(checkpoint, given, batch, n, proof, generated)
        results.append(AttentionResult(records, proof, source, batch.image))
    return results


def _streamed(
    checkpoint: Checkpoint, given: Given, truncate: bool, wanted: Wanted
) -> AttentionResult:
    """Reduce the maps of one text as the model runs, and compare some rows of each."""
    batch = _encode(checkpoint, given, truncate)
    axis, device = batch.axes["text"][0], checkpoint.module.device
    kept = _kept(checkpoint, wanted, axis, device)
    rows = sampled_rows(len(axis), _heads(checkpoint)[1]).to(device)
    attentions: list[StreamedAttention] = []
    proofs: list[agreement.Proof] = []

    own: dict[tuple[str, int], Tensor] = {}  # weights of the rows, by attention

    def prove(sample: Sample) -> None:
        record = sample.record
        proofs.append(agreement.prove_rows(record, sample.reference, rows))
        own[record.path, record.call] = sample.reference.weights

    def take(streamed: Streamed) -> None:
        record, summary = streamed.record, streamed.summary
        heads = tuple(range(len(record.query)) if kept.heads is None else kept.heads)
        weights = own.pop((record.path, record.call))
        proofs.append(agreement.prove_streamed(record, weights, rows, summary, heads))
        attentions.append(
            StreamedAttention(
                record.path,
                record.call,
                record.layer,
                record.stack,
                record.query_axis,
                record.key_axis,
                record.heads,
                heads,
                summary,
                None if wanted.layers is None else record,
            )
        )

    capture_streamed(checkpoint.module, batch.inputs, batch.axes, rows, kept, prove, take)
    if not attentions:
        raise InputError(
            f"Expected layers of {checkpoint.name}, got {list(wanted.layers or ())}. It has "
            f"{_heads(checkpoint)[0]} layers, counted from 0."
        )
    proof = agreement.report(
        proofs,
        str(checkpoint.module.dtype).removeprefix("torch."),
        str(device),
        versions=_versions(),
        weights_sha256=checkpoint.current_sha256(),
        rows=(len(rows), len(axis)),
    )
    source = _provenance(checkpoint, given, batch, 0, proof, None)
    return AttentionResult((), proof, source, streamed=tuple(attentions))


def _kept(checkpoint: Checkpoint, wanted: Wanted, axis: Axis, device: torch.device) -> Kept:
    """Return what is wanted, checked as far as can be before the model runs."""
    layers, heads = _heads(checkpoint)
    chosen = [
        None if each is None else tuple(dict.fromkeys(whole_number(one, what) for one in each))
        for each, what in ((wanted.layers, "a layer"), (wanted.heads, "a head"))
    ]
    for each, most, what in zip(chosen, (layers, heads), ("layer", "head"), strict=True):
        for one in each or ():
            if not 0 <= one < most:
                raise InputError(
                    f"Expected a {what} from 0 to {most - 1}, got {one}. {checkpoint.name} has "
                    f"{most} {what}s, counted from 0."
                )
    count = len(chosen[0] or range(layers)) * len(chosen[1] or range(heads))
    cells = wanted.cells
    if cells is None:
        cells = min(_CELLS, max(1, isqrt(_POOLED // count)))
    marked = content_positions(axis).to(device)
    return Kept(chosen[0], chosen[1], cells, wanted.top, marked)


def sampled_rows(length: int, heads: int) -> Tensor:
    """Return which queries of a text are compared with the model's own: the last, and any others.

    The same for every run, so that a result can be had again.
    """
    count = min(length, max(_FEWEST, _SAMPLED // (heads * length)))
    others = torch.randperm(length - 1, generator=torch.Generator().manual_seed(length))
    last = torch.tensor([length - 1])
    return torch.cat([others[: count - 1], last]).sort().values


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("attnviz", "torch", "transformers")}


def _provenance(
    checkpoint: Checkpoint,
    given: Given,
    batch: Batch,
    n: int,
    proof: AgreementReport,
    generated: str | None,
) -> Provenance:
    return Provenance(
        model=checkpoint.name,
        weights_sha256=proof.weights_sha256,
        text=given.texts[n] if given.texts else None,
        pair=given.pairs[n] if given.pairs else None,
        dtype=proof.dtype,
        device=proof.device,
        versions=proof.versions,
        target=given.targets[n] if given.targets else None,
        cut_from=batch.cut_from[n],
        image=given.images[0].name if given.images else None,
        audio=batch.sound,
        generated=generated,
    )


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
    two_sided = is_two_sided(model, model.config)
    kind = "target" if two_sided else "text"
    heard = None if two_sided else batch.axes["text"][0]
    expect_room(checkpoint, 1 if heard is None else len(heard), generate)

    def axes_of(read: Tensor) -> dict[str, tuple[Axis, ...]]:
        return {**batch.axes, kind: (continue_axis(tokenizer, heard, read),)}

    found, ids = capture_generation(model, batch.inputs, generate, axes_of)
    return [found], said_text(tokenizer, ids[1 if heard is None else len(heard) :])
