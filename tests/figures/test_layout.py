"""Nothing overlaps or leaves the page, at the column widths of journals and at others.

tests/golden checks the same of each of its figures.
"""

import itertools

import matplotlib.pyplot as plt
import pytest
from families import tiny
from golden.saved_results import SAVED
from PIL import Image
from readable_text import LIGHT, SMALL_SIZE, check_layout, check_texts

import attnviz
from attnviz.figures.layout import Ruler

INPUTS = ["long", "odd", "one_word", "foreign"]  # a foreign pair
COLUMN, FULL = 89, 183
DRAWN = [
    ("ablate", "ablate"), ("attention_vector", "steps"), ("check", "check"),
    ("compare", "compare"), ("example", "example"),
    ("explain", "explain"), ("explain", "explain-masked"), ("heads", "maps"), ("heatmap", "map"),
    ("heatmap", "map-image"), ("heatmap", "map-audio"), ("senses", "senses"), ("shift", "shift"),
    ("shift", "shift-causally"), ("steps", "steps"), ("survey", "survey"), ("text", "map"),
    ("text", "shift"), ("text", "explain-masked"),
]  # fmt: skip
NARROWEST = {"attention_vector": 80, "steps": 80, "survey": 60}  # mm; of all others 40

# The machine may lack fonts for some scripts.
pytestmark = pytest.mark.filterwarnings("ignore:No installed font")


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("width", [80, 300])
@pytest.mark.parametrize(("name", "result"), DRAWN)
def test_other_widths(name, result, width):
    result = attnviz.load_result(SAVED / f"{result}.safetensors")
    drawn = getattr(attnviz.plot, name)(result, width=width)
    check_layout(getattr(drawn, "figure", drawn))


@pytest.mark.parametrize(("name", "result"), DRAWN)
def test_the_narrowest_width_is_readable_and_a_narrower_one_refused(name, result):
    result = attnviz.load_result(SAVED / f"{result}.safetensors")
    draw, least = getattr(attnviz.plot, name), NARROWEST.get(name, 40)
    drawn = draw(result, width=least)
    check_layout(getattr(drawn, "figure", drawn))
    with pytest.raises(attnviz.InputError, match=f"must be {least} to 2000 mm, not {least - 1}"):
        draw(result, width=least - 1)


@pytest.mark.parametrize(("name", "result"), [one for one in DRAWN if one[0] != "heatmap"])
def test_parts_as_wide_as_columns_and_pages(name, result):
    """Their resolution is matplotlib's, where hints make text wider than in a new figure."""
    result, draw = attnviz.load_result(SAVED / f"{result}.safetensors"), getattr(attnviz.plot, name)
    figure = plt.figure(figsize=(3.4 + 7.2, 4))
    for part in figure.subfigures(1, 2, width_ratios=[3.4, 7.2]):
        assert draw(result, figure=part) is part
    figure.canvas.draw()
    check_layout(figure)
    with pytest.raises(attnviz.InputError, match=r"The width must be .* not 38\.1\."):
        draw(result, figure=plt.figure(figsize=(1.5, 4)))


def test_every_function_that_draws_a_result_has_its_widths_checked():
    drawing = {*attnviz.plot.__all__} - {"add_caption", "save", "style"}
    assert {name for name, _ in DRAWN} == drawing


PAGES = {
    "one of all heads": lambda result, width: attnviz.plot.heatmap(result, width=width).figure,
    "without special tokens": lambda result, width: (
        attnviz.plot.heatmap(result, special="remove", width=width).figure
    ),
    "a mean": lambda result, width: (
        attnviz.plot.heatmap(result, layer=1, head=range(12), width=width).figure
    ),
    "all heads": lambda result, width: attnviz.plot.heads(result, width=width),
    "a layer": lambda result, width: attnviz.plot.heads(result, layer=2, width=width),
}


@pytest.mark.pairs(each=2)
@pytest.mark.parametrize("width", [COLUMN, FULL])
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("name", INPUTS)
def test_texts_that_are_hard_to_draw(request, name, page, width):
    check_layout(PAGES[page](request.getfixturevalue(name), width))


def test_the_check_detects_overlaps_and_text_outside_the_page():
    figure = plt.figure(figsize=(2, 1))
    figure.text(0.5, 0.5, "station")
    check_layout(figure)
    other = figure.text(0.52, 0.52, "train")
    with pytest.raises(AssertionError, match="station"):
        check_layout(figure)
    other.set_position((0.9, 0.1))
    with pytest.raises(AssertionError, match="leaves the page on the right"):
        check_layout(figure)


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("width", [COLUMN, 120, FULL])
@pytest.mark.parametrize("name", ["odd", "foreign"])
def test_steps_and_the_attention_vector(request, name, width):
    result = request.getfixturevalue(name)
    taken = attnviz.steps(result, layer=2, head=3)
    check_layout(attnviz.plot.steps(taken, width=width))
    check_layout(attnviz.plot.attention_vector(taken, width=width))


