"""The committed front-end bundle equals a fresh build of its sources, with the figures' colors."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np

import attnviz
from attnviz.figures.style import DARK, LIGHT

ROOM = Path(attnviz.__file__).parent / "interactive"
FILES = (
    "attnviz.iife.js", "attnviz.css", "attnviz.es.js", "attnviz.live.js", "attnviz.live.css",
    "attnviz.explore.js", "attnviz.explore.css", "attnviz.lesson.js", "attnviz.lesson.css",
)  # fmt: skip


def test_the_committed_files_match_a_fresh_build(npm, tmp_path):
    copy = tmp_path / "frontend"
    shutil.copytree(ROOM / "frontend", copy, ignore=shutil.ignore_patterns("node_modules"))
    for command in (["ci", "--prefer-offline"], ["run", "check"], ["run", "build"]):
        done = subprocess.run([npm, *command], cwd=copy, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    for name in FILES:
        assert (tmp_path / "static" / name).read_bytes() == (ROOM / "static" / name).read_bytes()
        assert (ROOM / "static" / name).read_bytes().isascii()


def test_no_registry_is_recorded_and_versions_are_exact():
    lock = (ROOM / "frontend/package-lock.json").read_text()
    assert "resolved" not in lock
    assert "registry" not in lock
    package = json.loads((ROOM / "frontend/package.json").read_text())
    assert "dependencies" not in package
    for version in package["devDependencies"].values():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version)


def test_no_code_turns_text_into_markup_or_code():
    uses = [
        f"{file.name}: {word}"
        for file in (ROOM / "frontend/src").rglob("*.ts")
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "Function(", "style=")
        if word in file.read_text("utf-8")
    ]
    assert not uses


# --- the colors of the figures


SOURCE = (ROOM / "frontend/src/colors.ts").read_text("utf-8")


def stops(name):
    """Return the stops of a color map as written in the source, (n, 3)."""
    joined = re.search(rf"^  {name}:((?:\s*\"[0-9a-f]+\"[ +,]*)+)$", SOURCE, re.MULTILINE)[1]
    codes = bytes.fromhex("".join(re.findall(r'"([0-9a-f]+)"', joined)))
    return np.frombuffer(codes, np.uint8).reshape(-1, 3)


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
