"""The page of the visual grammar has the colors of the code, and readers can tell them apart."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from readable_text import DARK, LIGHT

PAGE = (Path(__file__).parents[2] / "gallery/guides/grammar.md").read_text("utf-8")
TABLE = {
    name: {"light": light, "dark": dark}
    for name, light, dark in re.findall(r"^\| ([\w ]+) \| (#\w{6}) \| (#\w{6}) \|", PAGE, re.M)
}
SIDES = ("first side", "second side", "third side", "fourth side")
THEMES = {"light": LIGHT, "dark": DARK}
# What is seen with each kind of color vision, of linear red, green and blue (Machado et al. 2009)
VISION = {
    "normal": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}  # fmt: skip


def linear(color):
    rgb = np.array(to_rgb(color))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(color, vision):
    """Return the place of a color in CIELAB, as it is seen."""
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    seen = np.clip(np.array(vision) @ linear(color), 0, 1)
    share = np.array(to_xyz) @ seen / [0.9505, 1.0, 1.089]
    x, y, z = np.where(share > 0.008856, np.cbrt(share), 7.787 * share + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def nearest(colors, vision):
    """Return the smallest distance of two colors, and their names."""
    pairs = itertools.combinations(colors.items(), 2)
    return min(
        (np.linalg.norm(lab(one, vision) - lab(other, vision)), first, second)
        for (first, one), (second, other) in pairs
    )


def contrast(one, other):
    dark, light = sorted(linear(color) @ [0.2126, 0.7152, 0.0722] for color in (one, other))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("name", THEMES)
def test_the_page_has_the_colors_of_the_code(name):
    theme = THEMES[name]
    written = {meaning: colors[name] for meaning, colors in TABLE.items()}
    assert written.pop("claim") == theme.claim
    assert tuple(written.pop(side) for side in SIDES) == theme.sides
    assert written.pop("gray") == theme.gray
    assert written == {role: theme.roles[role] for role in written}
    assert len(written) == 7


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("name", THEMES)
def test_colors_differ_with_every_kind_of_color_vision(name, vision):
    theme = THEMES[name]
    sides = dict(zip(SIDES, theme.sides, strict=True))
    few = {"claim": theme.claim, "first": theme.sides[0], "second": theme.sides[1]}
    assert nearest(few, VISION[vision])[0] >= {"light": 27, "dark": 23}[name]
    assert nearest({one: sides[one] for one in SIDES[:2]}, VISION[vision])[0] >= 60
    assert nearest(sides, VISION[vision])[0] >= 12
    assert nearest({role: TABLE[role][name] for role in list(TABLE)[6:]}, VISION[vision])[0] >= 10


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("name", THEMES)
def test_lines_differ_and_none_has_the_red_of_a_claim(name, vision):
    theme = THEMES[name]
    lines = {color: color for color in theme.cycle[:4]}
    assert nearest(lines, VISION[vision])[0] >= 14
    assert nearest(lines | {"claim": theme.claim}, VISION[vision])[0] >= 13


@pytest.mark.parametrize("name", THEMES)
def test_text_has_contrast(name):
    theme = THEMES[name]
    for color in (theme.ink, theme.muted, theme.claim, theme.alarm, *theme.side_text):
        assert contrast(color, theme.ground) >= 5
    for text, pale in zip(theme.side_text, theme.side_pale, strict=True):
        assert contrast(text, pale) >= 4
    assert contrast(theme.gray, theme.ground) >= 3


def test_colors_that_are_alike_are_found():
    """Planted: two blues that readers with full color vision can tell apart by 5 only."""
    assert nearest({"one": "#3567ad", "other": "#3a6fb5"}, VISION["normal"])[0] < 12
