"""Measure each head over a corpus: statistics with intervals, beside chance baselines."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
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
from attnviz.analyses.survey.confirm import confirm, with_answers
from attnviz.analyses.survey.corpus import (
    PART,
    Corpus,
    CorpusChanges,
    check_seed,
    count_rows,
    parse_corpus,
    parts,
    read_corpus,
    tokenize_corpus,
    verify_sample,
)
from attnviz.analyses.survey.measure import (
    HeadStatistics,
    MediaHeads,
    SignedHeadStatistics,
    TextStatistics,
    check_head_count,
    select_stack,
)
from attnviz.analyses.survey.media import Kind, MediaCorpus, expect_corpus, load_corpus_model
from attnviz.analyses.survey.probes import ProbeGroup, find_probes, make_groups
from attnviz.analyses.survey.ray import Engine, MeasuredPart, Part, measure_here, ray_cluster
from attnviz.analyses.survey.result import NOUNS, SurveyResult
from attnviz.errors import InputError, refuse_given
from attnviz.heads import STATISTICS_OF, Statistic, statistics_for, statistics_of_roles
from attnviz.io.export import save_result
from attnviz.io.files import check_folder, check_output
from attnviz.pipeline.attend import Model
from attnviz.results import AgreementReport, AttentionResult
from attnviz.results.agreement_report import LINEAR
from attnviz.results.arguments import checked_scalars
from attnviz.runtime import version_of
from attnviz.runtime.progress import part, say

if TYPE_CHECKING:
    from attnviz.analyses.survey.store import Folder
    from attnviz.pipeline.attend import Loadable, Source


_BASELINES = "even", "shuffled", "p_even", "p_shuffled"
_SUMMARIES = "summary.parquet", "survey.safetensors"


@checked_scalars
def survey(
    texts: Corpus | None = None,
    *,
    probe: str | Sequence[str] | None = None,
    model: Model | Loadable | None = None,
    out: str | os.PathLike[str] | None = None,
    column: str = "text",
    skip_bad: bool = False,
    resume: bool = False,
    force: bool = False,
    engine: Engine = "local",
    address: str | None = None,
    seed: int = 0,
    stack: str | None = None,
    **inputs: Unpack[Source],
) -> SurveyResult:
    """Measure statistics of every head on each text of a corpus; return means with intervals.

    Each statistic (`STATISTICS` in `heads.py`) stands beside its value where the keys of each
    query are shuffled, whose mean is that of even weights, and where the model reads the tokens of
    the text in another order. Sign flips of the differences test both: they are exact, for any
    number of texts. Memory does not grow with the corpus.

    Parameters
    ----------
    texts : str, Path or iterable
        A file of texts: .txt (one per line), .jsonl, .csv, .tsv or .parquet; or "-" for standard
        input.

        Or the texts themselves: strings, ids, BatchEncodings or messages. For a model that reads
        images or sounds: a folder of them, a pattern of file names, a .txt file with their names,
        or a list of them. These have statistics of their own, and no shuffled tokens.
    probe : str or sequence of str, optional
        In place of texts, those of one or more probes: "induction", "previous", "duplicate" and
        "sink", whose texts are random words that occur twice; "retrieval", a word in filler that is
        asked for; "ioi" and "inhibition", two names, one of them the indirect object.

        The role that a probe names is then confirmed by ablation: the model must do worse what the
        role claims without these heads than without any of twenty random sets of as many heads in
        the same layers. The statistic of a role is measured on the texts of its probe only.
    model : Model or what `load` takes, optional
        A model that reads texts, images or sounds; by default the bundled one.
    out : path, optional
        A folder for the tables, the figure, and the result itself, for `load_result`.

        The long table comes in parts (sentence, tokens, stack, layer, head, statistic, value, even,
        shuffled, shuffled_keys), beside a summary. Needs pyarrow. By default nothing is written.
        For texts only.
    column : str
        The column of the corpus that holds the text.
    skip_bad : bool
        Leave out texts that cannot be read, and count them; by default they are an error.
    resume : bool
        Continue the survey in the folder.
    force : bool
        Overwrite the summary in the folder.
    engine : {"local", "ray"}
        "ray" measures on all machines of a Ray cluster. The numbers are the same.
    address : str, optional
        Address of the Ray cluster; by default one is started on this machine.
    seed : int
        Random seed of shuffles, resamples and flips.
    stack : str, optional
        "linear" measures the linear attention of a model that has softmax attention, too; by
        default the softmax attention is measured.

        Weights of linear attention are signed: its statistics (|self|, |previous|, …) are of the
        share of a weight in the sizes of its row.
    **inputs
        Further inputs of `attend`: `truncate` cuts texts that are longer than the model can read;
        `pair`, a second text for each; `special_tokens`; `image` or `audio` in place of texts.

    Raises
    ------
    InputError
        An empty corpus, one that cannot be read, a folder with another survey, no cluster, no such
        stack, or a probe of linear attention.
    OutputError
        The folder cannot be written.

    Examples
    --------
    >>> import attnviz
    >>> texts = ["the train left the station", "the cat saw the dog", "a man read the book"]
    >>> result = attnviz.survey(texts)
    >>> table = result.to_frame()
    >>> list(table.columns[:6])
    ['stack', 'layer', 'head', 'role', 'cluster', 'statistic']
    >>> table.query("layer == 5 and head == 3 and statistic == 'entropy'")["mean"].round(2).item()
    1.22
    """
    check_seed(seed)
    check_options(out, engine, address)
    texts, pairs, truncate, special_tokens = parse_corpus("survey", texts, inputs)
    if (texts is None) == (probe is None):
        raise InputError("Give either texts or a probe.")
    if texts is not None:
        expect_corpus(texts, column)
    else:
        refuse_given("a probe has texts of its own. Leave it out.", column=column != "text")
    if out is None:
        why = "a survey without a folder writes nothing. Name one (out=), or leave this out."
        refuse_given(why, resume=resume, force=force)
    probes = [] if probe is None else find_probes(probe)
    model, kind = load_corpus_model(model, special_tokens)
    if kind != "text":
        why = f"{model.name} reads {NOUNS[kind]}, and it is for texts. Leave it out, or run "
        why += "attnviz explore."
        refuse_given(why, probe=probe, out=out, engine=engine != "local", stack=stack)
        corpus_of_media = MediaCorpus.of(model, kind, texts, truncate, column)
        return survey_media(corpus_of_media, skip_bad=skip_bad, seed=seed)[0]
    if probes:
        model = Model(model.checkpoint.reading("parse"))  # texts of probes may have masks
    groups = make_groups(probes, model, seed)
    probe_texts = [text for group in groups for text in group.texts]
    if texts is None:
        texts = [one.text for one in probe_texts]
    changes = CorpusChanges()
    on_bad = changes.leave_out if skip_bad else None
    corpus = read_corpus(texts, column=column, on_bad=on_bad, pairs=pairs)
    encoded = tokenize_corpus(model, corpus, truncate=truncate, on_bad=on_bad)
    if probes:
        encoded = with_answers(model, encoded, probe_texts)
    tokenized = parts(changes.count_cut(encoded), PART)
    if (first := next(tokenized, None)) is None:
        raise changes.empty_corpus()
    sample = verify_sample(model, first, truncate, partial(select_stack, stack=stack))
    records = sample[0].records
    check_head_count(records)
    signed = records[0].signed
    if signed and probes:
        raise InputError(
            "Probes confirm roles by ablation of softmax attention, but this is linear attention. "
            "Give texts in place of the probe."
        )
    statistics = STATISTICS_OF["linear"] if signed else statistics_for([one.role for one in probes])
    on_ray = engine == "ray"
    with ray_cluster(address, model.module) if on_ray else nullcontext(measure_here) as measure:
        measured_by = SignedHeadStatistics if signed else HeadStatistics
        names = statistics_of_roles("text")
        only_on = {names[one.role]: group.numbers for group in groups for one in group.probes}
        # Each worker of Ray has a copy of the model for itself.
        checkpoint = model.checkpoint.original() if on_ray else model.checkpoint
        heads = measured_by(checkpoint, records, seed, statistics, only_on)
        numbered, count = enumerate(chain([first], tokenized)), count_rows(texts)
        summaries: list[Path] = []
        if out is None:
            measured = _in_order(_with_progress(measure(heads, numbered), count))
        else:
            folder = _open_folder(Path(out), model, truncate, heads, resume, force)
            summaries = [folder.path / name for name in _SUMMARIES]
            for path in summaries:
                check_output(path, force=force or resume)
            measured = _in_folder(folder, partial(measure, heads), numbered, count)
        totals = aggregate(measured, len(heads.heads), seed=seed, statistics=statistics)
        result = _result(totals, heads, sample, changes)
        for number, group in enumerate(groups):
            with part(number, len(groups), "confirming roles"):
                roles = _roles_in(group, groups, totals, statistics)
                result = _with_confirmations(model, result, group, roles, seed)
        for path in summaries:
            save_result(result, path, force=force or resume)
    return result


def _roles_in(
    group: ProbeGroup,
    groups: Sequence[ProbeGroup],
    totals: CorpusStatistics,
    statistics: Sequence[Statistic],
) -> list[str]:
    """Return the role of each head on the texts of some probes: not those of other probes."""
    others = [one.role for other in groups if other is not group for one in other.probes]
    left_out = np.array([one.role in others for one in statistics])
    excess = np.where(left_out, np.nan, totals.excess)
    return assign_roles(excess, totals.p_held_out, statistics)


def survey_media(
    corpus: MediaCorpus, *, skip_bad: bool, seed: int
) -> tuple[SurveyResult, MediaHeads, list[int], list[AttentionResult]]:
    """Return the survey of images or sounds, and what measured it.

    Then come the numbers of a sample, and its verified results.
    """
    changes = CorpusChanges(noun=corpus.kind)
    corpus.on_bad = changes.leave_out if skip_bad else None
    media, sample = corpus.verified_sample()
    changes.left_out.clear()  # they are read again
    statistics = STATISTICS_OF[corpus.kind]
    records, checkpoint = sample[0].records, corpus.model.checkpoint
    heads = MediaHeads(checkpoint, records, seed, statistics, corpus=corpus)

    def measured() -> Iterator[TextStatistics]:
        for done, medium in enumerate(corpus, start=1):
            yield heads.measure([medium])
            say(f"{done:,} {NOUNS[corpus.kind]}", done / len(corpus))

    totals = aggregate(measured(), len(heads.heads), seed=seed, statistics=statistics)
    result = _result(totals, heads, sample, changes, corpus.kind)
    return result, heads, [medium.number for medium in media], sample


def _with_confirmations(
    model: Model, result: SurveyResult, group: ProbeGroup, roles: Sequence[str], seed: int
) -> SurveyResult:
    """Return the result with confirmations, whose answers have a check of their own."""
    confirmations, check = confirm(model, group.probes, group.texts, result.heads, roles, seed=seed)
    report = replace(result.agreement, digest=None)  # the result binds it anew
    if check is not None:
        report = replace(report, analysis=(*report.analysis, check))
    return replace(result, confirmations=(*result.confirmations, *confirmations), agreement=report)


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
    path: Path,
    model: Model,
    truncate: bool,
    heads: HeadStatistics,
    resume: bool,
    force: bool,
) -> Folder:
    """Open the folder of a survey with these options, which change its numbers."""
    from attnviz.analyses.survey.store import Folder

    about = {
        "model": model.name,
        "weights": model.checkpoint.current_sha256(),
        "dtype": str(model.module.dtype).removeprefix("torch."),
        "truncate": truncate,
        "seed": heads.seed,
        "attnviz": version_of("attnviz"),
        "statistics": [*heads.names],
    }
    folder = Folder(path, about, heads.heads, heads.names)
    folder.open(resume=resume, force=force)
    return folder


def _with_progress(parts: Iterable[MeasuredPart], count: int | None) -> Iterator[MeasuredPart]:
    """Report how many texts have been measured, at which rate, of how many."""
    texts, start = 0, time.monotonic()
    for one in parts:
        texts += len(one[1])
        rate = texts / max(1e-9, time.monotonic() - start)
        last = max(text.number for text in one[1]) + 1
        say(f"{texts:,} texts, {rate:,.0f} a second", None if count is None else last / count)
        yield one


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
    heads: HeadStatistics,
    sample: Sequence[AttentionResult],
    changes: CorpusChanges,
    kind: Kind = "text",
) -> SurveyResult:
    names = tuple(statistic.name for statistic in heads.statistics)

    def by_head(values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values.reshape(len(heads.heads), len(names)))

    distances = head_distances([result.records for result in sample])
    notes = tuple(note.replace("texts", NOUNS[kind]) for note in totals.notes)
    notes = (*_notes_on_layers(sample[0]), *notes)
    verified = AgreementReport.joined(result.agreement for result in sample)
    return SurveyResult(
        heads=heads.heads,
        statistics=names,
        **{name: by_head(getattr(totals.value, name)) for name in ("mean", "low", "high")},
        **{name: by_head(getattr(totals, name)) for name in _BASELINES},
        count=by_head(totals.value.count).long(),
        roles=tuple(assign_roles(totals.excess, totals.p_held_out, heads.statistics)),
        clusters=tuple(cluster(distances.numpy()).tolist()),
        distances=distances,
        sampled=len(sample),
        compared=totals.compared,
        texts=totals.texts,
        tokens=totals.tokens,
        notes=(*changes.notes, *notes),
        agreement=add_statistics(verified, heads, totals),
        provenance=sample[0].provenance,
        left_out=tuple(changes.left_out),
        confirmations=(),  # follow
        kind=kind,
    )


def _notes_on_layers(sample: AttentionResult) -> Iterator[str]:
    """Yield that weights are signed, and which layers of the model are not measured."""
    signed = sample.records[0].signed
    if signed:
        yield (
            "linear attention: weights are signed; |…| are shares of their sizes, in each row, "
            "and negative is the share of negative weights"
        )
    layers = {(check.stack, check.layer) for check in sample.agreement.checks}
    others = sum((stack == LINEAR) != signed for stack, _ in layers)
    if others:
        kind, option = "softmax", "without --stack"
        if not signed:
            kind, option = "linear", 'with --stack linear (stack="linear")'
        noun = "layers" if others > 1 else "layer"
        yield f"not measured: {others} {noun} of {kind} attention; a survey {option} does"


def add_statistics(
    report: AgreementReport, heads: HeadStatistics, totals: CorpusStatistics
) -> AgreementReport:
    """Return a report with the checks of the statistics, and the attentions without such a check.

    An attention has none if the model does not return its weights.
    """
    checks, not_compared, start = [], [], 0
    for record in heads.records:
        differences = torch.from_numpy(totals.differences[start : start + record.heads])
        start += record.heads
        if bool(differences.isnan().any()):
            why = "its eager attention does not return its weights"
            if record.signed:
                why = "linear attention returns no weights; those of a sample are verified"
            not_compared.append((record.place, "statistics", why))
            continue
        weights_dtype, _ = dtypes(record)
        count = totals.compared * record.heads * len(heads.statistics)
        tolerance = PRECISIONS[weights_dtype].weights
        checks.append(bounded_check(record, "statistics", differences, tolerance, compared=count))
    return replace(
        report, checks=(*report.checks, *checks), not_compared=(*report.not_compared, *not_compared)
    )
