"""Checkpoints of one architecture over a corpus: which heads changed, and how."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, Unpack, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.analyses.compare.checkpoints import compare_checkpoints
from attnviz.analyses.compare.checkpoints_result import CheckpointsResult
from attnviz.analyses.compare.result import CompareResult
from attnviz.analyses.compare.same import describe_heads, expect_same_heads, expect_same_tokens
from attnviz.analyses.survey.aggregate import (
    Bootstrap,
    Mean,
    SignFlips,
    difference,
    divergence,
    draw,
    draw_signs,
)
from attnviz.analyses.survey.corpus import (
    PART,
    Corpus,
    CorpusChanges,
    TokenizedText,
    batches,
    check_corpus,
    check_corpus_name,
    check_seed,
    count_rows,
    load_text_model,
    parse_corpus,
    parts,
    read_corpus,
    tokenize_corpus,
    verify_sample,
)
from attnviz.analyses.survey.statistics import (
    NAMES,
    HeadStatistics,
    WeightStatistics,
    batch_tokens,
)
from attnviz.capture.batched import BatchedAttention, capture_batch
from attnviz.errors import InputError
from attnviz.models.checkpoint import SpecialTokens, expect_heads
from attnviz.pipeline.attend import Loadable, Model, Source
from attnviz.results import AgreementReport
from attnviz.results.arguments import checked_scalars
from attnviz.results.attention_result import Provenance
from attnviz.runtime.progress import say

Checkpoint: TypeAlias = "Model | Loadable | Callable[[], Model]"


@checked_scalars
def compare(
    texts: Corpus,
    *,
    models: Sequence[Checkpoint] | Mapping[str, Checkpoint],
    column: str = "text",
    skip_bad: bool = False,
    seed: int = 0,
    **inputs: Unpack[Source],
) -> CompareResult | CheckpointsResult:
    """Compare two or more checkpoints head by head on every text of a corpus.

    All models read the same tokens, so each text is its own control: the result is the mean of
    the differences, with a test against 0. Two models are compared with each other, and their maps
    too. Three or more, such as the steps of a training, are compared each with the one before;
    they are loaded one after the other, and each is released before the next.

    Parameters
    ----------
    texts : str, Path or iterable of str
        As in `survey`.
    models : sequence of Model, of what `load` takes, or of functions; or a mapping from labels
        Two or more checkpoints of one architecture and one vocabulary, in order, such as a model
        before and after fine-tuning, or the steps of a training.

        A function without arguments loads a model when its turn comes: ``partial(attnviz.load,
        "folder", dtype="bfloat16")``. The keys of a mapping are the labels in figures and tables;
        by default these are the names of the models.
    column, skip_bad, seed
        As in `survey`.
    **inputs
        `truncate`, `pair` or `special_tokens`, as in `survey`.

    Returns
    -------
    CompareResult or CheckpointsResult
        The change of every statistic of every head, with intervals: of two models, or along three
        or more.

    Raises
    ------
    InputError
        Models that cannot be compared, an empty corpus, one that cannot be read.

    Examples
    --------
    >>> import attnviz
    >>> texts = ["the train left the station", "the cat saw the dog", "a man read the book"]
    >>> models = {"float32": attnviz.load(), "bfloat16": attnviz.load(dtype="bfloat16")}
    >>> result = attnviz.compare(texts, models=models)
    >>> list(result.to_frame().columns[:6])
    ['stack', 'layer', 'head', 'statistic', 'first', 'second']
    """
    check_seed(seed)
    check_corpus(texts, column)
    texts, pairs, truncate, special_tokens = parse_corpus("compare", texts, inputs)
    labels = tuple(map(str, models)) if isinstance(models, Mapping) else ()
    if isinstance(texts, str | Path):
        check_corpus_name(texts)
    checkpoints = list(models.values() if isinstance(models, Mapping) else models)
    if len(checkpoints) < 2:
        raise InputError("There is nothing to compare. Name two models or more.")
    for checkpoint in checkpoints:
        if isinstance(checkpoint, str | os.PathLike):
            expect_heads(checkpoint)  # a wrong name is an error before the others are read
    changes = CorpusChanges()
    on_bad = changes.leave_out if skip_bad else None
    corpus = read_corpus(texts, column=column, on_bad=on_bad, pairs=pairs)

    def parts_of(model: Model) -> Iterator[list[TokenizedText]]:
        """Yield the texts with the tokens of a model, in parts."""
        encoded = tokenize_corpus(model, corpus, truncate=truncate, on_bad=on_bad)
        return parts(changes.count_cut(encoded), PART)

    opened = [partial(_open, checkpoint, special_tokens) for checkpoint in checkpoints]
    if len(opened) > 2:
        return compare_checkpoints(
            opened, parts_of, labels=labels, changes=changes, truncate=truncate, seed=seed
        )
    first, second = (load_one() for load_one in opened)
    pair: _ModelPair | None = None
    count = None
    for texts_of_part in parts_of(first):
        if pair is None:  # the corpus can be read
            pair, count = _ModelPair.of((first, second), texts_of_part, truncate), count_rows(texts)
        expect_same_tokens(first.name, second, texts_of_part, truncate)
        pair.add(texts_of_part, seed)
        say(f"{pair.texts:,} texts", count and (texts_of_part[-1].number + 1) / count)
    if pair is None:
        raise changes.empty_corpus()
    return pair.result(changes, labels)


def _open(checkpoint: Checkpoint, special_tokens: SpecialTokens | None) -> Model:
    """Return a model that reads text; call the function that loads it, if it is one."""
    if isinstance(checkpoint, partial) or inspect.isroutine(checkpoint):
        checkpoint = checkpoint()
    model = load_text_model(cast("Model | Loadable", checkpoint))
    return model if special_tokens is None else Model(model.checkpoint.reading(special_tokens))


@dataclass(eq=False)
class _ModelPair:
    """Two models, and sums over the texts that both have processed."""

    heads: tuple[HeadStatistics, HeadStatistics]
    agreements: tuple[AgreementReport, AgreementReport]
    provenances: tuple[Provenance, Provenance]
    means: tuple[Mean, Mean]
    change: Bootstrap
    change_signs: SignFlips
    distance: Bootstrap
    texts: int = 0
    tokens: int = 0

    @classmethod
    def of(
        cls, models: tuple[Model, Model], texts: Sequence[TokenizedText], truncate: bool
    ) -> _ModelPair:
        """Verify both models on a sample of the texts, and start with sums of 0."""
        samples = [verify_sample(model, texts, truncate) for model in models]
        first, second = (
            HeadStatistics(model.checkpoint, sample[0].records)
            for model, sample in zip(models, samples, strict=True)
        )
        one_model, other_model = models
        expect_same_heads(
            first.heads,
            second.heads,
            (describe_heads(one_model, first.heads), describe_heads(other_model, second.heads)),
        )
        one, other = (
            AgreementReport.joined(result.agreement for result in sample) for sample in samples
        )
        width = len(first.heads) * len(NAMES)
        return cls(
            (first, second),
            (one, other),
            (samples[0][0].provenance, samples[1][0].provenance),
            (Mean(width), Mean(width)),
            Bootstrap(width),
            SignFlips(width),
            Bootstrap(len(first.heads)),
        )

    def add(self, texts: Sequence[TokenizedText], seed: int) -> None:
        """Run both models on texts, and add their statistics."""
        lengths = [len(text) for text in texts]
        for indices in batches(lengths, batch_tokens(self.heads[0].checkpoint.device)):
            batch = [texts[index] for index in indices]
            numbers = np.array([text.number for text in batch])
            weights = draw(numbers, seed)
            first, second, distance = self._measure(batch)
            for mean, values in zip(self.means, (first, second), strict=True):
                mean.add(values)
            self.change.add(weights, second - first)
            self.change_signs.add(draw_signs(numbers, seed), difference(second, first))
            self.distance.add(weights, distance)
        self.texts += len(texts)
        self.tokens += sum(lengths)

    def _measure(self, texts: Sequence[TokenizedText]) -> list[NDArray[np.float64]]:
        """Return the statistics (N, K · S) of both models, and the distances of heads, (N, K)."""
        encodings = [text.encoding for text in texts]
        attentions: list[BatchedAttention] = []  # of the first model: queries and keys only
        values: tuple[list[Tensor], list[Tensor]] = [], []
        distances: list[Tensor] = []
        batches_of = [heads.batch(encodings) for heads in self.heads]
        first, second = (WeightStatistics(tokens) for _, tokens in batches_of)

        def add_first(attention: BatchedAttention) -> None:
            attentions.append(attention)
            values[0].append(first(attention.weights).cpu())

        def add_second(attention: BatchedAttention) -> None:
            distances.append(_distance(attentions[len(values[1])], attention, second))
            values[1].append(second(attention.weights).cpu())

        for heads, (inputs, _), add in zip(
            self.heads, batches_of, (add_first, add_second), strict=True
        ):
            capture_batch(heads.checkpoint.module, inputs, heads.records, add)
        both = [torch.cat(layers, dim=1).flatten(1) for layers in values]
        return [numbers.double().numpy() for numbers in (*both, torch.cat(distances, dim=1))]

    def result(self, changes: CorpusChanges, labels: tuple[str, ...]) -> CompareResult:
        """Return the estimates over all texts."""
        heads = self.heads[0].heads

        def by_head(values: NDArray[Any]) -> Tensor:
            return torch.from_numpy(values.reshape(len(heads), len(NAMES)))

        first, second = (by_head(mean.mean()) for mean in self.means)
        change, distance = self.change.estimates(), self.distance.estimates()
        return CompareResult(
            heads=heads,
            statistics=NAMES,
            first=first,
            second=second,
            change=by_head(change.mean),
            low=by_head(change.low),
            high=by_head(change.high),
            p_value=by_head(self.change_signs.p_values()),
            apart=torch.from_numpy(distance.mean),
            apart_low=torch.from_numpy(distance.low),
            apart_high=torch.from_numpy(distance.high),
            texts=self.texts,
            tokens=self.tokens,
            notes=changes.notes,
            agreements=self.agreements,
            provenances=self.provenances,
            left_out=tuple(changes.left_out),
            checkpoints=labels,
        )


def _distance(
    first: BatchedAttention, second: BatchedAttention, statistics: WeightStatistics
) -> Tensor:
    """Return the distance between the rows of two attentions, mean over each text, (N, H)."""
    total, rows = torch.zeros((), device="cpu"), statistics.rows[:, None]
    for block in statistics.blocks:
        between = divergence(first.weights(block), second.weights(block))
        total = total + (between * rows[..., block]).sum(-1).cpu()
    return (total / rows.sum(-1).cpu()).sqrt()
