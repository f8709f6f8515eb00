"""The page as readers use it: real Chromium, a real mouse and keyboard, and no network."""

import io
import itertools
import json
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch
from families import tiny
from media import RATE, chirp, picture, seeing
from PIL import Image
from playwright.sync_api import expect

import attnviz
from tests.interactive.test_payload import by_the_rule, outputs

TEXT = "The unfathomable train left the old station on time"
OTHER = "The unfathomable ship left the old harbour on time"
LONG = " ".join(
    ["The old train left the station on time, although its driver was unsure of the way,"] * 12
)
VIEWS = "grid", "head", "token", "steps"
SVG = "{http://www.w3.org/2000/svg}"
NUMBER = re.compile(r"(−?<)?(−)?(\d+(?:\.(\d+))?(?:e-(\d+))?)")


@pytest.fixture(scope="module")
def result(model):
    return attnviz.attend(TEXT, model=model)


@pytest.fixture(scope="module")
def other(model):
    return attnviz.attend(OTHER, model=model)


@pytest.fixture(scope="module")
def long(model):
    return attnviz.attend(LONG, model=model)


@pytest.fixture(scope="module")
def seen(tokenizer):
    return seeing("vit", tokenizer).attend(image=picture())


@pytest.fixture(scope="module")
def causal(tokenizer):
    """A tiny decoder."""
    return attnviz.load(tiny("llama"), tokenizer=tokenizer)


@pytest.fixture(scope="module")
def saved(result, tmp_path_factory):
    """Return pages on disk, each written once; with `other`, the page holds two results."""
    folder = tmp_path_factory.mktemp("pages")

    def save(name, of=result, *, other=None, **how):
        path = folder / f"{name}.html"
        if not path.exists():
            attnviz.view(of, compare=other, **how).save(path)
        return path

    return save


@dataclass
class Reader:
    """A person who reads a page: mouse, keys and visible text."""

    page: object

    def settle(self):
        self.page.evaluate("document.querySelector('.attnviz').attnviz.ready.then(() => null)")

    def state(self):
        return self.page.evaluate("document.querySelector('.attnviz').attnviz.state")

    def show(self, **state):
        self.page.evaluate("state => document.querySelector('.attnviz').attnviz.show(state)", state)
        self.settle()
        return self

    def as_at_first(self):
        """Show a page that other tests have read as it was when they opened it."""
        self.page.mouse.move(2, 2)
        self.page.evaluate("""() => {
            const {attnviz} = document.querySelector('.attnviz');
            window.first ??= {...attnviz.state};
            document.activeElement.blur();
            attnviz.show(window.first);
            scrollTo(0, 0);
        }""")
        self.settle()
        return self

    def locate(self, **place):
        script = "place => document.querySelector('.attnviz').attnviz.locate(place)"
        return self.page.evaluate(script, place)

    def hover(self, **place):
        position = self.locate(**place)
        assert position, place
        self.page.mouse.move(position["x"], position["y"])
        return self

    def click(self, **place):
        self.hover(**place)
        self.page.mouse.down()
        self.page.mouse.up()
        self.settle()
        return self

    def away(self):
        self.page.mouse.move(2, 2)
        return self.picture()

    def tip(self):
        tip = self.page.locator("[role=tooltip]")
        expect(tip).to_be_visible()
        return tip.inner_text()

    def expect_weights(self, weights, cells, error, said=""):
        """Expect the weights of these cells of a map, up to an error and their last digit."""
        for query, key in cells:
            tip = self.hover(part="matrix", query=query, key=key).tip()
            value, rounding = number(tip)
            assert value == pytest.approx(weights[query, key].item(), abs=error + rounding), tip
            assert said in tip

    def word(self, label):
        return self.page.locator(".headline .word").get_by_text(label, exact=True).first

    def background(self, label):
        return self.word(label).evaluate("word => getComputedStyle(word).backgroundColor")

    def control(self, name):
        return self.page.locator(f"[data-control='{name}']")

    def type(self, name, text):
        """Type into a control; return it."""
        self.control(name).fill(text)
        self.control(name).press("Enter")
        self.settle()
        return self.control(name)

    def svg(self):
        """Save the drawing; return it as a tree, and its texts."""
        with self.page.expect_download() as started:
            self.page.evaluate("document.querySelector('[data-control=save-svg]').click()")
        tree = ET.fromstring(started.value.path().read_text("utf-8"))
        return tree, [text.text or "" for text in tree.iter(f"{SVG}text")]

    def picture(self):
        """Return the pixels of the canvas once it is drawn."""
        script = """() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(
            () => done(document.querySelector('.stage canvas').toDataURL()))))"""
        return self.page.evaluate(script)

    def color(self, **place):
        """Return the color at a position, a third of a cell away from its middle."""
        script = """({x, y}) => {
            const canvas = document.querySelector('.stage canvas');
            const {left, top} = canvas.getBoundingClientRect();
            const at = [Math.round(x - left - 10), Math.round(y - top - 10), 1, 1];
            return [...canvas.getContext('2d').getImageData(...at).data];
        }"""
        return self.page.evaluate(script, self.locate(**place))

    def patches(self, rows, columns):
        """Return the mean lightness of each patch of the picture once it is drawn."""
        self.picture()
        script = """([rows, columns]) => {
            const canvas = document.querySelector('.picture canvas');
            const [w, h] = [canvas.width / columns, canvas.height / rows];
            return Array.from({length: rows * columns}, (_, n) => {
                const at = [(n % columns) * w, Math.floor(n / columns) * h, w, h].map(Math.round);
                const {data} = canvas.getContext('2d').getImageData(...at);
                const colors = data.filter((_, k) => k % 4 < 3);
                return colors.reduce((a, b) => a + b) / colors.length;
            });
        }"""
        return self.page.evaluate(script, [rows, columns])


@pytest.fixture
def read(open_page, saved):
    """Open a page in a window large enough to show all of it.

    Tests that only need the page of the short text have the same one, as it was at first.
    """

    def read_(what=None, *, width=1280, height=1600, fragment="", dark=False, fresh=False):
        shared = (what, width, fragment, dark, fresh) == (None, 1280, "", False, False)
        path = saved("short") if what is None else what
        window = {"width": width, "height": height, "dark": dark}
        reader = Reader(open_page(path, fragment=fragment, shared=shared, **window))
        reader.settle()
        return reader.as_at_first() if shared else reader

    return read_


