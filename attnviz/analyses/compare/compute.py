"""Two checkpoints of one architecture over a corpus: which heads changed, and how."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias, Unpack, cast

import numpy as np
import torch
from torch import Tensor

from attnviz.analyses.compare.result import CompareResult
from attnviz.analyses.survey import aggregate
from attnviz.analyses.survey.corpus import (
    Corpus,
    CorpusText,
    TextCorpus,
    check_corpus,
    parse_corpus,
)
from attnviz.analyses.survey.measure import Attention, HeadStatistics
from attnviz.errors import InputError
from attnviz.heads import NAMES, Positions, WeightStatistics
from attnviz.models.checkpoint import locate_checkpoint
from attnviz.pipeline.attend import Loadable, Model, Source
from attnviz.results import AgreementReport, Provenance
from attnviz.results.arguments import checked_scalars
from attnviz.runtime import say

Checkpoint: TypeAlias = "Model | Loadable"


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
    """Compare two checkpoints head by head on every text of a corpus.

    Both models read the same tokens, so each text is its own control: the result is the mean of
    the differences, with a test against 0, and the distance of the maps.

    Parameters
    ----------
    texts : str, Path or iterable of str
        As in `survey`.
    models : sequence of Model or of what `load` takes; or a mapping from labels
        Two checkpoints of one architecture and one vocabulary, such as before and after a training.

        The keys of a mapping are the labels in figures and tables, by default names of the models.
    column, skip_bad, seed
        As in `survey`.
    **inputs
        `truncate`, `pair` or `special_tokens`, as in `survey`.

    Returns
    -------
    CompareResult
        The change of every statistic of every head, and how far apart the maps are, with intervals.

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
    if (count := len(checkpoints)) != 2:
        raise InputError(f"compare takes two models, not {count}. Compare two at a time.")
    for checkpoint in checkpoints:
        if isinstance(checkpoint, str | os.PathLike):
            locate_checkpoint(checkpoint)  # a wrong name is an error before the others are read
    corpus, again = (  # only the first model leaves texts out
        cast("TextCorpus", given.read_by(one, skip_bad=skip_bad and not number, column=column))
        for number, one in enumerate(checkpoints)
    )
    sample, results, in_parts = corpus.open()
    of_both = results, again.verified(sample)
    one, other = (
        HeadStatistics(of.model.checkpoint, verified[0].records, seed, separate=bool(of.separate))
        for of, verified in zip((corpus, again), of_both, strict=True)
    )
    if one.heads != other.heads:
        counted = ", ".join(
            f"{of.model.name} ({type(of.model.module).__name__}) has {len(measured.heads)}"
            for of, measured in ((corpus, one), (again, other))
        )
        raise InputError(
            f"The heads differ: {counted}, perhaps in other layers. Compare checkpoints of one "
            "architecture."
        )
    shape = len(one.heads), len(NAMES)
    before, after, change = (aggregate.Moments(*shape) for _ in range(3))
    signs, apart = aggregate.SignFlips(*shape), aggregate.Moments(len(one.heads))
    rows, read, tokens = corpus.rows, 0, 0
    for of_part in in_parts:
        for text, read_again in zip(of_part, again.tokenized(of_part), strict=True):
            if text.ids != read_again.ids:
                raise InputError(
                    f"{corpus.model.name} and {again.model.name} make different tokens of text "
                    f"{text.number + 1}. Compare models with one vocabulary."
                )
        for batch in one.batched(of_part):
            first, second, distances = _measure_both(one, other, batch)
            before.add(first)
            after.add(second)
            change.add(second - first)
            apart.add(distances)
            drawn = aggregate.draw_signs(np.array([text.number for text in batch]), seed)
            signs.add(drawn, aggregate.difference(second, first))
        read += len(of_part)
        tokens += sum(map(len, of_part))
        say(f"{read:,} texts", rows and (of_part[-1].number + 1) / rows)
    means = [aggregate.bounded(moments.estimates()) for moments in (before, after)]
    distance = _fields(("apart", "apart_low", "apart_high"), [apart.estimates()])
    provenances = tuple(verified[0].provenance for verified in of_both)
    return CompareResult(
        heads=one.heads,
        statistics=NAMES,
        checkpoints=labels or _short_names(provenances),
        **_fields(("mean", "low", "high"), means),
        **_fields(("change", "change_low", "change_high"), [change.estimates()]),
        p_value=torch.from_numpy(signs.p_values()[None]),
        **{name: numbers[0].clamp(0, 1) for name, numbers in distance.items()},
        texts=read,
        tokens=tokens,
        notes=corpus.changes.notes,
        agreements=tuple(AgreementReport.joined(one.agreement for one in of) for of in of_both),
        provenances=provenances,
        left_out=tuple(corpus.changes.left_out),
    )


def _short_names(provenances: Sequence[Provenance]) -> tuple[str, ...]:
    """Return the last parts of the names of models, or these with a number if they are alike."""
    names = [provenance.model for provenance in provenances]
    short = [name.rstrip("/\\").replace("\\", "/").rpartition("/")[2] for name in names]
    if all(short) and len(set(short)) == len(short):
        return tuple(short)
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
