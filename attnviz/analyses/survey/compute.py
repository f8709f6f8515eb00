"""Measure each head over a corpus: statistics with intervals, beside chance baselines."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import torch

from attnviz.agreement import PRECISIONS, bounded_check, dtypes
from attnviz.analyses.survey.aggregate import MIN_HELD_OUT, Floats, aggregate
from attnviz.analyses.survey.corpus import (
    Corpus,
    MediaCorpus,
    TextCorpus,
    check_corpus,
    parse_corpus,
)
from attnviz.analyses.survey.measure import (
    Engine,
    HeadStatistics,
    MediaHeads,
    TextStatistics,
    measure_here,
    ray_cluster,
)
from attnviz.analyses.survey.probes import ProbeGroup, confirm, find_probes, mark_answers
from attnviz.analyses.survey.result import NOUNS, Confirmation, SurveyResult
from attnviz.errors import InputError, refuse_given, require
from attnviz.heads import STATISTICS_OF, statistics_for
from attnviz.io import atomic, check_folder, check_output, translated
from attnviz.io.export import save_result
from attnviz.pipeline.attend import Loadable, Model, Source
from attnviz.results import AgreementReport, AttentionResult
from attnviz.results.agreement_report import LINEAR
from attnviz.results.arguments import checked_scalars
from attnviz.results.text import counted
from attnviz.runtime import say

_MOST_HEADS = 2048  # of linear attention, of which the flips and the distances fit in memory
_TABLE, *_SUMMARIES = "texts.parquet", "summary.parquet", "survey.safetensors"


@checked_scalars
def survey(
    texts: Corpus | None = None,
    *,
    sample: bool = False,
    probe: str | Sequence[str] | None = None,
    model: Model | Loadable | None = None,
    out: str | os.PathLike[str] | None = None,
    column: str = "text",
    skip_bad: bool = False,
    force: bool = False,
    engine: Engine = "local",
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
    sample : bool
        Read the sample corpus in place of texts: 200 short sentences, written for attnviz.
    probe : str or sequence of str, optional
        In place of texts, those of one or more probes: "induction", "previous", "duplicate" and
        "sink", whose texts are random words that occur twice; "retrieval", a word in filler that is
        asked for; "ioi" and "inhibition", two names, one of them the indirect object.

        The role that a probe names is then confirmed by ablation: the model must do worse what the
        role claims without these heads than without any of twenty random sets of as many heads in
        the same layers. Probes of one survey have the same texts.
    model : Model or what `load` takes, optional
        A model that reads texts, images or sounds; by default the bundled one.
    out : path, optional
        A folder for the tables, the figure, and the result itself, for `load_result`.

        The long table (sentence, tokens, stack, layer, head, statistic, value, even, shuffled,
        shuffled_keys) comes beside a summary. Needs pyarrow. By default nothing is written. For
        texts only.
    column : str
        The column of the corpus that holds the text.
    skip_bad : bool
        Leave out texts that cannot be read, and count them; by default they are an error.
    force : bool
        Replace the files in the folder.
    engine : {"local", "ray"}
        "ray" measures on all machines of the Ray cluster at RAY_ADDRESS; without one, a cluster is
        started on this machine. The numbers are the same.
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

    Returns
    -------
    SurveyResult
        The means of each statistic of each head, with their intervals, tests and roles.

    Raises
    ------
    InputError
        An empty corpus, one that cannot be read, no cluster, no such stack, or a probe of linear
        attention.
    OutputError
        The folder cannot be written, or it holds a survey and `force` is not set.

    Examples
    --------
    >>> import attnviz
    >>> texts = ["the train left the station", "the cat saw the dog", "a man read the book"]
    >>> result = attnviz.survey(texts)
    >>> table = result.to_frame()
    >>> list(table.columns[:6])
    ['stack', 'layer', 'head', 'role', 'statistic', 'mean']
    >>> table.query("layer == 5 and head == 3 and statistic == 'entropy'")["mean"].round(2).item()
    1.22
    """
    if out is None:
        why = "a survey without a folder writes nothing. Name one (out=), or leave this out."
        refuse_given(why, force=force)
    else:
        out = os.path.expanduser(out)  # noqa: PTH111  leaves ~nobody as it is
        require("pyarrow", "survey", "The tables of a survey need")
        check_folder(out)
        if Path(out).exists():
            for name in (_TABLE, *_SUMMARIES):
                check_output(Path(out, name), force=force)
    given = parse_corpus("survey", texts, inputs, seed, sample)
    if (given.source is None) == (probe is None):
        raise InputError("Give one of these: texts, the sample (--sample), or a probe.")
    if probe is None:
        check_corpus(given.source, column, media=True)
    else:
        refuse_given("a probe has texts of its own. Leave it out.", column=column != "text")
    probes = [] if probe is None else find_probes(probe)

    def selected(result: AttentionResult) -> AttentionResult:
        has_softmax = not all(record.signed for record in result.records)
        return result.without_linear("") if stack is None and has_softmax else result.stack(stack)

    corpus = given.read_by(
        model, media=True, skip_bad=skip_bad, positions=probe is None, column=column,
        select=selected,
    )  # fmt: skip
    group: ProbeGroup | None = None
    if isinstance(corpus, MediaCorpus):
        why = f"{corpus.model.name} reads {NOUNS[corpus.kind]}, and it is for texts. Leave it out, "
        why += "or run attnviz explore."
        refuse_given(why, probe=probe, out=out, engine=engine != "local", stack=stack)
    elif probes:
        model = Model(corpus.model.checkpoint.reading("parse"))  # texts of probes may have masks
        group = ProbeGroup(probes, probes[0].make(model, seed))
        mark = partial(mark_answers, model, group.texts)
        corpus = replace(corpus, model=model, source=[one.text for one in group.texts], mark=mark)
    return survey_corpus(corpus, seed, group, out, force, engine)[0]