def number(tip):
    """Return the last number on the first line of a tooltip, and half of its last digit."""
    line = tip.splitlines()[0]
    if line.endswith("0 (masked)"):
        return 0.0, 0.0
    below, minus, digits, decimals, power = NUMBER.fullmatch(line.split("  ")[-1]).groups()
    value = float(digits)
    if below:
        return 0.0, value
    step = 10.0 ** -(len(decimals or "") + int(power or 0))
    return (-value if minus else value), step / 2


def weights_of(result, layer, heads, *, words, special):
    return attnviz.attention_map(result, layer=layer, head=heads, words=words, special=special)


def unit_positions(result, *, words, special):
    """Return the first position of each row of a map, and the largest number of merged pieces."""
    axis = result.records[0].query_axis
    joined = {}
    for position, word in enumerate(axis.words):
        if special == "keep" or not axis.special[position]:
            unit = word if words and word is not None else ("piece", position)
            joined.setdefault(unit, []).append(position)
    return [some[0] for some in joined.values()], max(map(len, joined.values()))


def test_it_opens_from_disk_with_its_verdict_and_few_elements(read, result):
    reader = read(fresh=True)
    assert reader.page.locator(".attnviz").get_attribute("data-view") == "grid"
    expect(reader.control("verdict")).to_contain_text(result.agreement.summary())
    assert reader.page.evaluate("document.querySelectorAll('*').length") <= 150
    for number_, name in enumerate(VIEWS):
        reader.control(f"view-{name}").click()
        reader.settle()
        assert reader.state()["view"] == name
        assert len(reader.picture()) > 20_000
        reader.page.keyboard.press(str((number_ + 1) % 4 + 1))
        assert reader.state()["view"] == VIEWS[(number_ + 1) % 4]


TREATED = (False, "keep"), (True, "keep"), (True, "remove"), (False, "hide")  # words, special
OTHERS = (0, [3]), (5, [11])


@pytest.mark.parametrize(
    ("layer", "heads"),
    [(1, [8]), (2, [0, 5, 9]), *(pytest.param(*at, marks=pytest.mark.long) for at in OTHERS)],
)
def test_the_number_under_the_pointer_matches_the_record(read, result, layer, heads):
    reader = read().show(view="head", layer=layer, heads=heads)
    for words, special in TREATED:
        reader.show(words=words, special=special)
        drawn = weights_of(result, layer, heads, words=words, special=special)
        places, widest = unit_positions(result, words=words, special=special)
        error = max(exact_errors(result)[layer][head] for head in heads)
        if special == "remove":  # the remaining weights are divided by their sum
            left = weights_of(result, layer, heads, words=words, special="hide").weights.sum(1)
            error /= left.min().item()
        size = len(places)
        assert drawn.weights.shape == (size, size)
        for cell in range(0, size * size, 47):
            row, column = divmod(cell, size)
            tip = reader.hover(part="matrix", query=places[row], key=places[column]).tip()
            value, rounding = number(tip)
            weight = drawn.weights[row, column].item()
            assert value == pytest.approx(weight, abs=widest * error + rounding)
            if heads == [8]:  # no digit is shown that the error of the page does not allow
                assert 2 * rounding >= 10 ** math.floor(math.log10(error))
            assert tip.startswith(f"{drawn.rows[row]} → {drawn.columns[column]}  ")


@cache
def exact_errors(result):
    layers = attnviz.view(result).data()["payload"]["results"][0]["stacks"][0]["layers"]
    return [[exact["error"] for exact in layer["exact"]] for layer in layers]


def test_hovering_shows_the_lines_of_one_token_and_a_click_locks_them(read):
    reader = read().show(view="head", layer=1, heads=[4])
    calm = reader.away()
    reader.hover(part="lines", query=3)
    one = reader.picture()
    assert one != calm
    assert reader.away() == calm
    reader.click(part="lines", query=3)
    assert (reader.state()["lock"], reader.state()["query"]) == (True, 2)  # its first piece
    locked = reader.away()
    assert locked != calm
    reader.hover(part="lines", query=6)  # the locked query stays and is described
    assert reader.picture() == locked
    assert "→" in reader.tip()
    reader.click(part="lines", query=3)
    assert not reader.state()["lock"]
    reader.click(part="lines", key=0)
    assert (reader.state()["key"], reader.state()["query"]) == (0, None)
    reader.page.keyboard.press("Escape")
    reader.settle()
    assert not reader.state()["lock"]
    assert reader.away() == calm


def test_clicking_the_grid_opens_a_head(read, result):
    reader = read()
    tip = reader.hover(layer=4, head=9).tip()
    assert tip.startswith("Layer 4, head 9\nlargest ")
    largest, rounding = number("x  " + tip.splitlines()[1].split("  ")[-1])
    drawn = weights_of(result, 4, [9], words=True, special="keep").weights
    error = 5 * exact_errors(result)[4][9]  # the pieces of a word
    assert largest == pytest.approx(drawn.max().item(), abs=error + rounding)
    reader.click(layer=4, head=9)
    state = reader.state()
    assert (state["view"], state["layer"], state["heads"]) == ("head", 4, [9])


def test_layers_and_heads_can_be_selected(read):
    reader = read()
    reader.type("layers", "0-1, 5")
    reader.type("only", "3")
    for layer, head, is_drawn in ((5, 3, True), (2, 3, False), (5, 4, False)):
        assert bool(reader.locate(layer=layer, head=head)) == is_drawn
    reader.show(view="head", layer=1, heads=[4])
    for head in (6, 7, 4):
        reader.control(f"head-{head}").click()
    reader.control("layer").select_option("3")
    assert (reader.state()["layer"], reader.state()["heads"]) == (3, [6, 7])
    for control, value, name, expected in (
        ("special", "remove", "special", "remove"), ("words", "pieces", "words", False),
    ):  # fmt: skip
        reader.control(control).select_option(value)
        reader.settle()
        assert reader.state()[name] == expected


