"""Faults in streamed maps: in the model run, in the stored summary, and in the tiles."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from families import TEXTS, tiny
from full_maps import check, use_loops, use_reference, whole

import attnviz
from attnviz import pipeline
from attnviz.capture import streamed
from attnviz.capture.attention_interface import AttentionCallArgs
from attnviz.results.attention_record import AttentionRecord, MaskRule
from attnviz.streaming import ScoreSpec, attend, numba_kernels, reference
from attnviz.streaming.cpu import _RowBlock

LONG = "the train left the station on time and nobody noticed that it was early. " * 4


def same(given):
    return given


def reduced(*, scoring=same, summary=same, output=same):
    """Plant changed score inputs, a changed summary or changed attention vectors."""

    def plant(monkeypatch):
        attend = streamed.attend

        def changed(given, value, **how):
            vectors, numbers = attend(scoring(given), value, **how)
            return output(vectors), summary(numbers)

        monkeypatch.setattr(streamed, "attend", changed)

    return plant


def summary(**changes):
    """Plant changed numbers of a summary, each a function of its values."""

    def changed(numbers):
        return replace(
            numbers, **{name: of(getattr(numbers, name)) for name, of in changes.items()}
        )

    return reduced(summary=changed)


def last_key_lost(scoring):
    kept = torch.arange(scoring.shape[2]) < scoring.shape[2] - 1
    return replace(scoring, visible=replace(scoring.visible, keys=kept))


FAULTS = {
    "scale 1 % off": reduced(scoring=lambda each: replace(each, scale=each.scale * 1.01)),
    "heads swapped": reduced(scoring=lambda each: replace(each, query=each.query.flip(0))),
    "causal": reduced(scoring=lambda each: replace(each, visible=replace(each.visible, after=0))),
    "last key lost": reduced(scoring=last_key_lost),
    "output of another row": reduced(output=lambda output: output.roll(1, 1)),
    "cells rolled": summary(mean=lambda cells: cells.roll(1, -1)),
    "largest halved": summary(largest=lambda cells: cells / 2),
    "received shifted": summary(received=lambda sums: sums.roll(5, -1)),
    "entropy in bits": summary(entropy=lambda nats: nats * 1.4427),
    "distance off by one": summary(distance=lambda distance: distance + 1),
    "first of another": reduced(summary=lambda each: replace(each, first=each.itself)),
    "itself is previous": reduced(summary=lambda each: replace(each, itself=each.previous)),
    "vectors too short": reduced(output=lambda output: output * 0.95),
    "other top keys": summary(top_keys=lambda keys: keys.flip(1)),
    "other keys marked": summary(marked=lambda marked: 1 - marked),
    "sums of exponentials": summary(lse=lambda lse: lse + 0.01),
    "all rows empty": summary(empty=torch.ones_like),
    "NaN": summary(entropy=lambda nats: nats * torch.nan),
}


@pytest.fixture(scope="module")
def pooled_in(tokenizer):
    """Return a function of a dtype that returns what `pooled` does, of one run each.

    The model is the bundled one, with its first and its last layer only.
    """

    @cache
    def run(dtype):
        module = attnviz.load(dtype=dtype).module
        del module.encoder.layer[1:5]
        module.config.num_hidden_layers = 2
        two_layers = attnviz.load(module, tokenizer=tokenizer)
        how = {"model": two_layers, "layers": [0, 1], "cells": 20, "top": 3}
        report = attnviz.attend(LONG, **how).agreement
        assert report.verdict == "verified"
        return how, report

    return run


@pytest.fixture(params=[None, "bfloat16"])
def pooled(request, pooled_in):
    """Return the streaming options and the report of the fault-free run, which is verified."""
    return pooled_in(request.param)


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(fault, pooled, monkeypatch):
    how, _ = pooled
    FAULTS[fault](monkeypatch)
    report = attnviz.attend(LONG, **how).agreement
    assert report.verdict == "failed"
    assert report.first_difference.stage in ("summary", "attention vectors")


def handed_on(**changes):
    """Plant changed tensors in the records of all attentions."""

    def plant(monkeypatch):
        def changed(**fields):
            changed = {name: change(fields[name]) for name, change in changes.items()}
            return AttentionRecord(**fields | changed)

        monkeypatch.setattr("attnviz.capture.capture.AttentionRecord", changed)

    return plant


def sampled(change):
    """Plant a change of the rows that the model's eager function computes."""

    def plant(monkeypatch):
        call_eager = AttentionCallArgs.call_eager
        monkeypatch.setattr(
            AttentionCallArgs, "call_eager", lambda self, rows: call_eager(self, change(rows))
        )

    return plant