def survey_corpus(
    corpus: TextCorpus | MediaCorpus,
    seed: int,
    group: ProbeGroup | None = None,
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
    engine: Engine = "local",
) -> tuple[SurveyResult, HeadStatistics, Sequence[Any], Sequence[AttentionResult]]:
    """Return the survey of a corpus, what measured it, a sample of it, and its verified results."""
    in_parts: Iterator[list[Any]]
    sample, results, in_parts = corpus.open()
    records = results[0].records
    kind = "linear" if records[0].signed else corpus.kind
    if kind == "linear" and group:
        raise InputError(
            "Probes confirm roles by ablation of softmax attention, but this is linear attention. "
            "Give texts in place of the probe."
        )
    claimed = [one.role for one in group.probes] if group else ()
    statistics = statistics_for(claimed) if kind == "text" else STATISTICS_OF[kind]
    on_ray, checkpoint = engine == "ray", corpus.model.checkpoint
    if on_ray:  # each worker has a copy of the model for itself
        checkpoint = replace(checkpoint, module=checkpoint.as_loaded, loaded=None)
    measured_by = HeadStatistics if corpus.kind == "text" else MediaHeads
    heads = measured_by(checkpoint, records, seed, statistics, bool(corpus.separate))
    if kind == "linear" and len(heads.heads) > _MOST_HEADS:
        raise InputError(
            f"A survey of linear attention takes at most {_MOST_HEADS:,} heads, but here each "
            f"feature may be a head: there are {len(heads.heads):,}. Choose a smaller model, or "
            "one whose features share matrices, such as Mamba-2."
        )
    where = ray_cluster(checkpoint.module) if on_ray else nullcontext(measure_here)
    with where as measure, ExitStack() as files:

        def measured() -> Iterator[TextStatistics]:
            """Measure all parts, and report how many texts are done, at which rate."""
            done, start, count = 0, time.monotonic(), corpus.rows
            for one in measure(heads, in_parts):
                done += len(one.numbers)
                rate = done / max(1e-9, time.monotonic() - start)
                share = None if count is None else (one.numbers[-1] + 1) / count
                say(f"{done:,} {NOUNS[corpus.kind]}, {rate:,.0f} a second", share)
                yield one

        of_parts = measured()
        if out is not None:
            from attnviz.analyses.survey.store import written

            with translated(Path(out), "written", "Choose another folder."):
                Path(out).mkdir(parents=True, exist_ok=True)
            of_parts = written(files.enter_context(atomic(Path(out, _TABLE))), heads, of_parts)
        device = checkpoint.device if checkpoint.device.type == "cuda" else "cpu"  # has float64
        totals = aggregate(
            of_parts, len(heads.heads), seed=seed, statistics=statistics, device=device
        )
        result = _result(totals, heads, results, corpus, group)
        if out is not None:
            for name in _SUMMARIES:
                save_result(result, Path(out, name), force=force)
    return result, heads, sample, results


def _result(
    totals: tuple[dict[str, Any], Floats, int],
    heads: HeadStatistics,
    sample: Sequence[AttentionResult],
    corpus: TextCorpus | MediaCorpus,
    group: ProbeGroup | None,
) -> SurveyResult:
    fields, differences, held_out = totals
    notes = [*corpus.changes.notes, *_notes_on_layers(sample[0]), corpus.separate]
    if held_out < MIN_HELD_OUT:
        count, fewest = fields["texts"], max(2 * MIN_HELD_OUT, fields["texts"] + 1)
        notes.append(f"too few {NOUNS[corpus.kind]} to name heads: {count}, at least {fewest}")
    verified = AgreementReport.joined(result.agreement for result in sample)
    confirmations: tuple[Confirmation, ...] = ()
    if group is not None:
        confirmations, check = confirm(
            corpus.model, group, heads.heads, fields["roles"], heads.seed
        )
        verified = replace(verified, analysis=(*verified.analysis, *filter(None, [check])))
    return SurveyResult(
        heads=heads.heads,
        statistics=heads.names,
        **fields,
        sampled=len(sample),
        notes=tuple(filter(None, notes)),
        agreement=_add_statistics(verified, heads, differences, fields["compared"]),
        provenance=sample[0].provenance,
        left_out=tuple(corpus.changes.left_out),
        confirmations=confirmations,
        kind=corpus.kind,
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
    if others := sum((stack == LINEAR) != signed for stack, _ in layers):
        kind, option = ("softmax", "without") if signed else ("linear", "with")
        layers_of = f"{counted(others, 'layer')} of {kind} attention"
        yield f"not measured: {layers_of}; a survey {option} --stack linear does"


def _add_statistics(
    report: AgreementReport, heads: HeadStatistics, largest: Floats, compared: int
) -> AgreementReport:
    """Return a report with the checks of the statistics, and the attentions without a check."""
    checks, not_compared, start = [], [], 0
    for record in heads.records:
        differences = torch.from_numpy(largest[start : start + record.heads])
        start += record.heads
        if bool(differences.isnan().any()):
            why = "its eager attention does not return its weights"
            if record.signed:
                why = "linear attention returns no weights; those of a sample are verified"
            not_compared.append((record.place, "statistics", why))
            continue
        weights_dtype, _ = dtypes(record)
        count = compared * record.heads * len(heads.statistics)
        tolerance = PRECISIONS[weights_dtype].weights
        checks.append(bounded_check(record, "statistics", differences, tolerance, compared=count))
    return replace(
        report, checks=(*report.checks, *checks), not_compared=(*report.not_compared, *not_compared)
    )
