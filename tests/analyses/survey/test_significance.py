"""The survey figure marks exactly the heads with significant p-values."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

import attnviz

P_VALUES = torch.tensor([0.001, 0.009, 0.01, 0.5, 1.0], dtype=torch.float64)


def drawn(seed):
    """Return a p-value for each of 72 heads and 11 statistics."""
    which = torch.randint(len(P_VALUES), (72, 11), generator=torch.Generator().manual_seed(seed))
    return P_VALUES[which]


def panels(figure):
    return [ax for ax in figure.axes if ax.images and ax.images[0].get_array().shape == (6, 12)]


@pytest.fixture(scope="module")
def census(texts, model):
    return attnviz.survey(texts[:1], model=model)


def test_each_nonsignificant_head_has_a_cross(census):
    made = replace(census, p_even=drawn(0), p_shuffled=drawn(1))
    maps = panels(attnviz.plot.survey(made))
    assert len(maps) == len(made.statistics)
    for at, (ax, name) in enumerate(zip(maps, made.statistics, strict=True)):
        p_values = made.p_shuffled if name in ("entropy", "most read") else made.p_even
        expected = {
            (head.layer, head.head)
            for head, p_value in zip(made.heads, p_values[:, at].tolist(), strict=True)
            if p_value >= 0.01
        }
        (crosses,) = ax.collections
        assert {(y, x) for x, y in crosses.get_offsets().tolist()} == expected


def test_significant_changes_have_a_color(texts, model):
    found = attnviz.compare(texts[:1], models=(model, model))
    change = torch.linspace(-1, 1, 72 * 11, dtype=torch.float64).reshape(72, 11)
    made = replace(found, p_value=drawn(2), change=change, apart=torch.rand(72))
    apart, *maps = panels(attnviz.plot.compare(made))
    assert not np.ma.getmaskarray(apart.images[0].get_array()).any()
    for at, ax in enumerate(maps):
        shown = ax.images[0].get_array()
        sure = (made.p_value[:, at] < 0.01).reshape(6, 12).numpy()
        np.testing.assert_array_equal(~np.ma.getmaskarray(shown), sure)
        np.testing.assert_array_equal(shown[sure], change[:, at].reshape(6, 12).numpy()[sure])
        assert not ax.images[0].to_rgba(shown)[~sure, 3].any()
    assert len(maps) == 11


def test_planar_head_distances_are_drawn_to_scale(census):
    points = np.random.default_rng(0).normal(size=(72, 2)) * [0.3, 0.1]
    roles = ["previous token" if n in (5, 40) else "" for n in range(72)]
    made = replace(census, roles=tuple(roles), distances=torch.from_numpy(cdist(points, points)))
    figure = attnviz.plot.survey(made)
    figure.draw_without_rendering()
    scattered = [ax for ax in figure.axes if ax.collections and not ax.images]
    plane = max(scattered, key=lambda ax: len(ax.collections[-1].get_offsets()))  # not the key
    places = np.concatenate([each.get_offsets() for each in plane.collections])
    order = sorted(range(72), key=lambda n: roles[n] == "")
    expected = cdist(points, points)[np.ix_(order, order)]
    np.testing.assert_allclose(cdist(places, places), expected, atol=1e-6)
    on_paper = plane.transData.transform(places)
    ratio = cdist(on_paper, on_paper).max() / expected.max()
    np.testing.assert_allclose(cdist(on_paper, on_paper), ratio * expected, atol=1e-3)
