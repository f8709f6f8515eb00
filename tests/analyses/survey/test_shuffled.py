"""Shuffled texts: which tokens move, what heads do with them, and which statistics use them."""

import numpy as np
import pytest
import torch

from attnviz.analyses.survey.aggregate import aggregate
from attnviz.analyses.survey.corpus import TextCorpus
from attnviz.analyses.survey.measure import (
    HeadStatistics,
    TextStatistics,
    key_order,
    shuffle,
)
from attnviz.heads import NAMES
from tests.analyses.survey.plain import plain_weights
from tests.analyses.survey.test_statistics import by_definition

SPECIAL = [1, *[0] * 9, 1, *[0] * 9, 1]
ENCODING = {
    "input_ids": [7 * at % 19 for at in range(21)],
    "special_tokens_mask": SPECIAL,
    "attention_mask": [1] * 21,
}


def test_shuffling_moves_all_but_special_tokens():
    orders = [shuffle(ENCODING, f"0 {number}")["input_ids"] for number in range(20)]
    for ids in orders:
        assert sorted(ids) == sorted(ENCODING["input_ids"])
        moved = [one != other for one, other in zip(ids, ENCODING["input_ids"], strict=True)]
        assert not any(np.array(moved)[np.array(SPECIAL) == 1])
        assert sum(moved) > 9
    assert len(set(map(tuple, orders))) == 20
    # Each position receives varying tokens.
    of_places = [len(set(ids)) for ids in zip(*orders, strict=True)]
    assert min(n for n, special in zip(of_places, SPECIAL, strict=True) if not special) > 5


def test_a_seed_gives_one_order_and_changes_nothing_else():
    before = {name: list(values) for name, values in ENCODING.items()}
    one, again, other = (shuffle(ENCODING, seed) for seed in ("0 3", "0 3", "1 3"))
    assert one == again
    assert one["input_ids"] != other["input_ids"]
    assert before == ENCODING
    assert {**one, "input_ids": before["input_ids"]} == before


@pytest.fixture(scope="module")
def reads(texts, model):
    """Return six tokenized texts of different lengths; the last one repeats the first."""
    return list(TextCorpus(model, [*texts[:6], texts[0]]))


def measured(model, reads, seed=0):
    known = model.attend("one two").records
    return HeadStatistics(model.checkpoint, known, seed).measure(reads)


@pytest.fixture(scope="module")
def ours(model, reads):
    return measured(model, reads)


def test_shuffled_measurements_match_the_model(ours, reads, model):
    weights_of = plain_weights(model.module)
    for n, each in enumerate(reads):
        ids = shuffle(each.encoding, f"0 {each.number}")["input_ids"]
        stops = [token in (".", ",") for token in model.tokenizer.convert_ids_to_tokens(ids)]
        special = each.encoding["special_tokens_mask"]
        weights = weights_of(ids)
        for head in (2, 20, 70):
            expected = by_definition(weights[head].tolist(), ids, special, stops)
            got = ours.shuffled[n, head].tolist()
            assert got == pytest.approx(list(expected.values()), abs=1e-5, nan_ok=True)
    assert ours.differences.max() < 2e-6


def test_each_text_has_its_own_order(ours, reads, model):
    first, again = 0, len(reads) - 1
    previous = NAMES.index("previous")
    torch.testing.assert_close(ours.value[first], ours.value[again], equal_nan=True)
    assert (ours.shuffled[first] - ours.shuffled[again])[:, previous].abs().max() > 0.01
    assert (ours.shuffled - ours.value)[first, :, previous].abs().max() > 0.01
    other = measured(model, reads[:1], seed=1)
    assert (ours.shuffled[first] - other.shuffled[0])[:, previous].abs().max() > 0.01