# What is wrong in every layer is no known projection: the next stage shows it.
RUN_FAULTS = {
    "queries of another head": (handed_on(query=lambda Q: Q.flip(0)), "scores"),
    "keys one position off": (handed_on(key=lambda K: K.roll(1, 1)), "scores"),
    "values one position off": (handed_on(value=lambda V: V.roll(1, 1)), "head output"),
    "sampled rows in another order": (sampled(lambda rows: rows.flip(0)), "scores"),
    "one sampled row of another query": (
        sampled(lambda rows: torch.cat([rows[:-1], rows[:1]])),
        "scores",
    ),
}


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("fault", RUN_FAULTS)
def test_a_fault_planted_in_the_run_is_caught(fault, pooled, monkeypatch):
    how, _ = pooled
    monkeypatch.setattr(pipeline, "_SAMPLED_WEIGHTS", 1)  # the fewest rows are enough
    plant, stage = RUN_FAULTS[fault]
    plant(monkeypatch)
    report = attnviz.attend(LONG, **how).agreement
    assert report.verdict == "failed"
    assert report.first_difference.stage == stage


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("side", ["the model's output", "our map"])
def test_a_fault_in_one_row_that_is_not_sampled_is_caught(side, pooled, monkeypatch):
    """Every row is compared with the model's output, not only those that are sampled."""
    how, honest = pooled
    monkeypatch.setattr(pipeline, "_SAMPLED_WEIGHTS", 1)
    _, length = honest.rows
    row = min(set(range(length)) - {*pipeline.sampled_rows(length, 12).tolist()})
    if side == "our map":

        def change(scoring):
            query = scoring.query.clone()
            query[:, row] = query[:, row + 1]
            return replace(scoring, query=query)

        reduced(scoring=change)(monkeypatch)
    else:
        output = AttentionCallArgs.output

        def change(self):
            hidden = output(self).clone()
            hidden[:, row] = hidden[:, row + 1]
            return hidden

        monkeypatch.setattr(AttentionCallArgs, "output", change)
    report = attnviz.attend(LONG, **how).agreement
    assert report.verdict == "failed"
    assert report.first_difference.stage == "attention vectors"


@pytest.mark.parametrize("family", ["gemma2", "gpt-oss", "llama", "mistral"])
def test_a_rule_off_by_one_is_caught_in_every_kind_of_model(family, tokenizer, monkeypatch):
    """Also for models without fast attention, whose eager function runs as a whole."""
    model = attnviz.load(tiny(family), tokenizer=tokenizer)
    of = streamed._StreamedRun._rule_of

    def later(self, called):
        rule = of(self, called)
        return replace(rule, after=rule.after + 1)

    monkeypatch.setattr(streamed._StreamedRun, "_rule_of", later)
    assert attnviz.verify(TEXTS[0], model=model, mode="streamed").verdict == "failed"


def compare(scoring):
    """Reduce a map in the current tiling; raise if it differs from the full map."""
    check(attend(scoring, cells=7, top=3)[1], whole(scoring))


def expect_detected(monkeypatch, owner, name, fault, scoring):
    """Plant a fault and check that the comparison fails."""
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fault)
        with pytest.raises(AssertionError):
            compare(scoring)


def test_planted_faults_in_the_reference_are_detected(monkeypatch):
    """Blocks without their last key, scores without their mask, cells that are too small."""
    torch.manual_seed(0)
    use_reference(monkeypatch, 100)
    Q, K = torch.randn(2, 60, 8), torch.randn(2, 60, 8)
    scoring = ScoreSpec(Q, K, 0.5, MaskRule(before=20, after=3))
    compare(scoring)
    columns, cell_sizes = ScoreSpec.columns, reference.cell_sizes

    def one_less(self, rows):
        whole_block = columns(self, rows)
        return slice(whole_block.start, whole_block.stop - 1)

    def nothing_hidden(self, i, j):
        return (i[:, None] < 0) & (j < 0)

    def without_the_last(*length_and_cell):
        sizes = cell_sizes(*length_and_cell)
        sizes[-1] -= 1
        return sizes

    for room, name, fault in (
        (ScoreSpec, "columns", one_less),
        (MaskRule, "hidden_at", nothing_hidden),
        (reference, "cell_sizes", without_the_last),
    ):
        expect_detected(monkeypatch, room, name, fault, scoring)


def test_planted_faults_around_the_loops_are_detected(monkeypatch):
    """A boundary or position off by one, sums off by 1 %, and underflowed sums."""
    torch.manual_seed(0)
    use_loops(monkeypatch, 7, 500)
    Q, K = torch.randn(2, 60, 8), torch.randn(2, 60, 8)
    mild = ScoreSpec(Q, K, 0.5, MaskRule(before=20, after=3))
    compare(mild)
    low = ScoreSpec(Q, K, 0.5, bias=torch.full((1, 60, 60), -85.0))
    compare(low)  # some exponentials are 0 in float32

    def with_other(name, number, change):
        """Return the loop with one of its arguments changed."""
        loop = getattr(numba_kernels, name)

        def changed(*arguments):
            other = list(arguments)
            other[number] = change(other[number])
            return loop(*other)

        return numba_kernels, name, changed

    def later(position):
        return position + 1

    for (room, name, fault), scoring in (
        (with_other("hide", 4, later), mild),  # keys after the query's visible range
        (with_other("weigh", 2, later), mild),  # the position of a row
        (with_other("pool", 2, later), mild),
        (with_other("pool", 4, lambda total: total * 1.01), mild),
        (with_other("unpack", 2, lambda total: total * 1.01), mild),
        (with_other("finish", 0, lambda sums: sums * 1.01), mild),
        ((numba_kernels, "divide", lambda *_: True), mild),
        ((_RowBlock, "_divide", ignore_failure(_RowBlock._divide)), low),
    ):
        expect_detected(monkeypatch, room, name, fault, scoring)


def ignore_failure(divide):
    """Return a division that ignores its own failure."""

    def trusting(self, *given):
        divide(self, *given)
        return True

    return trusting
