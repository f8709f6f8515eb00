"""Intervals and sign flips on data with known truth, for few texts and any order and partition."""

from itertools import product

import numpy as np
import pytest
import torch

from attnviz.analyses.survey.aggregate import Moments, SignFlips, difference, draw_signs


def drawn(shape, mean=0.0):
    return np.random.default_rng(0).normal(mean, 1.0, shape)


def estimates(values, parts=1, order=None):
    order = np.arange(len(values)) if order is None else order
    moments = Moments(values.shape[1])
    for some in np.array_split(order, parts):
        moments.add(torch.from_numpy(values[some]))
    return moments.estimates()


def p_values(values, parts=1, order=None, seed=0):
    order = np.arange(len(values)) if order is None else order
    test = SignFlips(values.shape[1])
    for some in np.array_split(order, parts):
        test.add(draw_signs(some, seed), torch.from_numpy(values[some]))
    return test.p_values()


@pytest.mark.parametrize("texts", [11, 90])
def test_order_and_chunks_do_not_matter(texts):
    values = drawn((texts, 5), 0.2)
    values[::7, 2] = np.nan
    values[:, 3] = 1 - 1e-7 * values[:, 3] ** 2  # next to 1
    other = {"parts": 8, "order": np.random.default_rng(1).permutation(texts)}
    np.testing.assert_allclose(p_values(values), p_values(values, **other), rtol=1e-12)
    one, again = estimates(values), estimates(values, **other)
    for name in ("mean", "low", "high", "count"):
        np.testing.assert_allclose(getattr(one, name), getattr(again, name), rtol=1e-12)
    assert one.low[3] < one.mean[3] < one.high[3] < 1


# --- intervals


KINDS = {
    "normal": (lambda random, shape: random.normal(size=shape), 0.0),
    "skewed": (lambda random, shape: random.exponential(size=shape), 1.0),
    "lognormal": (lambda random, shape: random.lognormal(0, 0.5, shape), np.exp(0.125)),
    "a share": (lambda random, shape: random.beta(1, 4, shape), 0.2),
    "a share near 0": (lambda random, shape: random.beta(0.3, 2, shape), 0.3 / 2.3),
    "a share near 1": (lambda random, shape: 1 - random.beta(0.3, 2, shape), 2 / 2.3),
}


@pytest.mark.parametrize("texts", [10, 20, 30, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_intervals_have_their_nominal_coverage(kind, texts):
    draw, truth = KINDS[kind]
    found = estimates(draw(np.random.default_rng(texts), (texts, 20_000)))
    inside = ((found.low < truth) & (found.high > truth)).mean()
    assert 0.93 < inside < 0.97


def test_equal_numbers_have_an_interval_of_one_point():
    found = estimates(np.full((20, 2), [0.1, 0.0]))
    assert (found.low == found.mean).all()
    assert (found.high == found.mean).all()


def test_missing_values_are_skipped_and_few_have_no_interval():
    values = drawn((50, 4))
    values[10:, 1] = values[9:, 2] = values[:, 3] = np.nan
    found = estimates(values)
    assert found.count.tolist() == [50, 10, 9, 0]
    np.testing.assert_allclose(found.mean[1:3], [values[:10, 1].mean(), values[:9, 2].mean()])
    assert found.high[1] - found.low[1] > 1.5 * (found.high[0] - found.low[0])
    assert np.isnan([found.low[2:], found.high[2:]]).all()
    assert np.isnan(found.mean[3])


# --- sign flips


def null_family(texts, seed):
    """Return differences of exchangeable numbers: 40 columns, many alike, skewed, sparse, equal."""
    random = np.random.default_rng(seed)
    common = random.exponential(1.0, (2, texts, 1))
    one, other = common + random.exponential(0.3, (2, texts, 40))
    sparse = random.random((2, texts, 10)) < 0.05
    one[:, :10], other[:, :10] = sparse
    values = one - other
    values[:, 10:13] = random.choice([-1.0, 1.0], (texts, 1))  # the same size in all texts
    values[::3, 13:16] = np.nan
    return values


def test_one_null_family_in_twenty_has_a_discovery():
    families = 200
    found = [p_values(null_family(10, seed), seed=seed).min() < 0.05 for seed in range(families)]
    assert sum(found) <= 18  # binomial(200, 0.05) is larger with probability 0.008


def test_few_texts_are_flipped_in_all_ways():
    values = drawn((7, 3), 0.7)
    size = np.sqrt((values**2).sum(0))
    statistics = np.abs([np.array(signs) @ values / size for signs in product([1, -1], repeat=7)])
    found, threshold = p_values(values), 0.0
    rest = [*np.argsort(-statistics[0])]
    while rest:  # step-down
        share = (statistics[:, rest].max(1) >= statistics[0, rest[0]] - 1e-12).mean()
        threshold = max(threshold, share)
        assert found[rest.pop(0)] == pytest.approx(threshold)


@pytest.mark.parametrize("texts", [3, 8, 12, 13, 40])
def test_numbers_without_variance_are_as_significant_as_the_texts_allow(texts):
    values = drawn((texts, 100))
    values[:, 0] = 0.95
    found = p_values(values)
    if texts <= 12:
        assert found[0] == pytest.approx(2 / 2**texts, rel=1e-12)
    else:
        assert found[0] <= 2 / 2048
    assert (found[0] < 0.01) == (texts >= 8)


def test_one_text_decides_nothing():
    values = np.zeros((60, 2))
    values[3] = 5.0, 250.0
    assert p_values(values).tolist() == SignFlips(2).p_values().tolist() == [1, 1]


def test_one_real_difference_among_many_is_found():
    values = drawn((200, 100))
    before = p_values(values)
    values[:, 7] += 0.5
    found = p_values(values)
    assert found[7] < 0.01
    others = np.arange(100) != 7
    assert (found[others] > 0.05).all()
    # A number that is larger does not count against the others.
    np.testing.assert_allclose(found[others], before[others], atol=0.03)


def test_rounding_is_no_difference():
    values = np.full((40, 2), [0.3, 400.0])
    noise = np.full((40, 2), [3e-8, 3e-5])
    for much, found in ((noise, [1, 1]), (100 * noise, [pytest.approx(0, abs=0.01)] * 2)):
        changes = difference(torch.from_numpy(values + much), torch.from_numpy(values))
        assert p_values(changes.numpy()).tolist() == found
    assert difference(torch.tensor([torch.nan]), torch.tensor([0.0])).isnan().all()
