"""Every stage agrees in every family, in every precision, for one text and for a padded batch."""

import pytest
import torch
from families import FAMILIES, FURTHER, TEXTS, tiny
from torch.testing import assert_close

import attnviz
from attnviz.inputs.batch import encode
from attnviz.results.projection import STAGES

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
CASES = [
    (family, dtype)
    for families, dtypes in ((FAMILIES, DTYPES), (FURTHER, DTYPES[::2]))
    for family in families
    for dtype in dtypes
]


@pytest.mark.pairs(each=1)  # each family in one dtype, in turn
@pytest.mark.parametrize(("family", "dtype"), CASES, ids=str)
def test_every_stage_of_every_head_agrees(family, dtype, tokenizer):
    model = attnviz.load(tiny(family, dtype, shallow=True), tokenizer=tokenizer)
    texts = TEXTS[1:] if family in FAMILIES else TEXTS[1:2]  # others are padded in test_padding.py
    for result in model.attend(texts):
        agreement = result.agreement
        assert agreement.verdict == "verified", agreement.summary()
        assert agreement.not_compared == ()
        assert agreement.heads == 4 * len(result)
        assert [check.stage for check in agreement.checks] == [*STAGES] * len(result)
        for record in result:
            assert _spread(record) > 0.5, "attention this flat would hide a fault"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_stage_agrees_on_cuda(family, dtype, tokenizer):
    model = attnviz.load(tiny(family, dtype).cuda(), tokenizer=tokenizer)
    for result in model.attend(TEXTS):
        assert result.agreement.verdict == "verified", result.agreement.summary()
        assert result.agreement.device.startswith("cuda")


# One of each kind of attention; every other model is compared with its own weights when verified.
KINDS = ("bert", "gpt2", "llama", "mistral", "gemma2", "gpt-oss", "t5-encoder")


@pytest.mark.parametrize("family", KINDS)
def test_records_give_the_weights_that_the_model_returns(family, tokenizer):
    module = tiny(family)
    model = attnviz.load(module, tokenizer=tokenizer)
    result = model.attend(TEXTS[0])
    module.set_attn_implementation("eager")
    with torch.no_grad():
        inputs = encode(model.checkpoint, [TEXTS[0]]).inputs
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
