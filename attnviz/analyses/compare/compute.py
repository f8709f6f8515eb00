"""Checkpoints of one architecture over a corpus: which heads changed, and how."""

from __future__ import annotations

import gc
import inspect
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias, Unpack, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.analyses.compare.result import CompareResult
from attnviz.analyses.survey import aggregate
from attnviz.analyses.survey.compute import add_statistics
from attnviz.analyses.survey.corpus import (
    Corpus,
    CorpusChanges,
    CorpusText,
    TextCorpus,
    check_corpus,
    parse_corpus,
)
from attnviz.analyses.survey.measure import Attention, HeadStatistics, TextStatistics
from attnviz.analyses.survey.result import SURE, HeadName
from attnviz.errors import InputError
from attnviz.heads import NAMES, Positions, WeightStatistics
from attnviz.models.checkpoint import locate_checkpoint
from attnviz.pipeline.attend import Loadable, Model, Source
from attnviz.results import AgreementReport, AttentionResult, Provenance
from attnviz.results.arguments import checked_scalars
from attnviz.runtime import part, say
from attnviz.runtime.libraries import release_unused

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
) -> CompareResult:
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
    CompareResult
        The change of every statistic of every head from each model to the next, with intervals.

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
    ['checkpoint', 'stack', 'layer', 'head', 'statistic', 'mean']
    """
    check_corpus(texts, column)
    given = parse_corpus("compare", texts, inputs, seed)
    labels = tuple(map(str, models)) if isinstance(models, Mapping) else ()
    checkpoints = list(models.values() if isinstance(models, Mapping) else models)
    if len(checkpoints) < 2:
        raise InputError("There is nothing to compare. Name two models or more.")
    for checkpoint in checkpoints:
        if isinstance(checkpoint, str | os.PathLike):
            locate_checkpoint(checkpoint)  # a wrong name is an error before the others are read

    def opened(number: int) -> TextCorpus:
        """Return the corpus as a model reads it; only the first one leaves texts out."""
        checkpoint = checkpoints[number]
        if isinstance(checkpoint, partial) or inspect.isroutine(checkpoint):
            checkpoint = checkpoint()
        skips = skip_bad and number == 0
        return cast("TextCorpus", given.read_by(checkpoint, skip_bad=skips, column=column))

    comparison = _Comparison(seed)
    if len(checkpoints) == 2:
        comparison.measure_two(opened(0), opened(1))
        return comparison.result(labels)
    with TemporaryDirectory(prefix="attnviz-") as folder:
        comparison.folder = Path(folder)
        for number in range(len(checkpoints)):
            with part(number, len(checkpoints)):
                comparison.measure(opened(number))
            gc.collect()
            release_unused()
    return comparison.result(labels)


@dataclass(eq=False)
class _Comparison:
    """What is known of models that were measured on the same texts, without the models.

    Of three or more, the texts and their statistics wait in a folder, not in memory.
    """

    seed: int
    folder: Path = Path()
    texts: int = 0
    tokens: int = 0
    sample: Sequence[CorpusText] = ()
    changes: CorpusChanges = field(default_factory=CorpusChanges)
    heads: tuple[HeadName, ...] = ()
    counted: str = ""  # how many heads the first model has, in words
    agreements: list[AgreementReport] = field(default_factory=list)
    provenances: list[Provenance] = field(default_factory=list)
    means: list[aggregate.Estimates] = field(default_factory=list)
    steps: list[tuple[aggregate.Moments, aggregate.SignFlips]] = field(default_factory=list)
    roles: list[tuple[str, ...]] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    apart: dict[str, Tensor] = field(default_factory=dict)

    def _begun(self, corpus: TextCorpus, sample: Sequence[AttentionResult]) -> HeadStatistics:
        """Return what measures a model; raise InputError unless it has the heads of the first."""
        model, alone = corpus.model, bool(corpus.separate)
        records = sample[0].records
        statistics = HeadStatistics(model.checkpoint, records, self.seed, separate=alone)
        heads = statistics.heads
        counted = f"{model.name} ({type(model.module).__name__}) has {len(heads)}"
        self.heads, self.counted = self.heads or heads, self.counted or counted
        if self.heads != heads:
            raise InputError(
                f"The heads differ: {self.counted}, {counted}, perhaps in other layers. "
                "Compare checkpoints of one architecture."
            )
        if self.agreements:  # it is not the first
            shape = len(heads), len(NAMES)
            self.steps.append((aggregate.Moments(*shape), aggregate.SignFlips(*shape)))
        self.agreements.append(AgreementReport.joined(one.agreement for one in sample))
        self.provenances.append(sample[0].provenance)
        return statistics

    def _add_change(self, texts: Sequence[int], before: Tensor, after: Tensor) -> None:
        """Add the statistics of texts with these numbers, (N, K, S) each, to the last step."""
        moments, signs = self.steps[-1]
        moments.add(after - before)
        drawn = aggregate.draw_signs(np.array(texts), self.seed)
        signs.add(drawn, aggregate.difference(after, before))

    def _expect_same_tokens(self, again: TextCorpus, texts: Sequence[CorpusText]) -> None:
        """Raise InputError if another model than the first reads texts with other tokens."""
        for text, read in zip(texts, again.tokenized(texts), strict=True):
            if text.ids != read.ids:
                raise InputError(
                    f"{self.provenances[0].model} and {again.model.name} make different tokens of "
                    f"text {text.number + 1}. Compare models with one vocabulary."
                )

    def measure_two(self, corpus: TextCorpus, again: TextCorpus) -> None:
        """Measure two models on the same batches, and how far their maps are apart."""
        sample, results, in_parts = corpus.open()
        one, other = self._begun(corpus, results), self._begun(again, again.verified(sample))
        apart, count = aggregate.Moments(len(self.heads)), corpus.rows
        means = [aggregate.Moments(len(self.heads), len(NAMES)) for _ in range(2)]
        for texts in in_parts:
            self._expect_same_tokens(again, texts)
            for batch in one.batched(texts):
                *both, distances = _measure_both(one, other, batch)
                for mean, values in zip(means, both, strict=True):
                    mean.add(values)
                self._add_change([text.number for text in batch], *both)
                apart.add(distances)
            self.texts += len(texts)
            self.tokens += sum(map(len, texts))
            say(f"{self.texts:,} texts", count and (texts[-1].number + 1) / count)
        self.means = [aggregate.bounded(mean.estimates()) for mean in means]
        intervals = _fields(("apart", "apart_low", "apart_high"), [apart.estimates()])
        self.apart = {name: numbers[0].clamp(0, 1) for name, numbers in intervals.items()}
        self.changes = corpus.changes

    def _read(self, number: int) -> Iterator[tuple[list[CorpusText], NDArray[np.float32]]]:
        """Yield the parts of the corpus, with the statistics of one of the models, (N, K, S)."""
        with (self.folder / str(number)).open("rb") as file:
            while file.peek(1):
                yield pickle.load(file)

    def measure(self, corpus: TextCorpus) -> None:
        """Measure a model on the texts that the first one has read, and its changes."""
        in_parts: Iterable[tuple[list[CorpusText], NDArray[np.float32] | None]]
        if number := len(self.agreements):
            results, in_parts = corpus.verified(self.sample), self._read(number - 1)
        else:
            self.sample, results, first = corpus.open()
            in_parts, self.changes = ((texts, None) for texts in first), corpus.changes
        heads = self._begun(corpus, results)

        def statistics() -> Iterator[TextStatistics]:
            texts = 0
            with (self.folder / str(number)).open("wb") as file:
                for texts_of_part, before in in_parts:
                    if before is not None:
                        self._expect_same_tokens(corpus, texts_of_part)
                    of_part = heads.measure(texts_of_part)
                    pickle.dump((texts_of_part, of_part.value.numpy()), file)
                    if before is not None:
                        known = torch.from_numpy(before).double()
                        self._add_change(of_part.numbers, known, of_part.value.double())
                    texts += len(texts_of_part)
                    say(f"{corpus.model.name}: {texts:,} texts", texts / max(texts, self.texts))
                    yield of_part

        totals = aggregate.aggregate(statistics(), len(self.heads), seed=self.seed)
        self.agreements[-1] = add_statistics(self.agreements[-1], heads, totals)
        self.means.append(totals.value)
        self.roles.append(tuple(aggregate.assign_roles(totals.excess, totals.p_held_out)))
        self.texts, self.tokens, self.notes = totals.texts, totals.tokens, totals.notes

    def result(self, labels: tuple[str, ...]) -> CompareResult:
        changes, steps = [moments.estimates() for moments, _ in self.steps], len(self.steps)
        # Each step is corrected for all heads and statistics, and all steps by Bonferroni's method.
        p_values = [np.minimum(signs.p_values() * steps, 1) for _, signs in self.steps]
        notes = [*self.changes.notes, *self.notes]
        if steps > 1 and steps / min(aggregate.FLIPS, 2 ** max(0, self.texts - 1)) >= SURE:
            notes.append(
                f"{self.texts:,} texts in {steps} steps are too few texts or too many steps for "
                "any significant change"
            )
        return CompareResult(
            heads=self.heads,
            statistics=NAMES,
            checkpoints=labels or _short_names(self.provenances),
            **_fields(("mean", "low", "high"), self.means),
            **_fields(("change", "change_low", "change_high"), changes),
            p_value=torch.from_numpy(np.array(p_values)),
            roles=tuple(self.roles),
            texts=self.texts,
            tokens=self.tokens,
            notes=tuple(notes),
            agreements=tuple(self.agreements),
            provenances=tuple(self.provenances),
            left_out=tuple(self.changes.left_out),
            **self.apart,
        )


def _short_names(provenances: Sequence[Provenance]) -> tuple[str, ...]:
    """Return the shortest names that tell the models apart: of folders, paths, weights, places."""
    names = [provenance.model for provenance in provenances]
    for candidates in (
        [name.rstrip("/\\").replace("\\", "/").rpartition("/")[2] for name in names],
        names,
        [f"{one.model} ({one.weights_sha256[:6]})" for one in provenances],
    ):
        if len(set(candidates)) == len(names) and all(candidates):
            return tuple(candidates)
    return tuple(f"{number}. {name}" for number, name in enumerate(names, start=1))


def _fields(names: Sequence[str], estimates: Sequence[aggregate.Estimates]) -> dict[str, Any]:
    """Return the means and the ends of their intervals, stacked, as three fields of a result."""
    parts = zip(names, ("mean", "low", "high"), strict=True)
    stacked = {name: np.array([getattr(one, part) for one in estimates]) for name, part in parts}
    return {name: torch.from_numpy(numbers) for name, numbers in stacked.items()}


def _measure_both(
    one: HeadStatistics, other: HeadStatistics, texts: Sequence[CorpusText]
) -> list[Tensor]:
    """Return the statistics (N, K, S) of both models, and the distances of heads, (N, K)."""
    attentions: list[Attention] = []  # of the first model: queries and keys only
    values: tuple[list[Tensor], list[Tensor]] = [], []
    distances: list[Tensor] = []
    statistics = cache(WeightStatistics)  # one of each batch serves all layers

    def add_first(attention: Attention, tokens: Positions, _: object) -> None:
        attentions.append(attention)
        values[0].append(statistics(tokens)(attention.weights).cpu())

    def add_second(attention: Attention, tokens: Positions, _: object) -> None:
        first = attentions[len(values[1])]
        distances.append(_distance(first, attention, statistics(tokens)))
        values[1].append(statistics(tokens)(attention.weights).cpu())

    one.run(texts, add_first)
    other.run(texts, add_second)
    return [torch.cat(layers, dim=1).double() for layers in (*values, distances)]


def _distance(first: Attention, second: Attention, statistics: WeightStatistics) -> Tensor:
    """Return the distance between the rows of two attentions, mean over each text, (N, H)."""
    total, rows = torch.zeros((), device="cpu"), statistics.rows[:, None]
    for block in statistics.blocks:
        between = aggregate.divergence(first.weights(block), second.weights(block))
        total = total + (between * rows[..., block]).sum(-1).cpu()
    return (total / rows.sum(-1).cpu()).sqrt()
