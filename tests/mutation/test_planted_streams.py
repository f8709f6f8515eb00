"""Faults in maps that are reduced as a long text is read: in the run, in what is kept, in tiles."""

from dataclasses import replace

import pytest
import torch
from families import TEXTS, tiny
from whole_maps import check, use_loops, use_tiles, whole

import attnviz
from attnviz.capture import attention_interface, streamed
from attnviz.results.attention_record import MaskRule
from attnviz.streaming import ScoreSpec, numba_kernels, summarise, tiled
from attnviz.streaming.cpu import _RowBlock

LONG = "the train left the station on time and nobody noticed that it was early. " * 12


def scoring_of(change):
    """Have our attention compute from something else than it was given."""

    def plant(monkeypatch):
        attend = streamed.attend
        monkeypatch.setattr(
            streamed, "attend", lambda scoring, value, **how: attend(change(scoring), value, **how)
        )

    return plant


def summary_of(change):
    """Have something else kept than what was computed."""

    def plant(monkeypatch):
        attend = streamed.attend

        def changed(scoring, value, **how):
            output, summary = attend(scoring, value, **how)
            return output, change(summary)

        monkeypatch.setattr(streamed, "attend", changed)

    return plant


def output_of(change):
    """Have the model go on with other attention vectors than were computed."""

    def plant(monkeypatch):
        attend = streamed.attend

        def changed(scoring, value, **how):
            output, summary = attend(scoring, value, **how)
            return change(output), summary

        monkeypatch.setattr(streamed, "attend", changed)

    return plant


FAULTS = {
    "scale 1 % off": scoring_of(lambda each: replace(each, scale=each.scale * 1.01)),
    "heads swapped": scoring_of(lambda each: replace(each, query=each.query.flip(0))),
    "causal": scoring_of(lambda each: replace(each, visible=replace(each.visible, after=0))),
    "last key lost": scoring_of(
        lambda each: replace(
            each,
            visible=replace(each.visible, keys=torch.arange(each.shape[2]) < each.shape[2] - 1),
        )
    ),
    "output of another row": output_of(lambda output: output.roll(1, 1)),
    "cells rolled": summary_of(lambda each: replace(each, mean=each.mean.roll(1, -1))),
    "largest halved": summary_of(lambda each: replace(each, largest=each.largest / 2)),
    "received shifted": summary_of(lambda each: replace(each, received=each.received.roll(5, -1))),
    "entropy in bits": summary_of(lambda each: replace(each, entropy=each.entropy * 1.4427)),
    "distance off by one": summary_of(lambda each: replace(each, distance=each.distance + 1)),
    "first of another": summary_of(lambda each: replace(each, first=each.itself)),
    "itself is previous": summary_of(lambda each: replace(each, itself=each.previous)),
    "vectors too short": output_of(lambda output: output * 0.95),
    "other top keys": summary_of(lambda each: replace(each, top_keys=each.top_keys.flip(1))),
    "other keys marked": summary_of(lambda each: replace(each, marked=1 - each.marked)),
    "sums of exponentials": summary_of(lambda each: replace(each, lse=each.lse + 0.01)),
    "all rows empty": summary_of(lambda each: replace(each, empty=torch.ones_like(each.empty))),
    "NaN": summary_of(lambda each: replace(each, entropy=each.entropy * torch.nan)),
}


@pytest.fixture(scope="module", params=[None, "bfloat16"])
def pooled(request, model):
    """How a text is streamed in which faults are planted, and without them verified."""
    loaded = model if request.param is None else attnviz.load(dtype=request.param)
    how = {"model": loaded, "layers": [0, 3, 5], "cells": 20, "top": 3}
    report = attnviz.attend(LONG, **how).agreement
    assert report.verdict == "verified"
    return how, report


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(fault, pooled, monkeypatch, tally):
    how, honest = pooled
    tally.fault("in streamed maps")
    tally.honest(honest.checks, honest.dtype)
    FAULTS[fault](monkeypatch)
    report = attnviz.attend(LONG, **how).agreement
    first = report.first_difference
    assert report.verdict == "failed"
    assert first.stage in ("summary", "second run", "attention vectors")
    tally.planted([first], report.dtype)


