"""The page that runs the model in the browser, compared with PyTorch in all that it computes."""

import copy
import itertools
import re
import shutil
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch
from playwright.sync_api import expect

import attnviz
from attnviz.inputs import encode
from tests.browser.conftest import PATIENCE
from tests.browser.live_texts import texts
from tests.browser.test_view import Reader, number

TEXT = "the unfathomable train left the station on time"
# A mark newer than the tokenizer's tables of Unicode: it is dropped by browsers only.
NEWER = ["a\U00016fe4b"]
EXACT, ROUNDED = 1e-3, 5e-6


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    """The page in a folder of a site that links to it."""
    site = tmp_path_factory.mktemp("site")
    attnviz.view(TEXT, model=model, show="head", layer=2, head=3).save_live(site / "live")
    (site / "index.html").write_text("<!doctype html><a href='live/index.html'>Try it</a>")
    return site


class Quiet(SimpleHTTPRequestHandler):
    """A plain server of files."""

    def log_message(self, *_):
        """Print no line."""


class Named(Quiet):
    """A server that says another charset than that of the model's files."""

    def guess_type(self, path):
        """Return the type of a file."""
        kind = super().guess_type(path)
        return f"{kind}; charset=utf-8" if kind.startswith("text/") else kind


@contextmanager
def serve(folder, handler=Quiet):
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def served(folder):
    """The address of a plain server of files."""
    with serve(folder) as address:
        yield address


class Live(Reader):
    """A person who uses the page, and what it has computed."""

    def computed(self):
        """Wait until the page has drawn what was asked."""
        settled = self.page.locator("[data-state=drawn], .said.wrong").first
        settled.wait_for(state="attached", timeout=1000 * PATIENCE)
        return self

    def ask(self, what, *given):
        script = f"given => document.querySelector('#attnviz').lesson.{what}(...given)"
        return self.page.evaluate(script, given)

    def run(self, text, *, plain=False, **changes):
        """Return the weights, (L, H, T, T), and the last vectors of a text, with changes."""
        changes = {"scale": 1, "mask": MASKS["none"], "positions": "kept", "off": []} | changes
        found = self.page.evaluate(
            """async ([text, changes, plain]) => {
                const {engine} = document.querySelector('#attnviz').lesson;
                const found = await engine.read(text, changes, undefined, plain);
                const {layers, output, ids, formula} = found;
                return {ids, formula, weights: layers.map(({weights}) => [...weights]),
                        output: [...output]};
            }""",
            [text, changes, plain],
        )
        size = len(found["ids"])
        weights = np.array(found["weights"]).reshape(6, 12, size, size)
        return weights, np.array(found["output"]).reshape(size, -1), found

    def said(self):
        return self.page.locator(".said").inner_text()

    def table(self, name):
        """Return the numbers of a table as they were computed, (rows, columns)."""
        table = self.page.get_by_role("table", name=name, exact=True)
        rows = table.evaluate(
            "table => [...table.tBodies[0].rows].map(row => "
            "[...row.cells].slice(1).map(cell => [cell.title, cell.textContent]))"
        )
        for title, shown in (cell for row in rows for cell in row):
            shown = float(shown.replace("−", "-"))
            assert shown == pytest.approx(float(title), abs=0.00501)
        return np.array([[float(title) for title, _ in row] for row in rows])


@pytest.fixture
def live(open_page, served):
    """The page as a link opens it, with nothing changed."""
    page = open_page(f"{served}/index.html", height=1600, shared=True)
    if page.get_by_role("link", name="Try it").count():
        page.get_by_role("link", name="Try it").click()
    reader = Live(page).computed()
    page.locator("[data-control=page-0]").click()
    if reader.control("reset").is_enabled():
        reader.control("reset").click()
    page.locator("textarea").fill(TEXT)
    page.locator("textarea").press("Enter")
    return reader.computed()


