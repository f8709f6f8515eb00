"""Heads of a model made by hand are named, if there are enough texts; random heads are not."""

import random

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2Model, PreTrainedTokenizerFast

import attnviz
from attnviz.terminal.console import console

WORDS, LENGTH, WIDTH = 30, 24, 84
POSITION, TOKEN, COPY = slice(0, 24), slice(24, 54), slice(54, 84)
MUCH = 30.0


def write(tensor, source, target, value, shift=0):
    """Map each direction of a part of the vector to the one at the same place of another part."""
    size = source.stop - source.start
    for n in range(size - shift):
        tensor[source.start + n + shift, target + n] = value


@pytest.fixture(scope="module")
def planted():
    """Return a GPT-2 whose head 0.0 reads the previous token, and 1.0 what followed it before."""
    config = GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=WIDTH, n_layer=2, n_head=2, attn_pdrop=0
    )
    torch.manual_seed(0)
    module = GPT2Model(config).eval()
    with torch.no_grad():
        for block in module.h:
            for part in (block.attn.c_attn, block.attn.c_proj, block.mlp.c_proj):
                part.weight.zero_()
        module.wte.weight.zero_()[:, TOKEN] = torch.eye(WORDS)
        module.wpe.weight.zero_()[:, POSITION] = torch.eye(LENGTH)
        before, after = (block.attn for block in module.h)
        write(before.c_attn.weight, POSITION, 0, MUCH, shift=1)  # query: the position before
        write(before.c_attn.weight, POSITION, WIDTH, MUCH)
        write(before.c_attn.weight, TOKEN, 2 * WIDTH, 1.0)
        before.c_proj.weight[: WIDTH // 2, COPY][range(WORDS), range(WORDS)] = 1.0
        write(after.c_attn.weight, TOKEN, 0, 4.5)
        write(after.c_attn.weight, COPY, WIDTH, 1.0)
    vocabulary = Tokenizer(models.WordLevel({f"w{n}": n for n in range(WORDS)}, "w0"))
    vocabulary.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=vocabulary, pad_token="w0")
    return attnviz.load(module, tokenizer=tokenizer)


def repeated(texts, lengths):
    """Return random sequences of words, each of them twice in a row."""
    draw = random.Random(0)
    halves = [draw.sample(range(1, WORDS), lengths[n % len(lengths)] // 2) for n in range(texts)]
    return [" ".join(f"w{word}" for word in [*half, *half]) for half in halves]


@pytest.mark.parametrize("lengths", [[20], [12, 14, 16, 18, 20, 22, 24]])
def test_planted_heads_are_named(planted, lengths):
    result = attnviz.survey(repeated(40, lengths), model=planted)
    roles = {str(head): role for head, role in zip(result.heads, result.roles, strict=True)}
    previous, induction = (
        result.mean[head, result.of(name)] for head, name in ((0, "previous"), (2, "induction"))
    )
    assert previous == pytest.approx(1, abs=1e-4)
    assert 0.9 < induction < 0.99
    assert roles["0.0"] == "previous token"
    assert roles["1.0"] == "induction"
    assert not roles["0.1"]
    assert not roles["1.1"]
    assert not result.notes


@pytest.mark.parametrize("texts", [14, 16])
def test_too_few_texts_to_name_heads_are_reported(planted, texts, capsys):
    result = attnviz.survey(repeated(texts, [20]), model=planted)
    too_few = "too few texts to name heads: 14, at least 16"
    assert any(result.roles) == (texts == 16)
    assert result.notes == (() if texts == 16 else (too_few,))
    console.print(result)
    assert (too_few in capsys.readouterr().out) == (texts == 14)
    figure = attnviz.plot.survey(result)
    said = " ".join(text.get_text() for text in figure.texts).replace("\n", " ")
    assert (too_few[1:] in said) == (texts == 14)
