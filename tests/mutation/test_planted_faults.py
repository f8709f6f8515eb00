"""Faults that are not in the table, and the verdict in undecidable cases."""

from dataclasses import replace

import pytest
import torch
from families import TEXTS, tiny
from faults_of_formula import output_of_one_head_two_per_cent_off
from faults_of_projections import wrong_heads_values
from faults_of_scores import hiding
from planting import DTYPES, LAYER, Fault, expect_caught, verify
from transformers import AlbertModel, BertModel, ElectraModel

import attnviz
from attnviz.capture.capture import capture
from attnviz.formula.attention import repeat_heads
from attnviz.inputs.batch import encode
from attnviz.results import AttentionRecord, projection


def of_the_token_before(values, heads):
    return repeat_heads(values, heads).roll(1, 1)


def of_the_next_head(values, heads):
    return repeat_heads(values, heads).roll(1, 0)


def of_heads_in_turn(values, heads):  # h mod G instead of h // (H / G)
    return values.repeat(heads // len(values), 1, 1)


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("family", "wrong", "heads"),
    [
        ("bert", of_the_token_before, {0, 1, 2, 3}),
        ("gpt2", of_the_token_before, {0, 1, 2, 3}),
        ("bert", of_the_next_head, {0, 1, 2, 3}),
        ("llama", of_the_next_head, {0, 2}),
        ("llama", of_heads_in_turn, {1, 2}),
        ("qwen3", of_heads_in_turn, {1, 2}),
    ],
)
def test_weights_that_mix_other_values_are_caught(
    family, wrong, heads, dtype, captured, honest, monkeypatch
):
    proofs = honest(family, dtype)
    fault = Fault(wrong, (family,), {"head output"}, heads)

    def mix(record, weights):
        return weights @ wrong(record.value.to(weights), record.heads)

    monkeypatch.setattr(AttentionRecord, "mix", mix)
    for each, of_text in zip(captured(family, dtype), proofs, strict=True):
        expect_caught(fault, each, of_text, LAYER, each.records[LAYER])


@pytest.mark.parametrize("dtype", DTYPES)
def test_only_the_faulty_head_is_named(dtype, captured):
    for each in captured("bert", dtype):
        records = list(each.records)
        value = records[LAYER].value.clone()
        value[2] = value[2].flip(-1)
        records[LAYER] = replace(records[LAYER], value=value)
        assert verify(records, each.references).first_difference.failed_heads == (2,)


@pytest.mark.parametrize("family", ["bert", "llama", "minilm"])
def test_the_head_that_adds_too_much_to_the_output_is_named(family, captured):
    for each in captured(family, torch.bfloat16):
        records = list(each.records)
        records[LAYER] = output_of_one_head_two_per_cent_off(records[LAYER])
        report = verify(records, each.references)
        first = report.first_difference
        assert (first.layer, first.stage) == (LAYER, "output")
        assert first.strain < 1  # the sum of all heads does not show it
        assert first.slope_errors[2] == pytest.approx(-0.02, rel=0.1)
        assert "the slope of what head 2 adds is off by -" in report.summary()


def test_a_mask_that_leaves_nothing_to_compare_proves_nothing(captured):
    each = captured("bert", torch.float32)[0]
    records = list(each.records)
    records[LAYER] = hiding(records[LAYER], torch.ones(1, dtype=torch.bool))
    report = verify(records, each.references)
    assert report.verdict == "not proven"
    assert report.unproven == ("encoder layer 1",)


def test_nan_never_agrees(captured):
    for each in captured("bert", torch.float32):
        records = list(each.records)
        broken = records[LAYER].value.clone()
        broken[3, 0, 0] = torch.nan
        records[LAYER] = replace(records[LAYER], value=broken)
        first = verify(records, each.references).first_difference
        assert (first.stage, first.failed_heads, first.finite) == ("value", (3,), False)


def test_attention_too_flat_to_show_a_wrong_scale_is_not_proven(captured):
    each = captured("bert", torch.float32)[0]
    flat = [
        replace(record, query=torch.zeros_like(record.query), projection=None, input=None)
        for record in each.records
    ]
    uniform = [
        replace(
            reference,
            weights=projection.recompute(record)["weights"].float(),
            scores=torch.zeros_like(reference.weights),
            head_output=None,
        )
        for record, reference in zip(flat, each.references, strict=True)
    ]
    report = verify(flat, uniform)
    assert report.verdict == "not proven"
    assert report.unproven == tuple(f"encoder layer {layer}" for layer in range(3))
    assert "NOT PROVEN" in report.summary()


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_small_values_are_compared_as_finely_as_large_ones(family, dtype, tokenizer):
    module = tiny(family, dtype)
    for name, parameter in module.named_parameters():
        if ".value." in name or ".v_proj." in name:
            parameter.detach().mul_(0.01)
    model = attnviz.load(module, tokenizer=tokenizer)
    batch = encode(model.checkpoint, [TEXTS[0]])
    (each,) = capture(model.module, batch.inputs, batch.axes)
    assert verify(each.records, each.references).verdict == "verified"
    records = list(each.records)
    records[LAYER] = wrong_heads_values(records[LAYER])
    assert verify(records, each.references).first_difference.stage == "value"


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("model_class", [AlbertModel, ElectraModel, BertModel])
def test_flat_attention_is_never_reported_as_different(model_class, dtype, tokenizer):
    # With the library's initialization, scores have a standard deviation of 0.025 and rounding
    # dominates.
    config = model_class.config_class(
        vocab_size=30522, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, embedding_size=16,
    )  # fmt: skip
    for seed in range(4):
        torch.manual_seed(seed)
        model = attnviz.load(model_class(config).to(dtype), tokenizer=tokenizer)
        assert model.attend(TEXTS[0]).agreement.first_difference is None


def test_the_drawn_map_is_the_verified_map(model, monkeypatch):
    weights = AttentionRecord.weights

    def of_the_next_head(self, head=None, *args, **kwargs):
        found = weights(self, head, *args, **kwargs)
        return found.roll(1, 0) if head is None else found

    monkeypatch.setattr(AttentionRecord, "weights", of_the_next_head)
    assert model.attend(TEXTS[2]).agreement.verdict == "failed"
