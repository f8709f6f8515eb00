"""Each statistic compared with its definition, computed weight by weight, and in shuffled texts."""

import copy
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from families import tiny
from own_attentions import own_attentions
from scipy.spatial.distance import jensenshannon

import attnviz
from attnviz.analyses.survey.corpus import TextCorpus
from attnviz.analyses.survey.measure import HeadStatistics, key_order, shuffle
from attnviz.capture.batched import BatchedAttention
from attnviz.heads import (
    _BLOCK_WEIGHTS,
    NAMES,
    STATISTICS,
    STATISTICS_OF,
    Positions,
    WeightStatistics,
    statistics_for,
)
from attnviz.results import Axis


def by_definition(w, ids, special, stops):
    """Return the statistics of one head on one text; w is a list of rows."""
    rows = [i for i in range(len(ids)) if not special[i]]
    places = range(len(ids))

    def mean(weight_of):
        of_rows = [weight_of(i) for i in rows]
        known = [each for each in of_rows if each is not None]
        return sum(known) / len(known) if known else math.nan

    def some(keys):
        return sum(keys) if keys else None

    received = [sum(w[i][j] for i in rows) / len(rows) for j in rows]
    return {
        "distance": mean(lambda i: sum(w[i][j] * abs(i - j) for j in places)),
        "self": mean(lambda i: w[i][i]),
        "previous": mean(lambda i: w[i][i - 1] if i and not special[i - 1] else None),
        "next": mean(lambda i: w[i][i + 1] if i + 1 < len(ids) and not special[i + 1] else None),
        "first": mean(lambda i: w[i][0]),
        "separators": mean(lambda i: some([w[i][j] for j in places if special[j]])),
        "same token": mean(
            lambda i: some([w[i][j] for j in places if j != i and ids[j] == ids[i]])
        ),
        "induction": mean(
            lambda i: some([w[i][j] for j in places if 0 < j < i and ids[j - 1] == ids[i]])
        ),
        "punctuation": mean(lambda i: some([w[i][j] for j in places if stops[j]])),
        "entropy": mean(lambda i: -sum(x * math.log(x) for x in w[i] if x > 0)),
        "most read": max(received),
    }


def plain_weights(module):
    """Return a function from token ids to the weights of all heads, (K, n, n)."""
    return lambda ids: torch.cat(own_attentions(module, torch.tensor([ids])), dim=1)[0]


def test_statistics_of_probes_match_their_definition():
    generator = torch.Generator().manual_seed(0)
    N, H, T = 2, 3, 8
    ids, none = torch.zeros(N, T, dtype=torch.long), torch.zeros(N, T, dtype=torch.bool)
    asks = torch.tensor([[0, 0, 0, 0, 0, 0, 1, 2], [0, 0, 0, 1, 0, 0, 0, 0]])
    holds = torch.tensor([[0, 2, -1, 0, 1, -1, 0, 0], [0, 1, 0, 0, -1, 0, 1, 0]])
    weights = torch.rand(N, H, T, T, generator=generator)
    statistics = statistics_for(["retrieval", "name mover", "subject inhibition"])
    measure = WeightStatistics(Positions(ids, ~none, none, none, asks, holds), statistics)
    got = measure(lambda rows: weights[:, :, rows])
    names = [statistic.name for statistic in statistics]
    assert set(names) - set(NAMES) == {"retrieval", "name mover", "subject inhibition"}
    for n, head in itertools.product(range(N), range(H)):
        right, wrong = [], []
        for i in asks[n].nonzero()[:, 0].tolist():
            row = weights[n, head, i].tolist()
            right.append(sum(row[j] for j in range(T) if holds[n, j] == asks[n, i]))
            wrong.append(sum(row[j] for j in range(T) if holds[n, j] == -1))
        retrieved, minus = sum(right) / len(right), sum(wrong) / len(wrong)
        expected = {
            "retrieval": retrieved,
            "name mover": retrieved - minus,
            "subject inhibition": minus - retrieved,
        }
        for name, value in expected.items():
            assert got[n, head, names.index(name)].item() == pytest.approx(value, abs=1e-6)


