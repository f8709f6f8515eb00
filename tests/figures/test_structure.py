"""Figure contents: cells, labels, limits, captions, and words as written in the text."""

import re
import zlib
from dataclasses import replace
from xml.etree import ElementTree

import matplotlib as mpl
import matplotlib.font_manager as fm
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from families import tiny
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm, Normalize, to_hex
from readable_text import LIGHT, LUMINANCE, TEXT_SIZE, labels, page_text

import attnviz
from attnviz import plot
from attnviz.figures import style
from figures.test_grammar import contrast


def words_above(ax):
    """Return the words above a map as (text, middle in inches), in their order."""
    boxes = [(label.get_text(), label.get_window_extent()) for label in ax.get_xticklabels()]
    return [(text, (box.x0 + box.x1) / 2 / ax.figure.dpi) for text, box in boxes]


def mosaics(figure):
    """Return the axes of all heads; those of color scales have one row of pixels."""
    return [ax for ax in figure.axes if any(image.get_array().shape[0] > 1 for image in ax.images)]


def tiles(axes):
    """Return the edge widths of the tiles of a mosaic, by position."""
    edges, *_ = axes.collections  # the others are marks of families
    corners = [tuple(path.get_extents().min) for path in edges.get_paths()]
    assert all(path.get_extents().width < 1 for path in edges.get_paths())
    found = dict(zip(corners, edges.get_linewidths(), strict=True))
    return [found[corner] for corner in sorted(found, key=lambda corner: corner[::-1])]


def test_a_heatmap_draws_the_weights_as_cells_with_the_words_beside_them(train):
    ax = attnviz.plot.heatmap(train, layer=2, head=3)
    weights = train.weights(2, 3).numpy()
    np.testing.assert_array_equal(drawn_weights(ax), weights)
    words = ["[CLS]", "the", "train", "left", "the", "station", "on", "time", "[SEP]"]
    above, places = zip(*words_above(ax), strict=True)
    assert list(above) == labels(ax.yaxis) == words
    assert list(ax.get_yticks()) == [i + 0.5 for i in range(9)]
    assert ax.get_xlim() == (0, 9)
    assert ax.get_ylim() == (9, 0)  # the first query is on top
    box, wide = ax.get_position(), ax.figure.get_size_inches()[0]
    columns = wide * (box.x0 + box.width * (np.arange(9) + 0.5) / 9)
    np.testing.assert_allclose(places, columns, atol=0.01)  # above their columns


def drawn_weights(ax):
    """Return the numbers of all cells: those between words, and those of special tokens."""
    meshes = [
        mesh.get_array().filled(np.nan) for mesh in ax.collections if isinstance(mesh, QuadMesh)
    ]
    assert (np.isfinite(meshes).sum(0) == 1).all(), "a cell is drawn twice, or not at all"
    return np.nansum(meshes, axis=0).astype(np.float32)


def test_colors_of_more_words_than_have_room_are_logarithmic(model):
    for count, width in ((70, 183), (26, 89)):
        norm = attnviz.plot.heatmap(words_of(model, count), width=width).collections[0].norm
        assert isinstance(norm, Normalize)
        assert not isinstance(norm, LogNorm)
    ax = attnviz.plot.heatmap(words_of(model, 98), width=183)
    norm = ax.collections[0].norm
    assert isinstance(norm, LogNorm)
    assert norm.vmin == pytest.approx(1 / 300)
    assert norm.vmax == pytest.approx(drawn_weights(ax).max())


def words_of(model, count):
    words = ["train", "station", "left"] * count
    return attnviz.attention_map(model.attend(" ".join(words[:count])), layer=0, head=0)


def test_the_overview_of_a_paragraph_is_not_blank(model):
    text = " ".join(f"{word} {n}" for n in range(25) for word in ("train", "station", "left"))
    figure = attnviz.plot.heads(model.attend(text))
    (image,) = figure.axes[0].images
    colors = np.asarray(image.get_array()) / 255
    pixels = [tile_of(image, layer, head, 64, colors) for layer in range(6) for head in range(12)]
    dark = [(tile[..., :3] @ LUMINANCE < 0.88).mean() for tile in pixels]
    assert np.median(dark) > 0.05


