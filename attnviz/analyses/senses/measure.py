"""From sentences to a result: run, judge every layer, and say what was done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch

from attnviz.analyses.senses.plane import align, main_plane
from attnviz.analyses.senses.result import Occurrence, SensesResult
from attnviz.analyses.senses.scores import (
    Design,
    judge,
    nearest,
    p_value,
    score,
)
from attnviz.analyses.senses.sentences import Sentence
from attnviz.analyses.senses.vectors import occurrences, see
from attnviz.pipeline.attend import Loadable, Model, load
from attnviz.results import AgreementReport, AttentionRecord


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