def test_statistics_of_frames_and_of_a_transcript_match_their_definition():
    generator = torch.Generator().manual_seed(0)
    frames, tokens = range(20), range(5)
    step, sound, prompt = 0.04, 15, 2  # seconds, frames, special tokens
    sounds = replace(
        Axis.numbered(len(frames)),
        seconds=tuple(step * n for n in frames),
        special=tuple(n >= sound for n in frames),
    )
    text = replace(Axis.numbered(len(tokens)), special=tuple(n < prompt for n in tokens))

    def measured_on(queries, keys=None):
        shape = 1, 1, len(queries), len(keys or queries)
        weights = torch.randn(shape, generator=generator).softmax(-1)
        positions = [Positions.of(axis) for axis in (queries, keys) if axis is not None]
        measure = WeightStatistics(positions[0], STATISTICS_OF["audio"], *positions[1:])
        values = measure(lambda rows: weights[:, :, rows])[0, 0].tolist()
        names = [one.name for one in STATISTICS_OF["audio"]]
        return weights[0, 0].tolist(), dict(zip(names, values, strict=True))

    def mean(numbers):
        return sum(numbers := list(numbers)) / len(numbers)

    w, encoder = measured_on(sounds)
    assert encoder["time distance"] == pytest.approx(
        mean(sum(w[i][j] * step * abs(i - j) for j in range(sound)) / sum(w[i][:sound])
             for i in range(sound)), abs=1e-6,
    )  # fmt: skip
    near = [sum(w[i][j] for j in frames if 0 < abs(i - j) <= 2) for i in range(sound)]
    assert encoder["nearby"] == pytest.approx(mean(near), abs=1e-6)
    assert encoder["silence"] == pytest.approx(mean(sum(w[i][sound:]) for i in range(sound)))
    assert encoder["self"] == pytest.approx(mean(w[i][i] for i in range(sound)))
    assert all(math.isnan(encoder[name]) for name in ("order", "previous", "first"))

    w, cross = measured_on(text, sounds)
    later = [
        sum(w[i][a] * w[j][b] * ((a < b) + (a == b) / 2) for a in frames for b in frames)
        for i in tokens[prompt:] for j in tokens[i + 1 :]
    ]  # fmt: skip
    assert cross["order"] == pytest.approx(mean(later), abs=1e-6)
    assert cross["silence"] == pytest.approx(mean(sum(row[sound:]) for row in w[prompt:]))
    assert all(math.isnan(cross[name]) for name in ("self", "nearby", "time distance", "first"))

    w, decoder = measured_on(text)
    assert decoder["first"] == pytest.approx(mean(row[0] for row in w[prompt:]))
    assert decoder["previous"] == pytest.approx(mean(w[i][i - 1] for i in tokens[prompt + 1 :]))
    assert all(math.isnan(decoder[name]) for name in ("order", "silence", "time distance"))


def measured(model, texts, seed=0):
    """Return the statistics of texts, or of a corpus that was read."""
    statistics = HeadStatistics(model.checkpoint, model.attend("one two").records, seed)
    corpus = TextCorpus(model, texts) if isinstance(texts[0], str) else texts
    return statistics.measure(list(corpus))


def expect_definition(found, weights, model, ids, special, atol, heads=(2, 20, 70)):
    """Compare the statistics of heads (K, S) with those of their weights (K, T, T)."""
    stops = [token in (".", ",") for token in model.tokenizer.convert_ids_to_tokens(ids)]
    for head in heads:
        expected = by_definition(weights[head].tolist(), ids, special, stops)
        got = found[head].tolist()
        assert got == pytest.approx(list(expected.values()), abs=atol, nan_ok=True)