def test_masked_cells_differ_from_cells_of_weight_zero(tokenizer):
    result = attnviz.load(tiny("gpt2"), tokenizer=tokenizer).attend("the train left the station")
    drawn = attnviz.attention_map(result, layer=0, head=0)
    n = len(drawn.rows)
    np.testing.assert_array_equal(drawn.masked, np.triu(np.ones((n, n), bool), 1))
    ax = attnviz.plot.heatmap(replace(drawn, weights=drawn.weights.tril(-1)))
    (hatched,) = [drawn for drawn in ax.patches if drawn.get_hatch()]  # as one area
    boxes = hatched.get_path().to_polygons()
    covered = sum(np.ptp(box[:, 0]) * np.ptp(box[:, 1]) for box in boxes)
    assert covered == n * (n - 1) / 2
    numbers = [text for text in ax.texts if text.get_text().isdigit()]
    assert numbers
    assert not any(text.get_position()[0] > text.get_position()[1] for text in numbers)
    (image,) = attnviz.plot.heads(result).axes[0].images
    assert to_hex(np.asarray(tile_of(image, 0, 0, n))[0, -1] / 255) == LIGHT.masked
    assert to_hex(np.asarray(tile_of(image, 0, 0, n))[-1, 0] / 255) != LIGHT.masked


def test_cells_above_even_weights_have_their_weight_in_readable_numbers(train):
    ax = attnviz.plot.heatmap(train, layer=2, head=3)
    weights = train.weights(2, 3)
    written = {(int(y), int(x)) for x, y in (text.get_position() for text in ax.texts)}
    between_words = torch.zeros_like(weights, dtype=torch.bool)
    between_words[1:-1, 1:-1] = True
    shown = weights >= torch.where(between_words, 1 / 9, 0.5)  # half of a row on special tokens
    assert written == {tuple(cell) for cell in shown.nonzero().tolist()}
    for text in ax.texts:
        x, y = text.get_position()
        assert f"{100 * weights[int(y), int(x)]:.0f}" == text.get_text()
    words, special = ax.collections
    for text in ax.texts:
        x, y = text.get_position()
        mesh = special if {int(y), int(x)} & {0, 8} else words
        ground = mesh.to_rgba(weights[int(y), int(x)].item())[:3]
        assert contrast(ground, text.get_color()) > 3.5, text.get_text()


def test_a_mean_over_layers_names_them_and_frames_them_all(train):
    ax = attnviz.plot.heatmap(train, layer=[0, 1, 2, 4], head=3, overview=True)
    said = page_text(ax.figure)
    assert "Mean of layers 0–2, 4, head 3" in said
    assert "These heads among all 72" in said
    edges = next(
        drawn
        for other in ax.figure.axes
        for drawn in other.collections
        if len(drawn.get_linewidths()) == 72
    )
    assert sum(width > 1 for width in edges.get_linewidths()) == 4


@pytest.mark.parametrize("draw", [attnviz.plot.heatmap, attnviz.plot.heads])
def test_a_map_that_was_not_verified_says_so_in_red(short, draw):
    first, *others = short.agreement.checks
    failed = replace(short.agreement, checks=(replace(first, failed_heads=(3,)), *others))
    drawn = draw(replace(short, agreement=failed))
    figure = getattr(drawn, "figure", drawn)
    alarms = [text for text in figure.texts if text.get_color() == LIGHT.alarm]
    assert "NOT VERIFIED" in " ".join(text.get_text() for text in alarms)
    assert all(text.get_fontweight() == "bold" for text in alarms)


def test_without_layer_and_head_the_best_head_is_drawn_and_marked(train):
    best = attnviz.rank_heads(train).best
    figure = attnviz.plot.heatmap(train).figure
    assert f"Layer {best.layer}, head {best.head}" in page_text(figure)
    assert "This head among all 72" in page_text(figure)
    (mosaic,) = mosaics(figure)
    (marked,) = [n for n, width in enumerate(tiles(mosaic)) if width > 1]
    assert divmod(marked, 12) == (best.layer, best.head)
    assert mosaic.collections[0].get_linewidths()[-1] > 1  # drawn last, above its neighbors


