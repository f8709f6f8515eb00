"""Every view of every kind of page is opened by a click, pointed at, left by Back, and saved.

So are the senses and the shifts of a word, which the served page draws.

`open_page` fails a test whose page reports an error.
"""

import itertools
import re

import pytest
import torch
from families import tiny
from figures.sentences.maps import rules_of
from linear_models import build
from matplotlib.text import Text
from media import RATE, chirp, picture, processor_of, seeing
from playwright.sync_api import expect
from transformers import BertConfig, BertModel, ViTConfig, ViTModel

import attnviz
from tests.interactive.serve.live_server import serving_in_thread

TEXT = "the train left the old station on time"
SENTENCE = "The old train left the station on time, although its driver was unsure of the way. "
VIEWS = "grid", "head", "token", "steps"
_small = {"hidden_size": 32, "intermediate_size": 32, "initializer_range": 0.2}


def _of_bart(tokenizer):
    model = attnviz.load(tiny("bart"), tokenizer=tokenizer)
    return model.attend(TEXT, target="le train est parti")


def _many_heads(tokenizer):
    config = {"num_hidden_layers": 30, "num_attention_heads": 8, "vocab_size": 30522, **_small}
    torch.manual_seed(0)
    module = BertModel(BertConfig(**config)).eval()
    return attnviz.load(module, tokenizer=tokenizer).attend(TEXT)


def _large_image(tokenizer):
    config = {"image_size": 80, "patch_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    module = ViTModel(ViTConfig(**config, **_small)).eval()
    processor = processor_of("vit", tokenizer)
    processor.size = {"height": 80, "width": 80}
    return attnviz.load(module, processor=processor).attend(image=picture())


# Kind of page: results, of the bundled model or of one with its tokenizer; two are compared.
KINDS = {
    "short": lambda model, _: [model.attend(TEXT)],
    "one word": lambda model, _: [model.attend("train")],
    "pair": lambda model, _: [model.attend(TEXT, pair="it was late")],
    "unknown words": lambda model, _: [model.attend("the train 火车 left the 车站 on time")],
    "sentences": lambda model, _: [model.attend(SENTENCE * 4)],
    "pooled": lambda model, _: [model.attend(SENTENCE * 20)],
    "streamed": lambda model, _: [model.attend(SENTENCE * 20, mode="streamed")],
    "compared": lambda model, _: [model.attend(TEXT), model.attend("the ship left the harbor")],
    "image": lambda _, tokenizer: [seeing("vit", tokenizer).attend(image=picture())],
    "pooled image": lambda _, tokenizer: [_large_image(tokenizer)],
    "audio": lambda _, tokenizer: [
        seeing("wav2vec2", tokenizer).attend(audio=chirp(), sampling_rate=RATE)
    ],
    "pooled audio": lambda _, tokenizer: [
        seeing("wav2vec2", tokenizer).attend(audio=chirp(3.0), sampling_rate=RATE)
    ],
    "image and text": lambda _, tokenizer: [
        seeing("blip", tokenizer).attend("a red circle", image=picture())
    ],
    "generation": lambda _, tokenizer: [
        attnviz.load(tiny("llama"), tokenizer=tokenizer).attend(TEXT, generate=5)
    ],
    "encoder and decoder": lambda _, tokenizer: [_of_bart(tokenizer)],
    "linear": lambda _, tokenizer: [
        attnviz.load(build("xlstm"), tokenizer=tokenizer).attend("the train left the station")
    ],
    "many heads": lambda _, tokenizer: [_many_heads(tokenizer)],
}


@pytest.fixture(scope="module")
def saved(model, tokenizer, tmp_path_factory):
    """Return pages on disk, each written once."""
    folder = tmp_path_factory.mktemp("kinds")

    def save(kind):
        path = folder / f"{kind}.html"
        if not path.exists():
            result, *other = KINDS[kind](model, tokenizer)
            attnviz.view(result, compare=other[0] if other else None).save(path)
        return path

    return save


def settle(page):
    """Wait until the drawing matches the state; return the view that is shown."""
    return page.evaluate("""async () => {
        const {attnviz} = document.querySelector('.attnviz');
        await attnviz.ready;
        return attnviz.state.view;
    }""")


def sweep(page):
    """Point at places all over the view, and click one of them."""
    canvas = page.locator(".stage canvas")
    if not canvas.is_visible():
        assert page.locator(".notice").is_visible()  # it says what the page lacks
        return
    box = canvas.bounding_box()
    for part in (0.02, 0.2, 0.45, 0.7, 0.95):
        page.mouse.move(box["x"] + part * box["width"], box["y"] + part * box["height"])
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.6 * box["height"])
    page.mouse.down()
    page.mouse.up()
    settle(page)


