"""The page of `attnviz serve` in Chromium, used as a reader uses it."""

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from families import tiny
from playwright.sync_api import expect

import attnviz
from tests.interactive.serve.live_server import serving_in_thread, wait_until_idle


@pytest.fixture(scope="module")
def served(small):
    with serving_in_thread(small) as server:
        yield server


@pytest.fixture(scope="module")
def served_bundled(model):
    """A server of the bundled model."""
    with serving_in_thread(model) as server:
        yield server


@pytest.fixture
def page(served, idle, open_page):
    """Open the page of a server by its link."""

    def open_(server=served, **how):
        opened = open_page(server.link, **how)
        expect(opened).to_have_url(f"{server.address}/")  # the address does not contain the token
        expect(opened.get_by_label("Sentence").first).to_be_focused()  # the page is ready
        return opened

    return open_


@pytest.fixture
def idle(request, served):
    """Leave no run of a test in the thread of a server."""
    yield
    wait_until_idle(served)
    if "served_bundled" in request.fixturenames:
        wait_until_idle(request.getfixturevalue("served_bundled"))


def asked(page, n):
    return page.locator(f"#panel-{n}")


def test_a_typed_sentence_is_shown_the_selection_stays_and_two_are_compared(page):
    shown = page()  # it shows its first sentence at once
    sentence = shown.get_by_label("Sentence").first
    expect(shown.locator("canvas")).to_be_visible(timeout=120_000)
    expect(shown.locator(".answer .verdict").first).to_contain_text("verified: 12 heads")
    shown.get_by_role("button", name="Token", exact=True).click()
    sentence.fill("she sat by the bank of the river")
    sentence.press("Enter")
    expect(shown.locator("footer .source")).to_contain_text("she sat by the bank")
    assert (
        shown.evaluate("document.querySelector('.answer .attnviz').attnviz.state.view") == "token"
    )
    shown.get_by_label("Compare with").fill("she sat by the road of the river")
    shown.get_by_role("button", name="Show", exact=True).click()
    expect(shown.locator('[data-control="show"]')).to_be_visible(timeout=120_000)  # of two texts
    expect(shown.locator("footer .source")).to_contain_text("she sat by the bank")


def expect_proven(page, panel):
    """Expect the verdict, and the figure as a file."""
    expect(panel.locator(".verdict")).to_contain_text("verified")
    with page.expect_download() as started:
        panel.get_by_role("button", name="SVG").click()
    assert started.value.suggested_filename == "attnviz-bank.svg"
    assert started.value.path().read_text("utf-8").count("<svg") == 1


def test_an_error_takes_the_place_of_the_last_answer_and_markup_is_text(page):
    shown = page(expects=["400"])
    expect(shown.locator("canvas")).to_be_visible(timeout=120_000)
    shown.get_by_label("Sentence").first.fill("go " * 100)
    shown.keyboard.press("Enter")
    expect(asked(shown, 0).get_by_role("status").first).to_contain_text("at most 64 are read here")
    expect(shown.locator("canvas")).to_have_count(0)
    odd = "</script><img src=x onerror=\"document.title='run'\"> \u202e abc \U0001f600"
    shown.get_by_label("Sentence").first.fill(odd)
    shown.keyboard.press("Enter")
    expect(shown.locator("canvas")).to_be_visible(timeout=120_000)
    expect(shown.locator("footer .source")).to_contain_text("onerror")
    expect(shown).to_have_title("attnviz")
    assert shown.locator("main img").count() == 0


def test_what_was_typed_outlives_a_reload(page):
    shown = page()
    shown.get_by_label("Sentence").first.fill("she sat by the bank")
    shown.get_by_role("tab", name="Shift").click()
    asked(shown, 2).get_by_label("Word", exact=False).last.fill("was")
    shown.get_by_role("tab", name="Attention").click()
    shown.reload()
    expect(shown.locator("footer .source")).to_contain_text("she sat by the bank", timeout=120_000)
    expect(shown.get_by_label("Sentence").first).to_have_value("she sat by the bank")
    shown.get_by_role("tab", name="Shift").click()
    expect(asked(shown, 2).get_by_label("Word", exact=False).last).to_have_value("was")


SENTENCES = {
    "river": ["We sat on the bank of the river.", "The bank was full of mud and reeds."],
    "money": ["The bank lent us the money.", "She works in a bank and counts cash."],
}


