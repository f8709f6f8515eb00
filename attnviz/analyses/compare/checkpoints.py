"""Several checkpoints of one architecture, one after the other, over the same texts."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from attnviz.analyses.compare.checkpoints_result import CheckpointsResult
from attnviz.analyses.compare.same import describe_heads, expect_same_heads, expect_same_tokens
from attnviz.analyses.survey.aggregate import (
    FLIPS,
    Bootstrap,
    CorpusStatistics,
    SignFlips,
    aggregate,
    assign_roles,
    difference,
    draw,
    draw_signs,
)
from attnviz.analyses.survey.compute import add_statistics
from attnviz.analyses.survey.corpus import CorpusChanges, TokenizedText, verify_sample
from attnviz.analyses.survey.result import SURE, HeadName
from attnviz.analyses.survey.statistics import NAMES, HeadStatistics, TextStatistics
from attnviz.pipeline.attend import Model
from attnviz.results import AgreementReport
from attnviz.results.attention_result import Provenance
from attnviz.runtime.libraries import release_unused
from attnviz.runtime.progress import part, say


def compare_checkpoints(
    opened: Sequence[Callable[[], Model]],
    parts_of: Callable[[Model], Iterable[list[TokenizedText]]],
    *,
    labels: tuple[str, ...],
    changes: CorpusChanges,
    truncate: bool,
    seed: int,
) -> CheckpointsResult:
    """Measure each checkpoint in turn; only one is in memory at a time.

    The texts, with the tokens of the first checkpoint, and their statistics wait in a temporary
    folder, so that memory grows neither with the texts nor with the checkpoints.

    opened : load the checkpoints. parts_of : the texts of the corpus, tokenized by the first, in
    parts. labels : of the checkpoints; by default the names of the models.
    """
    measured: list[_Measured] = []
    with TemporaryDirectory(prefix="attnviz-") as folder:
        store = _Store(Path(folder))
        for number, load in enumerate(opened):
            with part(number, len(opened)):
                model = load()
                if number:
                    texts: Iterable[list[TokenizedText]] = store.texts()
                else:
                    texts = store.written(parts_of(model))
                first = measured[0] if measured else None
                measured.append(
                    _measure(model, number, texts, store, first, changes, truncate, seed)
                )
            del model
            gc.collect()
            release_unused()
    return _result(measured, labels, changes)


@dataclass(frozen=True, eq=False)
class _Measured:
    """What is known of a checkpoint after it was released.

    change, signs : of the differences from the checkpoint before, text by text.
    """

    heads: tuple[HeadName, ...]
    description: str
    name: str
    totals: CorpusStatistics
    agreement: AgreementReport
    provenance: Provenance
    change: Bootstrap
    signs: SignFlips


@dataclass(frozen=True)
class _Store:
    """A folder with the texts, and the statistics of each checkpoint on each text."""

    folder: Path
    lengths: list[int] = field(default_factory=list)  # of the parts

    def written(self, parts: Iterable[list[TokenizedText]]) -> Iterator[list[TokenizedText]]:
        """Yield the parts, and write them."""
        with (self.folder / "texts").open("wb") as file:
            for texts in parts:
                self.lengths.append(len(texts))
                pickle.dump(texts, file)
                yield texts

    def texts(self) -> Iterator[list[TokenizedText]]:
        """Yield the parts that were written."""
        with (self.folder / "texts").open("rb") as file:
            for _ in self.lengths:
                yield pickle.load(file)

    def values(self, number: int, mode: str) -> IO[Any]:
        """Open the file of the statistics of a checkpoint."""
        return (self.folder / f"{number}.npy").open(mode)


def _measure(
    model: Model,
    number: int,
    parts: Iterable[list[TokenizedText]],
    store: _Store,
    first: _Measured | None,
    changes: CorpusChanges,
    truncate: bool,
    seed: int,
) -> _Measured:
    """Measure a checkpoint on all texts, and its changes from the checkpoint before."""
    rest = iter(parts)
    if (start := next(rest, None)) is None:
        raise changes.empty_corpus()
    sample = verify_sample(model, start, truncate)
    heads = HeadStatistics(model.checkpoint, sample[0].records, seed)
    description = describe_heads(model, heads.heads)
    if first is not None:
        expect_same_heads(first.heads, heads.heads, (first.description, description))
    width = len(heads.heads) * len(NAMES)
    change, signs = Bootstrap(width), SignFlips(width)

    def statistics() -> Iterator[TextStatistics]:
        texts = 0
        with store.values(number, "wb") as file, store.values(max(0, number - 1), "rb") as before:
            for texts_of_part in chain([start], rest):
                if first is not None:
                    expect_same_tokens(first.name, model, texts_of_part, truncate)
                of_part = heads.measure(texts_of_part)
                values = of_part.value.flatten(1).numpy()
                np.save(file, values)
                if first is not None:
                    earlier = np.load(before).astype(np.float64)
                    numbers = np.array(of_part.numbers)
                    change.add(draw(numbers, seed), values - earlier)
                    signs.add(draw_signs(numbers, seed), difference(values, earlier))
                texts += len(texts_of_part)
                say(f"{model.name}: {texts:,} texts", texts / max(texts, sum(store.lengths)))
                yield of_part

    totals = aggregate(statistics(), len(heads.heads), seed=seed)
    return _Measured(
        heads.heads,
        description,
        model.name,
        totals,
        add_statistics(AgreementReport.joined(one.agreement for one in sample), heads, totals),
        sample[0].provenance,
        change,
        signs,
    )


def _result(
    measured: Sequence[_Measured], labels: tuple[str, ...], changes: CorpusChanges
) -> CheckpointsResult:
    heads = measured[0].heads
    shape = len(heads), len(NAMES)

    def by_head(values: Iterable[Any]) -> Tensor:
        return torch.from_numpy(np.stack([numbers.reshape(shape) for numbers in values]))

    values = [one.totals.value for one in measured]
    steps = [one.change.estimates() for one in measured[1:]]
    # Each step is corrected for all heads and statistics, and all steps by Bonferroni's method.
    p_values = (np.minimum(one.signs.p_values() * len(steps), 1) for one in measured[1:])
    provenances = tuple(one.provenance for one in measured)
    totals = measured[0].totals
    smallest = len(steps) / min(FLIPS, 2 ** max(0, totals.texts - 1))
    unsure = (
        f"{totals.texts:,} texts in {len(steps)} steps are too few texts or too many steps for any "
        "significant change"
    )
    notes = (*changes.notes, *totals.notes, *([unsure] if smallest >= SURE else []))
    return CheckpointsResult(
        heads=heads,
        statistics=NAMES,
        checkpoints=labels or short_names(provenances),
        mean=by_head(one.mean for one in values),
        low=by_head(one.low for one in values),
        high=by_head(one.high for one in values),
        change=by_head(one.mean for one in steps),
        change_low=by_head(one.low for one in steps),
        change_high=by_head(one.high for one in steps),
        p_value=by_head(p_values),
        roles=tuple(
            tuple(assign_roles(one.totals.excess, one.totals.p_held_out)) for one in measured
        ),
        texts=totals.texts,
        tokens=totals.tokens,
        notes=notes,
        agreements=tuple(one.agreement for one in measured),
        provenances=provenances,
        left_out=tuple(changes.left_out),
    )


def short_names(provenances: Sequence[Provenance]) -> tuple[str, ...]:
    """Return the shortest names that tell the models apart: of folders, paths, weights, places."""
    names = [provenance.model for provenance in provenances]
    for candidates in (
        [name.rstrip("/\\").replace("\\", "/").rpartition("/")[2] for name in names],
        names,
        [
            f"{name} ({one.weights_sha256[:6]})"
            for name, one in zip(names, provenances, strict=True)
        ],
    ):
        if len(set(candidates)) == len(names) and all(candidates):
            return tuple(candidates)
    return tuple(f"{number}. {name}" for number, name in enumerate(names, start=1))