def test_statistics_are_compared_with_shuffled_texts():
    # One head exceeds its shuffled value and equals uniform weights; the other is the reverse.
    N = 60
    generator = torch.Generator().manual_seed(0)
    much = 0.6 + 0.1 * torch.rand(N, 2, len(NAMES), generator=generator)
    little = much - 0.3 - 0.1 * torch.rand(much.shape, generator=generator)
    even, other = much.clone(), much.clone()
    other[:, 0], even[:, 1] = little[:, 0], little[:, 1]
    made = TextStatistics(
        numbers=tuple(range(N)),
        tokens=(9,) * N,
        value=much,
        shuffled=other,
        even=even,
        shuffled_keys=even,
        differences=torch.zeros(2),
        compared=N,
    )
    told = aggregate([made], 2)
    assert (told.p_shuffled[0] < 0.01).all()
    assert (told.p_shuffled[1] > 0.99).all()
    np.testing.assert_allclose(told.shuffled, other.mean(0), atol=1e-6)
    # Entropy and the most attended key are not compared with uniform weights.
    assert np.isnan(told.even[:, -2:]).all()
    assert (told.p_even[:, -2:] == 1).all()
    assert (told.p_even[0, :-2] > 0.99).all()
    assert (told.p_even[1, :-2] < 0.01).all()


def order_of(readable, rows=None, numbers=(0, 1, 2, 3), real=None, seed=0):
    real = torch.ones(readable.shape[0], readable.shape[2]) if real is None else real
    rows = rows or slice(0, readable.shape[1])
    return key_order(readable[:, rows], real.bool(), rows, numbers, seed)


def test_only_readable_keys_are_shuffled():
    readable = torch.rand(4, 30, 30, generator=torch.Generator().manual_seed(0)) < 0.6
    order = order_of(readable)
    places = torch.arange(30)
    assert torch.equal(order.sort(-1).values, places.expand(4, 30, 30))
    assert (order == places)[~readable].all()
    assert torch.equal(readable.gather(-1, order), readable)
    assert (order != places)[readable].float().mean() > 0.9
    # Every key goes to every place alike.
    orders = order_of(torch.ones(400, 5, 5, dtype=bool), numbers=range(400))
    shares = (orders[..., None] == torch.arange(5)).double().mean((0, 1))
    torch.testing.assert_close(shares, torch.full((5, 5), 0.2).double(), atol=0.04, rtol=0)


def test_the_order_of_keys_depends_on_the_text_alone():
    whole = torch.ones(4, 21, 21, dtype=bool)
    order = order_of(whole)
    assert not torch.equal(order[0], order[1])
    assert not torch.equal(order, order_of(whole, seed=1))
    blocks = [order_of(whole, rows=slice(start, min(start + 6, 21))) for start in range(0, 21, 6)]
    assert torch.equal(torch.cat(blocks, 1), order)
    padded = torch.zeros(1, 40, 40, dtype=bool)
    padded[:, :21, :21] = True
    alone = order_of(padded, numbers=[2], real=torch.arange(40)[None] < 21)
    assert torch.equal(alone[0, :21, :21], order[2])


def test_measurements_of_a_batch_and_of_shuffled_keys_match_their_definition(ours, reads, model):
    weights_of = plain_weights(model.module)
    for n, each in enumerate(reads):
        ids, special = each.encoding["input_ids"], each.encoding["special_tokens_mask"]
        stops = [token in (".", ",") for token in model.tokenizer.convert_ids_to_tokens(ids)]
        order = order_of(torch.ones(1, len(ids), len(ids), dtype=bool), numbers=[each.number])
        weights = weights_of(ids)
        shuffled = weights.gather(-1, order.expand_as(weights))
        for maps, found in ((weights, ours.value), (shuffled, ours.shuffled_keys)):
            for head in (2, 20, 70):
                expected = by_definition(maps[head].tolist(), ids, special, stops)
                got = found[n, head].tolist()
                assert got == pytest.approx(list(expected.values()), abs=1e-5, nan_ok=True)