@pytest.mark.parametrize("kind", KINDS)
def test_every_view_opens_without_an_error(saved, open_page, kind):
    page = open_page(saved(kind), height=1000)
    settle(page)
    for name in (*VIEWS[1:], VIEWS[0]):
        page.locator(f"[data-control='view-{name}']").click()
        assert settle(page) == name
        stage = page.locator(".stage")
        assert stage.get_attribute("aria-busy") == "false"
        sweep(page)
        page.locator(f"[data-control='view-{name}']").click()
        settle(page)
        for word in page.locator(".headline .word").all()[:2]:
            word.hover()


@pytest.mark.parametrize("kind", ["short", "pooled"])
def test_back_returns_to_the_view_before(saved, open_page, kind):
    page = open_page(saved(kind))
    settle(page)
    visited = ["token", "head", "steps", "grid"]
    for name in visited:
        page.locator(f"[data-control='view-{name}']").click()
        settle(page)
    for name in ["steps", "head", "token", "grid"]:
        page.go_back()
        page.wait_for_timeout(50)
        assert settle(page) == name
    page.go_forward()
    page.wait_for_timeout(50)
    assert settle(page) == "token"


def test_the_claim_is_marked_until_a_reader_points(saved, open_page):
    """The claim is red; nothing else is, before and after a word is pointed at."""
    page = open_page(saved("short"))
    page.evaluate("""() => document.querySelector('.attnviz').attnviz.show(
        {view: 'head', layer: 0, heads: [4]})""")
    settle(page)
    red = """() => {
        const canvas = document.querySelector('.stage canvas');
        const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        let count = 0;
        for (let n = 0; n < data.length; n += 4)
            count += data[n] > 180 && data[n + 1] < 60 && data[n + 2] < 80 && data[n + 3] > 250;
        return count;
    }"""
    assert page.evaluate(red) > 300  # an arc, a frame, two words and a percentage
    page.locator(".headline .word").nth(3).hover()
    page.wait_for_timeout(50)
    assert page.evaluate(red) == 0
    page.mouse.move(2, 2)
    page.wait_for_timeout(50)
    assert page.evaluate(red) == 0
    page.evaluate("() => document.querySelector('.attnviz').attnviz.show({heads: [1]})")
    settle(page)
    assert page.evaluate(red) > 300


def test_the_families_of_heads_are_named_as_in_the_figure(saved, open_page, model):
    names = "() => document.querySelector('.attnviz').attnviz.locate({layer: 0, head: 2})"
    page = open_page(saved("short"))
    settle(page)
    place = page.evaluate(names)
    page.mouse.move(place["x"], place["y"])
    tip = page.locator("[role=tooltip]").inner_text()
    maps = attnviz.head_maps(model.attend(TEXT))
    family, share = rules_of(maps, maps.weights)[2]
    assert family == "previous"
    assert "Words look at the word before them" in tip
    with page.expect_download() as started:
        page.locator("[data-control='save-svg']").click()
    assert f"previous {share:.0%}" in started.value.path().read_text("utf-8")


@pytest.fixture(scope="module")
def served(model, tokenizer):
    """A server of the bundled model and of a tiny decoder."""
    decoder = attnviz.load(tiny("llama"), tokenizer=tokenizer)
    with serving_in_thread(model, decoder) as server:
        yield server


