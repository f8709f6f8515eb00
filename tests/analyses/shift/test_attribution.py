"""The contributions to a shift add up in every model family, and a wrong one is detected."""

import json
from pathlib import Path

import pytest
import torch
from families import tiny
from torch.testing import assert_close
from transformers import BertConfig, BertModel

import attnviz
from attnviz.analyses.senses.sentences import find_word
from attnviz.attribution.decomposition import decompose, split_stream
from attnviz.attribution.reference import gate_of as reference_gate
from attnviz.attribution.target import Readout
from attnviz.capture.watch import restoring
from attnviz.inputs.batch import encode
from attnviz.inputs.text import token_spans

DENSE = [
    "bert", "roberta", "electra", "distilbert", "albert", "gpt2", "llama", "mistral", "qwen3",
    "gemma2", "gpt-neox", "opt", "phi", "olmo2", "mpnet", "falcon", "bloom", "xlm", "deberta",
]  # fmt: skip
MUD, CASH = "the bank was full of mud.", "the bank was full of cash."
DATA = Path(__file__).parents[2] / "data"
EXACT = 1e-5  # relative to the length of the shift, in float32
NEAR = {"atol": 1e-5, "rtol": 1e-4}


def tokens(tokenizer, *texts):
    ids = tokenizer(list(texts), return_tensors="pt").input_ids
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def gate_of(T):
    """Allow every row to read itself, the first token and the last token."""
    gate = torch.eye(T, dtype=torch.bool)
    gate[:, [0, -1]] = True
    return gate


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("family", DENSE)
@pytest.mark.parametrize("reference", ["pair", "gate"])
def test_the_contributions_to_a_difference_add_up(family, reference, tokenizer):
    module = tiny(family).requires_grad_(False)
    inputs = tokens(tokenizer, MUD if reference == "pair" else CASH, CASH)
    T = inputs["input_ids"].shape[1]
    gate = gate_of(T) if reference == "gate" else None
    with restoring(module):
        found = decompose(Readout.word(module, [T - 2]), inputs, gate=gate)
    assert found.length > 0.05
    assert found.error < EXACT
    assert found.credit_error < EXACT
    assert found.value.shape == found.routing.shape == found.table.shape
    if reference == "gate":
        assert found.start == 0  # both runs start with the same words


@pytest.mark.parametrize("family", DENSE)
def test_the_decomposition_of_a_shift_adds_up(family, tokenizer):
    module = tiny(family).requires_grad_(False)
    inputs = tokens(tokenizer, CASH)
    with restoring(module):
        found = split_stream(Readout.word(module, [2]), inputs)
    assert found.error < EXACT
    assert len(found.mlp) == len(found.attention)
    assert found.mlp.abs().min() > 0


def test_a_model_of_the_shape_of_bert_base(tokenizer):
    """Twelve layers of twelve heads, width 768: rounding does not accumulate over the depth."""
    torch.manual_seed(0)
    module = BertModel(BertConfig(intermediate_size=768)).eval()
    inputs = tokens(tokenizer, CASH, CASH)
    with restoring(module):
        found = decompose(
            Readout.word(module, [2]), inputs, gate=gate_of(inputs["input_ids"].shape[1])
        )
        account = split_stream(Readout.word(module, [2]), tokens(tokenizer, CASH))
    assert found.error < EXACT
    assert found.credit_error < EXACT
    assert account.error < EXACT


def test_the_real_model_in_every_direction(model, tokenizer):
    """The contributions add up along the shift and along any other direction."""
    inputs = tokens(tokenizer, MUD, CASH)
    for direction in (None, *torch.randn(3, 384, generator=torch.Generator().manual_seed(1))):
        with restoring(model.module):
            found = decompose(Readout.word(model.module, [2]), inputs, direction=direction)
            account = split_stream(
                Readout.word(model.module, [2]), tokens(tokenizer, CASH), direction=direction
            )
        assert found.error < EXACT
        assert found.credit_error < EXACT
        assert account.error < EXACT