@pytest.mark.parametrize("family", ["gpt-oss", "t5"])
def test_steps_with_terms_in_the_scores_and_two_sequences(tokenizer, family):
    given = {"target": "the station"} if family == "t5" else {}
    result = attnviz.load(tiny(family), tokenizer=tokenizer).attend("the train left", **given)
    check_layout(attnviz.plot.steps(result, width=COLUMN))


def caption_of(figure):
    """Return the lines of a caption, which are gray, and of its verdict."""
    lines = [text for text in figure.texts if text.get_fontsize() == SMALL_SIZE]
    gray = [text.get_text() for text in lines if text.get_color() == LIGHT.muted]
    return gray, [text.get_text() for text in lines if text.get_color() == LIGHT.ink]


def test_a_short_caption_has_two_lines_and_the_file_has_all_sentences(train, tmp_path):
    full = attnviz.plot.steps(train, width=COLUMN, caption="full")
    short = attnviz.plot.steps(train, width=COLUMN)
    method = "share of a key is what it adds along"
    assert method in " ".join(caption_of(full)[0])
    assert method not in " ".join(caption_of(short)[0])
    lines = caption_of(short)[0]
    verdict = " ".join(caption_of(short)[1])
    assert "Verified: 72 recomputed heads" in verdict
    assert len([line for line in caption_of(short)[1] if "$" not in line]) == 2
    assert "recomputed in float64 differ" in " ".join(caption_of(full)[1])
    first = next(n for n, line in enumerate(lines) if line.startswith("“the train left"))
    assert 1 <= len(lines) - first <= 2
    small = attnviz.plot.attention_vector(train, width=COLUMN)
    for figure, suffix, keyword in (
        (short, "png", "Description"), (small, "svg", "dc:description"), (small, "pdf", "Subject"),
    ):  # fmt: skip
        path = tmp_path / f"steps.{suffix}"
        attnviz.plot.save(figure, path)
        written = path.read_bytes()
        assert keyword.encode() in written
        if suffix == "png":
            description = Image.open(path).text["Description"]
            assert method in description
            assert "recomputed in float64 differ" in description
    with pytest.raises(attnviz.InputError, match="caption must be short, full or none"):
        attnviz.plot.steps(train, caption="long")


@pytest.mark.parametrize("layout", ["constrained", None])
def test_captions_below_captions(train, layout):
    """A user's figure may have several captions; each is placed below the existing ones."""
    with attnviz.plot.style():
        figure, axes = plt.subplots(figsize=(4, 2), layout=layout)
        axes.set_xlabel("time")
        height = figure.get_size_inches()[1]
        attnviz.plot.add_caption(
            figure, text=["one part", "and another."], agreement=train.agreement
        )
        attnviz.plot.add_caption(figure, text="below it")
        attnviz.plot.add_caption(figure, text="")
    assert figure.get_size_inches()[1] > height + 0.5
    said = [text.get_text() for text, _ in check_texts(figure)]
    assert {"One part. And another.", "Below it."} <= set(said)
    assert any(text.startswith("Verified: 72 recomputed heads") for text in said)


def test_lines_are_as_long_as_fits_and_measuring_stays_linear(monkeypatch):
    ruler, measured, width = Ruler(), [], Ruler.width

    def count(self, text, *font, **options):
        measured.append(len(text))
        return width(self, text, *font, **options)

    monkeypatch.setattr(Ruler, "width", count)
    words = ("the train left the northern station on time " * 100).split()
    lines = ruler.wrap(" ".join(words), 3.0, 7)
    assert sum(measured) < 30 * len(" ".join(words))
    assert " ".join(lines).split() == words
    for line, following in itertools.pairwise(lines):
        assert width(ruler, line, 7) <= 3.0 < width(ruler, f"{line} {following.split()[0]}", 7)
    assert ruler.wrap("", 3.0, 7) == []
    assert ruler.wrap("WWW", 0.01, 7) == ["W", "W", "W"]


def test_a_caption_breaks_a_title_that_is_wider_than_the_figure():
    figure, _ = plt.subplots(figsize=(COLUMN / 25.4, 2), layout="constrained")
    title = "No vector clearly beats the other words; both together do"
    attnviz.plot.add_caption(figure, text="Example sentences", title=title)
    check_texts(figure)
    assert figure.get_suptitle().count("\n") == 1
