"""A check that cannot fail proves nothing: each planted fault is caught, and named."""

from dataclasses import replace

import pytest
import torch
from families import TEXTS, tiny
from transformers import AlbertModel, BertModel, ElectraModel

import attnviz
from attnviz import agreement, stages
from attnviz.capture import capture
from attnviz.inputs import encode
from attnviz.projection import rotary_angles
from attnviz.records import AttentionRecord, Norm

LAYER = 1  # where the fault is planted; the report must name it
DTYPES = [torch.float32, torch.bfloat16]


def scale_one_percent_off(record):
    return replace(record, scale=record.scale * 1.01)


def scale_left_out(record):
    return replace(record, scale=1.0)


def two_heads_swapped(record):
    order = [0, 2, 1, *range(3, record.heads)]
    key_order = order if record.key_heads == record.heads else slice(None)
    return replace(
        record,
        query=record.query[order],
        key=record.key[key_order],
        value=record.value[key_order],
    )


def mask_shifted_by_one(record):
    return replace(record, mask=record.mask.roll(1, -1))


def mask_left_out(record):
    return replace(record, mask=None)


def mask_only_minus_ten(record):
    return replace(record, mask=record.mask.clamp(min=-10))


def soft_cap_left_out(record):
    return replace(record, soft_cap=None)


def bias_left_out(record):
    return replace(record, bias=None)


def sinks_left_out(record):
    return replace(record, sinks=None)


def window_off_by_one(record):
    hidden = record.mask.min()
    last = record.mask.shape[-1] - 1
    rows = torch.arange(5, last)  # the key that just left the window of each query
    mask = record.mask.clone()
    assert (mask[:, rows, rows - 5] == hidden).all()
    mask[:, rows, rows - 5] = 0
    return replace(record, mask=mask)


def query_and_key_swapped(record):
    return replace(record, query=record.key, key=record.query)


def wrong_heads_values(record):
    return replace(record, value=record.value.roll(1, 0))


def wrong_rotary_base(record):
    positions = torch.arange(record.query.shape[1])
    cos, sin = rotary_angles(positions, record.query.shape[-1], base=500.0)
    return replace(record, rotation=(cos.to(record.query.dtype), sin.to(record.query.dtype)))


def query_bias_left_out(record):
    query = replace(record.projection.query, bias=None)
    return replace(record, projection=replace(record.projection, query=query))


def output_bias_left_out(record):
    output = replace(record.projection.output, bias=None)
    return replace(record, projection=replace(record.projection, output=output))


def without_step(record, kind):
    """Return the record with the steps of one kind left out of what makes its queries."""
    query = record.projection.query
    assert any(isinstance(step, kind) for step in query.after)
    steps = tuple(step for step in query.after if not isinstance(step, kind))
    return replace(record, projection=replace(record.projection, query=replace(query, after=steps)))


def query_norm_left_out(record):
    return without_step(record, Norm)


# fault, families, the stages of which one must be the first named, the heads that must be named
FAULTS = [
    (scale_one_percent_off, ("minilm", "bert", "gpt2", "llama"), {"scores", "weights"}, set()),
    (scale_left_out, ("minilm", "bert", "gpt2", "llama"), {"scores"}, {0, 1, 2, 3}),
    (two_heads_swapped, ("minilm", "bert", "gpt2", "llama"), {"query"}, {1, 2}),
    (
        mask_shifted_by_one,
        ("minilm", "bert", "gpt2", "mistral"),
        {"scores", "weights"},
        {0, 1, 2, 3},
    ),
    (mask_left_out, ("minilm", "bert", "gpt2", "mistral"), {"scores", "weights"}, {0, 1, 2, 3}),
    (mask_only_minus_ten, ("minilm", "bert", "gpt2", "llama"), {"scores", "weights"}, {0, 1, 2, 3}),
    (soft_cap_left_out, ("gemma2",), {"scores"}, {0, 1, 2, 3}),
    (bias_left_out, ("t5-encoder",), {"scores", "weights"}, set()),
    (sinks_left_out, ("gpt-oss",), {"scores", "weights"}, {0, 1, 2, 3}),
    (window_off_by_one, ("mistral",), {"scores"}, {0, 1, 2, 3}),
    (query_and_key_swapped, ("minilm", "bert", "gpt2"), {"query"}, {0, 1, 2, 3}),
    (wrong_heads_values, ("minilm", "bert", "gpt2", "llama"), {"value"}, {0, 1}),
    (wrong_rotary_base, ("llama", "qwen3"), {"query"}, {0, 1, 2, 3}),
    (query_bias_left_out, ("minilm", "bert", "gpt2", "qwen2"), {"query"}, {0, 1, 2, 3}),
    (query_norm_left_out, ("qwen3",), {"query"}, {0, 1, 2, 3}),
    (output_bias_left_out, ("minilm", "bert", "gpt2"), {"output"}, set()),
]
# The same in models whose attention is found among the operators.
OWN_CODE_FAULTS = [
    (scale_one_percent_off, ("bloom", "falcon", "mpnet", "gpt-j"), {"scores", "weights"}, set()),
    (bias_left_out, ("mpt", "bloom", "mpnet", "deberta-v2"), {"scores", "weights"}, set()),
    (mask_left_out, ("mpnet", "falcon"), {"scores", "weights"}, {0, 1, 2, 3}),
    (window_off_by_one, ("gpt-neo",), {"scores"}, {0, 1, 2, 3}),
    (two_heads_swapped, ("bloom", "roformer"), {"query"}, {1, 2}),
]
CASES = [
    pytest.param(fault, family, dtype, named, heads, id=f"{fault.__name__}-{family}-{dtype}")
    for fault, families, named, heads in FAULTS + OWN_CODE_FAULTS
    for family in families
    for dtype in DTYPES
]


