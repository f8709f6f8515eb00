"""Sign flips on data with known truth: errors at their level, power, few texts, any partition."""

from itertools import product

import numpy as np
import pytest
import torch

from attnviz.analyses.survey.aggregate import SignFlips, difference, draw_signs


def p_values(values, parts=1, order=None, seed=0):
    order = np.arange(len(values)) if order is None else order
    test = SignFlips(values.shape[1])
    for some in np.array_split(order, parts):
        test.add(draw_signs(some, seed), torch.from_numpy(values[some]))
    return test.p_values()


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
    values = np.random.default_rng(0).normal(0.7, 1.0, (7, 3))
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
    values = np.random.default_rng(0).normal(0.0, 1.0, (texts, 100))
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
    assert p_values(values).tolist() == [1, 1]


def test_one_real_difference_among_many_is_found():
    values = np.random.default_rng(0).normal(0.0, 1.0, (200, 100))
    before = p_values(values)
    values[:, 7] += 0.5
    found = p_values(values)
    assert found[7] < 0.01
    others = np.arange(100) != 7
    assert (found[others] > 0.05).all()
    # A number that is larger does not count against the others.
    np.testing.assert_allclose(found[others], before[others], atol=0.03)


@pytest.mark.parametrize("texts", [11, 90])
def test_order_and_chunks_do_not_matter(texts):
    values = np.random.default_rng(0).normal(0.2, 1.0, (texts, 5))
    values[::7, 2] = np.nan
    one = p_values(values)
    order = np.random.default_rng(1).permutation(texts)
    np.testing.assert_allclose(one, p_values(values, parts=8, order=order), rtol=1e-12)


def test_rounding_is_no_difference():
    values = np.full((40, 2), [0.3, 400.0])
    noise = np.full((40, 2), [3e-8, 3e-5])
    for much, found in ((noise, [1, 1]), (100 * noise, [pytest.approx(0, abs=0.01)] * 2)):
        changes = difference(torch.from_numpy(values + much), torch.from_numpy(values))
        assert p_values(changes.numpy()).tolist() == found
    assert difference(torch.tensor([torch.nan]), torch.tensor([0.0])).isnan().all()


def test_without_texts_nothing_is_significant():
    assert SignFlips(2).p_values().tolist() == [1, 1]