def test_the_texts_of_a_pair_are_apart_and_named(pair):
    for special, second in (("keep", 9), ("remove", 7)):
        ax = attnviz.plot.heatmap(pair, layer=0, head=0, special=special)
        (mesh, *_) = ax.collections
        blank = np.isnan(mesh.get_array().filled(np.nan))
        assert blank[second].all()
        assert blank[:, second].all()
        assert np.diff(ax.get_yticks()).argmax() == second - 1
        assert words_above(ax)[second][0] == "it"
        assert {"first text", "second text"} <= texts_of(ax.figure)


def texts_of(figure):
    return {text.get_text() for text in figure.findobj(mpl.text.Text)}


def test_a_head_grid_draws_every_head_of_every_layer(train):
    figure = attnviz.plot.heads(train)
    mosaic, *bars = figure.axes
    (image,) = mosaic.images
    assert labels(mosaic.yaxis) == [str(layer) for layer in range(6)]
    assert labels(mosaic.xaxis) == [str(head) for head in range(12)]
    assert len(tiles(mosaic)) == 72
    whole = np.stack([train.weights(layer).numpy() for layer in range(6)])
    largest, gray = whole[..., 1:-1, 1:-1].max(), whole.copy()
    gray[..., 1:-1, 1:-1] = 0
    for layer, head in ((0, 0), (2, 3), (5, 11)):
        weights = train.weights(layer, head)
        expected = colors_of(weights, largest, LIGHT.weights)
        special = colors_of(weights, gray.max(), LIGHT.neutral)
        expected[[0, -1]], expected[:, [0, -1]] = special[[0, -1]], special[:, [0, -1]]
        np.testing.assert_allclose(tile_of(image, layer, head, 9), expected, atol=1.01)
    said = [text.get_text() for ax in bars for text in ax.texts]
    of_words, of_tokens = f"{largest:.0%} between words", f"{gray.max():.0%} on special tokens"
    assert said == ["0", of_words, "0", of_tokens]
    assert "In each tile the 9 queries run down and the keys across." in page_text(figure)


def colors_of(weights, largest, colors):
    """Return the colors of weights by a scale up to the largest, from 0 to 255."""
    return 255 * colors(weights.numpy() / largest)


def tile_of(image, row, column, size, colors=None):
    """Return the bottom-left cells of one position in a mosaic of squares."""
    cells = np.asarray(image.get_array() if colors is None else colors)
    rows, columns = (int(extent) for extent in (image.get_extent()[2], image.get_extent()[1]))
    high, wide = cells.shape[0] // rows, cells.shape[1] // columns
    place = cells[row * high : (row + 1) * high, column * wide : (column + 1) * wide]
    return place[-size:, :size]


