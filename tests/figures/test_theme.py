"""Dark figures: every color is the theme's, also in what matplotlib makes when it saves."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from golden.saved_results import SAVED
from matplotlib.colors import to_hex, to_rgb
from readable_text import DARK, LIGHT, theme

import attnviz
from attnviz import plot

DRAWN = {
    "heatmap": lambda result: plot.heatmap(result, layer=1, head=3, overview=True).figure,
    "heads": plot.heads,
    "steps": lambda result: plot.steps(attnviz.steps(result, layer=1, head=3)),
    "attention_vector": lambda result: plot.attention_vector(
        attnviz.steps(result, layer=1, head=3)
    ),
    "shift": lambda _: plot.shift(attnviz.load_result(SAVED / "shift-causally.safetensors")),
    "text": lambda result: plot.text(attnviz.attention_map(result, layer=1, head=3)),
    "example": lambda _: plot.example("phones"),
    "axes of the user": lambda result: (
        plot.heatmap(result, layer=1, head=3, ax=plt.subplots(layout="constrained")[1]).figure
    ),
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_dark_figure_has_no_color_of_the_light_theme(name, train, tmp_path):
    with plot.style(theme="dark"):
        figure = DRAWN[name](train)
    assert to_hex(figure.get_facecolor()) == DARK.ground
    plot.save(figure, tmp_path / "x.svg")
    drawn = (tmp_path / "x.svg").read_text()
    assert DARK.ground in drawn
    assert DARK.ink in drawn
    for color in (LIGHT.ink, LIGHT.muted, LIGHT.faint, LIGHT.claim, LIGHT.masked):
        assert color not in drawn, color


def test_dark_colors_begin_with_the_background():
    for colors, place in ((DARK.weights, 0.0), (DARK.neutral, 0.0), (DARK.values, 0.5)):
        np.testing.assert_allclose(colors(place)[:3], to_rgb(DARK.ground), atol=0.01)


def test_text_is_readable_on_every_color_of_the_dark_theme():
    for fill in DARK.weights(np.linspace(0, 1, 50)):
        light, dark = (sum(to_rgb(color)) for color in (fill, DARK.readable_on(fill)))
        assert abs(light - dark) > 0.7


def test_the_theme_ends_with_its_block():
    with plot.style(theme="dark"):
        with plot.style():
            assert theme() is DARK
        with plot.style(theme="light"):
            assert theme() is LIGHT
    assert theme() is LIGHT
    assert plt.rcParams["figure.facecolor"] == "white"


def test_a_caption_and_axes_follow_the_background_that_they_are_drawn_on(train):
    with plot.style(theme="dark"):
        figure = plt.figure()
    plot.add_caption(figure, text="a caption", agreement=train.agreement)
    assert {text.get_color() for text in figure.texts} == {DARK.muted, DARK.ink}
    for facecolor, expected in (("white", LIGHT), ("black", DARK), ("none", LIGHT)):
        _, ax = plt.subplots(subplot_kw={"facecolor": facecolor})
        plot.heatmap(train, layer=1, head=3, ax=ax)
        assert ax.xaxis.label.get_color() == expected.muted, facecolor


def test_a_caption_of_a_transparent_figure_is_dark_on_light(train):
    figure = plt.figure(facecolor="none")
    plot.add_caption(figure, text="a caption", agreement=train.agreement)
    assert {text.get_color() for text in figure.texts} == {LIGHT.muted, LIGHT.ink}