@pytest.fixture(scope="module")
def eager():
    """The model with PyTorch's own attention, and the same with the numbers of the page."""
    exact = attnviz.load().module.eval()
    exact.set_attn_implementation("eager")
    rounded = copy.deepcopy(exact)
    for parameter in rounded.parameters():
        if parameter.dim() == 2:
            scale = parameter.detach().abs().amax(1, keepdim=True) / 32767
            parameter.data = torch.round(parameter.detach() / scale) * scale
    return exact, rounded


MASKS = {
    "none": {"before": None, "after": None, "hidden": []},
    "later": {"before": None, "after": 0, "hidden": []},
    "far": {"before": 2, "after": 2, "hidden": []},
    "special": {"before": None, "after": None, "hidden": [0, 12]},
}


@contextmanager
def changed(module, *, scale=1, mask=None, positions="kept", off=()):
    """Change a model of PyTorch as a reader changes that of the page."""
    layers = module.encoder.layer
    table = module.embeddings.position_embeddings.weight
    before, hooks = table.data, []
    for place, layer in enumerate(layers):
        layer.attention.self.scaling *= scale
        heads = [head for at, head in off if at == place]
        for head in heads:
            hide = partial(_without, head)
            hooks.append(layer.attention.output.dense.register_forward_pre_hook(hide))
    if positions == "none":
        table.data = torch.zeros_like(before)
    try:
        yield
    finally:
        table.data = before
        for layer in layers:
            layer.attention.self.scaling /= scale
        for hook in hooks:
            hook.remove()


def _without(head, _, inputs):
    (mixed,) = inputs
    mixed = mixed.clone()
    mixed[..., head * 32 : (head + 1) * 32] = 0
    return (mixed,)


def pytorch(module, tokenizer, text, **changes):
    """Return the weights and the last vectors by PyTorch."""
    inputs = tokenizer(text, return_tensors="pt")
    size = inputs["input_ids"].shape[1]
    rule, positions = changes.get("mask"), changes.get("positions", "kept")
    if rule:
        offset = torch.arange(size)[None] - torch.arange(size)[:, None]
        hidden = torch.zeros(size, size, dtype=torch.bool)
        hidden[:, rule["hidden"]] = True
        if rule["before"] is not None:
            hidden |= offset < -rule["before"]
        if rule["after"] is not None:
            hidden |= offset > rule["after"]
        inputs["attention_mask"] = torch.zeros(1, 1, size, size).masked_fill(hidden, -torch.inf)
    if isinstance(positions, list):
        inputs["position_ids"] = torch.tensor([positions])
    with torch.no_grad(), changed(module, **changes):
        found = module(**inputs, output_attentions=True)
    return torch.cat(found.attentions).numpy(), found.last_hidden_state[0].numpy()


def test_it_reads_two_hundred_texts_as_the_tokenizer_does(live, model):
    written = texts()
    for text, found in zip(written, live.ask("engine.split", written), strict=True):
        batch = encode(model.checkpoint, [text])
        (axis,) = batch.axes["text"]
        read = [axis.unknown_label([n]) for n in range(len(axis))]
        words = {word: label for word, label in zip(axis.words, read, strict=True) if label}
        assert found["ids"] == batch.inputs["input_ids"][0].tolist(), text
        assert found["axis"]["labels"] == [a or b for a, b in zip(read, axis.labels, strict=True)]
        assert found["axis"]["words"] == list(axis.words), text
        labels = [words.get(n, label) for n, label in enumerate(axis.word_labels)]
        assert found["axis"]["wordLabels"] == labels, text
        assert found["axis"]["special"] == [n for n, flag in enumerate(axis.special) if flag], text
    newer = [split["ids"] for split in live.ask("engine.split", NEWER)]
    assert newer != [model.tokenizer(text)["input_ids"] for text in NEWER]


def test_its_weights_are_those_of_pytorch(live, model, eager):
    some = [text for text in texts() if 4 < len(model.tokenizer(text)["input_ids"]) < 40][::40]
    for text in [TEXT, *some]:
        weights, output, found = live.run(text)
        for module, tolerance in zip(eager, (EXACT, ROUNDED), strict=True):
            theirs, vectors = pytorch(module, model.tokenizer, text)
            assert np.abs(weights - theirs).max() < tolerance, text
            assert np.abs(output - vectors).max() < 10 * tolerance, text
        assert max(found["formula"].values()) < 1e-6


