"""What is kept of a streamed text is what its whole maps say, in every family, and it is proven."""

from dataclasses import replace

import pytest
import torch
from families import FAMILIES, FURTHER, TEXTS, tiny
from torch.testing import assert_close

import attnviz
from attnviz.capture import streamed
from attnviz.errors import InputError, ModelError

NEAR = {"atol": 1e-5, "rtol": 1e-4}
LONG = "the train left the station on time and nobody noticed that it was early. " * 12


@pytest.mark.parametrize("family", [*FAMILIES, *FURTHER])
def test_every_family(family, tokenizer):
    model = attnviz.load(tiny(family), tokenizer=tokenizer)
    whole = attnviz.attend(TEXTS[0], model=model)
    every = [record.layer for record in whole]
    try:
        found = attnviz.attend(TEXTS[0], model=model, mode="streamed", layers=every, top=2)
    except ModelError as error:
        if "mode=" not in str(error):
            raise
        pytest.skip(f"refused: {error}")
    assert found.agreement.verdict == "verified", found.agreement.summary()
    assert len(found.streamed) == len(whole.records)
    for kept, record in zip(found.streamed, whole, strict=True):
        assert (kept.path, kept.layer, kept.stack) == (record.path, record.layer, record.stack)
        P = kept.record.weights(dtype=torch.float64)
        # Another run rounds in another order.
        assert_close(P, record.weights(dtype=torch.float64), atol=1e-3, rtol=1e-3)
        assert_close(kept.summary.received.double(), P.sum(1), **NEAR)
        assert_close(kept.summary.mean.double(), P, **NEAR)
        assert_close(kept.summary.top_weights.double(), P.topk(2).values, **NEAR)


@pytest.mark.parametrize("family", ["bloom", "mpt", "deberta", "longformer", "reformer"])
def test_attention_that_nobody_shows_is_refused(family, tokenizer):
    model = attnviz.load(tiny(family), tokenizer=tokenizer)
    with pytest.raises(ModelError, match='mode="full"'):
        attnviz.attend(TEXTS[0], model=model, mode="streamed")


def test_a_long_text_of_the_model_that_comes_along(model):
    whole = attnviz.attend(LONG, model=model)
    found = attnviz.attend(LONG, model=model, mode="streamed", layers=[0, 4], heads=[7, 2], top=3)
    assert found.layers == (0, 4)
    assert found.agreement.rows is not None
    assert found.agreement.rows[0] < found.agreement.rows[1]
    assert "in one row of cells" in found.agreement.summary()
    for kept in found.streamed:
        P = kept.record.weights(dtype=torch.float64)[[7, 2]]
        assert_close(P, whole.record(kept.layer).weights(dtype=torch.float64)[[7, 2]], **NEAR)
        assert kept.kept == (7, 2)
        assert_close(kept.summary.entropy.double(), -(P * P.log()).sum(-1), **NEAR)
        assert_close(kept.crop(2, slice(3, 9), slice(0, 5)).double(), P[1, 3:9, :5], **NEAR)


def test_a_long_text_is_streamed_by_itself_and_a_short_one_is_not(model, monkeypatch):
    monkeypatch.setattr("attnviz.models.running._WHOLE", 10_000)
    short, long = (attnviz.attend(text, model=model) for text in (TEXTS[2], LONG))
    assert (len(short.streamed), len(short.records)) == (0, 6)
    assert (len(long.streamed), len(long.records)) == (6, 0)
    assert attnviz.attend(LONG, model=model, mode="full").records


def test_the_model_is_left_as_it_was(model):
    module = model.module
    hooks = [len(each._forward_hooks) + len(each._forward_pre_hooks) for each in module.modules()]
    before = module.config._attn_implementation
    attnviz.attend(TEXTS[0], model=model, mode="streamed")
    assert module.config._attn_implementation == before
    after = [len(each._forward_hooks) + len(each._forward_pre_hooks) for each in module.modules()]
    assert after == hooks


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


def output_rolled(monkeypatch):
    attend = streamed.attend

    def changed(scoring, value, **how):
        output, summary = attend(scoring, value, **how)
        return output.roll(1, 1), summary

    monkeypatch.setattr(streamed, "attend", changed)


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
    "output of another row": output_rolled,
    "cells rolled": summary_of(lambda each: replace(each, mean=each.mean.roll(1, -1))),
    "largest halved": summary_of(lambda each: replace(each, largest=each.largest / 2)),
    "received shifted": summary_of(lambda each: replace(each, received=each.received.roll(5, -1))),
    "entropy in bits": summary_of(lambda each: replace(each, entropy=each.entropy * 1.4427)),
    "distance off by one": summary_of(lambda each: replace(each, distance=each.distance + 1)),
    "first of another": summary_of(lambda each: replace(each, first=each.itself)),
    "itself is previous": summary_of(lambda each: replace(each, itself=each.previous)),
    "NaN": summary_of(lambda each: replace(each, entropy=each.entropy * torch.nan)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(fault, model, monkeypatch):
    assert attnviz.verify(LONG, model=model, mode="streamed").verdict == "verified"
    FAULTS[fault](monkeypatch)
    report = attnviz.verify(LONG, model=model, mode="streamed")
    assert report.verdict == "failed"
    assert report.first_difference.stage in ("summary", "second run")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision_is_verified(dtype):
    low = attnviz.load(dtype=dtype)
    assert attnviz.verify(LONG, model=low, mode="streamed").verdict == "verified"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"mode": "fast"}, "auto, full or streamed"),
        ({"layers": [9]}, "a layer from 0 to 5"),
        ({"heads": [12]}, "a head from 0 to 11"),
        ({"cells": 0}, "one cell or more"),
        ({"top": -1}, "one cell or more"),
        ({"generate": 3}, "mode"),
    ],
)
def test_what_cannot_be_streamed_is_refused(wrong, said, model):
    with pytest.raises(InputError, match=said):
        attnviz.attend(LONG, **{"model": model, "mode": "streamed"} | wrong)


def test_what_needs_whole_maps_says_so(model):
    found = attnviz.attend(LONG, model=model, mode="streamed", layers=[2])
    for need in (
        lambda: attnviz.find_heads(found, query="train", key="station"),
        lambda: attnviz.make_steps(found, layer=2, head=0),
        lambda: found.weights(2, 0),
    ):
        with pytest.raises(InputError, match="only summaries were kept"):
            need()
    with pytest.raises(InputError, match="layers that were kept, 2"):
        found.layer(1)
    with pytest.raises(InputError, match="special tokens to be kept"):
        attnviz.make_map(found, layer=2, head=0, special="remove")
    with pytest.raises(InputError, match="rows from 0 to"):
        attnviz.make_map(found, layer=2, head=0, rows=slice(5, 2))