REGIONS = (
    "water: The boat drifted past the bank of the lake.\nmoney: She has an account at the bank."
)
SENTENCES = (
    "river: a muddy bank\nriver: the bank of a river\nmoney: a bank loan\nmoney: a rich bank"
)
LONG_NAMES = SENTENCES.replace("river:", "the side of a river or a lake:")
FLOOD = "After the flood had passed, the old farmer walked slowly along the bank of the river."
# Name: tab, model, what is typed by label, and a word of the mark that is pointed at.
OF_A_WORD = {
    "two senses": ("Senses", 0, {"Word": "bank"}, "river|money"),
    "three senses": ("Senses", 0, {"Word": "check"}, "cheque|chess|verify"),
    "few sentences": ("Senses", 0, {"Word": "bank", "own": LONG_NAMES}, "lake|money|undecided"),
    "senses of a decoder": (
        "Senses",
        1,
        {"Word": "bank", "own": SENTENCES},
        "river|money|undecided",
    ),
    "regions": ("Shift", 0, {"Sentence": FLOOD, "Between": REGIONS}, "adds"),
    "no regions": ("Shift", 0, {"Sentence": FLOOD, "Between": ""}, "adds"),
    "pair": ("Shift", 0, {"Sentence": "The bank was full of {mud|cash}.", "Between": ""}, "adds"),
    "shift of a decoder": ("Shift", 1, {"Sentence": FLOOD, "Between": REGIONS}, "adds|not read"),
}

# Texts that leave the drawing or lie on another one.
BADLY_PLACED = """drawing => {
    const frame = drawing.getBoundingClientRect(), found = [];
    const texts = [...drawing.querySelectorAll('text')].filter((text) => text.textContent.trim()
        && !text.classList.contains('chip'));
    const boxes = texts.map((text) => text.getBoundingClientRect());
    boxes.forEach((a, n) => {
        if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.top < frame.top - 1
            || a.bottom > frame.bottom + 1) found.push(`outside: ${texts[n].textContent}`);
        boxes.slice(n + 1).forEach((b, k) => {
            const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
            const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
            const other = texts[n + 1 + k].textContent;
            if (across > 1 && down > 4) found.push(`${texts[n].textContent} on ${other}`);
        });
    });
    if (document.documentElement.scrollWidth > innerWidth) found.push('the page scrolls sideways');
    return found;
}"""


