"""What each head does over a corpus: numbers with intervals, beside what chance would give."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.errors import InputError

if find_spec("pyarrow") is None:
    raise InputError(
        "Expected pyarrow, which keeps the tables of a survey, but it is not installed. Install "
        "it: pip install 'attnviz[survey]'."
    )

from attnviz.agreement import PRECISIONS, bounded, dtypes
from attnviz.analyses.survey.aggregate import Told, tell
from attnviz.analyses.survey.backends import (
    Done,
    Engine,
    Part,
    measure_here,
    ray_cluster,
)
from attnviz.analyses.survey.batches import windows
from attnviz.analyses.survey.bootstrap import Floats
from attnviz.analyses.survey.corpus import Corpus, count_rows, read_corpus
from attnviz.analyses.survey.divergence import distances
from attnviz.analyses.survey.measure import Meter
from attnviz.analyses.survey.reading import (
    PART,
    Bad,
    expect_seed,
    expect_text,
    read,
    sampled,
)
from attnviz.analyses.survey.result import SurveyResult
from attnviz.analyses.survey.roles import cluster, name_roles
from attnviz.analyses.survey.statistics import STATISTICS
from attnviz.analyses.survey.store import Folder
from attnviz.io.export import save_result
from attnviz.io.files import check_output
from attnviz.pipeline.attend import Model
from attnviz.results import AgreementReport, AttentionResult, StageCheck
from attnviz.runtime.progress import say

if TYPE_CHECKING:
    from attnviz.pipeline.attend import Loadable


_WRITTEN = "summary.parquet", "census.safetensors"


def survey(
    texts: Corpus,
    *,
    model: Model | Loadable | None = None,
    out: str | os.PathLike[str] | None = None,
    column: str = "text",
    truncate: bool = False,
    skip_bad: bool = False,
    resume: bool = False,
    force: bool = False,
    engine: Engine = "local",
    address: str | None = None,
    seed: int = 0,
) -> SurveyResult:
    """Measure what every head does on each text of a corpus, and tell it with intervals.

    Each statistic (`STATISTICS` in `statistics.py`) stands beside what it is where the keys
    of each query are shuffled (a permutation null, whose mean is that of even weights and needs no
    sampling), and where the model reads the tokens of the text in another order. Memory does not
    grow with the corpus.

    Parameters
    ----------
    texts : a file (.txt, .jsonl, .csv, .tsv, .parquet), "-" for standard input, or texts.
    model : from `load`, or what `load` takes; one that reads text.
    out : a folder for the long table in parts (sentence, tokens, stack, layer, head, statistic,
        value, even, shuffled), a summary, and the census itself, for `load_result`; by default none
        is kept.
    column : of the corpus, which holds the text.
    truncate : cut what is longer than the model can read.
    skip_bad : leave out what cannot be read, and say how many; by default it is refused.
    resume : go on with the survey in `out`. force : overwrite also tables in `out` that attnviz did
        not write.
    engine : "local", or "ray" for all machines of the Ray cluster at `address`, by default one that
        is started on this machine. The numbers are the same.
    seed : of shuffles and resamples.

    Raises
    ------
    InputError : an empty corpus, one that cannot be read, a folder with another survey, no cluster.
    OutputError : the folder cannot be written.
    """
    expect_seed(seed)
    if out is not None and not os.fspath(out):
        raise InputError("Expected a folder for the survey, got no name. Name one.")
    if engine not in ("local", "ray"):
        raise InputError(f"Expected engine 'local' or 'ray', got {engine!r}.")
    if address is not None and engine == "local":
        raise InputError(
            f"Expected no address of a cluster for a survey on this machine, got {address!r}. Add "
            "--engine ray (engine='ray')."
        )
    model = expect_text(model)
    bad = Bad()
    on_bad = bad.add if skip_bad else None
    corpus = read_corpus(texts, column=column, on_bad=on_bad)
    windowed = windows(read(model, corpus, truncate=truncate, on_bad=on_bad), PART)
    if (first := next(windowed, None)) is None:
        raise bad.all()
    with ExitStack() as stack:
        measured = measure_here if engine == "local" else stack.enter_context(ray_cluster(address))
        place = out
        if place is None:
            place = stack.enter_context(tempfile.TemporaryDirectory(prefix="attnviz-"))
        about = {
            "model": model.name,
            "weights": model.checkpoint.current_sha256(),
            "dtype": str(model.module.dtype).removeprefix("torch."),
            "truncate": truncate,
            "seed": seed,
            "attnviz": version("attnviz"),
            "statistics": list(STATISTICS),
        }
        folder = Folder(Path(place), about)
        folder.open(resume=resume)
        overwrite = force or resume
        written = [check_output(folder.path / name, force=overwrite) for name in _WRITTEN]
        sample = sampled(model, first, truncate)
        meter = Meter(model.checkpoint, sample[0].records, seed)
        parts = 0

        def missing() -> Iterator[Part]:
            nonlocal parts
            for parts, window in enumerate(chain([first], windowed), start=1):
                if not folder.has(parts - 1, window):
                    yield parts - 1, window

        for number, window, found in _told(measured(meter, missing()), count_rows(texts)):
            folder.write(number, window, found)
        say("estimating")
        told = tell(folder.read(parts), meter.heads, seed=seed)
        census = _census(told, meter, sample, folder.compared(parts), bad)
        if out is not None:
            for path in written:
                save_result(census, path, force=overwrite)
    return census


def _told(done: Iterable[Done], count: int | None) -> Iterator[Done]:
    """Say how many texts have been measured, at which rate, of how many."""
    texts, start = 0, time.monotonic()
    for each in done:
        texts += len(each[1])
        rate = texts / max(1e-9, time.monotonic() - start)
        last = max(read.number for read in each[1]) + 1
        say(f"{texts:,} texts, {rate:,.0f} a second", None if count is None else last / count)
        yield each


def _census(
    told: Told,
    meter: Meter,
    sample: Sequence[AttentionResult],
    compared: tuple[int, Floats],
    bad: Bad,
) -> SurveyResult:
    def laid_out(values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values.reshape(len(meter.heads), len(STATISTICS)))

    apart = distances([result.records for result in sample])
    proven = AgreementReport.joined(result.agreement for result in sample)
    checks, unknown = _checks(meter, *compared)
    return SurveyResult(
        heads=meter.heads,
        statistics=STATISTICS,
        mean=laid_out(told.value.mean),
        low=laid_out(told.value.low),
        high=laid_out(told.value.high),
        even=laid_out(told.even),
        shuffled=laid_out(told.shuffled),
        p_even=laid_out(told.above_even.p_value),
        p_shuffled=laid_out(told.above_shuffled.p_value),
        count=laid_out(told.value.count).long(),
        roles=tuple(name_roles(list(STATISTICS), told.excess, told.tested)),
        clusters=tuple(cluster(apart.numpy()).tolist()),
        distances=apart,
        sampled=len(sample),
        compared=compared[0],
        texts=told.texts,
        tokens=told.tokens,
        notes=bad.notes,
        agreement=replace(
            proven,
            checks=(*proven.checks, *checks),
            not_compared=(*proven.not_compared, *unknown),
        ),
        provenance=sample[0].provenance,
    )


def _checks(
    meter: Meter, texts: int, differences: Floats
) -> tuple[list[StageCheck], list[tuple[str, str, str]]]:
    """Return the checks of what was measured, and where there was nothing to compare it with."""
    checks, unknown, start = [], [], 0
    for record in meter.known:
        own = torch.from_numpy(differences[start : start + record.heads])
        start += record.heads
        if bool(own.isnan().any()):
            why = "its eager attention does not return its weights"
            unknown.append((record.place, "statistics", why))
            continue
        of_weights, _ = dtypes(record)
        count = texts * record.heads * len(STATISTICS)
        tolerance = PRECISIONS[of_weights].weights
        checks.append(bounded(record, "statistics", own, tolerance, compared=count))
    return checks, unknown
