"""Sentences through a model: the word's vector in every layer, and what it attends to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.analyses.senses.result import Occurrence
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
from attnviz.pipeline.attend import Model
from attnviz.results import AttentionRecord, AttentionResult
from attnviz.results.content_words import content_words
from attnviz.results.words import Span, token_groups

_AT_ONCE = 32  # sentences


@dataclass(frozen=True, eq=False)
class Seen:
    """The word in its sentences, N times in all.

    vectors : (L + 1, N, d_model), float64, the mean over its pieces. context : (N, d_model), the
    mean static embedding of all other words. sentence : which sentence, of each. spans, pieces :
    where it stands, in characters and as positions. results : of each sentence.
    """

    vectors: Tensor
    context: Tensor
    sentence: tuple[int, ...]
    spans: tuple[Span, ...]
    pieces: tuple[tuple[int, ...], ...]
    results: tuple[AttentionResult, ...]


def see(model: Model, sentences: Sequence[Sentence]) -> Seen:
    """Run the model on all sentences; return what becomes of the word in each.

    Raises
    ------
    ModelError : a model that does not read one text, shows no hidden states, or none of numbers.
    InputError : a sentence that is longer than the model can read.
    """
    expect_one_text(model.checkpoint)
    pieces = [_pieces(model, sentence) for sentence in sentences]
    vectors, context, results = [], [], []
    for start in range(0, len(sentences), _AT_ONCE):
        texts = [sentence.text for sentence in sentences[start : start + _AT_ONCE]]
        results += model.attend(texts, mode="full")
        batch = encode(model.checkpoint, texts)
        states = torch.stack(hidden_states(model.module, batch.inputs)).double().cpu()
        ids = batch.inputs["input_ids"]
        with torch.no_grad():
            static = model.module.get_input_embeddings()(ids).double().cpu()
        for n, axis in enumerate(batch.axes["text"]):
            for at in pieces[start + n]:
                others = [i for i, s in enumerate(axis.special) if not s and i not in at]
                vectors.append(states[:, n, list(at)].mean(1))
                context.append(static[n, others].mean(0) if others else 0 * static[n, 0])
    seen = torch.stack(vectors, dim=1)
    if not seen.isfinite().all():
        raise ModelError(
            f"Expected vectors that are numbers, but some that {model.name} computes are nan or "
            "infinite. Choose another --dtype (dtype=), or another model."
        )
    return Seen(
        vectors=seen,
        context=torch.stack(context),
        sentence=tuple(n for n, each in enumerate(pieces) for _ in each),
        spans=tuple(span for sentence in sentences for span in sentence.places),
        pieces=tuple(at for each in pieces for at in each),
        results=tuple(results),
    )


def _pieces(model: Model, sentence: Sentence) -> list[tuple[int, ...]]:
    """Return at which positions each occurrence of the word stands."""
    spans = token_spans(model.checkpoint, sentence.text)
    longest = max_tokens(model.module, model.tokenizer) if model.tokenizer else None
    which = f"{sentence.text[:40]!r}… ({sentence.sense})"
    if longest is not None and len(spans) > longest:
        raise InputError(
            f"Expected sentences of at most {longest} tokens, the most that {model.name} can "
            f"read, got {len(spans)} in {which}. Shorten it."
        )
    found = [pieces_in(spans, place) for place in sentence.places]
    if not all(found):
        raise InputError(
            f"Expected every letter of the word among the tokens, but the tokenizer of "
            f"{model.name} leaves it out of {which}. Leave the sentence out."
        )
    return found


def occurrences(
    seen: Seen, sentences: Sequence[Sentence], layer: int
) -> tuple[list[Occurrence], AttentionRecord]:
    """Return every occurrence with what it attends to in a layer; and the record of that layer.

    A model may have fewer attentions than layers: then the last one up to that layer is taken.
    """
    found = []
    for n, (start, end), at in zip(seen.sentence, seen.spans, seen.pieces, strict=True):
        records = seen.results[n].stack().records
        record = next((r for r in reversed(records) if r.layer <= layer), records[0])
        attended, strongest = _attended(record, at)
        found.append(
            Occurrence(
                sentence=sentences[n].text,
                sense=sentences[n].sense,
                start=start,
                end=end,
                pieces=tuple(record.query_axis.labels[i] for i in at),
                attended=attended,
                strongest=strongest,
            )
        )
    return found, record


def _attended(
    record: AttentionRecord, at: Sequence[int]
) -> tuple[tuple[tuple[str, float], ...], str]:
    """Return each other word's share of the attention of some positions, and the strongest word.

    The mean over heads and positions. Special tokens, the word itself and punctuation are left
    out, and what remains is made to sum to 1.
    """
    weights = record.weights()[:, list(at)].double().mean((0, 1)).cpu()
    side = token_groups(record.key_axis)
    content = content_words(side).tolist()
    kept = [
        (label, float(weights[list(positions)].sum()), carries)
        for label, positions, special, carries in zip(
            side.labels, side.positions, side.special, content, strict=True
        )
        if not special and not set(positions) & set(at) and any(map(str.isalnum, label))
    ]
    total = sum(weight for _, weight, _ in kept) or 1.0
    kept.sort(key=lambda one: -one[1])
    strongest = next((label for label, weight, carries in kept if carries and weight > 0), "")
    return tuple((label, weight / total) for label, weight, _ in kept), strongest
