"""Each statistic against its definition, written out weight by weight."""

import math

import pytest
import torch

from attnviz.survey.corpus import read_corpus
from attnviz.survey.measuring import measure
from attnviz.survey.statistics import STATISTICS, Measure, Tokens


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
        "previous": mean(lambda i: w[i][i - 1] if i else None),
        "next": mean(lambda i: w[i][i + 1] if i + 1 < len(ids) else None),
        "first": mean(lambda i: w[i][0]),
        "separators": mean(lambda i: some([w[i][j] for j in places if special[j]])),
        "same token": mean(
            lambda i: some([w[i][j] for j in places if j != i and ids[j] == ids[i]])
        ),
        "induction": mean(
            lambda i: some([w[i][j] for j in places if 0 < j <= i and ids[j - 1] == ids[i]])
        ),
        "punctuation": mean(lambda i: some([w[i][j] for j in places if stops[j]])),
        "entropy": mean(lambda i: -sum(x * math.log(x) for x in w[i] if x > 0)),
        "most read": max(received),
    }


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_each_is_what_its_definition_says(causal, seed):
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
    got = Measure(Tokens(ids, real, special & real, stops))(weights)
    for n, length in enumerate(lengths):
        for head in range(H):
            expected = by_definition(
                weights[n, head, :length, :length].tolist(),
                ids[n, :length].tolist(),
                special[n, :length].tolist(),
                stops[n, :length].tolist(),
            )
            for name, value in expected.items():
                ours = got[n, head, STATISTICS.index(name)].item()
                assert ours == pytest.approx(value, abs=2e-6, nan_ok=True), (n, head, name)


def test_many_texts_at_once_give_what_one_at_a_time_gives(texts, model):
    corpus = list(read_corpus(texts[:8]))
    ours = measure(model.checkpoint, corpus)
    assert max(ours.differences) < 5e-6
    model.module.set_attn_implementation("eager")
    try:
        for n, each in enumerate(corpus):
            encoded = model.tokenizer(each.text, return_tensors="pt")
            with torch.no_grad():
                attentions = model.module(**encoded, output_attentions=True).attentions
            ids = encoded["input_ids"][0].tolist()
            tokens = model.tokenizer.convert_ids_to_tokens(ids)
            special = [token in ("[CLS]", "[SEP]") for token in tokens]
            stops = [token in (".", ",") for token in tokens]
            for layer, maps in enumerate(attentions):
                for head in (0, 7):
                    expected = by_definition(maps[0, head].tolist(), ids, special, stops)
                    got = ours.layers[layer].value[n, head].tolist()
                    assert got == pytest.approx(list(expected.values()), abs=1e-5, nan_ok=True)
    finally:
        model.module.set_attn_implementation("sdpa")


def test_even_weights_are_the_mean_over_shuffles_of_the_keys(texts, model):
    # What stands for the permutation null, held against shuffles that are made.
    corpus = list(read_corpus(texts[:1]))
    even = measure(model.checkpoint, corpus).layers[0].even[0, 0]
    ids = model.tokenizer(corpus[0].text)["input_ids"]
    tokens = model.tokenizer.convert_ids_to_tokens(ids)
    special = torch.tensor([[token in ("[CLS]", "[SEP]") for token in tokens]])
    stops = torch.tensor([[token in (".", ",") for token in tokens]])
    batch = Measure(Tokens(torch.tensor([ids]), torch.ones_like(special), special, stops))
    weights = model.attend(corpus[0].text).weights(0)[None].float()
    generator = torch.Generator().manual_seed(0)
    total = sum(
        batch(weights[..., torch.randperm(len(ids), generator=generator)]) for _ in range(3000)
    )
    mean = (total / 3000)[0].mean(0)
    for name in ("self", "previous", "separators", "same token", "punctuation"):
        at = STATISTICS.index(name)
        assert mean[at].item() == pytest.approx(even[at].item(), abs=6e-3), name


def test_a_text_is_measured_alike_in_any_company(texts, model):
    alone = measure(model.checkpoint, list(read_corpus(texts[:1])))
    among = measure(model.checkpoint, list(read_corpus(texts[:8])))
    for one, other in zip(alone.layers, among.layers, strict=True):
        for name in ("value", "shuffled", "even"):
            torch.testing.assert_close(
                getattr(one, name)[0], getattr(other, name)[0], atol=2e-6, rtol=0, equal_nan=True
            )