def verify(records, references):
    return agreement.verify(records, references, versions={}, weights_sha256="")


@pytest.mark.parametrize(("fault", "family", "dtype", "named", "heads"), CASES)
def test_each_planted_fault_is_caught_and_named(fault, family, dtype, named, heads, captured):
    caught = 0
    for each in captured(family, dtype):
        assert verify(each.records, each.references).verdict == "verified"
        records = list(each.records)
        records[LAYER] = fault(records[LAYER])
        report = verify(records, each.references)
        if fault in (mask_left_out, mask_shifted_by_one, mask_only_minus_ten) and not _padded(each):
            continue  # without padding, a bidirectional mask hides nothing
        first = report.first_difference
        assert report.verdict == "failed"
        assert first.layer == LAYER
        assert first.stage in named
        assert heads <= set(first.failed_heads)
        assert f"layer {LAYER}, {first.stage}" in report.summary()
        caught += 1
    assert caught


def _padded(capture):
    return any(capture.records[LAYER].key_axis.padding)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_wrong_grouping_of_queries_is_caught(family, dtype, captured, monkeypatch):
    def interleaved(heads, count):  # head h reads key head h mod G, where h // (H / G) is right
        return heads.repeat(count // heads.shape[0], 1, 1)

    monkeypatch.setattr("attnviz.records.attention.repeat_heads", interleaved)
    for each in captured(family, dtype):
        first = verify(each.records, each.references).first_difference
        assert (first.layer, first.stage) == (0, "scores")
        assert first.failed_heads == (1, 2)  # heads 0 and 3 read the right key head either way


@pytest.mark.parametrize("dtype", DTYPES)
def test_only_the_head_at_fault_is_named(dtype, captured):
    for each in captured("bert", dtype):
        records = list(each.records)
        value = records[LAYER].value.clone()
        value[2] = value[2].flip(-1)
        records[LAYER] = replace(records[LAYER], value=value)
        assert verify(records, each.references).first_difference.failed_heads == (2,)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bias_of_the_keys_moves_keys_and_scores_but_no_weight(dtype, captured):
    # softmax does not see what is added to a whole row, so this is the one fault that only the
    # key stage can show.
    for each in captured("bert", dtype):
        records = list(each.records)
        projection = records[LAYER].projection
        without = replace(projection, key=replace(projection.key, bias=None))
        records[LAYER] = replace(records[LAYER], projection=without)
        report = verify(records, each.references)
        assert [check.stage for check in report.checks if not check.passed] == ["key"]


def test_numbers_that_are_no_numbers_never_agree(captured):
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
            weights=stages.recompute(record)["weights"].float(),
            scores=torch.zeros_like(reference.weights),
            head_output=None,
        )
        for record, reference in zip(flat, each.references, strict=True)
    ]
    report = verify(flat, uniform)
    assert report.verdict == "not proven"
    assert report.unproven == tuple(f"encoder layer {layer}" for layer in range(3))
    assert "NOT PROVEN" in report.summary()


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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("part", ["query", "key", "value"])
def test_a_projection_two_per_cent_off_is_caught(part, dtype, captured):
    for each in captured("minilm", dtype):
        records = list(each.records)
        projection = records[LAYER].projection
        matrix = getattr(projection, part)
        bias = matrix.bias * 1.02
        wrong = replace(
            projection, **{part: replace(matrix, weight=matrix.weight * 1.02, bias=bias)}
        )
        records[LAYER] = replace(records[LAYER], projection=wrong)
        first = verify(records, each.references).first_difference
        assert (first.layer, first.stage) == (LAYER, part)
        assert len(first.failed_heads) == 12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("model_class", [AlbertModel, ElectraModel, BertModel])
def test_flat_attention_is_never_said_to_differ(model_class, dtype, tokenizer):
    # As the library initialises them: scores deviate by 0.025, and rounding is all there is.
    config = model_class.config_class(
        vocab_size=30522, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, embedding_size=16,
    )  # fmt: skip
    for seed in range(4):
        torch.manual_seed(seed)
        model = attnviz.load(model_class(config).to(dtype), tokenizer=tokenizer)
        assert model.attend(TEXTS[0]).agreement.first_difference is None


def test_the_map_that_is_drawn_is_the_map_that_is_proven(model, monkeypatch):
    weights = AttentionRecord.weights

    def of_the_next_head(self, head=None, *args, **kwargs):
        found = weights(self, head, *args, **kwargs)
        return found.roll(1, 0) if head is None else found

    monkeypatch.setattr(AttentionRecord, "weights", of_the_next_head)
    assert model.attend(TEXTS[2]).agreement.verdict == "failed"