@pytest.mark.parametrize("kind", OF_A_WORD)
def test_the_drawing_of_a_word_is_read_and_fits(served, open_page, kind):
    tab, number, typed, said = OF_A_WORD[kind]
    page = open_page(served.link)
    page.get_by_role("tab", name=tab).click()
    page.get_by_label("Model").select_option(index=number)
    panel = page.locator("[role=tabpanel]:visible")
    for label, text in typed.items():
        panel.get_by_label(label).first.fill(text)
    panel.get_by_role("button", name="Show").click()
    drawing, output = panel.locator(".drawn svg"), panel.locator("output")
    expect(drawing).to_be_visible()
    expect(panel.locator(".verdict")).to_contain_text("verified")
    if kind == "pair":
        expect(panel.locator(".label.alone")).to_have_text("with “mud”")
    for width in (400, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        expect(drawing).to_have_attribute(
            "width", str(min(1000, panel.bounding_box()["width"])).removesuffix(".0")
        )
        assert drawing.evaluate(BADLY_PLACED) == []
        ground = set()
        for theme in ("dark", "light"):
            page.emulate_media(color_scheme=theme)
            expect(page.locator("#attnviz")).to_have_attribute("data-theme", theme)
            first = drawing.locator(".half").first
            ground.add(first.evaluate("half => getComputedStyle(half).fill"))
        assert len(ground) == 2
        rest, height = output.inner_text(), output.bounding_box()["height"]
        marks = drawing.locator(".thread" if tab == "Senses" else ".brick")
        assert marks.count() >= 2
        for mark in (marks.first, marks.last):
            mark.locator("text").first.hover()
            expect(output).to_have_text(re.compile(said))
            expect(mark).to_have_class(re.compile("marked"))
            assert mark.get_attribute("aria-label")
            assert output.bounding_box()["height"] == height
        box = drawing.bounding_box()
        for part in (0.25, 0.35, 0.5, 0.75):
            page.mouse.move(box["x"] + part * box["width"], box["y"] + part * box["height"])
        page.mouse.move(1, 1)
        expect(output).to_have_text(rest)


def test_the_title_of_a_head_on_a_long_text_is_that_of_its_figure(saved, open_page, model):
    result = model.attend(SENTENCE * 20)
    assert len(result.attentions[0].query_axis) > 64
    page = open_page(saved("pooled"), height=1000)
    for layer, head in ((0, 2), (1, 1), (5, 3)):
        page.evaluate(f"""() => document.querySelector('.attnviz').attnviz.show(
            {{view: 'head', layer: {layer}, heads: [{head}]}})""")
        assert settle(page) == "head"
        figure = attnviz.plot.heatmap(result, layer=layer, head=head).figure
        label = page.locator(".stage canvas").get_attribute("aria-label")
        title, _, _ = label.partition(": lines between")
        assert title != label
        written = " ".join(text.get_text() for text in figure.findobj(Text))
        assert title in " ".join(written.split())


def test_a_text_of_several_sentences_is_written_out_beside_its_map(saved, open_page, model):
    page = open_page(saved("sentences"), height=1000)
    page.evaluate("""() => document.querySelector('.attnviz').attnviz.show(
        {view: 'head', layer: 1, heads: [1]})""")
    assert settle(page) == "head"
    hint = page.locator(".hint")
    expect(hint).to_contain_text("A dashed box looks at a solid one.")
    with page.expect_download() as download:
        page.get_by_role("button", name="SVG").click()
    svg = download.value.path().read_text(encoding="utf-8")
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert "Where the words of each sentence look" in texts
    written = [one for one in texts if one == "station"]
    assert len(written) >= 4  # the text
    drawn = attnviz.attention_map(model.attend(SENTENCE * 4), layer=1, head=1)
    between = drawn.weights * (1 - torch.eye(len(drawn.rows)))
    shares = [one for one in texts if re.fullmatch(r"\d+ ?%", one)]
    assert f"{between[1:-1, 1:-1].max():.0%}" in [one.replace(" ", "") for one in shares]
    assert len(shares) <= 4
    sentences = [one for one in texts if re.match(r"\d The old train", one)]
    assert [one[0] for one in sentences] == list("1234")
    starts = [n for n, word in enumerate(drawn.rows) if word == "The"] + [len(drawn.rows) - 1]
    parts = [slice(*ends) for ends in itertools.pairwise(starts)]
    sums = torch.tensor([[float(drawn.weights[a, b].sum()) for b in parts] for a in parts])
    of_sentences = sums / sums.sum(1, keepdim=True)
    cells = [f"{share:.2f}".removeprefix("0") for share in of_sentences.flatten() if share >= 0.25]
    assert cells
    for cell in itertools.product(range(4), repeat=2):
        script = "cell => document.querySelector('.attnviz').attnviz.locate({sentences: cell})"
        place = page.evaluate(script, cell)
        page.mouse.move(place["x"], place["y"])
        named = [rf"{n + 1} The old train left" for n in cell]
        share = f"{of_sentences[cell]:.0%}"
        said = rf"{named[0]} → {named[1]}\s+{share}\s*of the weight between words"
        expect(page.locator("[role=tooltip]")).to_have_text(re.compile(said))
    assert [one for one in texts if re.fullmatch(r"\.\d\d", one)] == cells
    page.locator("[data-control='view-grid']").click()
    assert settle(page) == "grid"
    expect(hint).to_contain_text("Each square is one head.")
