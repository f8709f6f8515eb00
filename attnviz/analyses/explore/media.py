"""Explore the heads of a model that reads images or sounds."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from PIL import Image

from attnviz.analyses.explore.examples import Examples, OfHeads, with_counts
from attnviz.analyses.explore.result import ExploreResult, HeadAxis, QueryKeyPlane, ShownMedium
from attnviz.analyses.survey.compute import survey_media
from attnviz.analyses.survey.media import MediaCorpus, Medium
from attnviz.analyses.survey.result import NOUNS
from attnviz.capture.batched import BatchedAttention
from attnviz.heads import Positions
from attnviz.results import AttentionRecord, Axis
from attnviz.results.axis import literal
from attnviz.runtime.progress import part, say

_SIDES = (224, 160, 112, 80, 56)  # pixels of a picture in the page
_PICTURES = 4_000_000  # bytes of all pictures, in base64
_OUTLINE = 400  # parts of the outline of a sound


def explore_media(corpus: MediaCorpus, *, skip_bad: bool, seed: int) -> ExploreResult:
    """Return the heads of a model, explored on images or sounds."""
    with part(0, 3, "survey"):
        surveyed, numbers, sample = survey_media(corpus, skip_bad=skip_bad, seed=seed)
    records = sample[0].records
    examples = Examples(surveyed.roles, seed)
    with part(1, 3, "examples"):
        for done, medium in enumerate(corpus, start=1):
            _add_examples(examples, corpus, medium, records)
            say(f"{done:,} {NOUNS[corpus.kind]}", done / len(corpus))
    kept: Sequence[OfHeads] = (examples.strongest, examples.deciles)
    strongest, deciles = _counted(corpus, records, kept) if corpus.kind == "audio" else kept
    shown = {one.text for several in (*strongest, *deciles) for one in several}
    with part(2, 3, "each head"):
        planes: list[QueryKeyPlane] = []
        for several in zip(*(one.records for one in sample), strict=True):
            planes += QueryKeyPlane.of_heads(several, numbers)
        drawn = sorted({*shown, *(numbers if corpus.kind == "image" else [])})
        media, tokens = _shown_media(corpus, drawn)
    axes, reads = _axes(records)
    return ExploreResult(
        survey=surveyed,
        tokens=tokens,
        examples=strongest,
        deciles=deciles,
        planes=tuple(planes),
        written=(),
        effects=None,
        notes=("what heads write, and what is lost without them, is shown for models of texts",),
        agreement=replace(surveyed.agreement, digest=None),
        provenance=surveyed.provenance,
        media=media,
        axes=axes,
        reads=reads,
    )


def _add_examples(
    examples: Examples, corpus: MediaCorpus, medium: Medium, records: Sequence[AttentionRecord]
) -> None:
    """Add what every head attends to in a medium."""
    start = 0

    def add(attention: BatchedAttention, queries: Axis, keys: Axis) -> None:
        nonlocal start
        weights = attention.weights(slice(None)).cpu()
        end = start + weights.shape[1]
        others = None if queries == keys else Positions.of(keys)
        examples.add(slice(start, end), [medium.number], weights, Positions.of(queries), others)
        start = end

    corpus.capture(medium, records, add)


def _axes(
    records: Sequence[AttentionRecord],
) -> tuple[tuple[HeadAxis, ...], tuple[tuple[int, int], ...]]:
    """Return the different axes, and which the queries and the keys of each head have."""
    axes: dict[HeadAxis, int] = {}
    reads: list[tuple[int, int]] = []

    def index_of(axis: Axis) -> int:
        return axes.setdefault(_shown_axis(axis), len(axes))

    for record in records:
        reads += [(index_of(record.query_axis), index_of(record.key_axis))] * record.heads
    return tuple(axes), tuple(reads)


def _shown_axis(axis: Axis) -> HeadAxis:
    if axis.patches is not None:
        both = zip(axis.labels, axis.patches, strict=True)
        specials = tuple(label if patch is None else "" for label, patch in both)
        return HeadAxis("patches", patches=axis.patches, specials=specials)
    if axis.seconds is not None:
        return HeadAxis("frames", step=float(axis.seconds[1] or 0) if len(axis) > 1 else 1.0)
    return HeadAxis("tokens")


def _shown_media(
    corpus: MediaCorpus, numbers: Sequence[int]
) -> tuple[dict[str, ShownMedium], dict[str, tuple[str, ...]]]:
    """Return the media with these numbers for the page, and the tokens of their transcripts."""
    media: dict[str, ShownMedium] = {}
    tokens: dict[str, tuple[str, ...]] = {}
    pictures: dict[str, Image.Image] = {}
    for medium in corpus.some(numbers):
        number, wave, name = str(medium.number), medium.batch.waveform, literal(medium.name, 80)
        if wave is not None:
            media[number] = ShownMedium(name, seconds=wave.seconds, outline=_outline(wave.extremes))
            tokens[number] = _decoded(corpus, medium)
        elif medium.batch.image is not None:
            pictures[number] = Image.fromarray(medium.batch.image.cpu().numpy())
            pictures[number].thumbnail((_SIDES[0], _SIDES[0]))
            media[number] = ShownMedium(name)
    encoded: dict[str, str] = {}
    for side in _SIDES:
        encoded = {number: _data_uri(picture, side) for number, picture in pictures.items()}
        if sum(map(len, encoded.values())) <= _PICTURES:
            break
    media = {number: replace(one, image=encoded.get(number, "")) for number, one in media.items()}
    return media, tokens


def _data_uri(picture: Image.Image, side: int) -> str:
    small, file = picture.copy(), io.BytesIO()
    small.thumbnail((side, side))
    small.save(file, "JPEG", quality=82, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


def _outline(extremes: torch.Tensor) -> tuple[tuple[float, float], ...]:
    """Return the least and the largest sample of fewer parts."""
    parts = np.array_split(extremes.numpy(), min(_OUTLINE, len(extremes)))
    return tuple((round(float(p.min()), 3), round(float(p.max()), 3)) for p in parts)


def _decoded(corpus: MediaCorpus, medium: Medium) -> tuple[str, ...]:
    """Return the tokens of a transcript, with their blanks."""
    if medium.tokens is None or corpus.model.tokenizer is None:
        return ()
    ids = medium.batch.inputs["decoder_input_ids"][0].tolist()
    return tuple(str(corpus.model.tokenizer.decode([one])) for one in ids)


def _counted(
    corpus: MediaCorpus, records: Sequence[AttentionRecord], examples: Sequence[OfHeads]
) -> list[OfHeads]:
    """Return the examples, those of pairs of tokens with how often the corpus has the pair."""
    ids = {
        medium.number: tuple(medium.batch.inputs["decoder_input_ids"][0].tolist())
        for medium in corpus
        if medium.tokens is not None
    }
    causal = [  # a decoder writes from left to right
        True if record.query_axis == record.key_axis and record.key_axis.seconds is None else None
        for record in records
        for _ in range(record.heads)
    ]
    return with_counts(examples, ids.values(), ids, causal)