def test_weights_below_the_threshold_are_not_drawn(read, result):
    drawn = weights_of(result, 1, [4], words=True, special="keep")
    places, _ = unit_positions(result, words=True, special="keep")
    reader = read().show(view="head", layer=1, heads=[4])
    reader.type("threshold", "0.2")
    for row in range(len(places)):
        for column in range(len(places)):
            color = reader.color(part="matrix", query=places[row], key=places[column])
            assert (color[3] > 0) == (drawn.weights[row, column].item() >= 0.2), (row, column)
    reader.control("threshold-slider").press("End")
    reader.settle()
    assert reader.state()["threshold"] == 1


def test_tokens_can_be_searched(read):
    reader = read().show(view="head")
    reader.page.keyboard.press("/")
    reader.page.keyboard.type("th")
    positions = []
    for _ in range(4):
        reader.page.keyboard.press("Enter")
        reader.settle()
        positions.append(reader.state()["query"])
    assert positions == [1, 2, 8, 1]  # The, unfathomable, the
    assert reader.state()["lock"]


def test_two_results_are_compared(read, saved, result, other):
    reader = read(saved("two", other=other)).show(view="head", layer=2, heads=[9], words=False)
    one, second = (
        weights_of(each, 2, [9], words=False, special="keep").weights for each in (result, other)
    )
    for show, expected in (("first", one), ("second", second), ("difference", one - second)):
        reader.control("show").select_option(show)
        reader.settle()
        reader.expect_weights(expected, ((0, 0), (2, 1), (6, 3), (10, 9), (5, 10)), 1e-4)
    assert "train | ship" in reader.hover(part="matrix", query=6, key=0).tip()
    footer = reader.page.locator("footer").inner_text()
    assert "ship" in footer
    assert "train" in footer


def test_a_comparison_opens_on_the_difference_in_one_pair_of_colors(read, saved, result, other):
    reader = read(saved("two", other=other))
    assert reader.state()["show"] == "difference"
    expect(reader.word("train | ship")).to_be_visible()
    reader.show(view="head", layer=2, heads=[9], words=False)
    one, second = (
        weights_of(each, 2, [9], words=False, special="keep").weights for each in (result, other)
    )
    difference = one - second
    for sign in (1, -1):
        row, column = divmod((sign * difference).argmax().item(), len(difference))
        red, _, blue, _ = reader.color(part="matrix", query=row, key=column)
        assert (red > blue) == (sign > 0)  # more in the first text is red
        reader.click(part="matrix", query=row, key=column)
        (line,) = reader.svg()[0].findall(f"{SVG}path")
        red, _, blue = bytes.fromhex(line.get("stroke")[1:])
        assert (red > blue) == (sign > 0)
        reader.page.keyboard.press("Escape")
        reader.settle()
    row, column = divmod(difference.abs().argmin().item(), len(difference))
    assert reader.color(part="matrix", query=row, key=column)[3] == 0  # no difference, no color


def test_heads_are_averaged_across_layers(read, result):
    reader = read()
    reader.type("layers", "1, 3-4")
    reader.type("only", "0-5")
    reader.control("mean").click()
    reader.settle()
    reader.show(words=False)
    maps = [
        weights_of(result, layer, list(range(6)), words=False, special="keep").weights
        for layer in (1, 3, 4)
    ]
    mean = sum(maps) / len(maps)
    said = "mean of 18 heads, layers 1, 3–4"
    reader.expect_weights(mean, ((0, 0), (3, 5), (8, 2)), 1e-4, said)
    reader.control("layer").select_option("3")
    reader.settle()
    assert (reader.state()["mean"], reader.state()["layer"]) == (False, 3)


def test_a_filter_that_names_no_head_is_answered(read):
    reader = read()
    for typed in ("foo", "3, foo", "77"):
        reader.type("only", typed)
        odd = typed.split(", ")[-1]
        notice = reader.page.locator(".notice")
        expect(notice).to_have_text(
            f"Heads: “{odd}” names none. Type numbers from 0–11, such as 0 or 0-2."
        )
        expect(reader.control("only")).to_have_value(typed)
        assert reader.state()["only"] is None
    reader.type("only", "3")
    expect(notice).to_be_hidden()
    assert reader.state()["only"] == [3]


def test_every_view_is_saved(read):
    reader = read()
    for name in VIEWS:
        reader.show(view=name, layer=1, heads=[4])
        with reader.page.expect_download() as started:
            reader.control("save-svg").click()
        assert started.value.suggested_filename == f"attnviz-{name}.svg"
        svg = ET.fromstring(started.value.path().read_text("utf-8"))
        texts = [each.text for each in svg.iter(f"{SVG}text")]
        assert any("float64" in text for text in texts), texts  # the verdict
        assert svg.findall(f"{SVG}image")
        if name == "head":
            assert {"train", "[SEP]"} <= set(texts)
            assert len(svg.findall(f"{SVG}path")) > 20
        with reader.page.expect_download() as started:
            reader.control("save-png").click()
        pixels = Image.open(io.BytesIO(started.value.path().read_bytes())).convert("L")
        assert pixels.width > 3000
        assert np.asarray(pixels).std() > 5


def left_of(element):
    return float(element.get("x"))


def test_a_saved_view_contains_the_colored_text(read, result):
    reader = read().show(view="head", layer=1, heads=[4], words=False)
    above = [text for text in reader.svg()[0].iter(f"{SVG}text") if float(text.get("y")) < 0]
    assert not above  # a text without colors is in the caption
    reader.word("train").click()
    reader.away()
    expect(reader.page.locator(".hint")).to_contain_text("train → ")
    svg, _ = reader.svg()
    top = float(svg.get("viewBox").split()[1])
    texts = [text for text in svg.iter(f"{SVG}text") if float(text.get("y")) < 0]
    assert top < min(float(text.get("y")) for text in texts) - 8
    labels = weights_of(result, 1, [4], words=False, special="keep").columns
    assert [text.text for text in texts][:-1] == list(labels)
    assert texts[-1].text.startswith("train → ")
    row = weights_of(result, 1, [4], words=False, special="keep").weights[6]
    best = max(range(1, len(row) - 1), key=lambda at: row[at])
    boxes = [box for box in svg.iter(f"{SVG}rect") if top + 17 < float(box.get("y")) < 0]
    (darkest,) = [box for box in boxes if box.get("opacity") == "0.85"]
    assert darkest.get("fill") == "#34508f"
    (frame,) = [box for box in boxes if box.get("fill") == "none"]
    for box, text in ((darkest, texts[best]), (frame, texts[labels.index("train")])):
        assert left_of(box) < left_of(text) < left_of(box) + float(box.get("width"))