def test_webassembly_multiplies_as_the_plain_code_does(live):
    for text in (TEXT, "train", "the station " * 10):
        fast, plain = live.run(text), live.run(text, plain=True)
        assert 0 < np.abs(fast[1] - plain[1]).max() < 10 * ROUNDED
        assert np.abs(fast[0] - plain[0]).max() < ROUNDED


def test_a_text_that_is_too_long_is_refused(live):
    live.page.locator("textarea").fill("a " * 127)
    live.computed()
    said = "The text has 129 tokens, and this page reads at most 128. Shorten it."
    expect(live.page.locator(".said.wrong")).to_have_text(said)


@pytest.mark.parametrize(
    "changes",
    [
        {"scale": 32**0.5},
        {"scale": 0.25},
        *({"mask": mask} for name, mask in MASKS.items() if name != "none"),
        {"positions": "none"},
        {"positions": [0, 5, 3, 4, 1, 2, 8, 6, 7, 9, 10, 11, 12]},
        {"off": [[2, 3], [2, 4], [5, 0]]},
        {"scale": 2, "mask": MASKS["later"], "positions": "none", "off": [[0, 1]]},
    ],
    ids=["unscaled", "flat", "later", "far", "special", "no places", "shuffled", "off", "all"],
)
def test_each_change_does_what_it_does_in_pytorch(live, model, eager, changes):
    weights, output, found = live.run(TEXT, **changes)
    theirs, vectors = pytorch(eager[1], model.tokenizer, TEXT, **changes)
    assert np.abs(weights - theirs).max() < ROUNDED
    assert np.abs(output - vectors).max() < 10 * ROUNDED
    plain = pytorch(eager[1], model.tokenizer, TEXT)
    assert np.abs(output - plain[1]).max() > 0.1
    assert max(found["formula"].values()) < 1e-6


def test_the_drawn_numbers_are_those_of_attnviz(live, model):
    live.show(view="head", layer=2, heads=[3], words=True)
    weights = attnviz.attention_map(model.attend(TEXT), layer=2, head=3).weights
    starts = [0, 1, 2, *range(6, 13)]  # the second word has four pieces
    for query, key in itertools.product(range(len(weights)), repeat=2):
        tip = live.hover(part="matrix", query=starts[query], key=starts[key]).tip()
        value, rounding = number(tip)
        assert value == pytest.approx(weights[query, key].item(), abs=8e-4 + rounding), tip


def test_the_verdict_says_what_was_checked(live):
    assert live.said().startswith("✓ Computed here in ")
    assert re.search(
        r"checked on two sentences: weights within \d\.\de-6 of PyTorch's", live.said()
    )
    chip = live.control("verdict")
    assert chip.get_attribute("data-verdict") == "computed"
    chip.hover()
    whole = live.page.locator(".verdict .whole")
    expect(whole).to_contain_text("Computed here, checked on two sentences.")
    expect(whole).to_contain_text("rows sum to 1 within")
    expect(whole).to_contain_text("W V equals the mixed values within")


def test_everything_that_is_moved_is_named_and_compared(live, model, eager):
    live.control("unscaled").click()
    live.computed()
    assert live.said() == "≠ Changed model: scores × 5.66."
    assert live.control("verdict").get_attribute("data-verdict") == "changed"
    live.control("mask").select_option("later")
    live.computed()
    live.control("positions").select_option("none")
    live.computed()
    live.show(layer=2, heads=[3])
    live.control("off").click()
    live.computed()
    said = "≠ Changed model: scores × 5.66, later keys hidden, no positions, head 2.3 off."
    assert live.said() == said
    changes = {"scale": 32**0.5, "mask": MASKS["later"], "positions": "none", "off": [(2, 3)]}
    theirs, _ = pytorch(eager[1], model.tokenizer, TEXT, **changes)
    plain, _ = pytorch(eager[1], model.tokenizer, TEXT)
    live.show(view="head", layer=3, heads=[1], words=False)
    for show, weights in (("first", theirs), ("second", plain), ("difference", theirs - plain)):
        live.show(show=show)
        for query, key in ((3, 1), (5, 5), (8, 2)):
            value, rounding = number(live.hover(part="matrix", query=query, key=key).tip())
            assert value == pytest.approx(weights[3, 1, query, key], abs=1e-5 + rounding)
    live.control("reset").click()
    live.computed()
    assert live.control("verdict").get_attribute("data-verdict") == "computed"
    assert live.page.locator("[data-control=show]").count() == 0


