"""The senses figure: every occurrence in every layer, measured values, no overlap."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.collections import PathCollection
from readable_text import visible_texts

import attnviz
from attnviz.analyses.senses.plot import shown_states
from figures.test_layout import check_layout

WORDS = ["bank", "check", "apple"]


@pytest.fixture(scope="module")
def results(model):
    return {word: attnviz.senses(word, model=model) for word in WORDS}


def words_on(figure):
    return [text.get_text() for text, _ in visible_texts(figure)]


def panels(figure):
    """Return the axes with dots, and the positions of the dots in each panel."""
    found = []
    for axes in figure.axes:
        dots = [c.get_offsets() for c in axes.collections if isinstance(c, PathCollection)]
        if axes.axison and dots:
            found.append((axes, np.concatenate(dots)))
    return found


def test_every_occurrence_is_drawn_in_every_layer_and_the_best_twice(results):
    result = results["check"]
    drawn = panels(attnviz.plot.senses(result))
    assert len(drawn) == 8
    order = [*range(7), result.best]
    for (axes, places), state in zip(drawn, order, strict=True):
        expected = result.plane[state].numpy()
        assert sorted(map(tuple, places.tolist())) == sorted(map(tuple, expected.tolist()))
        box = axes.get_window_extent()
        (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
        assert (x1 - x0) / box.width == pytest.approx((y1 - y0) / box.height, rel=1e-3)
        assert x0 < places[:, 0].min() <= places[:, 0].max() < x1


def test_dots_closer_to_another_sense_are_hollow(results):
    result = results["check"]
    (axes, _), *_ = panels(attnviz.plot.senses(result))
    hollow = [
        len(dots.get_offsets())
        for dots in axes.collections
        if isinstance(dots, PathCollection) and tuple(dots.get_facecolor()[0][:3]) == (1, 1, 1)
    ]
    assert sum(hollow) == int((result.right[0] <= 0.5).sum())


@pytest.mark.parametrize("word", WORDS)
def test_the_numbers_are_the_measured_ones(results, word):
    result = results[word]
    said = words_on(attnviz.plot.senses(result, caption="full"))
    for score, plane in zip(result.scores, result.plane_accuracy, strict=True):
        assert f"{score.accuracy:.2f} (plane {plane:.2f})" in said
    assert f"other words, static {result.context.accuracy:.2f}" in said
    assert f"the word, static {result.scores[0].accuracy:.2f}" in said
    assert f"guessing {result.chance:.2f}" in said
    assert f"output {result.scores[-1].accuracy:.2f}" in said
    caption = " ".join(said)
    assert f"read by {result.provenance.model}" in caption
    assert f"p = {result.p_best:.4f} over all layers" in caption
    assert result.agreement.summary()[1:60] in caption
    for sense in result.senses:
        assert sense in said
    labels = {one.strongest for one in result.occurrences}
    assert len(labels & {*said}) >= 0.8 * len(labels)


@pytest.mark.parametrize("width", [40, 60, 89, 120, 183, 300])
@pytest.mark.parametrize("word", WORDS)
def test_nothing_overlaps_or_leaves_the_page(results, word, width):
    check_layout(attnviz.plot.senses(results[word], width=width))


def test_unusual_names_are_drawn_literally(results):
    names = ("$a_1$", "an uncommonly long name for a sense " * 3)
    found = results["bank"]
    renamed = [
        replace(one, sense=names[found.senses.index(one.sense)], strongest="$x^2$")
        for one in found.occurrences
    ]
    figure = attnviz.plot.senses(replace(found, senses=names, occurrences=tuple(renamed)))
    check_layout(figure)
    assert "$a_1$" in words_on(figure)


def test_a_deep_model_shows_some_layers_with_the_first_the_best_and_the_last(results):
    found, many = results["bank"], 33
    deep = replace(
        found,
        scores=(found.scores * 5)[:many],
        plane=found.plane.repeat(5, 1, 1)[:many],
        right=torch.cat([found.right] * 5)[:many],
        explained=(found.explained * 5)[:many],
        plane_accuracy=(found.plane_accuracy * 5)[:many],
        best=18,
    )
    shown = shown_states(deep)
    assert {0, 18, 32} <= {*shown}
    assert len(shown) <= 14
    for width in (89, 183):
        figure = attnviz.plot.senses(deep, width=width, caption="full")
        check_layout(figure)
    assert f"{len(shown)} of 33 states drawn." in " ".join(words_on(figure))