def test_the_difference_is_that_of_the_models_own_outputs(model, tokenizer):
    inputs = tokens(tokenizer, MUD, CASH)
    with torch.no_grad():
        mud, cash = model.module(**inputs).last_hidden_state[:, 2]
    with restoring(model.module):
        found = decompose(Readout.word(model.module, [2]), inputs)
    assert found.length == pytest.approx((cash - mud).norm().item(), rel=1e-4)
    assert_close(found.direction, (cash - mud) / (cash - mud).norm(), atol=1e-5, rtol=1e-4)


def test_only_the_changed_word_has_an_attribution(model, tokenizer):
    with restoring(model.module):
        found = decompose(Readout.word(model.module, [2]), tokens(tokenizer, MUD, CASH))
    assert found.credit.abs().argmax() == 6
    assert_close(found.credit[6].item(), found.total, rtol=1e-5, atol=0)
    others = torch.cat([found.credit[:6], found.credit[7:]])
    assert others.abs().max() == 0


def test_two_equal_runs_differ_by_nothing(model, tokenizer):
    with restoring(model.module):
        found = decompose(Readout.word(model.module, [2]), tokens(tokenizer, CASH, CASH))
    assert found.total == 0
    assert found.table.abs().max() == 0


def test_the_users_model_is_left_unchanged(model, tokenizer):
    before = {name: p.requires_grad for name, p in model.module.named_parameters()}
    with restoring(model.module):
        decompose(Readout.word(model.module, [2]), tokens(tokenizer, MUD, CASH))
    assert {name: p.requires_grad for name, p in model.module.named_parameters()} == before
    assert all(p.grad is None for p in model.module.parameters())


def test_a_model_without_blocks_is_refused_in_one_line():
    with pytest.raises(attnviz.ModelError, match="Linear has no blocks in one row"):
        decompose(Readout.word(torch.nn.Linear(2, 2), [0]), {})


SENTENCES = json.loads((DATA / "sense_sentences.json").read_text("utf-8"))


@pytest.mark.parametrize("word", [*dict.fromkeys(entry["word"] for entry in SENTENCES)])
def test_a_sentence_of_each_word_adds_up(model, word):
    """With both references, direct and over all paths."""
    text = next(entry["sentence"] for entry in SENTENCES if entry["word"] == word)
    batch = encode(model.checkpoint, [text])
    spans, (start, end) = token_spans(model.checkpoint, text), find_word(word, text)[0]
    rows = [at for at, (a, b) in enumerate(spans) if a < b and a < end and b > start]
    gate = reference_gate(batch.axes["text"][0].special)
    both = {name: torch.cat([each, each]) for name, each in batch.inputs.items()}
    with restoring(model.module):
        found = decompose(Readout.word(model.module, rows), both, gate=gate)
        account = split_stream(Readout.word(model.module, rows), batch.inputs)
    assert max(found.error, found.credit_error, account.error) < EXACT


def test_a_word_of_several_pieces_is_the_mean_of_its_pieces(model, tokenizer):
    direction = torch.randn(384, generator=torch.Generator().manual_seed(2))
    pair, text = tokens(tokenizer, MUD, CASH), tokens(tokenizer, CASH)
    with restoring(model.module):
        several = decompose(Readout.word(model.module, [2, 4, 6]), pair, direction=direction)
        single = [
            decompose(Readout.word(model.module, [at]), pair, direction=direction)
            for at in (2, 4, 6)
        ]
        account = split_stream(Readout.word(model.module, [2, 4]), text, direction=direction)
        accounts = [
            split_stream(Readout.word(model.module, [at]), text, direction=direction)
            for at in (2, 4)
        ]
    for name in ("value", "routing", "credit", "total", "start"):
        mean = sum(getattr(each, name) for each in single) / 3
        assert_close(torch.as_tensor(getattr(several, name)), torch.as_tensor(mean), **NEAR)
    for name in ("attention", "mlp", "bias", "own", "total"):
        mean = sum(getattr(each, name) for each in accounts) / 2
        assert_close(torch.as_tensor(getattr(account, name)), torch.as_tensor(mean), **NEAR)
