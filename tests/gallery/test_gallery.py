"""Every gallery figure can be drawn and read, and its page matches the scripts."""

import ast
import importlib
import io
import json
import operator
import re
import sys
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from one_model import one_model, one_run  # noqa: F401
from PIL import Image
from readable_text import check_texts

import attnviz

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import build_gallery  # noqa: E402

mpl.use("agg")
SCRIPTS = build_gallery.scripts()


def test_the_figures_are_numbered():
    assert [int(script.name[3:5]) for script in SCRIPTS] == list(range(len(SCRIPTS)))


# Figures of larger models take half a minute each; tests/real holds what they claim. Some train a
# model, one has the senses of ten words. What the others draw, tests/golden draws, too, or figures
# 5 and 8 with the same functions of attnviz.
TAKES_LONG = (
    "fig02_attention_vector", "fig03_recurrent_attention", "fig04_steps", "fig06_senses",
    "fig09_signal_decay", "fig11_cost", "fig12_apple", "fig13_heads_of_a_layer", "fig14_sinks",
    "fig18_four_rankings", "fig20_survey", "fig29_linear_attention", "fig30_shift",
)  # fmt: skip
DRAWN = [
    pytest.param(one, marks=pytest.mark.long)
    if build_gallery.models_of(one) or one.stem in TAKES_LONG
    else one
    for one in SCRIPTS
]


@pytest.mark.slow
@pytest.mark.parametrize("script", DRAWN, ids=lambda script: script.stem)
def test_a_script_draws_a_readable_figure_with_its_caption(script):
    if not all(model.is_here for model in build_gallery.models_of(script)):
        pytest.skip("needs the models of scripts/fetch_models.py")
    figure, title, caption = build_gallery.draw(script)
    check_texts(figure)
    assert not title.endswith(".")
    assert len(title) < 80
    assert len(caption) > 150
    assert not re.search(r"[{}]", title + caption)
    # The page has the same text, up to measured and rounded numbers of other machines.
    built = json.loads((ROOT / "gallery" / "built.json").read_text(encoding="utf-8"))
    assert words(built[script.stem]["caption"]) == words(caption)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_what_a_script_uses_of_attnviz_is_there(script):
    """Also of a script that is drawn by hand only."""
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in ("attnviz", "toy"):
            module = importlib.import_module(node.module)
            assert all(hasattr(module, name.name) for name in node.names), ast.unparse(node)
        name = re.fullmatch(r"attnviz\.([\w.]+)", ast.unparse(node))
        if isinstance(node, ast.Attribute) and name:
            operator.attrgetter(name[1])(attnviz)


def words(caption):
    """Return a caption without its numbers."""
    return re.sub(r"[-+]?\d[\d.,e+⁻⁰¹²³⁴⁵⁶⁷⁸⁹·-]*", "#", caption)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_is_short_and_every_number_in_its_caption_computed(script):
    source = script.read_text(encoding="utf-8")
    _, docstring, code = source.split('"""', maxsplit=2)
    assert len([line for line in code.splitlines() if line.strip()]) <= 40
    caption = docstring.partition("\n")[2]
    typed = re.sub(r"\{[^}]*\}", "", " ".join(caption.split()))
    numbers = {match.rstrip(".,") for match in re.findall(r"(?<!\w)\d[\d.,]*%?", typed)}
    assert numbers <= {"0", "1"}, "0 and 1 may define a scale; every other number is computed"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_ends_with_its_figure(script):
    source = script.read_text(encoding="utf-8")
    last = ast.unparse(ast.parse(source).body[-1])
    caption = "plot.add_caption(fig" if "add_caption" in source else ""
    assert last.startswith(f"fig = attnviz.{caption}"), "what is drawn is said last"


def test_the_page_shows_what_was_drawn_from_these_scripts():
    built = json.loads((ROOT / "gallery" / "built.json").read_text(encoding="utf-8"))
    assert list(built) == [script.stem for script in SCRIPTS]
    for script in SCRIPTS:
        assert built[script.stem]["script"] == build_gallery.sha256([script]), script.name
        for ending in ("png", "svg"):
            picture = ROOT / "gallery" / "images" / f"{script.stem}.{ending}"
            assert 5_000 < picture.stat().st_size < build_gallery.HEAVY
    entries = {name: build_gallery.Entry(**entry) for name, entry in built.items()}
    page = (ROOT / "gallery" / "README.md").read_text(encoding="utf-8")
    assert page == build_gallery.page(entries)


