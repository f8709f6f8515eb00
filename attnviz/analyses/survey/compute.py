"""Measure each head over a corpus: statistics with intervals, beside chance baselines."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.agreement import PRECISIONS, bounded_check, dtypes
from attnviz.analyses.survey.aggregate import (
    CorpusStatistics,
    aggregate,
    assign_roles,
    cluster,
    head_distances,
)
from attnviz.analyses.survey.confirm import confirm
from attnviz.analyses.survey.corpus import (
    PART,
    Corpus,
    CorpusChanges,
    check_seed,
    count_rows,
    parts,
    read_corpus,
    tokenize_corpus,
    verify_sample,
)
from attnviz.analyses.survey.media import (
    Kind,
    MediaCorpus,
    MediaHeads,
    changes_of,
    load_corpus_model,
)
from attnviz.analyses.survey.probes import find_probes
from attnviz.analyses.survey.ray import Engine, MeasuredPart, Part, measure_here, ray_cluster
from attnviz.analyses.survey.result import NOUNS, Confirmation, SurveyResult
from attnviz.analyses.survey.statistics import NAMES, HeadStatistics, TextStatistics
from attnviz.errors import InputError
from attnviz.io.export import save_result
from attnviz.io.files import check_folder, check_output
from attnviz.pipeline.attend import Model
from attnviz.results import AgreementReport, AnalysisCheck, AttentionResult, StageCheck
from attnviz.runtime.progress import say
from attnviz.runtime.versions import version_of

if TYPE_CHECKING:
    from attnviz.analyses.survey.store import Folder
    from attnviz.pipeline.attend import Loadable


_SUMMARIES = "summary.parquet", "survey.safetensors"


def survey(
    texts: Corpus | None = None,
    *,
    probe: str | Sequence[str] | None = None,
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
    """Measure statistics of every head on each text of a corpus; return means with intervals.

    Each statistic (`STATISTICS` in `statistics.py`) stands beside its value where the keys of each
    query are shuffled, whose mean is that of even weights, and where the model reads the tokens of
    the text in another order. Sign flips of the differences test both: they are exact, for any
    number of texts. Memory does not grow with the corpus.

    Parameters
    ----------
    texts : str, Path or iterable
        A file (.txt, .jsonl, .csv, .tsv, .parquet), "-" for standard input, or the texts. For a
        model that reads images or sounds: a folder of them, a pattern of file names, a .txt file
        with their names, or a list of them. These have statistics of their own, and no shuffled
        tokens.
    probe : str or sequence of str, optional
        In place of texts, those of a probe, made from the tokenizer alone: "induction", "previous",
        "duplicate" or "sink", whose texts are random words that occur twice. The role that it names
        is then confirmed by ablation: the model must do worse what the role claims without these
        heads than without any of twenty random sets of as many heads in the same layers.
    model : Model or what `load` takes, optional
        A model that reads texts, images or sounds; by default the bundled one.
    out : path, optional
        A folder for the long table in parts (sentence, tokens, stack, layer, head, statistic,
        value, even, shuffled, shuffled_keys), a summary, and the result itself, for `load_result`.
        Needs pyarrow. By default nothing is written. For texts only.
    column : str
        The column of the corpus that holds the text.
    truncate : bool
        Cut texts that are longer than the model can read.
    skip_bad : bool
        Leave out texts that cannot be read, and count them; by default they are an error.
    resume : bool
        Go on with the survey in `out`.
    force : bool
        Overwrite the summary in `out`.
    engine : {"local", "ray"}
        "ray" measures on all machines of a Ray cluster. The numbers are the same.
    address : str, optional
        Of the Ray cluster; by default one is started on this machine.
    seed : int
        Of shuffles, resamples and flips.

    Raises
    ------
    InputError
        An empty corpus, one that cannot be read, a folder with another survey, no cluster.
    OutputError
        The folder cannot be written.
    """
    check_seed(seed)
    check_options(out, engine, address)
    if (texts is None) == (probe is None):
        raise InputError("Give either texts or a probe.")
    probes = [] if probe is None else find_probes(probe)
    model, kind = load_corpus_model(model)
    if kind != "text":
        if probe is not None or out is not None or engine != "local":
            raise InputError(
                f"{model.name} reads {NOUNS[kind]}: probes, tables (out) and clusters are for "
                "texts. Leave them out, or run attnviz explore."
            )
        corpus_of_media = MediaCorpus(model, kind, texts, truncate)
        return survey_media(corpus_of_media, skip_bad=skip_bad, seed=seed)[0]
    probe_texts = list(probes[0].make(model, seed)) if probes else []
    if texts is None:
        texts = [one.text for one in probe_texts]
    changes = CorpusChanges()
    on_bad = changes.leave_out if skip_bad else None
    corpus = read_corpus(texts, column=column, on_bad=on_bad)
    encoded = tokenize_corpus(model, corpus, truncate=truncate, on_bad=on_bad)
    tokenized = parts(changes.count_cut(encoded), PART)
    if (first := next(tokenized, None)) is None:
        raise changes.empty_corpus()
    with ExitStack() as stack:
        on_ray = engine == "ray"
        cluster = ray_cluster(address, model.module)
        measure = stack.enter_context(cluster) if on_ray else measure_here
        folder = (
            None if out is None else _open_folder(Path(out), model, truncate, seed, resume, force)
        )
        summaries = [] if folder is None else [folder.path / name for name in _SUMMARIES]
        for path in summaries:
            check_output(path, force=force or resume)
        sample = verify_sample(model, first, truncate)
        heads = HeadStatistics(model.checkpoint, sample[0].records, seed)
        numbered = enumerate(chain([first], tokenized))
        count = count_rows(texts)
        if folder is None:
            measured = _in_order(_with_progress(measure(heads, numbered), count))
        else:
            folder = replace(folder, heads=heads.heads)
            measured = _in_folder(folder, partial(measure, heads), numbered, count)
        totals = aggregate(measured, len(heads.heads), seed=seed)
        result = _result(totals, heads, sample, changes)
        if probes:
            result = _with_confirmations(
                result, *confirm(model, probes, probe_texts, result.heads, result.roles, seed=seed)
            )
        for path in summaries:
            save_result(result, path, force=force or resume)
    return result


def survey_media(
    corpus: MediaCorpus, *, skip_bad: bool, seed: int
) -> tuple[SurveyResult, list[int], list[AttentionResult]]:
    """Return the survey of images or sounds; and of a sample, the numbers and verified results."""
    changes = changes_of(corpus, skip_bad)
    media, sample = corpus.verified_sample()
    changes.left_out.clear()  # they are read again
    heads = MediaHeads(corpus, sample[0].records, seed)

    def measured() -> Iterator[TextStatistics]:
        for done, medium in enumerate(corpus, start=1):
            yield heads.measure(medium)
            say(f"{done:,} {NOUNS[corpus.kind]}", done / len(corpus))

    totals = aggregate(measured(), len(heads.heads), seed=seed, statistics=heads.statistics)
    result = _result(totals, heads, sample, changes, corpus.kind)
    return result, [medium.number for medium in media], sample


def _with_confirmations(
    result: SurveyResult, confirmations: tuple[Confirmation, ...], check: AnalysisCheck | None
) -> SurveyResult:
    """Return the result with confirmations, whose answers have a check of their own."""
    report = replace(result.agreement, digest=None)  # the result binds it anew
    if check is not None:
        report = replace(report, analysis=(*report.analysis, check))
    return replace(result, confirmations=confirmations, agreement=report)


def check_options(out: str | os.PathLike[str] | None, engine: Engine, address: str | None) -> None:
    """Raise InputError for options that do not go together, OutputError for an unusable folder."""
    if out is not None and not os.fspath(out):
        raise InputError("The folder for the survey has no name. Name one.")
    if out is not None and find_spec("pyarrow") is None:
        raise InputError(
            "The tables of a survey need pyarrow, which is not installed. Install it: pip install "
            "'attnviz[survey]'."
        )
    if engine not in ("local", "ray"):
        raise InputError(f"The engine must be 'local' or 'ray', not {engine!r}.")
    if address is not None and engine == "local":
        raise InputError(
            f"A survey on this machine cannot use the cluster at {address!r}. Add --engine ray "
            "(engine='ray'), or leave the address out."
        )
    if out is not None:
        check_folder(out)


def _open_folder(
    path: Path, model: Model, truncate: bool, seed: int, resume: bool, force: bool
) -> Folder:
    """Open the folder of a survey with these options, which change its numbers."""
    from attnviz.analyses.survey.store import Folder

    about = {
        "model": model.name,
        "weights": model.checkpoint.current_sha256(),
        "dtype": str(model.module.dtype).removeprefix("torch."),
        "truncate": truncate,
        "seed": seed,
        "attnviz": version_of("attnviz"),
        "statistics": list(NAMES),
    }
    folder = Folder(path, about)
    folder.open(resume=resume, force=force)
    return folder


def _with_progress(parts: Iterable[MeasuredPart], count: int | None) -> Iterator[MeasuredPart]:
    """Report how many texts have been measured, at which rate, of how many."""
    texts, start = 0, time.monotonic()
    for part in parts:
        texts += len(part[1])
        rate = texts / max(1e-9, time.monotonic() - start)
        last = max(text.number for text in part[1]) + 1
        say(f"{texts:,} texts, {rate:,.0f} a second", None if count is None else last / count)
        yield part


def _in_folder(
    folder: Folder,
    measure: Callable[[Iterable[Part]], Iterator[MeasuredPart]],
    parts: Iterable[Part],
    count: int | None,
) -> Iterator[TextStatistics]:
    """Measure and write the parts that the folder lacks, then yield all of them."""
    numbers: list[int] = []

    def missing() -> Iterator[Part]:
        for number, texts in parts:
            numbers.append(number)
            if not folder.has(number, texts):
                yield number, texts

    for number, texts, statistics in _with_progress(measure(missing()), count):
        folder.write(number, texts, statistics)
    yield from folder.read(len(numbers))


def _in_order(parts: Iterable[MeasuredPart]) -> Iterator[TextStatistics]:
    """Yield the statistics of parts in the order of the corpus, so that sums are rounded alike."""
    waiting: dict[int, TextStatistics] = {}
    expected = 0
    for number, _, statistics in parts:
        waiting[number] = statistics
        while expected in waiting:
            yield waiting.pop(expected)
            expected += 1


def _result(
    totals: CorpusStatistics,
    heads: HeadStatistics | MediaHeads,
    sample: Sequence[AttentionResult],
    changes: CorpusChanges,
    kind: Kind = "text",
) -> SurveyResult:
    names = tuple(statistic.name for statistic in heads.statistics)

    def by_head(values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values.reshape(len(heads.heads), len(names)))

    distances = head_distances([result.records for result in sample])
    verified = AgreementReport.joined(result.agreement for result in sample)
    checks, not_compared = _checks(heads, totals)
    return SurveyResult(
        heads=heads.heads,
        statistics=names,
        mean=by_head(totals.value.mean),
        low=by_head(totals.value.low),
        high=by_head(totals.value.high),
        even=by_head(totals.even),
        shuffled=by_head(totals.shuffled),
        p_even=by_head(totals.p_even),
        p_shuffled=by_head(totals.p_shuffled),
        count=by_head(totals.value.count).long(),
        roles=tuple(assign_roles(totals.excess, totals.p_held_out, heads.statistics)),
        clusters=tuple(cluster(distances.numpy()).tolist()),
        distances=distances,
        sampled=len(sample),
        compared=totals.compared,
        texts=totals.texts,
        tokens=totals.tokens,
        notes=(*changes.notes, *totals.notes),
        agreement=replace(
            verified,
            checks=(*verified.checks, *checks),
            not_compared=(*verified.not_compared, *not_compared),
        ),
        provenance=sample[0].provenance,
        left_out=tuple(changes.left_out),
        kind=kind,
    )


def _checks(
    heads: HeadStatistics | MediaHeads, totals: CorpusStatistics
) -> tuple[list[StageCheck], list[tuple[str, str, str]]]:
    """Return the checks of the statistics, and the attentions whose own weights are unknown."""
    checks, not_compared, start = [], [], 0
    for record in heads.records:
        differences = torch.from_numpy(totals.differences[start : start + record.heads])
        start += record.heads
        if bool(differences.isnan().any()):
            why = "its eager attention does not return its weights"
            not_compared.append((record.place, "statistics", why))
            continue
        weights_dtype, _ = dtypes(record)
        count = totals.compared * record.heads * len(heads.statistics)
        tolerance = PRECISIONS[weights_dtype].weights
        checks.append(bounded_check(record, "statistics", differences, tolerance, compared=count))
    return checks, not_compared