def test_uniform_weights_are_the_mean_over_key_shuffles(texts, model):
    # The analytic permutation null, compared with explicit shuffles.
    even = measured(model, texts[:1]).even[0, 0]
    ids = model.tokenizer(texts[0])["input_ids"]
    tokens = model.tokenizer.convert_ids_to_tokens(ids)
    special = torch.tensor([[token in ("[CLS]", "[SEP]") for token in tokens]])
    stops = torch.tensor([[token in (".", ",") for token in tokens]])
    measure = WeightStatistics(
        Positions(torch.tensor([ids]), torch.ones_like(special), special, stops)
    )
    weights = model.attend(texts[0]).weights(0)[None].float()
    generator = torch.Generator().manual_seed(0)

    def of_shuffled_keys():
        order = torch.randperm(len(ids), generator=generator)
        return measure(lambda rows: weights[:, :, rows][..., order])

    mean = (sum(of_shuffled_keys() for _ in range(3000)) / 3000)[0].mean(0)
    for name in ("self", "previous", "separators", "same token", "punctuation"):
        at = NAMES.index(name)
        assert mean[at].item() == pytest.approx(even[at].item(), abs=6e-3), name


# Captured through the interface: causal, grouped queries, a sliding window, a soft cap, sinks, a
# position bias; and found among operators.
FAMILIES = [
    "gpt2", "llama", "mistral", "gemma2", "gpt-oss", "mpnet", "distilbert", "roberta", "bloom",
]  # fmt: skip


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_measurements_match_the_records_in_every_family(
    family, special, long, texts, tokenizer, bare_tokenizer, monkeypatch
):
    # Long enough that full maps would be large: fused attention and blocks of rows.
    if long:
        monkeypatch.setattr("attnviz.capture.batched._SHORT", 0)
        monkeypatch.setitem(_BLOCK_WEIGHTS, "cpu", 300)
    words = tokenizer if special else bare_tokenizer
    model = attnviz.load(tiny(family, torch.float32), tokenizer=words)
    some = [texts[0], texts[2], "Rain"]  # of one token without special ones
    ours = measured(model, some)
    assert ours.differences.max() < 5e-6
    tokens = list(TextCorpus(model, some))
    for n, (text, one) in enumerate(zip(some, tokens, strict=True)):
        ids, special = one.encoding["input_ids"], one.encoding["special_tokens_mask"]
        weights = torch.cat([record.weights() for record in model.attend(text)])
        heads = 0, len(weights) - 1
        expect_definition(ours.value[n], weights, model, ids, special, 1e-4, heads)


@pytest.mark.parametrize(
    "family", ["bloom", *(pytest.param(one, marks=pytest.mark.long) for one in ("bert", "gpt2"))]
)
def test_a_slightly_wrong_scale_is_detected(family, texts, tokenizer, monkeypatch):
    model = attnviz.load(tiny(family, torch.float32), tokenizer=tokenizer)
    good, weights = measured(model, texts[:5]), BatchedAttention.weights

    def planted(self, rows):
        return weights(replace(self, query=self.query * 1.01), rows)

    monkeypatch.setattr(BatchedAttention, "weights", planted)
    assert good.differences.max() < 5e-6 < measured(model, texts[:5]).differences.min()


def test_a_missing_mask_is_detected(texts, tokenizer, monkeypatch):
    model = attnviz.load(tiny("gpt2", torch.float32), tokenizer=tokenizer)
    weights = BatchedAttention.weights
    monkeypatch.setattr(
        BatchedAttention, "weights", lambda self, rows: weights(replace(self, mask=None), rows)
    )
    assert measured(model, texts[:5]).differences.min() > 1e-2


def test_each_layer_is_checked_by_its_own_heads(texts, model, monkeypatch):
    weights, heads = BatchedAttention.weights, [7, 2, 0, 11, 4, 9]

    def planted(self, rows):
        found = weights(self, rows).clone()
        found[:, heads[self.known.layer]] *= 1.01
        return found

    monkeypatch.setattr(BatchedAttention, "weights", planted)
    result = attnviz.survey(texts[:1], model=model)
    checks = [check for check in result.agreement.checks if check.stage == "statistics"]
    assert [check.layer for check in checks] == list(range(6))
    assert [check.failed_heads for check in checks] == [(head,) for head in heads]
    assert result.agreement.verdict == "failed"


# --- shuffled texts and keys