def test_a_word_is_replaced_before_and_after(live, model):
    live.control("word").select_option(label="unfathomable")
    live.control("other").fill("old")
    live.computed()
    other = model.attend(TEXT.replace("unfathomable", "old"))
    live.show(view="head", layer=1, heads=[2], show="difference")
    said = "Orange: more weight in 1 (“old”). Blue: more in 2 (“unfathomable”)."
    expect(live.page.locator(".headline .hint")).to_contain_text(said)
    maps = [attnviz.attention_map(r, layer=1, head=2).weights for r in (other, model.attend(TEXT))]
    difference = maps[0] - maps[1]
    starts = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]  # of the shorter text: each word is one piece
    for query, key in ((1, 3), (3, 3), (6, 3), (9, 9)):
        tip = live.hover(part="matrix", query=starts[query], key=starts[key]).tip()
        value, rounding = number(tip)
        assert value == pytest.approx(difference[query, key].item(), abs=8e-4 + rounding), tip
    assert live.control("verdict").get_attribute("data-verdict") == "computed"


def softmax(scores):
    return torch.softmax(torch.as_tensor(scores), -1).numpy()


def test_the_lenses_show_what_follows_from_the_vectors(live, model):
    live.show(view="head", layer=5, heads=[2])
    result = model.attend(TEXT)
    record = result.attentions[5]
    query, key = (getattr(record, name)[2].double().numpy() for name in ("query", "key"))
    with torch.no_grad():
        inputs = model.tokenizer(TEXT, return_tensors="pt")
        hidden = model.module(**inputs, output_hidden_states=True).hidden_states
    x = hidden[5][0].double().numpy()
    near = {"atol": 2e-2, "rtol": 5e-3}

    live.control("lens-1").click()
    live.computed()
    table = live.table("softmax(X Xᵀ / √384)")
    np.testing.assert_allclose(table, softmax(x @ x.T / 384**0.5), **near)
    table = live.table("softmax(Q Kᵀ / √32)")
    np.testing.assert_allclose(table, result.weights()[5, 2], atol=1e-3)
    live.control("lens-2").click()
    live.computed()
    products = query @ key.T
    np.testing.assert_allclose(live.table("Dot product q·k / √32"), products / 32**0.5, **near)
    lengths = np.linalg.norm(query, axis=1)[:, None] * np.linalg.norm(key, axis=1)
    cosines = live.table("Cosine q·k / |q| |k|")
    np.testing.assert_allclose(cosines, products / lengths, **near)
    differing = (cosines.argmax(1) != products.argmax(1)).sum()
    said = live.page.locator(".lenses .finding").inner_text()
    assert f"in {differing} of {len(x)} rows" in said
    live.control("lens-3").click()
    live.computed()
    expect(live.page.locator(".lenses .finding")).to_contain_text("and by")
    places = model.module.embeddings.position_embeddings.weight[: len(x)].detach().double()
    alike = torch.nn.functional.cosine_similarity(places[:, None], places[None], dim=-1)
    np.testing.assert_allclose(live.table("Cosine of the vectors of places"), alike, **near)
    moved = re.search(
        r"by up to ([\d.]+) with positions, and by (\S+) ",
        live.page.locator(".lenses .finding").inner_text(),
    )
    assert float(moved[1]) > 0.1
    assert float(moved[2]) < 1e-5


