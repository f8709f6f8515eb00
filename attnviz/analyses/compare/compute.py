"""Two checkpoints of one architecture over a corpus: which heads do something else now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.analyses.compare.result import CompareResult
from attnviz.analyses.survey.batches import batches, windows
from attnviz.analyses.survey.bootstrap import Estimator, Mean, draw
from attnviz.analyses.survey.corpus import Corpus, count_rows, read_corpus
from attnviz.analyses.survey.divergence import divergence
from attnviz.analyses.survey.measure import TOKENS, Meter, Read
from attnviz.analyses.survey.reading import (
    PART,
    Bad,
    expect_seed,
    expect_text,
    read,
    sampled,
)
from attnviz.analyses.survey.statistics import SHARES, STATISTICS, Measure
from attnviz.capture import Together, read_together
from attnviz.errors import InputError
from attnviz.pipeline.attend import Model
from attnviz.results import AgreementReport
from attnviz.runtime.progress import say

if TYPE_CHECKING:
    from attnviz.pipeline.attend import Loadable


def compare(
    texts: Corpus,
    *,
    models: tuple[Model | Loadable, Model | Loadable],
    column: str = "text",
    truncate: bool = False,
    skip_bad: bool = False,
    seed: int = 0,
) -> CompareResult:
    """Compare two checkpoints head by head on every text of a corpus.

    Both read the same tokens, so that each text is its own control: what is told is the mean of
    differences, and a head differs where that is surely not 0.

    Parameters
    ----------
    models : two checkpoints of one architecture and one vocabulary, such as a model before and
        after fine-tuning. The rest is as in `survey`.

    Raises
    ------
    InputError : models that cannot be compared, an empty corpus, one that cannot be read.
    """
    expect_seed(seed)
    one, other = (expect_text(model) for model in models)
    bad = Bad()
    on_bad = bad.add if skip_bad else None
    corpus = read_corpus(texts, column=column, on_bad=on_bad)
    pair: _Pair | None = None
    count = None
    for window in windows(read(one, corpus, truncate=truncate, on_bad=on_bad), PART):
        if pair is None:  # so the corpus can be read
            pair, count = _Pair.of((one, other), window, truncate), count_rows(texts)
        _expect_same_tokens(other, window, truncate)
        pair.add(window, seed)
        say(f"{pair.texts:,} texts", count and (window[-1].number + 1) / count)
    if pair is None:
        raise bad.all()
    return pair.told(bad)


def _expect_same_tokens(other: Model, window: Sequence[Read], truncate: bool) -> None:
    """Raise InputError unless the other model's tokenizer reads the same."""
    texts = (each.as_text for each in window)
    for mine, its in zip(window, read(other, texts, truncate=truncate, on_bad=None), strict=True):
        if mine.encoding["input_ids"] != its.encoding["input_ids"]:
            raise InputError(
                f"Expected two models that read the same tokens, but {other.name} reads text "
                f"{mine.number + 1} as others. Compare models with one vocabulary."
            )


@dataclass(eq=False)
class _Pair:
    """Two models, and sums over the texts that both have read."""

    meters: tuple[Meter, Meter]
    agreements: tuple[AgreementReport, AgreementReport]
    provenances: tuple[Any, Any]
    means: tuple[Mean, Mean]
    change: Estimator
    apart: Estimator
    texts: int = 0
    tokens: int = 0

    @classmethod
    def of(cls, models: tuple[Model, Model], window: Sequence[Read], truncate: bool) -> _Pair:
        """Prove both models on some of the texts, and begin."""
        proven = [sampled(model, window, truncate) for model in models]
        first, second = (
            Meter(model.checkpoint, results[0].records)
            for model, results in zip(models, proven, strict=True)
        )
        if first.heads != second.heads:
            kinds = [type(model.module).__name__ for model in models]
            raise InputError(
                f"Expected two models with the same heads, but {models[0].name} ({kinds[0]}) has "
                f"{len(first.heads)} and {models[1].name} ({kinds[1]}) {len(second.heads)}, or in "
                "other layers. Compare checkpoints of one architecture."
            )
        agreements = [AgreementReport.joined(each.agreement for each in some) for some in proven]
        sources = [some[0].provenance for some in proven]
        width = len(first.heads) * len(STATISTICS)
        return cls(
            (first, second),
            (agreements[0], agreements[1]),
            (sources[0], sources[1]),
            (Mean(width), Mean(width)),
            Estimator(np.tile(SHARES, len(first.heads))),
            Estimator(np.ones(len(first.heads), bool)),
        )

    def add(self, texts: Sequence[Read], seed: int) -> None:
        """Read a window of texts with both."""
        lengths = [len(each.encoding["input_ids"]) for each in texts]
        for batch in batches(lengths, TOKENS):
            some = [texts[at] for at in batch]
            times = draw(np.array([each.number for each in some]), seed)
            *values, apart = self._measured(some)
            for mean, value in zip(self.means, values, strict=True):
                mean.add(value)
            self.change.add(times, values[1] - values[0])
            self.apart.add(times, apart)
        self.texts += len(texts)
        self.tokens += sum(lengths)

    def _measured(self, texts: Sequence[Read]) -> list[NDArray[np.float64]]:
        """Return the statistics (N, K · S) of both models, and how far apart they are, (N, K)."""
        encodings = [each.encoding for each in texts]
        found: tuple[list[Tensor], list[Tensor]] = [], []
        seen: list[Together] = []
        apart: list[Tensor] = []
        for meter, values in zip(self.meters, found, strict=True):
            inputs, tokens = meter.batch(encodings)
            measure = Measure(tokens)

            def take(
                attention: Together, values: list[Tensor] = values, measure: Measure = measure
            ) -> None:
                if values is found[0]:
                    seen.append(attention)  # queries and keys only
                else:
                    apart.append(_apart(seen[len(values)], attention, measure))
                values.append(measure(attention.weights).cpu())

            read_together(meter.checkpoint.module, inputs, meter.known, take)
        both = [torch.cat(values, dim=1).flatten(1) for values in found]
        return [each.double().numpy() for each in (*both, torch.cat(apart, dim=1))]

    def told(self, bad: Bad) -> CompareResult:
        """Return what follows from all texts."""
        shape = len(self.meters[0].heads), len(STATISTICS)

        def laid_out(values: NDArray[Any]) -> Tensor:
            return torch.from_numpy(values.reshape(shape))

        first, second = (laid_out(each.mean()) for each in self.means)
        change, apart = self.change.estimates(), self.apart.estimates()
        return CompareResult(
            heads=self.meters[0].heads,
            statistics=STATISTICS,
            first=first,
            second=second,
            change=laid_out(change.mean),
            low=laid_out(change.low),
            high=laid_out(change.high),
            p_value=laid_out(change.p_value),
            apart=torch.from_numpy(apart.mean),
            apart_low=torch.from_numpy(apart.low),
            apart_high=torch.from_numpy(apart.high),
            texts=self.texts,
            tokens=self.tokens,
            notes=bad.notes,
            agreements=self.agreements,
            provenances=self.provenances,
        )


def _apart(one: Together, other: Together, measure: Measure) -> Tensor:
    """Return how far apart the rows of two attentions are, mean over rows of each text, (N, H)."""
    total, rows = torch.zeros(()), measure.rows[:, None]
    for block in measure.blocks:
        between = divergence(one.weights(block), other.weights(block))
        total = total + (between * rows[..., block]).sum(-1).cpu()
    return (total / rows.sum(-1).cpu()).sqrt()
