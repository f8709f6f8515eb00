"""What is kept of a streamed text is what its whole maps say, in every family, and it is proven."""

import threading

import pytest
import torch
import transformers
from families import FAMILIES, FURTHER, TEXTS, tiny
from torch.testing import assert_close

import attnviz
from attnviz.capture import streamed
from attnviz.errors import InputError, ModelError

NEAR = {"atol": 1e-5, "rtol": 1e-4}
_llama4 = {
    **{"hidden_size": 48, "intermediate_size": 64, "intermediate_size_mlp": 64, "moe_layers": []},
    **{"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
    **{"vocab_size": 30522, "attention_chunk_size": 8, "interleave_moe_layer_step": 5},
}
LONG = "the train left the station on time and nobody noticed that it was early. " * 12


@pytest.mark.parametrize("family", [*FAMILIES, *FURTHER])
def test_every_family(family, tokenizer):
    model = attnviz.load(tiny(family), tokenizer=tokenizer)
    whole = attnviz.attend(TEXTS[0], model=model)
    every = [record.layer for record in whole]
    found = attnviz.attend(TEXTS[0], model=model, mode="streamed", layers=every, top=2)
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


def test_exact_parts_of_one_layer_beside_the_maps_of_all(model):
    found = attnviz.attend(LONG, model=model, mode="streamed", exact=2)
    assert found.layers == (0, 1, 2, 3, 4, 5)
    assert [kept.record is not None for kept in found.streamed] == [False] * 2 + [True] + [
        False
    ] * 3
    whole = attnviz.attend(LONG, model=model, mode="full").weights(2, 3)[20:30, 5:25]
    part = found.layer(2).crop(3, slice(20, 30), slice(5, 25))
    assert_close(part, whole, **NEAR)
    with pytest.raises(InputError, match=r"exact=\[4\]"):
        found.layer(4).crop(3, slice(20, 30), slice(5, 25))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"exact": 6}, "Expected a layer from 0 to 5, got 6"),
        ({"exact": [1], "layers": [0, 2]}, "Expected exact layers among those that are kept, 0, 2"),
        ({"exact": []}, "Expected a layer"),
    ],
)
def test_exact_layers_that_there_are_not(model, asked, said):
    with pytest.raises(InputError, match=said):
        attnviz.attend(LONG, model=model, mode="streamed", **asked)


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
    assert "one row of cells" in found.agreement.summary()
    for kept in found.streamed:
        P = kept.record.weights(dtype=torch.float64)[[7, 2]]
        assert_close(P, whole.record(kept.layer).weights(dtype=torch.float64)[[7, 2]], **NEAR)
        assert kept.kept == (7, 2)
        assert_close(kept.summary.entropy.double(), -(P * P.log()).sum(-1), **NEAR)
        assert_close(kept.crop(2, slice(3, 9), slice(0, 5)).double(), P[1, 3:9, :5], **NEAR)


def test_a_long_text_is_streamed_by_itself_and_a_short_one_is_not(model, monkeypatch):
    monkeypatch.setattr("attnviz.pipeline.run._MOST_WHOLE_WEIGHTS", 100_000)
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


def test_an_attention_that_torch_fuses_by_itself_is_not_missed(tokenizer):
    module = tiny("bert")
    layer = module.bert.encoder.layer[1].attention.self

    def forward(hidden_states, attention_mask=None, **_):
        Q, K, V = (
            part(hidden_states).unflatten(-1, (4, 12)).transpose(1, 2)
            for part in (layer.query, layer.key, layer.value)
        )
        found = torch.nn.functional.scaled_dot_product_attention(Q, K, V)
        return found.transpose(1, 2).flatten(2), None

    layer.forward = forward
    model = attnviz.load(module, tokenizer=tokenizer)
    with pytest.raises(ModelError, match="computes some by itself"):
        attnviz.attend(TEXTS[0], model=model, mode="streamed")


def test_a_run_with_fewer_attentions_is_not_believed(model, monkeypatch):
    done = streamed._Streamer.on_call

    def skipped(self, args):
        if self.paths[args.module].startswith("encoder.layer.5."):
            return args.query.transpose(1, 2), None
        return done(self, args)

    monkeypatch.setattr(streamed._Streamer, "on_call", skipped)
    with pytest.raises(ModelError, match="same attentions in every run"):
        attnviz.attend(TEXTS[0], model=model, mode="streamed")


def test_chunked_attention_stands_where_it_does_in_whole_maps(tokenizer):
    config = transformers.Llama4TextConfig(**_llama4)
    model = attnviz.load(transformers.Llama4ForCausalLM(config), tokenizer=tokenizer)
    kept = attnviz.attend(LONG[:200], model=model, mode="streamed").streamed
    whole = attnviz.attend(LONG[:200], model=model).records
    assert [(each.stack, each.layer) for each in kept] == [(r.stack, r.layer) for r in whole]


def test_another_model_may_run_beside(model, tokenizer):
    other, stop = tiny("llama"), threading.Event()
    ids, errors = torch.ones(1, 5, dtype=torch.long), []

    def keep_running():
        while not stop.is_set():
            try:
                other(ids)
            except Exception as error:
                errors.append(error)
                return

    beside = threading.Thread(target=keep_running)
    beside.start()
    try:
        attnviz.attend(LONG, model=model, mode="streamed")
    finally:
        stop.set()
        beside.join()
    assert not errors


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision_is_verified(dtype):
    low = attnviz.load(dtype=dtype)
    assert attnviz.verify(LONG, model=low, mode="streamed").verdict == "verified"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"mode": "fast"}, "auto, full or streamed"),
        ({"layers": [9]}, "a layer from 0 to 5"),
        ({"layers": []}, "a layer, counted from 0"),
        ({"layers": [-1]}, "a layer from 0 to 5"),
        ({"heads": [12]}, "a head from 0 to 11"),
        ({"heads": "zzz"}, "a head, or a list"),
        ({"cells": 0}, "cells to be 1 or more"),
        ({"top": -1}, "top to be from 0"),
        ({"mode": "full", "top": 3}, "for a streamed text only"),
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
        lambda: attnviz.steps(found, layer=2, head=0),
        lambda: found.weights(2, 0),
    ):
        with pytest.raises(InputError, match="only summaries were kept"):
            need()
    with pytest.raises(InputError, match="layers that were kept, 2"):
        found.layer(1)
    with pytest.raises(InputError, match="special tokens to be kept"):
        attnviz.attention_map(found, layer=2, head=0, special="remove")
    with pytest.raises(InputError, match="rows from 0 to"):
        attnviz.attention_map(found, layer=2, head=0, rows=slice(5, 2))