SPECIAL = [1, *[0] * 9, 1, *[0] * 9, 1]
ENCODING = {
    "input_ids": [7 * at % 19 for at in range(21)],
    "special_tokens_mask": SPECIAL,
    "attention_mask": [1] * 21,
}


def test_shuffling_moves_all_but_special_tokens():
    """One seed gives one order, and nothing else changes."""
    before = {name: list(values) for name, values in ENCODING.items()}
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
    again = shuffle(ENCODING, "0 3")
    assert again["input_ids"] == orders[3] != shuffle(ENCODING, "1 3")["input_ids"]
    assert before == ENCODING == {**again, "input_ids": before["input_ids"]}


@pytest.fixture(scope="module")
def reads(texts, model):
    """Return six tokenized texts of different lengths; the last one repeats the first."""
    return list(TextCorpus(model, [*texts[:6], texts[0]]))


@pytest.fixture(scope="module")
def ours(model, reads):
    return measured(model, reads)


def test_measurements_of_a_batch_and_of_shuffles_match_their_definition(ours, reads, model):
    weights_of = plain_weights(model.module)
    for n, each in enumerate(reads):
        ids, special = each.encoding["input_ids"], each.encoding["special_tokens_mask"]
        other = shuffle(each.encoding, f"0 {each.number}")["input_ids"]
        order = order_of(torch.ones(1, len(ids), len(ids), dtype=bool), numbers=[each.number])
        weights = weights_of(ids)
        expect_definition(ours.value[n], weights, model, ids, special, 1e-5)
        shuffled = weights.gather(-1, order.expand_as(weights))
        expect_definition(ours.shuffled_keys[n], shuffled, model, ids, special, 1e-5)
        expect_definition(ours.shuffled[n], weights_of(other), model, other, special, 1e-5)
    assert ours.differences.max() < 2e-6


def test_each_text_has_its_own_order(ours, reads, model):
    first, again = 0, len(reads) - 1
    previous = NAMES.index("previous")
    torch.testing.assert_close(ours.value[first], ours.value[again], equal_nan=True)
    assert (ours.shuffled[first] - ours.shuffled[again])[:, previous].abs().max() > 0.01
    assert (ours.shuffled - ours.value)[first, :, previous].abs().max() > 0.01
    other = measured(model, reads[:1], seed=1)
    assert (ours.shuffled[first] - other.shuffled[0])[:, previous].abs().max() > 0.01


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


def test_every_role_has_a_color_in_the_grid(texts, model):
    survey = attnviz.survey(texts[:1], model=model)
    awake = [statistic.role for statistic in STATISTICS if statistic.role and not statistic.resting]
    roles = (*awake, *[""] * (72 - len(awake)))
    cells = attnviz.plot.survey(replace(survey, roles=roles)).axes[0].patches
    assert len({tuple(cell.get_facecolor()) for cell in cells}) == len(awake) + 1


# --- distances between heads


@pytest.fixture(scope="module")
def some(texts):
    """Return three texts of different lengths, which form one batch."""
    return texts[2:5]


def words_of(model, text):
    """Return the token ids of a text, and the rows that are not special tokens."""
    read = model.tokenizer(text, return_special_tokens_mask=True)
    return read["input_ids"], np.array(read["special_tokens_mask"]) == 0


def divergence(P, Q):
    return jensenshannon(P.double().numpy(), Q.double().numpy(), base=2, axis=-1) ** 2


def test_model_distances_match_scipy(some, model):
    module = copy.deepcopy(model.module)
    with torch.no_grad():
        module.encoder.layer[1].attention.self.query.weight[:64] *= 1.5
    other = attnviz.load(module, tokenizer=model.tokenizer)
    one_of, other_of = plain_weights(model.module), plain_weights(module)
    of_texts = []
    for text in some:
        ids, words = words_of(model, text)
        of_rows = divergence(one_of(ids)[:, words], other_of(ids)[:, words])
        of_texts.append(np.sqrt(of_rows.mean(-1)))
    found = attnviz.compare(some, models=(model, other)).apart
    assert found.max() > 0.1
    np.testing.assert_allclose(found.numpy(), np.mean(of_texts, axis=0), atol=1e-4)
