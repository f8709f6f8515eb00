"""From sentences to a result: run, judge every layer, and say what was done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnviz.analyses.senses.result import Occurrence, SensesResult
from attnviz.analyses.senses.scores import (
    Design,
    align,
    judge,
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


def measure(
    word: str, sentences: Sequence[Sentence], *, model: Model | Loadable | None, raw: bool
) -> SensesResult:
    """Do what `senses` does, with sentences that are sound."""
    model = model if isinstance(model, Model) else load(model)
    names = tuple(dict.fromkeys(sentence.sense for sentence in sentences))
    seen = see(model, sentences)
    labels = [names.index(sentences[n].sense) for n in seen.sentence]
    design = Design.of(labels, list(seen.sentence))
    judged = [judge(vectors, design, centred=not raw) for vectors in seen.vectors]
    scores = tuple(
        score(vectors, design, *found) for vectors, found in zip(seen.vectors, judged, strict=True)
    )
    context = score(seen.context, design, *judge(seen.context, design, centred=not raw))
    best = max(range(len(scores)), key=lambda i: (scores[i].accuracy, scores[i].silhouette))
    planes = [main_plane(vectors) for vectors in seen.vectors]
    in_plane = [
        nearest(places, design.senses[None], design.sentences).mean().item() for places, _ in planes
    ]
    found, record = occurrences(seen, sentences, max(best - 1, 0))
    shuffled = torch.stack([each for _, each in judged]).amax(0)
    centre = 0 if raw else seen.vectors.mean(1, keepdim=True)
    return SensesResult(
        word=word,
        senses=names,
        occurrences=tuple(found),
        vectors=seen.vectors - centre,
        scores=scores,
        context=context,
        right=torch.stack([right for right, _ in judged]),
        plane=align(torch.stack([places for places, _ in planes]), best),
        explained=tuple(shares for _, shares in planes),
        plane_accuracy=tuple(in_plane),
        best=best,
        p_best=p_value(scores[best].accuracy, shuffled),
        shuffles=len(shuffled),
        attention_layer=record.layer,
        raw=raw,
        notes=tuple(_notes(word, found, record, raw=raw)),
        agreement=AgreementReport.joined(result.agreement for result in seen.results),
        provenance=replace(seen.results[0].provenance, text=None),
    )


def _notes(
    word: str, found: Sequence[Occurrence], record: AttentionRecord, *, raw: bool
) -> list[str]:
    """Say what was found, pooled and left out."""
    notes = []
    written = Counter(one.word.casefold() for one in found)
    inflected = [f"“{form}” ({n})" for form, n in written.items() if form != word.casefold()]
    if inflected:
        notes.append(f"taken for “{word}” too: {', '.join(inflected)}")
    split = sum(len(one.pieces) > 1 for one in found)
    if split:
        notes.append(f"the mean over its pieces where the word is split ({split} of {len(found)})")
    notes.append("vectors as they are" if raw else "vectors centred on the mean of all others")
    counts = Counter(one.sense for one in found)
    if min(counts.values()) < max(counts.values()):
        most, count = counts.most_common(1)[0]
        notes.append(f"“{most}” makes up {count / len(found):.0%} of the occurrences")
    weights = record.weights()
    if weights.shape[-1] > 1 and not weights.triu(1).any():
        notes.append("the model reads from left to right: the word sees only what stands before it")
    return notes
