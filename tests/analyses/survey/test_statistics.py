"""Each statistic compared with its definition, computed weight by weight."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from families import tiny

import attnviz
from attnviz.analyses.survey.corpus import TextCorpus, batches
from attnviz.analyses.survey.measure import HeadStatistics
from attnviz.capture.batched import BatchedAttention
from attnviz.heads import (
    _BLOCK_WEIGHTS,
    NAMES,
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


@pytest.mark.parametrize("weights_of_a_block", [2**18, 40])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_each_statistic_matches_its_definition(causal, seed, weights_of_a_block, monkeypatch):
    monkeypatch.setitem(_BLOCK_WEIGHTS, "cpu", weights_of_a_block)
    generator = torch.Generator().manual_seed(seed)
    lengths, T, H = [9, 4, 1, 7], 9, 3
    real = torch.arange(T) < torch.tensor(lengths)[:, None]
    ids = torch.randint(5, (4, T), generator=generator)
    special = (
        (torch.arange(T) == 0).expand(4, T) & (seed % 2 == 0) & (torch.tensor(lengths) > 1)[:, None]
    )
    stops = (ids == 3) & real & ~special
    seen = real[:, None, None, :] & (
        torch.ones(T, T).tril().bool() if causal else torch.ones(T, T).bool()
    )
    scores = torch.randn(4, H, T, T, generator=generator, dtype=torch.float64) * 2
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    measure = WeightStatistics(Positions(ids, real, special & real, stops))
    assert len(measure.blocks) == (1 if weights_of_a_block > 40 else 9)
    got = measure(lambda rows: weights[:, :, rows])
    for n, length in enumerate(lengths):
        for head in range(H):
            expected = by_definition(
                weights[n, head, :length, :length].tolist(),
                ids[n, :length].tolist(),
                special[n, :length].tolist(),
                stops[n, :length].tolist(),
            )
            for name, value in expected.items():
                ours = got[n, head, NAMES.index(name)].item()
                assert ours == pytest.approx(value, abs=2e-6, nan_ok=True), (n, head, name)


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


def measured(model, texts):
    statistics = HeadStatistics(model.checkpoint, model.attend("one two").records)
    return statistics.measure(list(TextCorpus(model, texts)))


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
@pytest.mark.parametrize("family", FAMILIES)
def test_measurements_match_the_records_in_every_family(
    family, long, texts, tokenizer, monkeypatch
):
    # Long enough that full maps would be large: fused attention and blocks of rows.
    if long:
        monkeypatch.setattr("attnviz.capture.batched._SHORT", 0)
        monkeypatch.setitem(_BLOCK_WEIGHTS, "cpu", 300)
    model = attnviz.load(tiny(family, torch.float32), tokenizer=tokenizer)
    some = [texts[0], texts[2]]
    ours = measured(model, some)
    assert ours.differences.max() < 5e-6
    tokens = list(TextCorpus(model, some))
    for n, (text, one) in enumerate(zip(some, tokens, strict=True)):
        ids, special = one.encoding["input_ids"], one.encoding["special_tokens_mask"]
        stops = [model.tokenizer.convert_ids_to_tokens(id) in (".", ",") for id in ids]
        weights = torch.cat([record.weights() for record in model.attend(text)])
        for head in (0, len(weights) - 1):
            expected = by_definition(weights[head].tolist(), ids, special, stops)
            got = ours.value[n, head].tolist()
            assert got == pytest.approx(list(expected.values()), abs=1e-4, nan_ok=True)


def test_batches_are_larger_on_a_gpu(texts, tokenizer, simulated_gpu):
    module = tiny("bert", torch.float64)  # whose rounding does not depend on the batch
    on_cpu = measured(attnviz.load(module, tokenizer=tokenizer), texts * 5)
    on_gpu = measured(attnviz.load(module.to("cuda"), tokenizer=tokenizer), texts * 5)
    assert (on_cpu.compared, on_gpu.compared) == (4, 1)  # batches
    positions = torch.ones(4, 16, 256, dtype=torch.bool)
    blocks = [len(WeightStatistics(Positions(*positions.to(d))).blocks) for d in ("cpu", "cuda")]
    assert blocks == [4, 1]
    for name in ("value", "shuffled", "even"):
        one, other = getattr(on_cpu, name), getattr(on_gpu, name)
        torch.testing.assert_close(one, other, atol=2e-6, rtol=2e-6, equal_nan=True)


def test_a_batch_of_long_texts_is_small():
    lengths = [128] * 200 + [1024] * 9 + [4096] * 2
    assert [len(batch) for batch in batches(lengths, 16384)] == [128, 72, 4, 4, 1, 1, 1]


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
