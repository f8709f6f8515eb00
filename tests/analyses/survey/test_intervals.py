"""Confidence intervals on data with known truth, for any order and partition."""

import numpy as np
import pytest
import torch

from attnviz.analyses.survey.aggregate import Moments


def drawn(shape, seed=0):
    return np.random.default_rng(seed).normal(0.0, 1.0, shape)


def estimates(values, parts=1, order=None):
    order = np.arange(len(values)) if order is None else order
    moments = Moments(values.shape[1])
    for some in np.array_split(order, parts):
        moments.add(torch.from_numpy(values[some]))
    return moments.estimates()


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


def test_student_t_and_percentiles_would_miss_a_skewed_mean():
    """What the correction is for, on the same draws."""
    values = KINDS["a share near 0"][0](np.random.default_rng(10), (10, 20_000))
    mean, wide = values.mean(0), 2.262 * values.std(0, ddof=1) / np.sqrt(10)
    truth = KINDS["a share near 0"][1]
    assert (abs(mean - truth) < wide).mean() < 0.89


def test_order_and_chunks_do_not_matter():
    values = drawn((90, 5))
    values[::7, 2] = np.nan
    values[:, 3] = 1 - 1e-7 * values[:, 3] ** 2  # next to 1
    one = estimates(values)
    other = estimates(values, parts=8, order=np.random.default_rng(1).permutation(90))
    for name in ("mean", "low", "high", "count"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-12)
    assert one.low[3] < one.mean[3] < one.high[3] < 1


def test_equal_numbers_have_an_interval_of_one_point():
    found = estimates(np.full((20, 2), [0.1, 0.0]))
    assert (found.low == found.mean).all()
    assert (found.high == found.mean).all()


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