def test_no_weight_of_a_long_map_disappears_in_its_tile(long):
    maps = attnviz.head_maps(long)
    weights = torch.full((6, 12, 130, 200), 1e-4)
    weights[1, 2, 77, 133] = 1.0
    names = {"rows": ("",) * 130, "columns": ("",) * 200, "special_rows": (), "special_columns": ()}
    (image,) = attnviz.plot.heads(replace(maps, weights=weights, **names)).axes[0].images
    tile = tile_of(image, 1, 2, 64)
    assert tile.shape == (64, 64, 4)
    darkest = tile[..., :3].sum(-1) < 200
    assert 1 <= darkest.sum() <= 4  # tiles whose windows overlap
    assert darkest[77 * 64 // 130, 133 * 64 // 200]
    assert not (tile_of(image, 0, 0, 64)[..., :3].sum(-1) < 200).any()


def test_drawing_leaves_the_settings_of_matplotlib_alone(short):
    before = mpl.rcParams.copy()
    attnviz.plot.heatmap(short)
    attnviz.plot.heads(short)
    assert mpl.rcParams == before
    with pytest.raises(attnviz.InputError):
        attnviz.plot.heatmap(short, layer=99)
    assert mpl.rcParams == before


# Settings that a matplotlibrc or a style sheet such as ggplot may contain.
OF_A_USER = {
    "image.origin": "lower",
    "image.interpolation": "bilinear",
    "axes.grid": True,
    "axes.facecolor": "red",
    "axes.labelpad": 20.0,
    "axes.labelweight": "bold",
    "axes.autolimit_mode": "round_numbers",
    "figure.facecolor": "black",
    "font.weight": "bold",
    "font.style": "italic",
    "lines.linestyle": ":",
    "patch.force_edgecolor": True,
    "path.sketch": (1.0, 100.0, 2.0),
    "path.snap": False,
    "savefig.facecolor": "red",
    "savefig.transparent": True,
    "text.antialiased": False,
    "text.usetex": True,
    "xtick.direction": "in",
    "xtick.labeltop": True,
    "xtick.minor.visible": True,
    "ytick.labelleft": False,
}


def test_user_settings_change_no_figure(tmp_path, short):
    def drawn(name):
        axes = attnviz.plot.heatmap(short)  # with the mosaic of all heads
        plot.save(axes.figure, tmp_path / name)
        return (tmp_path / name).read_bytes()

    plain = drawn("plain.png")
    with mpl.rc_context(OF_A_USER):
        assert drawn("other.png") == plain


def test_cells_in_user_axes_have_the_first_row_on_top_and_no_grid_lines(short):
    with mpl.rc_context({"axes.grid": True}):
        ax = plt.subplots()[1]
    ax.invert_yaxis()
    attnviz.plot.heatmap(short, layer=0, head=0, ax=ax)
    top, bottom = ax.get_ylim()[::-1]
    assert top < bottom
    assert not any(line.get_visible() for line in ax.get_xgridlines() + ax.get_ygridlines())


def test_a_heatmap_draws_only_into_the_given_axes(train, odd):
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 4), layout="constrained")
    assert attnviz.plot.heatmap(train, layer=2, head=3, ax=left) is left
    attnviz.plot.heatmap(odd, layer=0, head=1, ax=right)
    assert plt.get_fignums() == [figure.number]
    assert left.get_title(loc="left").startswith("Layer 2, head 3\nall-MiniLM-L6-v2, verified to")
    assert [ax.get_ylabel() for ax in figure.axes[2:]] == ["weight", "weight"]
    assert left.xaxis.label.get_fontsize() == left.yaxis.label.get_fontsize() == TEXT_SIZE
    assert "$" in labels(right.yaxis)
    figure.canvas.draw()


def test_a_map_among_others_that_was_not_verified_says_so(short):
    unproven = replace(short.agreement, unproven=("encoder layer 1",))
    _, ax = plt.subplots()
    attnviz.plot.heatmap(replace(short, agreement=unproven), layer=0, head=0, ax=ax)
    assert "NOT PROVEN" in ax.get_title(loc="left")


SVG = "{http://www.w3.org/2000/svg}"


def test_an_svg_names_a_font_that_every_reader_has(tmp_path, short):
    plot.save(attnviz.plot.heatmap(short).figure, tmp_path / "x.svg")
    root = ElementTree.parse(tmp_path / "x.svg").getroot()
    for element in root.iter(f"{SVG}text"):
        assert re.search(r"font-family: 'DejaVu Sans',.*sans-serif", element.get("style"))


def test_text_in_a_pdf_is_text(tmp_path, short):
    plot.save(attnviz.plot.heatmap(short).figure, tmp_path / "x.pdf")
    written = (tmp_path / "x.pdf").read_bytes()
    assert b"/ToUnicode" in written
    assert set(re.findall(rb"/Subtype /(Type3|CIDFontType2|TrueType)", written)) == {
        b"CIDFontType2"
    }
    texts = pdf_texts(written)
    for text in (
        "station",
        "[SEP]",
        "This head among all 72, on one scale",
    ):
        assert text in texts


