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
def survey(texts, model):
    return attnviz.survey(texts[:1], model=model)


def test_each_nonsignificant_head_is_faint(survey):
    made = replace(survey, p_even=drawn(0), p_shuffled=drawn(1))
    maps = panels(attnviz.plot.survey(made))
    assert len(maps) == len(made.statistics)
    for at, (ax, name) in enumerate(zip(maps, made.statistics, strict=True)):
        p_values = made.p_shuffled if name in ("entropy", "most read") else made.p_even
        expected = {
            (head.layer, head.head)
            for head, p_value in zip(made.heads, p_values[:, at].tolist(), strict=True)
            if p_value >= 0.01
        }
        faint = np.argwhere(np.asarray(ax.images[0].get_alpha()) < 1)
        assert {(y, x) for y, x in faint.tolist()} == expected


def test_significant_changes_have_a_color(texts, model):
    same = attnviz.compare(texts[:1], models=(model, model))
    change = torch.linspace(-1, 1, 72 * 11, dtype=torch.float64).reshape(72, 11)
    p_value = drawn(2)
    made = replace(same, p_value=p_value[None], change=change[None], apart=torch.rand(72))
    apart, *maps = panels(attnviz.plot.compare(made))
    assert (np.asarray(apart.images[0].get_alpha()) == 1).all()
    for at, ax in enumerate(maps):
        shown, opacity = ax.images[0].get_array(), np.asarray(ax.images[0].get_alpha())
        sure = (p_value[:, at] < 0.01).reshape(6, 12).numpy()
        np.testing.assert_array_equal(opacity, sure.astype(float))
        np.testing.assert_array_equal(shown[sure], change[:, at].reshape(6, 12).numpy()[sure])
    assert len(maps) == 11


def test_planar_head_distances_are_drawn_to_scale(survey):
    points = np.random.default_rng(0).normal(size=(72, 2)) * [0.3, 0.1]
    roles = ["previous token" if n in (5, 40) else "" for n in range(72)]
    made = replace(survey, roles=tuple(roles), distances=torch.from_numpy(cdist(points, points)))
    figure = attnviz.plot.survey(made, details=True)
    figure.draw_without_rendering()
    (plane,) = [ax for ax in figure.axes if ax.collections and not ax.images]
    places = np.concatenate([each.get_offsets() for each in plane.collections])
    order = sorted(range(72), key=lambda n: roles[n] == "")
    expected = cdist(points, points)[np.ix_(order, order)]
    np.testing.assert_allclose(cdist(places, places), expected, atol=1e-6)
    on_paper = plane.transData.transform(places)
    ratio = cdist(on_paper, on_paper).max() / expected.max()
    np.testing.assert_allclose(cdist(on_paper, on_paper), ratio * expected, atol=1e-3)


def test_the_roles_of_all_heads_and_the_weights_of_named_ones(survey):
    roles = ["previous token", "rests on the first token", "rests on the first token"] + [""] * 69
    made = replace(survey, roles=tuple(roles))
    figure = attnviz.plot.survey(made)
    said = [text.get_text() for text in figure.texts]
    assert " ".join(said[:2]).startswith(
        "3 of 72 heads have a role on 1 text, and 2 of these rest on the first token"
    )
    grid = figure.axes[0]
    colors = {tuple(patch.get_xy()): patch.get_facecolor() for patch in grid.patches}
    assert len(colors) == 72
    assert colors[0, 0] != colors[1, 0] == colors[2, 0] != colors[3, 0]
    assert {"0.0  previous token", "0.1  rests on the first token"} <= set(said)
    bars = figure.axes[1].patches
    weights = [made.mean[0, made.of("previous")].item()]
    weights += sorted(made.mean[1:3, made.of("first")].tolist(), reverse=True)
    np.testing.assert_allclose([bar.get_width() for bar in bars], weights)