@pytest.mark.parametrize("family", ["gemma2", "gpt-oss", "llama", "mistral"])
def test_a_rule_off_by_one_is_caught_in_every_kind_of_model(family, tokenizer, monkeypatch, tally):
    """Also where the model has no fast attention, so that its own function runs as a whole."""
    tally.fault("in streamed maps")
    model = attnviz.load(tiny(family), tokenizer=tokenizer)
    of = attention_interface.MaskRuleCache.of

    def later(self, called):
        rule = of(self, called)
        return replace(rule, after=rule.after + 1)

    monkeypatch.setattr(attention_interface.MaskRuleCache, "of", later)
    assert attnviz.verify(TEXTS[0], model=model, mode="streamed").verdict == "failed"


def test_a_fault_in_what_is_reduced_is_seen(tally):
    """A rule off by one key, a scale 1 % off, a head that reads another's keys."""
    torch.manual_seed(0)
    Q, K = torch.randn(2, 60, 8), torch.randn(2, 60, 8)
    P = whole(ScoreSpec(Q, K, 0.5, MaskRule(after=0)))
    for fault in (
        ScoreSpec(Q, K, 0.5, MaskRule(after=1)),
        ScoreSpec(Q, K, 0.505, MaskRule(after=0)),
        ScoreSpec(Q, K.flip(0), 0.5, MaskRule(after=0)),
    ):
        tally.fault("in streamed maps")
        with pytest.raises(AssertionError):
            check(summarise(fault, cells=7), P)


def compare(scoring):
    """Reduce it as it is cut now; raise where that differs from the whole map."""
    check(summarise(scoring, cells=7, top=3), whole(scoring))


def expect_seen(monkeypatch, room, name, fault, scoring):
    """Plant a fault; the comparison must fail."""
    with monkeypatch.context() as patch:
        patch.setattr(room, name, fault)
        with pytest.raises(AssertionError):
            compare(scoring)


def test_planted_faults_in_the_tiles_are_seen(monkeypatch, tally):
    """A distance not corrected, chunks without their first key, chunks that were not searched."""
    torch.manual_seed(0)
    use_tiles(monkeypatch, 14, 10, 3)
    Q, K = torch.randn(2, 60, 8), torch.randn(2, 60, 8)
    scoring = ScoreSpec(Q, K, 0.5, MaskRule(before=20, after=3))
    compare(scoring)
    views, largest = tiled.ChunkMaxima.views, tiled.ChunkMaxima.largest

    def as_it_is(P, row_key, columns):
        return torch.zeros(())

    def without_the_first(*given):
        return [(S[:, :, :, S.shape[3] > 1 :], highest) for S, highest in views(*given)]

    def the_first_alone(*given):
        found, keys = largest(*given[:-1], 1)
        return found.expand(-1, -1, 3), keys.expand(-1, -1, 3)

    for room, name, fault in (
        (tiled, "_distance_correction", as_it_is),
        (tiled.ChunkMaxima, "views", without_the_first),
        (tiled.ChunkMaxima, "largest", the_first_alone),
    ):
        tally.fault("in streamed maps")
        expect_seen(monkeypatch, room, name, fault, scoring)


def test_planted_faults_around_the_loops_are_seen(monkeypatch, tally):
    """A border or a place off by one, sums 1 % off, and those that lost what they were made of."""
    torch.manual_seed(0)
    use_loops(monkeypatch, 7, 500)
    Q, K = torch.randn(2, 60, 8), torch.randn(2, 60, 8)
    mild = ScoreSpec(Q, K, 0.5, MaskRule(before=20, after=3))
    compare(mild)
    low = ScoreSpec(Q, K, 0.5, bias=torch.full((1, 60, 60), -85.0))
    compare(low)  # some of its powers are 0 in float32

    def with_other(name, number, change):
        """The same loop, given another of its arguments."""
        loop = getattr(numba_kernels, name)

        def changed(*given):
            other = list(given)
            other[number] = change(other[number])
            return loop(*other)

        return numba_kernels, name, changed

    def later(at):
        return at + 1

    for (room, name, fault), scoring in (
        (with_other("hide", 4, later), mild),  # the keys behind a row that it may read
        (with_other("weigh", 2, later), mild),  # where a row stands
        (with_other("pool", 2, later), mild),
        (with_other("pool", 4, lambda total: total * 1.01), mild),
        (with_other("unpack", 2, lambda total: total * 1.01), mild),
        (with_other("finish", 0, lambda sums: sums * 1.01), mild),
        ((numba_kernels, "divide", lambda *_: True), mild),
        ((_RowBlock, "_divide", first_alone(_RowBlock._divide)), low),
    ):
        tally.fault("in streamed maps")
        expect_seen(monkeypatch, room, name, fault, scoring)


def first_alone(divide):
    """The same, which trusts what it finds."""

    def trusting(self):
        divide(self)
        return True

    return trusting