def pdf_texts(written):
    """Return the ASCII text of each text object in a PDF."""
    texts = []
    for stream in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", written, re.DOTALL):
        try:
            content = zlib.decompress(stream)
        except zlib.error:
            continue
        for shown in re.findall(rb"BT\n(.*?)ET\n", content, re.DOTALL):
            parts = re.findall(rb"(?<!\\)\((.*?)(?<!\\)\)", shown, re.DOTALL)
            text = b"".join(parts).replace(b"\x00", b"")
            texts.append(re.sub(rb"\\(.)", rb"\1", text).decode("latin-1"))
    return texts


def test_the_same_figure_gives_the_same_file(tmp_path, short):
    for name in ("a", "b"):
        figure = attnviz.plot.heads(short, width=89)
        for suffix in ("svg", "pdf", "png"):
            plot.save(figure, tmp_path / f"{name}.{suffix}")
    for suffix in ("svg", "pdf", "png"):
        one, other = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in ("a", "b"))
        assert one == other


def test_a_script_without_a_font_gives_one_warning_of_ours(tmp_path, caplog, recwarn, foreign):
    for drawn in (attnviz.plot.heatmap(foreign), attnviz.plot.heads(foreign)):
        plot.save(getattr(drawn, "figure", drawn), tmp_path / "x.png")
    said = [str(warning.message) for warning in recwarn]
    assert all(each.startswith("No installed font has ") for each in said)
    assert [record.message for record in caplog.records] == []


@pytest.fixture
def install(monkeypatch):
    """Return a function that leaves only some fonts, each with the characters that it has."""

    def only(**fonts):
        entries = [fm.FontEntry(fname=name, name=name.replace("_", " ")) for name in fonts]
        monkeypatch.setattr(fm.fontManager, "ttflist", entries)
        monkeypatch.setattr(style, "_characters", lambda path: set(map(ord, fonts.get(path, ""))))
        style._fallback.cache_clear()

    monkeypatch.setattr(style, "_add_new_fonts", lambda: False)
    yield only
    style._fallback.cache_clear()


def test_a_font_for_another_script_is_preferred_to_the_last_resort(install):
    install(Last_Resort_High_Efficiency="漢हिx", Noto_Sans_CJK="漢")
    assert style.fallback_fonts(frozenset("漢")) == ("Noto Sans CJK",)
    with pytest.warns(UserWarning, match="No installed font has xहि, drawn as boxes"):
        fonts = style.fallback_fonts(frozenset("漢हिx"))
    assert fonts == ("Noto Sans CJK", "Last Resort High Efficiency")


def test_a_font_of_colored_pictures_is_not_used(install):
    install(Noto_Color_Emoji="🍕", Noto_Emoji="🍕")
    assert style.fallback_fonts(frozenset("🍕")) == ("Noto Emoji",)
    install(Noto_Color_Emoji="🍕")
    with pytest.warns(UserWarning, match="No installed font has 🍕"):
        assert style.fallback_fonts(frozenset("🍕")) == ()


def test_the_warning_points_at_the_caller(recwarn, foreign, monkeypatch):
    monkeypatch.setattr(style, "_fallback", lambda characters: ((), "火"))
    attnviz.plot.heatmap(foreign)
    ours = [warning for warning in recwarn if warning.category is attnviz.AttnvizWarning]
    assert {warning.filename for warning in ours} == {__file__}


def test_another_font(short):
    with attnviz.plot.style(font="STIXGeneral"):
        figure = attnviz.plot.heatmap(short, layer=0, head=0).figure
    assert {text.get_fontfamily()[0] for text in figure.texts} == {"STIXGeneral"}
    figure = attnviz.plot.heatmap(short, layer=0, head=0).figure
    assert {text.get_fontfamily()[0] for text in figure.texts} == {"DejaVu Sans"}
    with (
        pytest.raises(attnviz.InputError, match="'Arail' is not installed"),
        attnviz.plot.style(font="Arail"),
    ):
        pass


def test_right_to_left_words_keep_the_order_of_the_caption(model):
    result = attnviz.attend("שלום עולם", model=model)
    figure = attnviz.plot.heatmap(result, layer=0, head=0).figure
    (line,) = [t.get_text() for t in figure.texts if "read by all-MiniLM-L6-v2" in t.get_text()]
    assert line.startswith("\N{LEFT-TO-RIGHT MARK}“שלום עולם”, read by")