def test_senses_of_own_sentences_are_threads(page, served_bundled, model):
    result = attnviz.senses("bank", SENTENCES, model=model)
    shown = page(served_bundled)
    shown.get_by_role("tab", name="Senses").click()
    panel = asked(shown, 1)
    typed = [f"{sense}: {text}" for sense, texts in SENTENCES.items() for text in texts]
    panel.get_by_label("Word", exact=True).fill("bank")
    own = panel.get_by_label("Your own sentences")
    own.fill(typed[0])
    own.press("End")
    own.press("Enter")  # a new line, not a request
    own.press_sequentially("\n".join(typed[1:]), delay=0)
    panel.get_by_role("button", name="Show").click()
    threads = panel.locator(".thread")
    expect(threads).to_have_count(4, timeout=120_000)
    expect(panel.get_by_role("heading")).to_have_text(result.headline)
    order = result.heights[-1].argsort(descending=True).tolist()  # from above to below
    assert threads.locator("tspan.word").all_text_contents() == ["bank"] * 4
    assert sorted(threads.locator(".sentence").all_text_contents()) == sorted(
        one.sentence for one in result.occurrences
    )
    threads.locator(".sentence", has_text="lent us the money").hover()
    height = float(result.heights[-1, 2])
    side = f"{abs(height):.2f}".lstrip("0") + (
        " nearer to river" if height > 0 else " nearer to money"
    )
    said = panel.locator("output")
    expect(said).to_have_text(f"output: {side} The bank lent us the money.")
    expect(panel.locator(".thread.marked")).to_have_count(1)
    expect_proven(shown, panel)
    names = panel.get_by_role("listitem")
    names.filter(has_text=result.occurrences[order[0]].sentence).focus()
    for key, n in (("ArrowLeft", order[0]), ("ArrowDown", order[1]), ("Home", order[0])):
        shown.keyboard.press(key)
        expect(said).to_contain_text(result.occurrences[n].sentence)


def test_the_bricks_of_a_shift_sum_to_its_gap(page, served_bundled, model):
    text = "We sat on the bank of the river."
    regions = {
        "water": "The boat drifted past the bank of the lake.",
        "money": "She opened an account at the bank.",
    }
    result = attnviz.shift("bank", text, toward=regions, model=model)
    shown = page(served_bundled)
    shown.get_by_role("tab", name="Shift").click()
    panel = asked(shown, 2)  # it shows its first sentence
    expect(panel.get_by_label("Between two regions")).to_have_value("")  # it has no word yet
    typed = "\n".join(f"{name}: {sentence}" for name, sentence in regions.items())
    panel.get_by_label("Between two regions").fill(typed)
    panel.get_by_role("button", name="Show").click()
    expect(panel.get_by_role("heading")).to_have_text(result.headline, timeout=120_000)
    expect_proven(shown, panel)
    tall = [one.bounding_box()["height"] for one in panel.locator(".brick .body").all()]
    ends = [one.bounding_box() for one in panel.locator("circle:is(.here, .alone)[r='4.5']").all()]
    middles = [end["y"] + end["height"] / 2 for end in ends]
    assert sum(tall) == pytest.approx(max(middles) - min(middles), abs=len(tall) + 2)
    assert panel.locator(".rail").count() == 2
    said, claimed = panel.locator("output"), panel.locator(".brick.claimed")
    adds, takes = (result.along(of)[result.strongest] for of in (result.parts, result.tested))
    bars = [claimed.locator(name).bounding_box() for name in (".again", ".takes")]
    assert bars[1]["width"] / bars[0]["width"] == pytest.approx(takes / adds, rel=0.02)
    assert bars[0]["x"] == pytest.approx(bars[1]["x"], abs=0.1)
    expect(panel.locator("svg").last).to_contain_text("share of the way")
    expected = f"river: adds {adds:.2f}, masked {takes:.2f}".replace(" 0.", " .")
    panel.locator(".part", has_text="river").hover()
    expect(said).to_have_text(expected)
    expect(claimed).to_have_class(re.compile("marked"))
    claimed.locator(".body").hover()
    expect(said).to_have_text(expected)
    expect(panel.locator(".part.marked")).to_have_text("river")
    expect(claimed).to_have_attribute("aria-label", expected)
    bricks = panel.get_by_role("listitem")
    bricks.first.focus()
    for n in range(1, bricks.count()):
        shown.keyboard.press("ArrowDown")
        expect(said).to_contain_text(bricks.nth(n).get_attribute("aria-label"))


