"""Run the model on the sentences, classify the occurrences in every layer, and count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnviz.analyses.senses.result import Occurrence, SensesResult
from attnviz.analyses.senses.scores import (
    PermutationDesign,
    align,
    classify,
    main_plane,
    nearest,
    p_value,
    score,
)
from attnviz.analyses.senses.sentences import Sentence
from attnviz.capture import hidden_states
from attnviz.errors import InputError, ModelError
from attnviz.inputs import (
    encode,
    expect_one_text,
    max_tokens,
    pieces_in,
    token_spans,
)
from attnviz.pipeline.attend import Loadable, Model, load
from attnviz.results import AgreementReport, AttentionRecord, AttentionResult
from attnviz.results.words import Span, content_words, token_groups

_BATCH = 32  # sentences


@dataclass(frozen=True, eq=False)
class OccurrenceVectors:
    """The vectors of the N occurrences of the word.

    Attributes
    ----------
    vectors : Tensor
        The mean over the pieces of each occurrence, as it enters each layer and at the end,
        (L + 1, N, d_model), float64.
    context : Tensor
        The mean static embedding of the other words of its sentence, (N, d_model).
    sentence : tuple of int
        The index of the sentence of each occurrence.
    spans, pieces : tuple
        The place of each occurrence, in characters and as token positions.
    results : tuple of AttentionResult
        The attention of each sentence.
    """

    vectors: Tensor
    context: Tensor
    sentence: tuple[int, ...]
    spans: tuple[Span, ...]
    pieces: tuple[tuple[int, ...], ...]
    results: tuple[AttentionResult, ...]


def collect_vectors(model: Model, sentences: Sequence[Sentence]) -> OccurrenceVectors:
    """Run the model on all sentences and return the vectors of the word.

    Raises
    ------
    ModelError
        The model does not read one text, or its hidden states are missing, nan or infinite.
    InputError
        A sentence is longer than the model can read.
    """
    expect_one_text(model.checkpoint)
    pieces = [_pieces(model, sentence) for sentence in sentences]
    vectors, context, results = [], [], []
    for start in range(0, len(sentences), _BATCH):
        texts = [sentence.text for sentence in sentences[start : start + _BATCH]]
        results += model.attend(texts, mode="full")
        batch = encode(model.checkpoint, texts)
        states = torch.stack(hidden_states(model.module, batch.inputs)).double().cpu()
        ids = batch.inputs["input_ids"]
        with torch.no_grad():
            static = model.module.get_input_embeddings()(ids).double().cpu()
        for n, axis in enumerate(batch.axes["text"]):
            for rows in pieces[start + n]:
                others = [i for i, s in enumerate(axis.special) if not s and i not in rows]
                vectors.append(states[:, n, list(rows)].mean(1))
                context.append(static[n, others].mean(0) if others else 0 * static[n, 0])
    stacked = torch.stack(vectors, dim=1)
    if not stacked.isfinite().all():
        raise ModelError(
            f"Expected vectors that are numbers, but some that {model.name} computes are nan or "
            "infinite. Choose another --dtype (dtype=), or another model."
        )
    return OccurrenceVectors(
        vectors=stacked,
        context=torch.stack(context),
        sentence=tuple(n for n, occurrences in enumerate(pieces) for _ in occurrences),
        spans=tuple(span for sentence in sentences for span in sentence.places),
        pieces=tuple(rows for occurrences in pieces for rows in occurrences),
        results=tuple(results),
    )


def _pieces(model: Model, sentence: Sentence) -> list[tuple[int, ...]]:
    """Return the token positions of each occurrence of the word."""
    spans = token_spans(model.checkpoint, sentence.text)
    longest = max_tokens(model.module, model.tokenizer) if model.tokenizer else None
    which = f"{sentence.text[:40]!r}… ({sentence.sense})"
    if longest is not None and len(spans) > longest:
        raise InputError(
            f"Expected sentences of at most {longest} tokens, the most that {model.name} can "
            f"read, got {len(spans)} in {which}. Shorten it."
        )
    pieces = [pieces_in(spans, place) for place in sentence.places]
    if not all(pieces):
        raise InputError(
            f"Expected every letter of the word among the tokens, but the tokenizer of "
            f"{model.name} leaves it out of {which}. Leave the sentence out."
        )
    return pieces


def occurrences(
    words: OccurrenceVectors, sentences: Sequence[Sentence], layer: int
) -> tuple[list[Occurrence], AttentionRecord]:
    """Return every occurrence with the words it attends to in a layer, and a record of the layer.

    If a model has fewer attentions than layers, the last one up to that layer is used.
    """
    listed = []
    for n, (start, end), rows in zip(words.sentence, words.spans, words.pieces, strict=True):
        records = words.results[n].stack().records
        record = next((r for r in reversed(records) if r.layer <= layer), records[0])
        attended, strongest = _attended(record, rows)
        listed.append(
            Occurrence(
                sentence=sentences[n].text,
                sense=sentences[n].sense,
                start=start,
                end=end,
                pieces=tuple(record.query_axis.labels[i] for i in rows),
                attended=attended,
                strongest=strongest,
            )
        )
    return listed, record


def _attended(
    record: AttentionRecord, rows: Sequence[int]
) -> tuple[tuple[tuple[str, float], ...], str]:
    """Return the other words with their share of the attention of some rows, and the strongest.

    Weights are averaged over heads and rows. Special tokens, the word itself and punctuation are
    left out, and the rest is normalized to sum to 1.
    """
    weights = record.weights()[:, list(rows)].double().mean((0, 1)).cpu()
    groups = token_groups(record.key_axis)
    content = content_words(groups).tolist()
    shares = [
        (label, float(weights[list(positions)].sum()), is_content)
        for label, positions, special, is_content in zip(
            groups.labels, groups.positions, groups.special, content, strict=True
        )
        if not special and not set(positions) & set(rows) and any(map(str.isalnum, label))
    ]
    total = sum(weight for _, weight, _ in shares) or 1.0
    shares.sort(key=lambda share: -share[1])
    strongest = next((label for label, weight, content in shares if content and weight > 0), "")
    return tuple((label, weight / total) for label, weight, _ in shares), strongest


def measure(
    word: str, sentences: Sequence[Sentence], *, model: Model | Loadable | None, raw: bool
) -> SensesResult:
    """Return the result of `senses` for checked sentences."""
    model = model if isinstance(model, Model) else load(model)
    names = tuple(dict.fromkeys(sentence.sense for sentence in sentences))
    words = collect_vectors(model, sentences)
    labels = [names.index(sentences[n].sense) for n in words.sentence]
    design = PermutationDesign.of(labels, list(words.sentence))
    outcomes = [classify(vectors, design, centered=not raw) for vectors in words.vectors]
    scores = tuple(
        score(vectors, design, *outcome)
        for vectors, outcome in zip(words.vectors, outcomes, strict=True)
    )
    context = score(words.context, design, *classify(words.context, design, centered=not raw))
    best = max(range(len(scores)), key=lambda i: (scores[i].accuracy, scores[i].silhouette))
    planes = [main_plane(vectors) for vectors in words.vectors]
    in_plane = [
        nearest(places, design.senses[None], design.sentences).mean().item() for places, _ in planes
    ]
    listed, record = occurrences(words, sentences, max(best - 1, 0))
    shuffled = torch.stack([accuracies for _, accuracies in outcomes]).amax(0)
    center = 0 if raw else words.vectors.mean(1, keepdim=True)
    return SensesResult(
        word=word,
        senses=names,
        occurrences=tuple(listed),
        vectors=words.vectors - center,
        scores=scores,
        context=context,
        right=torch.stack([right for right, _ in outcomes]),
        plane=align(torch.stack([places for places, _ in planes]), best),
        explained=tuple(shares for _, shares in planes),
        plane_accuracy=tuple(in_plane),
        best=best,
        p_best=p_value(scores[best].accuracy, shuffled),
        shuffles=len(shuffled),
        attention_layer=record.layer,
        raw=raw,
        notes=tuple(_notes(word, listed, record, raw=raw)),
        agreement=AgreementReport.joined(result.agreement for result in words.results),
        provenance=replace(words.results[0].provenance, text=None),
    )


def _notes(
    word: str, occurrences: Sequence[Occurrence], record: AttentionRecord, *, raw: bool
) -> list[str]:
    """Return notes on inflections, pieces, centering, imbalance and causal models."""
    notes, total = [], len(occurrences)
    written = Counter(occurrence.word.casefold() for occurrence in occurrences)
    inflected = [f"“{form}” ({n})" for form, n in written.items() if form != word.casefold()]
    if inflected:
        notes.append(f"taken for “{word}” too: {', '.join(inflected)}")
    split = sum(len(occurrence.pieces) > 1 for occurrence in occurrences)
    if split:
        notes.append(f"the mean over its pieces where the word is split ({split} of {total})")
    notes.append("vectors as they are" if raw else "vectors centered on the mean of all others")
    counts = Counter(occurrence.sense for occurrence in occurrences)
    if min(counts.values()) < max(counts.values()):
        most, count = counts.most_common(1)[0]
        notes.append(f"“{most}” makes up {count / total:.0%} of the occurrences")
    weights = record.weights()
    if weights.shape[-1] > 1 and not weights.triu(1).any():
        notes.append("the model reads from left to right: the word sees only what stands before it")
    return notes
