"""Every stage agrees in every family, in every precision, for one text and for a padded batch."""

import pytest
import torch
import transformers
from families import FAMILIES, FURTHER, STAGES, TARGETS, TEXTS, TWO_SIDED, tiny
from packaging.version import Version
from torch.testing import assert_close

import attnviz

# Before, the sdpa of transformers left out the cap of the scores, which a verdict says.
CAPS_IN_EAGER = Version(transformers.__version__) < Version("5.23")
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
CASES = [
    (family, dtype)
    for families, dtypes in ((FAMILIES, DTYPES), (FURTHER, DTYPES[::2]))
    for family, (name, _) in families.items()
    for dtype in dtypes
    if hasattr(transformers, name)  # not in the lowest release of all
]


@pytest.mark.pairs(each=1)  # each family in one dtype, in turn
@pytest.mark.parametrize(("family", "dtype"), CASES, ids=str)
def test_every_stage_of_every_head_agrees(family, dtype, tokenizer):
    module = tiny(family, dtype, shallow=True)
    if CAPS_IN_EAGER and getattr(module.config, "attn_logit_softcapping", None):
        module.set_attn_implementation("eager")
    model = attnviz.load(module, tokenizer=tokenizer)
    texts = TEXTS[1:] if family in FAMILIES else TEXTS[1:2]  # others are padded in test_padding.py
    for result in model.attend(texts):
        agreement = result.agreement
        assert agreement.verdict == "verified", agreement.summary()
        assert agreement.not_compared == ()
        assert agreement.heads == 4 * len(result)
        assert [check.stage for check in agreement.checks] == [*STAGES] * len(result)
        for record in result:
            assert _spread(record) > 0.5, "attention this flat would hide a fault"


# One of each kind of attention; every other model is compared with its own weights when verified.
KINDS = ("bert", "gpt2", "llama", "mistral", "gemma2", "gpt-oss", "t5-encoder")


@pytest.mark.parametrize("family", KINDS)
def test_records_give_the_weights_that_the_model_returns(family, tokenizer):
    module = tiny(family)
    model = attnviz.load(module, tokenizer=tokenizer)
    result = model.attend(TEXTS[0])
    module.set_attn_implementation("eager")
    with torch.no_grad():
        inputs = tokenizer(TEXTS[0], return_tensors="pt", return_token_type_ids=family == "bert")
        reported = module(**inputs, output_attentions=True).attentions
    for record, weights in zip(result, reported, strict=True):
        assert_close(record.weights(), weights[0], rtol=0, atol=2e-6)
        assert_close(record.weights(2), weights[0, 2], rtol=0, atol=2e-6)
        assert_close(record.weights(rows=slice(3, 5)), weights[0, :, 3:5], rtol=0, atol=2e-6)


def test_grouped_queries_are_recorded_as_such(tokenizer):
    record = attnviz.load(tiny("llama"), tokenizer=tokenizer).attend(TEXTS[2]).record(0)
    assert (record.heads, record.key_heads) == (4, 2)


def _spread(record):
    """Return the standard deviation of the visible scores around the mean of their row."""
    logs = record.weights().clamp(min=1e-30).log()[:, ~torch.tensor(record.query_axis.padding)]
    visible = logs > -40
    mean = (logs * visible).sum(-1, keepdim=True) / visible.sum(-1, keepdim=True)
    return (logs - mean)[visible].std().item()


# --- encoder, decoder and cross-attention


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", TWO_SIDED)
def test_every_stage_of_every_stack_agrees(family, dtype, tokenizer):
    model = attnviz.load(tiny(family, dtype), tokenizer=tokenizer)
    for result in model.attend(TEXTS[1:], target=TARGETS[1:]):
        assert result.stacks == ("encoder", "decoder", "cross")
        assert result.agreement.verdict == "verified", result.agreement.summary()
        assert result.agreement.heads == 3 * 2 * 4
        assert [check.stage for check in result.agreement.checks] == [*STAGES] * 6


@pytest.mark.parametrize("family", ["t5", "bart"])  # whose attention code the others share
def test_each_stack_matches_the_models_attentions(family, tokenizer):
    module = tiny(family)
    model = attnviz.load(module, tokenizer=tokenizer)
    result = model.attend(TEXTS[0], target=TARGETS[0])
    for part in module.modules():  # older releases do not pass it on
        if hasattr(part, "set_attn_implementation"):
            part.set_attn_implementation("eager")
    inputs = tokenizer(TEXTS[0], return_tensors="pt", return_token_type_ids=False)
    target = tokenizer(TARGETS[0], return_tensors="pt").input_ids
    start = torch.tensor([[module.config.decoder_start_token_id]])
    inputs["decoder_input_ids"] = torch.cat([start, target[:, :-1]], 1)
    with torch.no_grad():
        outputs = module(**inputs, output_attentions=True)
    for stack, reported in (
        ("encoder", outputs.encoder_attentions),
        ("decoder", outputs.decoder_attentions),
        ("cross", outputs.cross_attentions),
    ):
        for record, weights in zip(result.stack(stack), reported, strict=True):
            assert_close(record.weights(), weights[0], rtol=0, atol=2e-6)


def test_the_axes_are_what_the_decoder_and_the_encoder_read(tokenizer):
    result = attnviz.load(tiny("bart"), tokenizer=tokenizer).attend("a train", target="un train")
    cross = result.stack().record(0)
    assert cross.stack == "cross"
    # The decoder reads its start token first, and never reads the last target word.
    start = tokenizer.convert_ids_to_tokens(2)
    assert cross.query_axis.labels == (start, "[CLS]", "un", "train")
    assert cross.key_axis.labels == ("[CLS]", "a", "train", "[SEP]")
    drawn = attnviz.attention_map(result, layer=1, head=0, special="hide")
    assert (drawn.stack, drawn.rows, drawn.columns) == ("cross", ("un", "train"), ("a", "train"))
