"""The interactive view uses the same colors as the figures."""

import re
from pathlib import Path

import numpy as np
import pytest
from cmcrameri import cm

import attnviz.interactive.page
from attnviz.figures.style import DARK, LIGHT

SOURCE = (Path(attnviz.interactive.page.__file__).parent / "frontend/src/colors.ts").read_text(
    "utf-8"
)


def stops(name):
    """Return the stops of a color map as written in the source, (n, 3)."""
    joined = re.search(rf"^  {name}:((?:\s*\"[0-9a-f]+\"[ +,]*)+)$", SOURCE, re.MULTILINE)[1]
    codes = bytes.fromhex("".join(re.findall(r'"([0-9a-f]+)"', joined)))
    return np.frombuffer(codes, np.uint8).reshape(-1, 3)


@pytest.mark.parametrize("name", ["devon_r", "oslo"])
def test_a_map_differs_from_crameris_by_one_in_255_at_most(name):
    theirs = 255 * np.array(getattr(cm, name).colors)
    ours = stops(name)
    places = np.linspace(0, 1, len(ours))
    drawn = [np.interp(np.linspace(0, 1, 256), places, channel) for channel in ours.T]
    assert np.abs(np.round(np.transpose(drawn)) - theirs).max() <= 1.5


def test_light_pages_use_the_colors_of_the_figures():
    light = SOURCE[SOURCE.index("LIGHT: Theme") :]
    names = [colors.name for colors in (LIGHT.weights, LIGHT.neutral, LIGHT.values)]
    assert 'weights: "{}", neutral: "{}", signed: "{}"'.format(*names) in light
    assert f"masked: {[*bytes.fromhex(LIGHT.masked[1:]), 255]}" in light
    for name, colors in (("neutral", LIGHT.neutral), ("sides", LIGHT.values)):
        written = stops(name)
        drawn = colors(np.linspace(0, 1, len(written)), bytes=True)[:, :3]
        assert np.abs(drawn.astype(int) - written).max() <= 1  # of 256 colors none is the middle
    assert colors_in("CYCLE") == LIGHT.cycle


def test_dark_pages_use_the_colors_of_dark_figures():
    dark = SOURCE[SOURCE.index("DARK: Theme") :]
    for name in ("ground", "ink", "muted", "faint", "claim", "alarm"):
        assert f'{name}: "{getattr(DARK, name)}"' in dark
    assert colors_in("LIGHTER") == DARK.cycle
    assert 'signed: "sides_dark"' in dark
    drawn = DARK.values(np.linspace(0, 1, 3), bytes=True)[:, :3]
    assert np.abs(drawn.astype(int) - stops("sides_dark")).max() <= 2


def test_sides_have_the_colors_of_the_figures():
    for name, theme in (("LIGHT", LIGHT), ("DARK", DARK)):
        written = SOURCE[SOURCE.index(f"{name}: Theme") :]
        for ours, theirs in (
            ("sides", "sides"),
            ("sideText", "side_text"),
            ("sidePale", "side_pale"),
        ):
            listed = re.search(rf"{ours}: \[([^]]+)\]", written)[1]
            assert tuple(re.findall(r"#\w{6}", listed)) == getattr(theme, theirs)
        assert re.search(r"gray: \"(#\w{6})\"", written)[1] == theme.gray


def test_roles_have_the_colors_of_the_figures():
    for name, theme in (("ROLES", LIGHT), ("ROLES_ON_DARK", DARK)):
        written = re.search(rf"const {name}: [^{{]*{{([^}}]+)}}", SOURCE)[1]
        assert dict(re.findall(r"(\w+): \"(#\w{6})\"", written)) == theme.roles


def colors_in(name):
    """Return the colors of a list of the source."""
    return tuple(re.findall(r"#[0-9a-f]{6}", re.search(rf"{name} = \[([^]]+)\]", SOURCE)[1]))
