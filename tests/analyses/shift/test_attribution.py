"""The contributions to a shift add up in every model family, along any direction."""

import pytest
import torch
from families import tiny
from torch.testing import assert_close
from transformers import BertConfig, BertModel

import attnviz
from attnviz.attribution.decomposition import decompose, split_stream
from attnviz.attribution.target import Readout
from attnviz.capture.watch import restoring

pytestmark = pytest.mark.usefixtures("without_changed_words")
DENSE = [
    "bert", "roberta", "electra", "distilbert", "albert", "gpt2", "llama", "mistral", "qwen3",
    "gemma2", "gpt-neox", "opt", "phi", "olmo2", "mpnet", "falcon", "bloom", "deberta",
]  # fmt: skip
MUD, CASH = "the bank was full of mud.", "the bank was full of cash."
EXACT = 1e-5  # relative to the length of the shift, in float32
NEAR = {"atol": 1e-5, "rtol": 1e-4}


def expect_sums(result):
    split, stream = result.decomposition, result.residual_stream
    assert max(split.error, split.credit_error, stream.error) < EXACT
    assert split.length > 0.05
    assert split.value.shape == split.routing.shape == split.table.shape
    assert len(stream.mlp) == len(stream.attention)
    assert stream.mlp.abs().min() > 0


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("family", DENSE)
@pytest.mark.parametrize("text", [CASH, "the {mud|bank} was full of cash."])
def test_the_parts_sum_to_the_whole_in_every_family(family, text, tokenizer):
    model = attnviz.load(tiny(family), tokenizer=tokenizer)
    expect_sums(attnviz.shift("cash", text, model=model))


def test_the_parts_sum_to_the_whole_in_xlm(tokenizer):
    """Those of a pair do not, and the verdict says so."""
    expect_sums(attnviz.shift("cash", CASH, model=attnviz.load(tiny("xlm"), tokenizer=tokenizer)))


def test_a_model_of_the_shape_of_bert_base(tokenizer):
    """Twelve layers of twelve heads, width 768: rounding does not accumulate over the depth."""
    torch.manual_seed(0)
    module = BertModel(BertConfig(intermediate_size=768)).eval()
    expect_sums(attnviz.shift("bank", CASH, model=attnviz.load(module, tokenizer=tokenizer)))


def tokens(tokenizer, *texts):
    ids = tokenizer(list(texts), return_tensors="pt").input_ids
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def test_the_real_model_in_every_direction(model, tokenizer):
    """The contributions add up along the shift and along any other direction."""
    before = {name: p.requires_grad for name, p in model.module.named_parameters()}
    pair, text = tokens(tokenizer, MUD, CASH), tokens(tokenizer, CASH)
    for direction in (None, *torch.randn(3, 384, generator=torch.Generator().manual_seed(1))):
        with restoring(model.module):
            readout = Readout.word(model.module, [2])
            found = decompose(readout, pair, direction=direction)
            account = split_stream(readout, text, direction=direction)
        assert max(found.error, found.credit_error, account.error) < EXACT
    assert {name: p.requires_grad for name, p in model.module.named_parameters()} == before
    assert all(p.grad is None for p in model.module.parameters())


def test_a_word_of_several_pieces_is_the_mean_of_its_pieces(model, tokenizer):
    direction = torch.randn(384, generator=torch.Generator().manual_seed(2))
    pair, rows = tokens(tokenizer, MUD, CASH), (2, 4, 6)
    with restoring(model.module):
        several, *single = (
            decompose(Readout.word(model.module, list(at)), pair, direction=direction)
            for at in (rows, *zip(rows))
        )
    for name in ("value", "routing", "credit", "total", "start"):
        mean = sum(getattr(each, name) for each in single) / 3
        assert_close(torch.as_tensor(getattr(several, name)), torch.as_tensor(mean), **NEAR)