def test_cancel_leaves_the_server_free(served, page):
    shown = page()
    shown.get_by_role("tab", name="Shift").click()
    panel = asked(shown, 2)
    panel.get_by_label("Sentence").fill("The bank was full of {mud|cash} " + "and so were we " * 14)
    panel.get_by_label("Sentence").press("Enter")
    panel.get_by_role("button", name="Cancel").click()
    expect(panel.get_by_role("status")).to_have_text("Canceled.")
    with served.enter() as asking:
        for _ in range(200):
            if asking.get("/about").json()["jobs"] == 0:
                break
        assert asking.get("/about").json()["jobs"] == 0


def test_keys_move_between_the_tabs(page):
    shown = page()
    shown.get_by_role("tab", name="Attention").focus()
    shown.keyboard.press("ArrowRight")
    expect(shown.get_by_role("tab", name="Senses")).to_be_focused()
    expect(asked(shown, 1)).to_be_visible()
    expect(asked(shown, 0)).to_be_hidden()


FORGED = """<!doctype html>
<iframe name="framed" src="{there}/"></iframe><iframe name="posted"></iframe>
<form method="post" action="{there}/attention" enctype="text/plain" target="posted">
<input name='{{"text": "hello", "x": "' value='"}}'></form>
<script>
document.forms[0].submit();
const post = (type, mode) => fetch("{there}/attention", {{
  method: "POST", credentials: "include", mode, headers: {{"Content-Type": type}},
  body: '{{"text": "hello"}}'}}).then((answer) => answer.type, () => "refused");
Promise.all([post("application/json", "cors"), post("text/plain", "no-cors"),
  fetch("{there}/about", {{credentials: "include"}}).then(() => "read", () => "refused")])
  .then((all) => document.title = all.join(" "));
</script>"""


def test_a_page_on_another_port_cannot_frame_request_or_read(served, browser):
    forged = FORGED.format(there=served.address).encode()

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(forged)

        def log_message(self, *_):
            pass

    with (
        ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as other,
        browser.new_context() as context,
        served.enter() as asking,
    ):
        threading.Thread(target=other.serve_forever, daemon=True).start()
        own = context.new_page()
        own.goto(served.link)  # the cookie is set, from the same site
        expect(own.locator("canvas")).to_be_visible(timeout=120_000)
        page, posts = context.new_page(), []
        page.on("response", lambda got: posts.append((got.url, got.status)))
        page.goto(f"http://127.0.0.1:{other.server_port}/")
        expect(page).to_have_title("refused refused refused")
        page.wait_for_load_state("networkidle")
        assert (f"{served.address}/attention", 403) in posts  # from the form
        assert (f"{served.address}/attention", 200) not in posts
        framed = page.frame(name="framed")
        assert framed.locator("main").count() == 0
        assert asking.get("/about").json()["jobs"] == 0
        other.shutdown()


@pytest.fixture(scope="module")
def decoder(tokenizer):
    """A server of a tiny decoder."""
    with serving_in_thread(attnviz.load(tiny("llama"), tokenizer=tokenizer)) as server:
        yield server


def test_a_generated_token_is_explained_when_a_reader_points_at_it(decoder, open_page):
    page, held = open_page(decoder.link), []
    page.get_by_label("Sentence").first.fill("the old train left the quiet station")
    page.get_by_label("Generate").fill("4")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.locator("footer .source")).to_contain_text("the old train left")
    words, line = page.locator(".headline .word"), page.locator(".why .found")
    last = words.count() - 1
    expect(line).to_contain_text("Point at a generated token")
    words.nth(last - 1).hover()
    expect(line).to_contain_text(re.compile("logits|nats"))
    expect(page.locator(".headline .explained")).to_have_text(words.nth(last - 1).inner_text())
    assert page.locator(".headline .word[style*=background]").count() >= 5
    page.route("**/explain", lambda route: held.append(route))
    words.nth(last).hover()
    expect(line).to_have_text("Explaining this token …")
    expect(page.locator(".headline .explained")).to_have_count(0)  # nor the other token's colors
    assert page.locator(".headline .word[style*=color-mix]").count() == 0
    held[0].continue_()
    expect(line).to_contain_text(re.compile("logits|nats"))
    expect(page.locator(".headline .explained")).to_have_text(words.nth(last).inner_text())
