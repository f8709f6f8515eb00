"""Confidence intervals and tests on data with known truth, for any order and partition."""

import numpy as np
import pytest

from attnviz.analyses.survey.aggregate import Estimator, draw


def drawn(shape, seed=0, shift=0.0):
    return np.random.default_rng(seed).normal(shift, 1.0, shape)


def estimates(values, parts=1, order=None, seed=0, shares=False):
    order = np.arange(len(values)) if order is None else order
    estimator = Estimator(np.full(values.shape[1], shares))
    for some in np.array_split(order, parts):
        estimator.add(draw(some, seed), values[some])
    return estimator.estimates()


def test_intervals_have_their_nominal_coverage():
    found = estimates(drawn((300, 400)))
    inside = ((found.low < 0) & (found.high > 0)).mean()
    assert 0.92 < inside < 0.98


def test_null_data_gives_few_discoveries():
    # With the correction for multiple tests, 19 of 20 families have no discovery.
    families = [estimates(drawn((60, 50), seed), seed=seed) for seed in range(40)]
    assert sum((found.p_value < 0.05).any() for found in families) <= 6


def test_skewed_null_data_gives_few_discoveries():
    # Sign flips assume symmetry and would report discoveries in half of these families.
    families = [
        estimates(np.random.default_rng(seed).exponential(1.0, (60, 200)) - 1, seed=seed)
        for seed in range(30)
    ]
    assert sum((found.p_value < 0.05).any() for found in families) <= 6
    assert sum((found.p_value < 0.01).any() for found in families) <= 2


def test_sparse_statistics_are_not_tested_and_do_not_affect_others():
    values = drawn((60, 50))
    values[:, 7] += 0.8
    before = estimates(values).p_value[7]
    values[:, 8] = 0.0
    values[3, 8] = 5.0  # a single text determines the mean
    values[:, 9] = np.nan
    values[3, 9] = 5.0  # only one text has a value
    found = estimates(values)
    assert found.p_value[7] == before < 0.01
    assert found.p_value[8] == found.p_value[9] == 1.0
    assert np.isnan([found.low[9], found.high[9]]).all()


@pytest.mark.parametrize("number", [0.1, 0.3, 1 / 3, 0.7])
def test_constant_data_uses_a_distribution_free_bound(number):
    # The bound depends only on the range and the count, not on the rounded variance. The factor 2
    # accounts for the bootstrap as the second test.
    found = estimates(np.full((100, 2), number), shares=True)
    expected = min(1.0, 2 * 4 * np.exp(-100 * number**2 / 2))
    assert found.p_value == pytest.approx(expected)
    assert estimates(np.full((100, 2), number)).p_value.min() == 1.0


def test_unbounded_data_with_rare_outliers_is_not_significant():
    # The mean is about 0, but most samples contain only, or almost only, 0.5.
    found = []
    for seed in range(40):
        rare = np.random.default_rng(seed).random((400, 1)) > 0.998
        found.append(estimates(np.where(rare, -250.0, 0.5), seed=seed).p_value[0])
    assert sum(p_value < 0.05 for p_value in found) <= 4


def test_one_real_difference_among_many_is_found():
    values = drawn((200, 100))
    values[:, 7] += 0.5
    found = estimates(values)
    assert found.p_value[7] < 0.01
    assert (np.delete(found.p_value, 7) > 0.05).all()


def test_order_and_chunks_do_not_matter():
    values = drawn((90, 5))
    values[::7, 2] = np.nan
    one = estimates(values)
    other = estimates(values, parts=8, order=np.random.default_rng(1).permutation(90))
    for name in ("mean", "low", "high", "p_value", "count"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-12)


def test_missing_values_are_skipped():
    values = drawn((50, 2))
    values[10:, 1] = np.nan
    found = estimates(values)
    assert found.count.tolist() == [50, 10]
    assert found.mean[1] == pytest.approx(values[:10, 1].mean())
    assert found.high[1] - found.low[1] > 1.5 * (found.high[0] - found.low[0])


def test_a_statistic_without_values_is_nan():
    values = drawn((20, 2))
    values[:, 1] = np.nan
    found = estimates(values)
    assert np.isnan([found.mean[1], found.low[1], found.high[1]]).all()
    assert found.p_value[1] == 1.0
