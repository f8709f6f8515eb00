"""The page of `attnviz serve` in Chromium, used as a reader uses it."""

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import expect

from tests.interactive.serve.live_server import serving


@pytest.fixture(scope="module")
def served():
    with serving("--max-tokens", "64") as server:
        yield server


@pytest.fixture
def page(served, open_page):
    """Open the page by its link."""

    def open_(**how):
        opened = open_page(served.link, **how)
        expect(opened).to_have_url(f"{served.address}/")  # the address does not contain the token
        expect(opened.get_by_label("Sentence").first).to_be_focused()  # the page is ready
        return opened

    return open_


def asked(page, n):
    return page.locator(f"#panel-{n}")


def test_a_typed_sentence_is_shown_and_the_selection_stays(page):
    shown = page()
    sentence = shown.get_by_label("Sentence").first
    shown.keyboard.press("Enter")
    expect(shown.locator("canvas")).to_be_visible(timeout=120_000)
    expect(shown.locator(".answer .verdict").first).to_contain_text("verified: 72 heads")
    shown.get_by_role("button", name="Token", exact=True).click()
    sentence.fill("she sat by the bank of the river")
    sentence.press("Enter")
    expect(shown.locator("footer .source")).to_contain_text("she sat by the bank")
    assert (
        shown.evaluate("document.querySelector('.answer .attnviz').attnviz.state.view") == "token"
    )


def test_two_sentences_are_compared(page):
    shown = page()
    shown.get_by_label("Sentence").first.fill("she sat by the bank")
    shown.get_by_label("Compare with").fill("she sat by the road")
    shown.get_by_role("button", name="Show", exact=True).click()
    expect(shown.locator('[data-control="show"]')).to_be_visible(timeout=120_000)
    expect(shown.locator("footer .source")).to_contain_text("she sat by the bank")


@pytest.mark.parametrize(("tab", "n", "drawn"), [("Senses", 1, "bank"), ("Shift", 2, "bank")])
def test_a_figure_of_a_word(page, tab, n, drawn):
    shown = page()
    shown.get_by_role("tab", name=tab).click()
    panel = asked(shown, n)
    panel.get_by_label("Word", exact=False).last.fill(drawn)
    panel.get_by_role("button", name="Show").click()
    image = panel.get_by_role("img")
    expect(image).to_be_visible(timeout=120_000)
    expect(image).to_have_attribute("src", re.compile("^blob:"))
    expect(image).to_have_js_property("complete", True)
    assert image.evaluate("image => image.naturalWidth") > 300
    expect(panel.locator(".verdict")).to_contain_text("verified")


def test_errors_are_shown_and_the_last_answer_stays(page):
    shown = page(expects=["400"])
    shown.keyboard.press("Enter")
    expect(shown.locator("canvas")).to_be_visible(timeout=120_000)
    shown.get_by_label("Sentence").first.fill("go " * 100)
    shown.keyboard.press("Enter")
    expect(asked(shown, 0).get_by_role("status").first).to_contain_text("at most 64 are read here")
    expect(shown.locator("canvas")).to_be_visible()


def test_markup_is_text(page):
    shown = page()
    odd = "</script><img src=x onerror=\"document.title='run'\"> \u202e abc \U0001f600"
    shown.get_by_label("Sentence").first.fill(odd)
    shown.keyboard.press("Enter")
    expect(shown.locator("footer .source")).to_contain_text("onerror", timeout=120_000)
    expect(shown).to_have_title("attnviz")
    assert shown.locator("main img").count() == 0


def test_cancel_leaves_the_server_free(served, page):
    shown = page()
    shown.get_by_role("tab", name="Shift").click()
    panel = asked(shown, 2)
    panel.get_by_label("Sentence").fill("The bank was full of {mud|cash} " + "and so were we " * 14)
    panel.get_by_label("Sentence").press("Enter")
    panel.get_by_role("button", name="Cancel").click()
    expect(panel.get_by_role("status")).to_have_text("Canceled.")
    with served.stranger() as asking:
        for _ in range(200):
            if asking.get("/health").json()["running"] == 0:
                break
        assert asking.get("/health").json()["running"] == 0


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
        served.stranger() as asking,
    ):
        threading.Thread(target=other.serve_forever, daemon=True).start()
        context.new_page().goto(served.link)  # the cookie is set, from the same site
        before = asking.get("/health").json()["served"]
        page, posts = context.new_page(), []
        page.on("response", lambda got: posts.append((got.url, got.status)))
        page.goto(f"http://127.0.0.1:{other.server_port}/")
        expect(page).to_have_title("refused refused refused")
        page.wait_for_load_state("networkidle")
        assert (f"{served.address}/attention", 403) in posts  # from the form
        assert (f"{served.address}/attention", 200) not in posts
        framed = page.frame(name="framed")
        assert framed.locator("main").count() == 0
        after = asking.get("/health").json()
        assert (after["served"], after["running"]) == (before, 0)
        other.shutdown()