def test_a_link_opens_the_same_view(read, saved):
    reader = read(fresh=True).show(  # a browser lets one page change its address so often only
        view="head", layer=3, heads=[1, 2, 3, 7], query=2, key=None, lock=True, words=False,
        special="remove", threshold=0.05, find="a&b=ü", theme="dark",
    )  # fmt: skip
    state, picture, link = reader.state(), reader.away(), reader.page.url
    assert "view=head&layer=3&heads=1-3,7&query=2&lock=1&words=0" in link
    again = read(saved("short"), fragment=link.split("#")[1])
    assert again.state() == state
    assert again.away() == picture
    again.page.evaluate("location.hash = 'view=token&query=3'")
    expect(again.page.locator(".attnviz")).to_have_attribute("data-view", "token")
    assert again.state()["special"] == "keep"


LARGE = 1.6
# The boxes of what is visible above the drawing: words, controls and their names.
ABOVE = """() => [...document.querySelectorAll('.headline .word, .proof > *, .bars .bar > *')]
    .map(node => node.getBoundingClientRect()).filter(({width}) => width)
    .map(({left, right, top, bottom}) => ({left, right, top, bottom}))"""


@pytest.mark.parametrize("view", ["grid", "head", "token", "steps"])
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1920, True)])
def test_large_type_enlarges_the_text_and_the_drawing(read, saved, view, width, dark):
    reader = read(saved("short"), width=width, height=width * 9 // 16, dark=dark)
    reader.show(view=view)
    word = reader.word("train").bounding_box()["height"]
    plain = reader.away()
    reader.control("large").focus()
    reader.page.keyboard.press("Space")
    reader.settle()
    reader.picture()
    assert reader.word("train").bounding_box()["height"] == pytest.approx(LARGE * word, abs=2)
    drawing = reader.page.locator(".stage canvas")
    fine, across = drawing.evaluate("one => [one.width, one.getBoundingClientRect().width]")
    assert fine == pytest.approx(across, abs=2)  # one pixel of the drawing is one of the screen
    assert drawing.evaluate("one => one.getBoundingClientRect().height / one.clientHeight") > 1.59
    assert reader.page.evaluate("document.documentElement.scrollWidth") == width
    boxes = reader.page.evaluate(ABOVE)
    assert all(0 <= box["left"] < box["right"] <= width for box in boxes)
    for one, other in itertools.combinations(boxes, 2):  # no part lies over another
        apart = one["bottom"] <= other["top"] + 1 or other["bottom"] <= one["top"] + 1
        aside = one["right"] <= other["left"] + 1 or other["right"] <= one["left"] + 1
        assert apart or aside, (one, other)
    reader.page.wait_for_function("location.hash.includes('large=1')")  # written with a delay
    assert reader.page.evaluate("localStorage.length + sessionStorage.length") == 0
    reader.control("large").uncheck()
    assert reader.away() == plain


def test_the_pointer_finds_the_cells_of_large_type(read, saved, result):
    reader = read(saved("short"), fragment="large=1&view=head&layer=5&heads=2&words=0")
    weights = result.weights(layer=5, head=2)
    reader.expect_weights(weights, [(1, 2), (7, 3), (8, 8)], 8e-4)
    tip = reader.page.locator("[role=tooltip]").bounding_box()
    place = reader.locate(part="matrix", query=8, key=8)
    assert 0 <= place["x"] - tip["x"] - tip["width"] < 60 or abs(place["x"] - tip["x"]) < 60
    assert abs(place["y"] - tip["y"]) < 60 + tip["height"]
    reader.page.set_viewport_size({"width": 1280, "height": 500})  # the keyboard scrolls to a cell
    reader.settle()
    reader.page.locator(".stage canvas").focus()
    for _ in range(9):
        reader.page.keyboard.press("ArrowDown")
    assert 0 < reader.locate(part="matrix", query=8, key=0)["y"] < 500


def test_invalid_fragments_are_ignored(read, saved):
    reader, address = read(fresh=True), saved("short").as_uri()
    for fragment in (
        "view=nowhere&layer=99&heads=77", "layer=-1&heads=&query=1e9&key=x&lock=1",
        "%E0%A4%A&view=%", "threshold=NaN&range=1,2&range=9,3,2,1",
        "stack=<script>&find=%3Cimg&words=maybe",
        "__proto__=1&constructor=2&layers=900&only=-&threshold=1e99",
    ):  # fmt: skip
        reader.page.goto(f"{address}#{fragment}")
        reader.page.reload()
        reader.settle()
        assert reader.state()["view"] == "grid"
        assert reader.away()
        assert reader.hover(layer=0, head=0).tip().startswith("Layer 0, head 0")


STRANGE = [
    "</script><script>window.ran = 1</script>", "<img src=x onerror='window.ran = 1'>",
    '"quotes" & \'more\'', "a\u2028b", "مرحبا", "👩\u200d👩\u200d👧", "\x00nul", "x" * 5000, "\n",
    "\u202edrawkcab", "$x$ \\alpha", "", "\ud800", "]]>",
]  # fmt: skip
SHOWN = [
    STRANGE[0], STRANGE[1], STRANGE[2], "a␊b", "مرحبا", STRANGE[5], "␀nul", "x" * 59 + "…", "␊",
    "\ufffddrawkcab", "$x$ \\alpha", "∅", "\ufffd", "]]>",
]  # fmt: skip


DATA = re.compile(r'(?<=id="attnviz-data">)(.*?)(?=</script>)')


def payload_in(path):
    return json.loads(DATA.search(path.read_text("utf-8"))[1])["payload"]


@pytest.fixture
def altered(open_page, saved):
    """Return a function that opens the page of the short text with other data."""

    def open_(change):
        page = saved("short").read_text("utf-8")
        data = json.loads(DATA.search(page)[1])
        change(data["payload"])
        written = json.dumps(data).replace("<", "\\u003c")
        reader = Reader(open_page(DATA.sub(lambda _: written, page), height=1400))
        reader.settle()
        return reader

    return open_


def test_strange_tokens_are_text(altered, result):
    size = len(result.records[0].query_axis)
    assert size >= len(STRANGE) - 2

    def change(payload):
        labels = payload["results"][0]["axes"][0]["labels"]
        labels[: len(STRANGE)] = STRANGE[:size]
        payload["start"] |= {"words": False, "view": "head"}

    reader = altered(change)
    for index, text in enumerate(SHOWN[:size]):
        tip = reader.hover(part="matrix", query=index, key=index).tip()
        assert tip.startswith(f"{text} → {text}  ")
    assert reader.page.evaluate("window.ran") is None
    assert reader.page.locator("img").count() == 0
    for name in VIEWS:
        reader.show(view=name).svg()
    assert reader.page.evaluate("window.ran") is None


def test_the_keyboard_alone_is_sufficient(read):
    reader = read(fresh=True)  # the first key goes to the first control
    keys = reader.page.keyboard
    for _ in range(30):
        keys.press("Tab")
        if reader.page.evaluate("document.activeElement.tagName") == "CANVAS":
            break
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        keys.press(key)
    assert reader.tip().startswith("Layer 1, head 1")
    expect(reader.page.locator(".spoken")).to_contain_text("Layer 1, head 1")
    keys.press("Enter")
    reader.settle()
    assert [reader.state()[name] for name in ("view", "layer", "heads")] == ["head", 1, [1]]
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        keys.press(key)
    assert reader.tip().startswith("The → The")
    keys.press("Enter")
    reader.settle()
    assert [reader.state()[name] for name in ("query", "key", "lock")] == [1, 1, True]
    keys.press("Escape")
    reader.settle()
    assert not reader.state()["lock"]
    assert reader.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"


def test_the_caption_describes_how_weights_were_processed(read):
    reader = read().show(view="head", special="remove", threshold=0.1)
    caption = reader.page.locator(".source")
    expect(caption).to_contain_text("Special tokens removed, rows renormalized to 1")
    expect(caption).to_contain_text("Word pieces merged (columns summed, rows averaged)")
    expect(caption).to_contain_text("Weights below 0.1 not drawn")
    reader.show(special="keep", threshold=0, words=False)
    expect(caption).not_to_contain_text("removed")
    expect(caption).not_to_contain_text("merged")


def test_the_token_view_shows_one_row_of_every_head(read, result):
    reader = read().show(view="token", query=6, words=False)
    column = {"part": "rows", "key": 3}
    for by, expected in (("query", lambda w: w[6, 3]), ("key", lambda w: w[3, 6])):
        reader.show(by=by, key=6)
        for layer, head in ((0, 0), (2, 7), (5, 11)):
            place = column if by == "query" else {"part": "rows", "query": 3}
            value, rounding = number(reader.hover(layer=layer, head=head, **place).tip())
            drawn = weights_of(result, layer, [head], words=False, special="keep").weights
            assert value == pytest.approx(expected(drawn).item(), abs=2e-5 + rounding)
    reader.word("##hom").click()
    reader.settle()
    assert reader.state()["key"] == 4
    reader.click(layer=2, head=7, part="rows", query=3)
    assert (reader.state()["view"], reader.state()["heads"]) == ("head", [7])


def numbers_in(tip):
    """Return the numbers of the second line of a tooltip, as they are written."""
    return re.findall(r"-?\d+\.\d+(?:e-\d+)?", tip.replace("−", "-").splitlines()[1])


def expect_score(reader, record, head, query, keys, error=2e-5):
    """Expect scores, and weights with significant digits only."""
    q, k = record.query[head, query].double(), record.key[head].double()
    for key in keys:
        score, weight = numbers_in(reader.hover(part="score", query=query, key=key).tip())
        assert float(score) == pytest.approx((q @ k[key] * record.scale).item(), abs=2e-3)
        expected, (_, rounding) = record.weights(head)[query, key].item(), number(f"  {weight}")
        assert float(weight) == pytest.approx(expected, abs=error + rounding)


def test_steps_show_how_a_weight_and_the_output_are_computed(read, result):
    reader = read().show(view="steps", layer=1, heads=[4], query=6)
    record = result.record(1)
    q, k = record.query[4, 6].double(), record.key[4].double()
    expect_score(reader, record, 4, 6, keys=(0, 3, 8))
    tip = reader.hover(part="product", query=6, key=3, dimension=7).tip()
    entries = [float(each) for each in numbers_in(tip)]
    assert entries == pytest.approx([float(q[7]), float(k[3, 7]), float(q[7] * k[3, 7])], abs=2e-3)
    heads, output = outputs(record)
    weights, V = record.weights(4).double(), record.value[4].double()
    width = V.shape[1]
    expected = {
        ("sum", 7): (weights @ V)[6, 7],
        ("heads", 9 * width + 3): heads[9, 6, 3],
        ("output", 101): output[6, 101],
    }
    for (part, dimension), value in expected.items():
        tip = reader.hover(part=part, dimension=dimension).tip()
        said, rounding = number(tip.splitlines()[1])
        assert said == pytest.approx(value.item(), abs=0.01 + rounding)
    tip = reader.hover(part="weighted", key=3, dimension=5).tip()
    said, rounding = number(tip.split("= ")[1])
    assert said == pytest.approx((weights[6, 3] * V[3, 5]).item(), abs=0.01 + rounding)
    assert reader.hover(part="heads", dimension=9 * width + 3).tip().startswith("head 9, ")


@pytest.mark.parametrize(
    "family", ["bloom", "t5-encoder", pytest.param("mpnet", marks=pytest.mark.long)]
)
def test_steps_of_a_model_with_a_score_bias(family, tokenizer, read, saved):
    result = attnviz.attend(TEXT, model=attnviz.load(tiny(family), tokenizer=tokenizer))
    reader = read(saved(family, result, show="steps", layer=1, head=2)).show(query=5)
    expect_score(reader, result.record(1), 2, 5, keys=(0, 3, 5), error=1e-4)


RULES = {
    "plain": {},
    "soft cap": {"softCap": 2.0},
    "sink": {"sink": 1.5},
    "sink of each query": {"sink": [float(n) / 5 for n in range(14)]},
    "causal": {"after": 0},
    "window": {"before": 2, "after": 1, "offset": 1},
    "unread": {"hidden": [0, 4]},
    "nothing to read": {"before": 0, "after": 0, "offset": -1},
}


def test_weights_follow_from_queries_and_keys_by_the_formula(altered, result):
    rules = []

    def change(payload):
        exact = payload["results"][0]["stacks"][0]["layers"][2]["exact"]
        for of_head, rule in zip(exact, RULES.values(), strict=False):
            of_head.pop("map", None)
            of_head["rule"] |= rule
            rules.append(of_head["rule"])
        payload["start"] |= {"words": False, "view": "head", "layer": 2, "head": 0}

    reader, record = altered(change), result.record(2)
    for head, (name, rule) in enumerate(zip(RULES, rules, strict=True)):
        reader.show(heads=[head])
        expected = by_the_rule(record.query[head].double().numpy(), record.key[head].numpy(), rule)
        for cell in ((0, 5), (5, 4), (12, 12)):
            masked = "masked" if expected[cell] == 0 else ""
            reader.expect_weights(expected, [cell], 5e-4, masked)
            assert masked or "masked" not in reader.tip(), name


def test_a_long_text_is_pooled_and_exact_after_zooming(read, saved, long):
    path = saved("long", long)
    reader = read(path, height=1400)
    record = long.record(1)
    size = len(record.query_axis)
    assert size > 200
    reader.show(view="head", layer=1, heads=[4], words=False)
    cell = payload_in(path)["results"][0]["stacks"][0]["layers"][1]["pooled"]["cell"]
    weights = record.weights(4, dtype=torch.float64)
    tip = reader.hover(part="matrix", query=2 * cell, key=3 * cell).tip()
    value, rounding = number(tip)
    rows, columns = (slice(n * cell, (n + 1) * cell) for n in (2, 3))
    assert value == pytest.approx(weights[rows, columns].sum(1).mean().item(), abs=1e-3 + rounding)
    for _ in range(12):
        reader.hover(part="matrix", query=2 * cell, key=2 * cell)
        reader.page.mouse.wheel(0, -240)
        reader.settle()
        if reader.state()["range"] and reader.state()["range"][1] - reader.state()["range"][0] < 60:
            break
    first, end, left, right = reader.state()["range"]
    assert end - first < 60 > right - left
    cells = (first, left), (first + 5, left + 9), (end - 1, right - 1)
    reader.expect_weights(weights, cells, 1e-3)
    reader.hover(part="matrix", query=first + 10, key=left + 10)
    box = reader.locate(part="matrix", query=first + 10, key=left + 10)
    reader.page.mouse.down()
    reader.page.mouse.move(box["x"] - 100, box["y"] - 60, steps=4)
    reader.page.mouse.up()
    reader.settle()
    assert reader.state()["range"][0] > first
    assert not reader.state()["lock"]
    reader.page.mouse.dblclick(box["x"], box["y"])
    reader.settle()
    assert reader.state()["range"] is None


@pytest.mark.parametrize("compared", [False, True])
def test_a_phone_shows_the_whole_map_at_once(read, saved, other, compared):
    path = saved("two", other=other) if compared else saved("short")
    reader = read(path, width=400, height=800).show(view="head", layer=1, heads=[4], words=False)
    first, last = 0, 12
    for query, key in itertools.product((first, last), repeat=2):
        place = reader.locate(part="matrix", query=query, key=key)
        assert 0 < place["x"] < 400
        assert 150 < place["y"] < 790
    lines = reader.locate(part="lines", query=first)
    assert lines["y"] > reader.locate(part="matrix", query=last, key=first)["y"]
    reader.show(view="token", words=True)
    for layer, head in ((0, 0), (5, 11)):
        assert reader.locate(layer=layer, head=head, query=2)["y"] < 790
    reader.control("fold").click()
    for name in ("save-svg", "threshold", "find"):
        expect(reader.control(name)).to_be_in_viewport(ratio=1)
    reader.control("fold").click()
    expect(reader.control("find")).to_be_hidden()
    for name in VIEWS:
        reader.show(view=name)
        assert reader.page.evaluate("document.documentElement.scrollWidth") == 400, name


PAGE = """() => {
    const box = (element) => {
        const {left, top, right, bottom} = element.getBoundingClientRect();
        return {left, top, right, bottom};
    };
    const shown = [...document.querySelectorAll('.attnviz *')].filter(
        (each) => !each.closest('.spoken') && each.checkVisibility({visibilityProperty: true}));
    return {
        boxes: shown.map((each) => ({name: each.className || each.tagName, ...box(each)})),
        texts: ['.headline .text', '.proof', '.hint', '.bars', '.stage canvas', 'footer'].map(
            (name) => box(document.querySelector(name))),
        height: document.documentElement.scrollHeight,
    };
}"""


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (400, 800)])
@pytest.mark.parametrize("compared", [False, True])
def test_the_first_screen_shows_the_text_and_all_heads_uncut(
    read, saved, other, width, height, compared
):
    path = saved("two", other=other) if compared else saved("short")
    reader = read(path, width=width, height=height)
    seen = reader.page.evaluate(PAGE)
    assert seen["height"] <= height  # nothing to scroll to
    for box in seen["boxes"]:
        assert box["left"] >= 0, box
        assert box["right"] <= width, box
        assert box["bottom"] <= height, box
    texts = seen["texts"]
    for upper, lower in itertools.combinations(texts, 2):  # no part lies over another
        apart = upper["bottom"] <= lower["top"] or lower["bottom"] <= upper["top"]
        aside = upper["right"] <= lower["left"] or lower["right"] <= upper["left"]
        assert apart or aside, (upper, lower)
    for head in ((0, 0), (5, 0), (5, 11)):
        place = reader.locate(layer=head[0], head=head[1])
        assert 0 < place["x"] < width
        assert texts[4]["top"] < place["y"] < texts[4]["bottom"]
    for label in ("old", "left", "time"):
        expect(reader.word(label)).to_be_in_viewport(ratio=1)
    expect(reader.page.locator(".proof")).to_contain_text("all-MiniLM-L6-v2")
    expect(reader.page.locator(".hint")).to_contain_text("Each square is one head.")


