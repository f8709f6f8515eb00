"""Attention found among the operators: equal to the interface, and beyond it."""

import pytest
import torch
import transformers
from families import OWN_CODE, TARGETS, TEXTS, TWO_SIDED, tiny
from torch.testing import assert_close

import attnviz
from attnviz.capture import recorder as recording
from attnviz.capture.capture import capture
from attnviz.capture.watch import restoring
from attnviz.formula.attention import repeat_heads

DTYPES = [torch.float32, torch.bfloat16]


# One of each kind of grouping, mask, scale and position.
SOME = ("bert", "gpt2", "mistral", "qwen3", "gemma2", "gpt-oss", "t5-encoder", "t5", "bart")


@pytest.mark.parametrize("family", SOME)
def test_interface_and_operators_give_the_same_record(family, tokenizer, monkeypatch):
    model = attnviz.load(tiny(family), tokenizer=tokenizer)
    some = slice(1, 3 if family in ("bert", "t5") else 2)  # these two with padding
    texts, target = TEXTS[some], TARGETS[some] if family in TWO_SIDED else None
    by_interface = model.attend(texts, target=target)
    monkeypatch.setattr(recording, "_can_read", lambda *_: False)
    by_operators = model.attend(texts, target=target)
    for here, there in zip(by_interface, by_operators, strict=True):
        assert there.agreement.verdict == "verified", there.agreement.summary()
        for one, other in zip(here, there, strict=True):
            assert one.through_interface
            assert not other.through_interface
            assert (one.path, one.stack, one.layer) == (other.path, other.stack, other.layer)
            assert (one.query_axis, one.key_axis) == (other.query_axis, other.key_axis)
            assert_close(one.query * one.scale, other.query * other.scale)
            assert_close(repeat_heads(one.key, one.heads), other.key)
            assert_close(repeat_heads(one.value, one.heads), other.value)
            assert one.soft_cap == other.soft_cap
            rows = ~torch.tensor(one.query_axis.padding)
            assert_close(one.weights()[:, rows], other.weights()[:, rows], rtol=0, atol=1e-6)
            if one.sinks is not None:
                assert_close(one.sinks, other.sinks)


# Families whose keys, values and often queries are not compared, and the reason.
NOT_COMPARED = {
    "xlnet": "its matrices are parameters with three dimensions, and a bias is added to queries",
    "funnel": "its queries are pooled, and a bias is added to them",
    "bigbird": "its blocks are cut out and gathered before they are multiplied",
    "reformer": "its chunks are sorted, and queries are keys too",
}


@pytest.mark.pairs(each=1)  # each family in one dtype, in turn
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("family", OWN_CODE)
def test_families_with_custom_attention_code_agree(family, dtype, tokenizer):
    model = attnviz.load(tiny(family, dtype), tokenizer=tokenizer)
    for result in model.attend(TEXTS[1:]):
        verdict = result.agreement.verdict
        # In bfloat16, rounding may hide a 1 % error of the scale if position dominates the scores.
        expected = ["verified"] if dtype == torch.float32 else ["verified", "not proven"]
        assert verdict in expected, result.agreement.summary()
        assert not any(record.through_interface for record in result)
        compared = {check.stage for check in result.agreement.checks}
        assert compared >= {"scores", "weights", "head output"}
        missing = {stage for _, stage, _ in result.agreement.not_compared}
        assert missing >= {"key", "value"} if family in NOT_COMPARED else not missing


REPORTING = sorted(OWN_CODE.keys() - {"funnel", "longformer", "bigbird", "reformer"})


@pytest.mark.parametrize("family", REPORTING)
def test_heads_and_rows_have_the_models_order(family, tokenizer):
    """Compare with the attentions that the model returns, which are independent of our layout."""
    module = tiny(family)
    inputs = tokenizer(TEXTS, return_tensors="pt", padding=True, return_token_type_ids=False)
    # In eager mode: under SDPA Falcon returns weights without their causal mask.
    with torch.no_grad(), restoring(module):
        reported = module(**inputs, output_attentions=True).attentions
    for n, captured in enumerate(capture(module, dict(inputs))):
        rows = inputs["attention_mask"][n].bool()
        for record, weights in zip(captured.records, reported, strict=True):
            assert_close(record.weights()[:, rows], weights[n][:, rows], rtol=0, atol=2e-6)


def test_memory_that_was_not_written_and_does_not_count_is_not_read(tokenizer, monkeypatch):
    """GPT-2 may multiply into an empty table, by which `baddbmm` adds nothing."""
    empty = torch.empty

    def unwritten(*size, **options):
        table = empty(*size, **options)
        return table.fill_(torch.nan) if table.is_floating_point() else table

    settings = {"n_embd": 48, "n_layer": 1, "n_head": 4, "reorder_and_upcast_attn": True}
    module = transformers.GPT2Model(transformers.GPT2Config(**settings)).eval()
    model = attnviz.load(module, tokenizer=tokenizer)
    monkeypatch.setattr(torch, "empty", unwritten)
    assert model.attend(TEXTS[0]).agreement.verdict == "verified"
    assert attnviz.shift("train", TEXTS[0], model=model).agreement.verdict == "verified"