def test_the_gradient_of_the_softmax_is_that_of_autograd(live, model):
    live.show(view="head", layer=2, heads=[3])
    live.control("lens-0").click()
    live.computed()
    record = model.attend(TEXT).attentions[2]
    scores = (record.query[3] @ record.key[3].T).double()
    said = live.page.locator(".lenses .finding").inner_text()
    found = [float(each) for each in re.findall(r"(?<![\d.])\.\d\d|\d\.\d\d", said)]
    expected = []
    for factor in (1, 32**-0.5):
        rows = [row * factor for row in scores]
        jacobians = [torch.autograd.functional.jacobian(lambda r: r.softmax(0), r) for r in rows]
        top = [row.softmax(0).max().item() for row in rows]
        expected.append((np.mean(top), np.mean([j.norm().item() for j in jacobians])))
    wanted = [expected[0][0], expected[1][0], expected[0][1], expected[1][1]]
    assert found == pytest.approx(wanted, abs=6e-3)


def test_the_worked_example_follows_the_reader(live):
    live.control("page-1").click()
    x = np.array([[1, 0.5, 0.2, 0.1], [0.9, 1.1, 0.1, 0], [0.1, 0.2, 1, 0.5], [0, 0.1, 0.4, 1.2]])
    q, k, v = (
        np.array(rows, float)
        for rows in (
            [[1, 0], [0, 1], [1, 0], [0, 1]],
            [[1, 0], [0, 1], [0, 1], [1, 0]],
            [[1, 0], [0, 1], [1, 1], [0, 1]],
        )
    )

    def compare(words=4, scale=2**-0.5):
        values = {f"{n} = X W_{n.lower()}": x @ m for n, m in zip("QKV", (q, k, v), strict=True)}
        scores = (x @ q) @ (x @ k).T * scale
        values["Q Kᵀ / √dₖ" if scale != 1 else "Q Kᵀ"] = scores
        values |= {"softmax of each row": softmax(scores), "weights V": softmax(scores) @ (x @ v)}
        for name, expected in values.items():
            shown = live.table(f"{name} ({words}, {expected.shape[1]})")
            np.testing.assert_allclose(shown, expected, atol=1e-9)

    compare()
    cell = live.page.get_by_label("X (4, 4), apple, 3")
    cell.fill("2.5")
    x[2, 2] = 2.5
    compare()
    live.page.get_by_label("W_v (4, 2), x1, 2").fill("-1")
    v[0, 1] = -1
    live.control("scaled").uncheck()
    compare(scale=1)
    live.control("scaled").check()
    live.control("identity").click()
    q = k = v = np.eye(4)
    compare(scale=0.5)
    live.control("phones").click()


def test_the_keyboard_moves_everything(live):
    page = live.page
    page.locator("textarea").focus()
    reached = []
    for _ in MOVES:
        page.keyboard.press("Tab")
        script = "document.activeElement.dataset.control ?? document.activeElement.tagName"
        reached.append(page.evaluate(script))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert reached == MOVES
    live.control("scale").focus()
    page.keyboard.press("ArrowRight")
    live.computed()
    assert live.said().startswith("≠ Changed model: scores × 1.04")
    page.locator("[role=tab][aria-selected=true]").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("table", name="X (4, 4)")).to_be_visible()


MOVES = ["word", "scale", "unscaled", "mask", "positions", "shuffle", "off"]


def test_a_phone_has_no_sideways_scrolling(open_page, served):
    page = open_page(f"{served}/live/index.html", width=400, height=800, shared=True)
    live = Live(page).computed()
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        expect(page.locator("#attnviz")).to_have_attribute("data-theme", scheme)
        live.control("page-0").click()
        for lens in range(4):
            live.control(f"lens-{lens}").click()
            live.computed()
            assert page.evaluate("document.documentElement.scrollWidth") == 400, lens
        live.control("page-1").click()
        assert page.evaluate("document.documentElement.scrollWidth") == 400