def test_the_verdict_is_a_chip_that_opens(read, result):
    reader = read()
    summary = result.agreement.summary()
    chip, whole = reader.control("verdict"), reader.page.locator(".verdict .whole")
    expect(reader.page.locator(".verdict .brief")).to_have_text("✓ verified")
    expect(whole).to_be_hidden()
    chip.hover()
    expect(whole).to_be_visible()
    expect(whole).to_have_text(summary)
    reader.away()
    expect(whole).to_be_hidden()
    chip.focus()
    expect(whole).to_be_visible()


def test_the_text_is_colored_by_the_weights_of_the_word_under_the_pointer(read, result):
    reader = read().show(view="head", layer=1, heads=[4, 7], words=False)
    clear = "rgba(0, 0, 0, 0)"
    assert reader.background("station") == clear
    drawn = weights_of(result, 1, [4, 7], words=False, special="keep")
    reader.word("train").hover()
    expect(reader.page.locator(".hint")).to_contain_text("mean of 2 heads")
    row = drawn.weights[6].tolist()
    alphas = reader.page.evaluate("""[...document.querySelectorAll('.headline .word')].map(
        (word) => Number(/([\\d.]+)\\)$/.exec(getComputedStyle(word).backgroundColor)[1]))""")
    words = range(1, len(row) - 1)  # special tokens have a scale of their own
    largest = max(row[at] for at in words)
    for at in words:
        assert alphas[at] == pytest.approx(0.85 * row[at] / largest, abs=0.01)
    best = max(range(len(row)), key=lambda at: row[at])
    expect(reader.page.locator(".hint")).to_contain_text(f"train → {drawn.columns[best]} ")
    reader.away()
    expect(reader.page.locator(".hint")).to_contain_text("Each line is a weight")
    assert reader.background("station") == clear
    reader.word("train").click()  # the colors stay with the locked word
    reader.away()
    expect(reader.page.locator(".hint")).to_contain_text("train → ")