@pytest.mark.parametrize("ending", build_gallery.FORMATS)
def test_a_heavy_picture_gets_fewer_colors_and_keeps_the_rest(tmp_path, ending):
    noise = np.random.default_rng(0).random((300, 300, 4))
    noise[..., 3] = np.linspace(0.2, 1, 300)  # above it a photograph, and something transparent
    figure, (above, below) = plt.subplots(2, figsize=(4, 6))
    above.imshow(noise[..., :3])
    below.imshow(noise * (0, 0, 0, 1))
    path = tmp_path / f"photo.{ending}"
    attnviz.plot.save(attnviz.plot.add_caption(figure, text="Noise, 30°"), path)
    whole, size = path.read_bytes(), path.stat().st_size
    build_gallery.reduce_colors(path)
    assert path.stat().st_size < 0.6 * size
    if ending == "svg":
        texts = (text.decode() for text in (whole, path.read_bytes()))
        first, last = (re.sub('base64,[^"]+', "", text) for text in texts)
        assert first == last, "all but the photographs is the same"
        return
    before, after = Image.open(io.BytesIO(whole)), Image.open(path)
    assert after.mode == "P"
    assert after.info["Description"] == before.info["Description"]
    before, after = (np.asarray(one.convert("RGB")).astype(int) for one in (before, after))
    assert (after[(before == 255).all(-1)] == 255).all(), "white stays white"
    assert abs(after - before).mean() < 12


GOOD = '''"""A line

It has {count} points."""

import matplotlib.pyplot as plt

count = 2
fig, ax = plt.subplots()
ax.plot(range(count))
'''


@pytest.fixture
def custom_gallery(tmp_path, monkeypatch):
    """Return a gallery with a single script."""
    monkeypatch.setattr(build_gallery, "GALLERY", tmp_path)
    (tmp_path / "fig00_line.py").write_text(GOOD)
    return tmp_path


def drawn(folder):
    return {path.name: path.stat().st_mtime_ns for path in (folder / "images").iterdir()}


def test_only_changed_figures_are_drawn_unless_all_is_given(custom_gallery):
    build_gallery.main()
    first = drawn(custom_gallery)
    assert set(first) == {"fig00_line.png", "fig00_line.svg"}
    assert "## 0. A line" in (custom_gallery / "README.md").read_text()
    assert "It has 2 points." in (custom_gallery / "README.md").read_text()
    build_gallery.main()
    assert drawn(custom_gallery) == first
    build_gallery.main(everything=True)
    assert drawn(custom_gallery) != first
    (custom_gallery / "fig00_line.py").write_text(GOOD.replace("count = 2", "count = 3"))
    build_gallery.main()
    assert "It has 3 points." in (custom_gallery / "README.md").read_text()


@pytest.mark.parametrize(
    "broken",
    [
        GOOD + "1 / 0\n",
        GOOD + "import warnings; warnings.warn('beware')\n",
        GOOD + "fig = None\n",
        GOOD.replace("{count}", "{number}"),
    ],
    ids=["error", "warning", "no figure", "not computed"],
)
def test_one_script_that_fails_fails_the_build_and_keeps_the_others(custom_gallery, broken, capsys):
    (custom_gallery / "fig01_broken.py").write_text(broken)
    with pytest.raises(SystemExit, match="1 of 2 scripts failed: fig01_broken"):
        build_gallery.main()
    assert "## 0. A line" in (custom_gallery / "README.md").read_text()
    assert "fig01" not in (custom_gallery / "README.md").read_text()
    assert "Traceback" in capsys.readouterr().err


def test_an_unknown_name_is_refused(custom_gallery):
    with pytest.raises(SystemExit, match="Unknown gallery scripts: fig09"):
        build_gallery.main(["fig09"])