@pytest.mark.parametrize(("width", "dark"), [(1280, True), (1920, False)])
def test_a_link_opens_it_in_large_type(open_page, served, width, dark):
    address = f"{served}/live/index.html"
    page = open_page(address, width=width, dark=dark)
    live = Live(page).computed()
    title = page.locator("h1").bounding_box()["height"]
    page.goto(f"{address}#large=1&view=steps&layer=1&heads=2")
    page.reload()
    live.computed()
    state = live.state()
    assert [state[name] for name in ("view", "layer", "heads")] == ["steps", 1, [2]]
    assert page.locator("h1").bounding_box()["height"] == pytest.approx(1.6 * title, abs=1)
    word = live.word("train")
    assert word.evaluate("one => one.currentCSSZoom") == pytest.approx(1.6)  # once, not twice
    live.show(view="head")
    page.locator("textarea").fill("the ship left the dock")
    live.computed()
    assert live.state()["large"]  # also after a new sentence
    for lens in range(4):
        live.control(f"lens-{lens}").click()
        live.computed()
        assert page.evaluate("document.documentElement.scrollWidth") == width, lens
    left, right = (one.bounding_box() for one in page.locator(".lenses .pair > figure").all())
    assert left["y"] == right["y"]  # side by side
    assert left["x"] + left["width"] < right["x"]
    live.control("page-1").click()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    live.control("page-0").click()
    live.control("large").uncheck()
    live.computed()
    assert page.locator("h1").bounding_box()["height"] == pytest.approx(title, abs=1)


def test_large_type_is_chosen_in_the_worked_example_too(open_page, served):
    page = open_page(f"{served}/live/index.html")
    page.locator("[data-control=page-1]").click()  # while the model is loaded
    title = page.locator("h1").bounding_box()["height"]
    box = page.locator("[data-control=large-example]")
    box.check()
    live = Live(page).computed()
    assert page.locator("h1").bounding_box()["height"] == pytest.approx(1.6 * title, abs=1)
    assert page.evaluate("document.documentElement.scrollWidth") == 1280
    page.locator("[data-control=page-0]").click()
    expect(live.control("large")).to_be_checked()
    live.control("large").uncheck()
    page.locator("[data-control=page-1]").click()
    expect(box).not_to_be_checked()
    assert page.locator("h1").bounding_box()["height"] == pytest.approx(title, abs=1)


def test_a_link_opens_another_head_in_an_open_page(live):
    live.page.evaluate("location.hash = '#view=head&layer=4&heads=7'")
    live.page.wait_for_function("document.querySelector('#attnviz').attnviz.state.layer === 4")
    assert live.state()["heads"] == [7]
    live.page.go_back()
    live.page.wait_for_function("document.querySelector('#attnviz').attnviz.state.layer === 2")
    live.computed()


def test_a_link_opens_the_worked_example(open_page, served):
    address = f"{served}/live/index.html"
    page = open_page(address, fragment="page=example&large=1")
    chosen = page.locator("[role=tab][aria-selected=true]")
    expect(chosen).to_have_text("Worked example")
    expect(page.locator("[data-control=phones]")).to_be_visible()
    live = Live(page).computed()
    expect(page.locator("[data-control=large-example]")).to_be_checked()
    page.evaluate("location.hash = '#layer=1&large=1'")
    expect(chosen).to_have_text("Your sentence")
    assert live.state()["layer"] == 1
    page.go_back()
    expect(chosen).to_have_text("Worked example")


def test_a_blank_text_is_said_to_be_one(live):
    live.page.locator("textarea").fill("  ")
    said = "Type a sentence. Below is the one before."
    expect(live.page.locator(".said")).to_have_text(said)
    live.page.locator("textarea").fill("time")
    expect(live.page.locator(".said")).to_contain_text("✓ Computed here")
    live.computed()


@pytest.mark.parametrize("width", [400, 1280])
def test_the_labels_of_the_curves_are_inside_their_figure(open_page, served, width):
    page = open_page(f"{served}/live/index.html", width=width)
    Live(page).computed()
    inside = """svg => { const {left, right} = svg.getBoundingClientRect();
        return [...svg.querySelectorAll("text")].map(one => one.getBoundingClientRect())
            .every(box => box.left >= left - 1 && box.right <= right + 1) }"""
    assert page.locator(".curves").evaluate(inside)


def test_it_works_from_disk(open_page, folder):
    live = Live(open_page(folder / "live" / "index.html")).computed()
    assert live.said().startswith("✓ Computed here")


