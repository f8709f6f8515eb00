"""Encoder, decoder and cross-attention: each has its own axes, and all agree."""

import pytest
import torch
from families import TARGETS, TEXTS, TWO_SIDED, tiny
from torch.testing import assert_close

import attnviz
from attnviz.inputs.batch import Inputs, encode
from attnviz.results.projection import STAGES


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
    module.set_attn_implementation("eager")
    inputs = encode(model.checkpoint, Inputs(TEXTS[:1], targets=TARGETS[:1])).inputs
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
