"""Exploring heads: examples against a search by hand, planes, written tokens, effects, the page."""

import pytest
import torch
from families import tiny

import attnviz
from attnviz.analyses.explore.compute import Examples, _outputs_of_heads
from attnviz.heads import Positions

TEXTS = [
    "the bank was full of cash", "we sat on the bank of the river", "the mud was deep",
    "a letter came from the old city", "rain fell all night", "the river rose and the bank broke",
    "she wrote it down", "cash is kept at the bank", "the city has a river and a bank",
    "they walked home in the rain", "mud and rain",
]  # fmt: skip


@pytest.fixture(scope="module")
def explored(model):
    """Return the heads of the bundled model, explored on some texts."""
    return attnviz.explore(TEXTS, model=model)


@pytest.fixture(scope="module")
def decoder(tokenizer):
    """Return a tiny decoder that predicts tokens."""
    return attnviz.load(tiny("llama"), tokenizer=tokenizer)


@pytest.fixture(scope="module")
def plain(decoder):
    """Return the heads of the tiny decoder, explored on some of the texts."""
    return attnviz.explore(TEXTS[:3], model=decoder)


def test_typical_examples_are_in_order_and_come_again_with_the_seed(explored, decoder, plain):
    for several in explored.deciles:
        weights = [one.weight for one in several]
        assert weights == sorted(weights, reverse=True)
        assert len(weights) == 9
    again = attnviz.explore((text for text in TEXTS[:3]), model=decoder)
    assert again.deciles == plain.deciles
    assert attnviz.explore(TEXTS[:3], model=decoder, seed=1).deciles != plain.deciles


def test_a_single_token_has_a_plane(model):
    result = attnviz.explore(["mud"], model=model)
    for plane in result.planes:
        assert plane.tokens == ("mud",)
        assert plane.queries.abs().max() == plane.explained == 0  # nothing to tell apart
    head = result.payload()["heads"][0]
    assert head["plane"]["keys"] == [["mud", 0.0, 0.0]]
    assert len(head["deciles"]) <= 1  # its example stands once, not at each decile


def test_the_first_token_of_a_causal_model_counts_only_for_heads_at_rest(decoder):
    """By hand: heads that put nearly all of their weight on it, and a little on the one before."""
    result = decoder.attend("the bank was full of cash")
    special = torch.tensor(result.records[0].query_axis.special)
    for record in result.records:
        rows, _ = _outputs_of_heads(record)
        weights = record.weights().tril(-1).masked_fill(special, 0)
        weights[..., 0] = 0
        weights[:, special] = -1
        assert rows == weights.amax(-1).argmax(-1).tolist()
    T = 6
    weights = torch.eye(T).roll(-1, 1).tril(-1) * 0.1
    weights[:, 0] = 0.8
    everywhere = torch.ones(1, T, dtype=torch.bool)
    tokens = Positions(torch.arange(T)[None], everywhere, ~everywhere, ~everywhere)
    for role, key in (("", 1), ("rests on the first token", 0)):
        kept = Examples([role], seed=0)
        kept.add(slice(0, 1), [0], weights[None, None], tokens)
        assert (kept.strongest[0][0].key == 0) == (key == 0)
