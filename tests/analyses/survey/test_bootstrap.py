"""Confidence intervals on data with known truth, for any order and partition."""

import numpy as np
import pytest

from attnviz.analyses.survey.aggregate import Bootstrap, draw


def drawn(shape, seed=0):
    return np.random.default_rng(seed).normal(0.0, 1.0, shape)


def estimates(values, parts=1, order=None):
    order = np.arange(len(values)) if order is None else order
    bootstrap = Bootstrap(values.shape[1])
    for some in np.array_split(order, parts):
        bootstrap.add(draw(some, 0), values[some])
    return bootstrap.estimates()


def test_intervals_have_their_nominal_coverage():
    found = estimates(drawn((300, 400)))
    inside = ((found.low < 0) & (found.high > 0)).mean()
    assert 0.92 < inside < 0.98


def test_order_and_chunks_do_not_matter():
    values = drawn((90, 5))
    values[::7, 2] = np.nan
    one = estimates(values)
    other = estimates(values, parts=8, order=np.random.default_rng(1).permutation(90))
    for name in ("mean", "low", "high", "count"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-12)


def test_missing_values_are_skipped():
    values = drawn((50, 2))
    values[10:, 1] = np.nan
    found = estimates(values)
    assert found.count.tolist() == [50, 10]
    assert found.mean[1] == pytest.approx(values[:10, 1].mean())
    assert found.high[1] - found.low[1] > 1.5 * (found.high[0] - found.low[0])


def test_a_statistic_with_few_or_no_values_has_no_interval():
    values = drawn((20, 3))
    values[:, 1] = np.nan
    values[9:, 2] = np.nan
    found = estimates(values)
    assert np.isnan([found.mean[1], found.low[1], found.high[1]]).all()
    assert np.isfinite(found.mean[2])
    assert np.isnan([found.low[2], found.high[2]]).all()