def test_it_works_from_a_server_that_names_another_charset(open_page, folder):
    with serve(folder, Named) as address:
        live = Live(open_page(f"{address}/live/index.html")).computed()
        assert live.said().startswith("✓ Computed here")


def test_its_folder_has_hardly_more_bytes_than_the_numbers(folder, model):
    matrices = [p for p in model.module.parameters() if p.dim() == 2]
    numbers = sum(2 * p.numel() + 4 * p.shape[0] for p in matrices)
    assert sum(file.stat().st_size for file in (folder / "live").iterdir()) < 1.03 * numbers


@pytest.mark.parametrize("name", ["data.js", "model.3.js"])
@pytest.mark.parametrize("where", ["disk", "server"])
def test_a_file_that_is_missing_is_named(open_page, folder, served, name, where):
    here = folder / "less"
    shutil.copytree(folder / "live", here, dirs_exist_ok=True)
    (here / name).unlink()
    address, why = here / "index.html", "ERR_FILE_NOT_FOUND"
    if where == "server":
        address, why = f"{served}/less/index.html", "404"
    page = open_page(address, expects=[f"console: .*{why}"])
    expect(page.locator("main")).to_contain_text(f"{name} is missing: copy the whole folder.")


@pytest.mark.parametrize("where", ["disk", "server"])
@pytest.mark.parametrize("change", ["a byte", "another part", "no text"])
def test_a_file_with_other_bytes_is_named(open_page, folder, served, where, change):
    here = folder / "other"
    shutil.copytree(folder / "live", here, dirs_exist_ok=True)
    file = here / "model.3.js"
    script = bytearray(file.read_bytes())
    if change == "a byte":
        script[3_000_000] ^= 1
    elif change == "another part":
        script = (here / "model.4.js").read_bytes()
    else:
        script[2_000_000:2_000_002] = '"'.encode("utf-16-le")
    file.write_bytes(script)
    page = open_page(
        here / "index.html" if where == "disk" else f"{served}/other/index.html",
        expects=["missing . after argument list"] if (where, change) == ("disk", "no text") else [],
    )
    said = page.locator(".said.wrong")
    expect(said).to_have_text(
        "model.3.js has other bytes than were written. Copy the folder again."
    )


# A fault in the page's attention, as a change to its built script.
FAULTS = {
    "a scale that is off by 1 %": (
        r"scale:(\w+/Math\.sqrt\(\w+\),softCap)",
        r"scale:1.01*\1",
        2,  # in the worker, and where it is drawn
    ),
    "two heads that are swapped": (
        r"(for\(let (\w)=0;\2<\w+\.heads;\2\+\+\)\{let \w=)\2\*",
        r"\1(\2<2?1-\2:\2)*",
        1,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_in_its_attention_fails_its_check(open_page, folder, served, fault):
    pattern, planted, count = FAULTS[fault]
    here = folder / "wrong"
    shutil.copytree(folder / "live", here, dirs_exist_ok=True)
    script = here / "attnviz.lesson.js"
    code, found = re.subn(pattern, planted, script.read_text("utf-8"))
    assert found == count
    script.write_text(code, "utf-8")
    live = Live(open_page(f"{served}/wrong/index.html")).computed()
    assert live.said() == "✗ This page computes other numbers than PyTorch."
    banner = live.page.locator(".verdict .whole")
    expect(banner).to_contain_text("not verified: on two sentences the weights of this page differ")
    assert live.control("verdict").get_attribute("data-verdict") == "failed"


@pytest.mark.parametrize("what", ["compared", "a pair", "another model"])
def test_what_a_live_page_cannot_begin_with_is_refused(model, small, tmp_path, what):
    result = model.attend(TEXT)
    page = {
        "compared": lambda: attnviz.view(result, compare=model.attend("the ship left the dock")),
        "a pair": lambda: attnviz.view(model.attend(TEXT, pair="it was late")),
        "another model": lambda: attnviz.view(small.attend(TEXT)),
    }[what]()
    with pytest.raises(attnviz.InputError, match="begins with one text, read by the bundled model"):
        page.save_live(tmp_path / "live")
    assert not (tmp_path / "live").exists()
