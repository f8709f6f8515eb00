"""What each head does over a corpus: numbers with intervals, beside what chance would give."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attnviz.checkpoints import is_two_sided, kinds_read
from attnviz.errors import InputError
from attnviz.inputs import tokenize
from attnviz.models import Model, attend, load
from attnviz.records import AgreementReport, AttentionResult, Census
from attnviz.survey.batches import windows
from attnviz.survey.census import Told, tell
from attnviz.survey.corpus import Corpus, Text, read_corpus
from attnviz.survey.estimates import Floats
from attnviz.survey.folder import Folder
from attnviz.survey.likeness import distances
from attnviz.survey.measuring import measure
from attnviz.survey.parts import (
    largest_difference,
    long_table,
    read_parts,
    write_part,
    write_summary,
)
from attnviz.survey.roles import cluster, name_roles
from attnviz.survey.statistics import STATISTICS

if TYPE_CHECKING:
    from attnviz.models import Loadable

__all__ = ["survey"]

_WINDOW = 256  # texts of a part
_SAMPLE = 24  # texts of which all stages are proven, and on which heads are compared


def survey(
    texts: Corpus,
    *,
    model: Model | Loadable | None = None,
    out: str | os.PathLike[str] | None = None,
    column: str = "text",
    truncate: bool = False,
    skip_bad: bool = False,
    resume: bool = False,
    seed: int = 0,
) -> Census:
    """Measure what every head does on each text of a corpus, and tell it with intervals.

    Each statistic (`attnviz.survey.statistics.STATISTICS`) stands beside what it is where the keys
    of each query are shuffled (a permutation null, whose mean is that of even weights and needs no
    sampling), and where the model reads the tokens of the text in another order. Memory does not
    grow with the corpus.

    Parameters
    ----------
    texts : a file (.txt, .jsonl, .csv, .tsv, .parquet), "-" for standard input, or texts.
    model : from `load`, or what `load` takes; one that reads text.
    out : a folder for the long table in parts (sentence, tokens, stack, layer, head, statistic,
        value, even, shuffled); by default none is kept.
    column : of the corpus, which holds the text.
    truncate : cut what is longer than the model can read.
    skip_bad : leave out what cannot be read, and say how many; by default it is refused.
    resume : go on with the survey in `out`.
    seed : of shuffles and resamples.

    Raises
    ------
    InputError : an empty corpus, one that cannot be read, a folder with another survey.
    OutputError : the folder cannot be written.
    """
    model = model if isinstance(model, Model) else load(model)
    reads = kinds_read(model.module)
    if reads != ("text",) or is_two_sided(model.module, model.module.config):
        raise InputError(
            f"Expected a model that reads one text, but {model.name} reads "
            f"{' and '.join(reads)}. Choose another."
        )
    bad: list[str] = []
    on_bad = bad.append if skip_bad else None
    corpus = read_corpus(texts, column=column, on_bad=on_bad)
    parts = windows(_readable(model, corpus, truncate=truncate, on_bad=on_bad), _WINDOW)
    if (first := next(parts, None)) is None:
        left_out = f"; {len(bad)} could not be read: {bad[0]}" if bad else ""
        raise InputError(f"Expected a corpus with at least one text, got none{left_out}.")
    sample = _sample(model, first, truncate)
    with ExitStack() as stack:
        kept = out is not None
        if out is None:
            out = stack.enter_context(tempfile.TemporaryDirectory(prefix="attnviz-"))
        about = {
            "model": model.name,
            "weights": model.checkpoint.current_sha256(),
            "truncate": truncate,
            "seed": seed,
        }
        folder = Folder(Path(out), about)
        folder.open(resume=resume)
        for number, window in enumerate(chain([first], parts)):
            if not folder.has(number, window):
                measured = measure(model.checkpoint, window, truncate=truncate, seed=seed)
                note = folder.note(window, measured.differences)
                write_part(folder.path, number, long_table(measured), note)
        told = tell(read_parts(folder.path), seed=seed)
        census = _census(told, sample, largest_difference(folder.path), bad)
        if kept:
            write_summary(folder.path, census)
    return census


def _readable(
    model: Model, texts: Iterable[Text], *, truncate: bool, on_bad: Callable[[str], None] | None
) -> Iterator[Text]:
    """Yield the texts that the model can read; what it cannot is told, or raised."""
    for each in texts:
        try:
            tokenize(model.checkpoint, [(each.text, None)], truncate=truncate)
        except InputError as error:
            if on_bad is None:
                raise InputError(f"In text {each.number}: {error}") from None
            on_bad(f"text {each.number}: {error}")
        else:
            yield each


def _sample(model: Model, texts: Sequence[Text], truncate: bool) -> list[AttentionResult]:
    """Return results of some texts, spread evenly."""
    step = -(-len(texts) // _SAMPLE)
    return [attend(each.text, model=model, truncate=truncate) for each in texts[::step]]


def _census(
    told: Told, sample: Sequence[AttentionResult], difference: float, bad: Sequence[str]
) -> Census:
    shape = len(told.heads), len(STATISTICS)

    def laid_out(values: Floats) -> Tensor:
        return torch.from_numpy(values.reshape(shape))

    apart = distances([result.records for result in sample])
    source = replace(sample[0].provenance, text=None)
    notes = [f"{len(bad)} texts could not be read and are left out: {bad[0]}"] if bad else []
    return Census(
        heads=told.heads,
        statistics=STATISTICS,
        mean=laid_out(told.value.mean),
        low=laid_out(told.value.low),
        high=laid_out(told.value.high),
        even=laid_out(told.even),
        shuffled=laid_out(told.shuffled),
        p_even=laid_out(told.above_even.p_value),
        p_shuffled=laid_out(told.above_shuffled.p_value),
        count=laid_out(told.value.count.astype(float)).long(),
        roles=tuple(name_roles(list(STATISTICS), told.excess, told.tested)),
        clusters=tuple(cluster(apart.numpy()).tolist()),
        distances=apart,
        compared=len(sample),
        texts=told.texts,
        tokens=told.tokens,
        difference=difference,
        notes=tuple(notes),
        agreement=AgreementReport.joined(result.agreement for result in sample),
        provenance=source,
    )