def test_masked_cells_differ_from_cells_of_no_weight(read, saved, causal):
    result = causal.attend(TEXT)
    reader = read(saved("masked", result, show="head", layer=1, head=0, words=False))
    weights = result.record(1).weights(0)
    nearly = (weights > 0) & (weights < 1e-3)
    row, column = nearly.nonzero()[0].tolist()
    colors = [
        reader.color(part="matrix", query=query, key=key)
        for query, key in ((row, column), (0, 3), (2, 5))
    ]
    assert min(colors[0]) > 250  # no weight is white
    for masked in colors[1:]:
        assert masked == [238, 238, 242, 255]
    assert "0 (masked)" in reader.hover(part="matrix", query=0, key=3).tip()


def is_gray(color):
    return max(color[:3]) - min(color[:3]) <= 2


def test_cells_of_special_tokens_are_gray_on_a_scale_of_their_own(read, result):
    reader = read().show(view="head", layer=0, heads=[3], words=False)
    drawn = weights_of(result, 0, [3], words=False, special="keep")
    size = len(drawn.rows)
    darkest = {
        special: drawn.weights.masked_fill(drawn.uninformative != special, 0).argmax().item()
        for special in (True, False)
    }
    for special, cell in darkest.items():  # each scale ends at its own largest weight
        color = reader.color(part="matrix", query=cell // size, key=cell % size)
        assert color == ([154, 154, 154, 255] if special else [44, 26, 76, 255])
    for row, column in itertools.product(range(0, size, 2), range(size)):
        color = reader.color(part="matrix", query=row, key=column)
        if drawn.weights[row, column] > 0.05:
            assert is_gray(color) == bool(drawn.uninformative[row, column]), (row, column)
    texts = " ".join(reader.svg()[1])
    assert "between words" in texts
    assert "of special tokens" in texts


def test_the_page_takes_the_rule_of_the_color_scale_from_its_data(altered, result):
    def change(payload):
        assert payload["scale"].keys() == {"logarithmicFrom", "belowEven"}
        payload["scale"] = {"logarithmicFrom": 5, "belowEven": 2}

    reader = altered(change)
    reader.show(view="head", layer=0, heads=[3], words=False)
    _, texts = reader.svg()
    assert "attention weight (log)" in texts
    keys = len(result.record(0).key_axis)
    assert f"{1 / (2 * keys):.2g}" in texts  # where the scale begins


def test_the_next_tokens_of_a_word_are_shown(read, saved, causal):
    expect(read().control("next")).to_be_hidden()  # an encoder has none
    result = causal.attend(TEXT)
    known = result.next_tokens
    at = known.axis.labels.index("time")
    known.probabilities[at] = torch.tensor([0.523, 0.0996, 0.0321, 0.0004, 0])
    labels = (*known.labels[:at], ("a", "b", "c", "<b>", " "), *known.labels[at + 1 :])
    known = replace(known, labels=labels)
    reader = read(saved("next", replace(result, next_tokens=known)))
    line = reader.control("next")
    expect(line).to_contain_text("next after the text")
    assert line.locator("bdi").all_inner_texts() == list(known.labels[-1])
    reader.word("time").hover()
    expect(line).to_have_text("next after “time”a 52 %b 10 %c 3.2 %<b> <0.1 %· <0.1 %")
    reader.word("unfathomable").hover()  # of a word with several pieces, after the last
    after = max(n for n, word in enumerate(known.axis.words) if word == 1)
    expect(line.locator("bdi").first).to_have_text(known.labels[after][0])
    reader.away()
    expect(line).to_contain_text("next after the text")


def test_generated_words_stand_apart(read, saved, causal):
    result = causal.attend("the train left", generate=5)
    prompt = causal.attend("the train left").record(0).query_axis
    reader = read(saved("generated", result, show="head", words=False))
    generated = reader.page.locator(".made .word")
    labels = result.record(0).query_axis.labels[len(prompt) :]
    assert generated.all_inner_texts() == list(labels)
    assert reader.page.locator(".word").count() == len(prompt) + len(labels)
    assert reader.svg()[1].count("generated") == 2  # both sides


def test_a_picture_is_lit_where_the_patch_under_the_pointer_looks(read, saved, seen):
    record = seen.record(0)
    reader = read(saved("seen", seen, show="head", layer=0, head=1), height=1000)
    canvas = reader.page.locator(".picture canvas")
    expect(canvas).to_be_visible()
    assert reader.page.locator(".headline .word").all_inner_texts() == ["[CLS]"]
    patches = record.key_axis.patches
    rows, columns = (1 + max(patch[side] for patch in patches if patch) for side in (0, 1))
    plain = np.array(reader.patches(rows, columns))
    original = seen.image.double().mean(-1).numpy()
    tall, wide = original.shape[0] // rows, original.shape[1] // columns
    means = original.reshape(rows, tall, columns, wide).mean((1, 3)).flatten()
    np.testing.assert_allclose(plain, means, atol=12)  # the picture itself, as a JPEG
    position = patches.index((1, 2))
    box = canvas.bounding_box()
    x = box["x"] + box["width"] * 2.5 / columns
    y = box["y"] + box["height"] * 1.5 / rows
    reader.page.mouse.move(x, y)
    expect(reader.page.locator(".hint")).to_contain_text(f"{record.query_axis.labels[position]} → ")
    weights = record.weights(1)[position]
    order = [patches.index((r, c)) for r in range(rows) for c in range(columns)]
    shares = (weights[order] / weights[order].max()).numpy()
    light = np.array(reader.patches(rows, columns)) / plain
    others = np.array(order) != position  # the patch under the pointer has a frame
    np.testing.assert_allclose(light[others], (1 - 0.8 * (1 - shares))[others], atol=0.03)
    reader.page.mouse.click(x, y)
    reader.settle()
    assert (reader.state()["query"], reader.state()["lock"]) == (position, True)
    svg, _ = reader.svg()  # which has the picture, too, left of the map
    assert any(left_of(image) < -100 for image in svg.iter(f"{SVG}image"))
    reader.show(view="grid", lock=False)
    canvas.focus()
    reader.page.keyboard.press("ArrowRight")
    reader.page.keyboard.press("Enter")
    reader.settle()
    assert (reader.state()["view"], reader.state()["query"]) == ("token", patches.index((1, 3)))


def test_the_outline_of_a_sound_stands_above_its_frames(tokenizer, read, saved):
    sound = chirp()
    sound[len(sound) // 2 :] *= 0.2
    result = seeing("wav2vec2", tokenizer).attend(audio=sound, sampling_rate=RATE)
    reader = read(saved("sound", result))
    wave = reader.page.locator(".wave")
    frames = reader.page.locator(".headline .frame")
    assert frames.count() == len(result.record(0).query_axis)
    box, first, last = (
        one.bounding_box() for one in (wave, frames.first, frames.nth(frames.count() - 1))
    )
    assert box["x"] == pytest.approx(first["x"], abs=1)
    assert box["x"] + box["width"] == pytest.approx(last["x"] + last["width"], abs=1)
    assert box["y"] + box["height"] <= first["y"] + 1
    heights = wave.evaluate("""canvas => {
        const {data, width, height} = canvas.getContext('2d').getImageData(
            0, 0, canvas.width, canvas.height);
        return Array.from({length: width}, (_, x) => Array.from({length: height}, (_, y) =>
            data[4 * (y * width + x) + 3]).filter((alpha) => alpha > 100).length / height);
    }""")
    middle = round(len(heights) * 0.5 / (0.02 * frames.count()))  # of the sound, in pixels
    loud, soft = heights[5 : middle - 5], heights[middle + 5 : -5]
    assert 0.85 < max(loud) <= 1  # the outline has all of the height
    assert 0.15 < max(soft) < 0.3
    reader.page.mouse.click(first["x"] + 3.5 * first["width"], box["y"] + 5)
    reader.settle()
    assert (reader.state()["view"], reader.state()["query"]) == ("token", 3)
    expect(reader.page.locator(".hint")).to_contain_text("0.06 s → ")
    assert len(reader.svg()[0].findall(f"{SVG}polygon")) == 1


def test_heads_with_exact_weights_are_offered(read, saved, long):
    path = saved("small", long, size=1.2)
    reader = read(path, height=1400)
    layers = payload_in(path)["results"][0]["stacks"][0]
    exact = {
        (layer["layer"], head)
        for layer in layers["layers"]
        for head, each in enumerate(layer["exact"])
        if each
    }
    assert 0 < len(exact) < 72
    poor = next(at for at in itertools.product(range(6), range(12)) if at not in exact)
    reader.show(view="head", layer=poor[0], heads=[poor[1]])
    notice = reader.page.locator(".notice")
    expect(notice).to_contain_text("stores only these pooled weights")
    expect(notice).to_contain_text(f"Exact weights are stored for {len(exact)} heads")
    offered = notice.locator("button").first
    name = offered.get_attribute("data-control")
    offered.click()
    reader.settle()
    chosen = reader.state()["layer"], reader.state()["heads"][0]
    assert name == f"offer-{chosen[0]}-{chosen[1]}"
    assert chosen in exact
    reader.show(view="steps", layer=poor[0], heads=[poor[1]])
    expect(notice).to_contain_text(f"layer {poor[0]}, head {poor[1]} are not stored in this page")
    expect(reader.page.locator(".stage")).to_be_hidden()


@pytest.mark.parametrize("verdict", ["failed", "not proven"])
def test_every_view_marks_unverified_results(altered, verdict):
    said = {"verdict": verdict, "summary": "3 of 72 heads differ by 0.12"}
    reader = altered(lambda payload: payload["results"][0].update(said))
    for name in VIEWS:
        reader.show(view=name)
        verdict_line = reader.control("verdict")
        expect(verdict_line).to_be_visible()
        expect(verdict_line).to_have_text("✗ 3 of 72 heads differ by 0.12")
        expect(verdict_line).to_have_css("background-color", "rgb(176, 0, 32)")
        expect(verdict_line).to_have_css("font-weight", "600")
    assert any("3 of 72 heads differ by 0.12" in text for text in reader.svg()[1])


def test_encoder_decoder_stacks_can_be_selected(read, saved, tokenizer):
    model = attnviz.load(tiny("t5"), tokenizer=tokenizer)
    result = attnviz.attend("the train left", model=model, target="le train est parti")
    reader = read(saved("t5", result, show="head", words=False))
    for stack in result.stack().stacks:
        reader.control("stack").select_option(stack)
        reader.settle()
        record = result.stack(stack).records[1]
        reader.show(layer=record.layer, heads=[2])
        drawn = record.weights(2, dtype=torch.float64)
        reader.expect_weights(drawn, ((0, 0), (2, 1), (3, 4)), 5e-5)
