"""The page of heads as readers use it: real Chromium, a real mouse and keyboard, and no network."""

import re

import pytest
from playwright.sync_api import expect

import attnviz

NAMES = "first", "previous", "induction"
HOSTILE = ["</script><script>throw Error('ran')</script>", "<img src=x onerror=alert(1)>", "<!--"]
TEXTS = {
    "3": ["The", " old", " train", " left", " the", " old", " station"],
    "7": ["A", "\n", " ", "", *HOSTILE, "\u202eabc", " end"],
    "9": [f" w{n}" for n in range(200)],
}


def weights_of(text, row, key, weight):
    weights = [0.0] * len(TEXTS[str(text)])
    weights[key] = weight
    return {"text": text, "row": row, "key": key, "weight": weight, "weights": weights}


def head(layer, number, role="", looks=None, values=(0.1, 0.2, 0.05), **others):
    return {
        "name": f"{layer}.{number}", "layer": layer, "head": number,
        "role": role, "looks": role if looks is None else looks,
        "values": [*values], "low": [v and v - 0.02 for v in values],
        "high": [v and v + 0.02 for v in values], "even": [0.1, 0.1, None],
        "similar": [], "examples": [], "deciles": [], "writes": None,
        "effect": None, **others,
    }  # fmt: skip


PAYLOAD = {
    "model": "Tiny <b>&amp;",
    "caption": ["3 texts, 217 tokens", "</script> in a note"],
    "verdict": "Verified: every weight is within 1e-6.",
    "verified": True,
    "statistics": [
        {"name": "first", "title": "for the first token"},
        {"name": "previous", "title": "for the previous token"},
        {"name": "induction", "title": "for what followed it before"},
    ],
    "texts": TEXTS,
    "heads": [
        head(0, 0, values=(0.3, 0.15, 0.02)),
        head(0, 1, "previous token", values=(0.05, 0.85, 0.03)),
        head(0, 2, "rests on the first token", values=(0.95, 0.02, 0.01)),
        head(1, 0, values=(0.2, None, None)),
        head(
            1, 1, "induction", values=(0.05, 0.1, 0.8), similar=[1, 0], effect=0.12,
            examples=[weights_of(3, 5, 2, 0.98), weights_of(7, 8, 4, 0.5)],
            deciles=[{"decile": 90, **weights_of(9, 150, 40, 0.4)},
                     {"decile": 10, **weights_of(3, 3, 0, 0.001)}],
            writes={"raises": [[" Paris", 3.1, 4], [HOSTILE[1], 1.0, 1]],
                    "lowers": [[" the", -2.0, 3]]},
        ),
        head(1, 2, "induction", "looks like “induction”, not confirmed", (0.1, 0.3, 0.6)),
    ],
}  # fmt: skip


def page_of(payload):
    return attnviz.View([], "", lambda: payload, "explore.jinja").html


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The page of PAYLOAD on disk."""
    file = tmp_path_factory.mktemp("page") / "heads.html"
    file.write_text(page_of(PAYLOAD), encoding="utf-8")
    return file


@pytest.fixture
def show(open_page, saved):
    """Open a page; that of PAYLOAD is opened again in one tab."""

    def show_(payload=PAYLOAD, **window):
        if payload is not PAYLOAD:
            return open_page(page_of(payload), **window)
        page = open_page(saved, shared=True, **window)
        page.mouse.move(0, 0)
        page.goto(saved.as_uri())
        return page

    return show_


def title(page):
    return page.locator(".head h2")


def dot(page, name):
    return page.locator(f"circle[data-head='{name}']")


def cell(page, name):
    return page.locator(f"rect[data-head='{name}']")


def chosen(page):
    """Return the names that the plot, the grid and the title show as chosen, and the address."""
    names = [page.locator(f"{tag}.chosen").get_attribute("data-head") for tag in ("circle", "rect")]
    return {*names, title(page).inner_text().removeprefix("Head ")}


def test_the_headline_counts_heads_and_a_head_with_a_role_is_shown(show):
    page = show()
    expect(page.get_by_role("heading", level=1)).to_have_text("What the heads of Tiny <b>&amp; do")
    assert page.title() == "What the heads of Tiny <b>&amp; do"
    expect(page.locator(".count")).to_have_text("6 heads, 4 with a role")
    expect(page.locator(".verdict .brief")).to_have_text("✓ verified")
    assert chosen(page) == {"1.1"}
    expect(page.locator(".looks")).to_have_text("induction")
    expect(page.locator(".effect")).to_contain_text("falls by 0.12 nats")
    expect(page.locator(".values > div").first).to_have_text("induction0.800.78 to 0.82 ")
    assert [page.locator(f"[data-control={axis}]").input_value() for axis in "xy"] == ["1", "2"]
    expect(page.locator("footer p").nth(1)).to_have_text("</script> in a note")


def test_an_alarm_replaces_the_chip(show):
    page = show(PAYLOAD | {"verified": False, "verdict": "Failed: off by 0.3."})
    expect(page.locator(".verdict .whole")).to_have_text("✗ Failed: off by 0.3.")
    expect(page.locator(".verdict .brief")).to_be_hidden()


def test_a_click_on_a_point_or_a_cell_changes_the_head(show):
    page = show()
    dot(page, "0.1").hover()
    tip = page.get_by_role("tooltip")
    expect(tip).to_contain_text("0.1: previous token")
    expect(tip).to_contain_text("previous 0.85 (0.83 to 0.87)")
    dot(page, "0.1").click()
    assert chosen(page) == {"0.1"}
    assert page.url.endswith("#0.1")
    cell(page, "1.2").click()
    assert chosen(page) == {"1.2"}
    expect(page.locator(".looks")).to_have_text("looks like “induction”, not confirmed")
    # a head without examples, words and effect says nothing about them
    for part in (".examples", ".beside", ".effect", ".like"):
        expect(page.locator(part)).to_be_hidden()
    cell(page, "1.0").click()
    expect(page.locator(".values > div").first).to_contain_text("not measured")
    expect(dot(page, "1.0")).to_be_hidden()
    expect(page.locator(".missing")).to_have_text("1 of 6 heads have no value here.")


def test_arrow_keys_move_in_the_grid_and_in_the_plot(show):
    page = show()
    cell(page, "1.1").focus()
    walked = []
    for key in ("Left", "Down", "Right", "Right", "Up", "Up", "Up"):
        page.keyboard.press(f"Arrow{key}")
        assert len(chosen(page)) == 1
        walked += chosen(page)
    assert walked == ["0.1", "0.2", "1.2", "1.2", "1.1", "1.0", "1.0"]
    cell(page, "0.0").click()
    dot(page, "0.0").focus()
    page.keyboard.press("ArrowRight")  # the next larger value across
    assert page.evaluate("document.activeElement.dataset.head") == "1.2"
    expect(page.get_by_role("tooltip")).to_contain_text("1.2")
    page.keyboard.press("Enter")
    assert chosen(page) == {"1.2"}


def test_the_address_names_the_head(open_page, saved):
    page = open_page(saved)
    page.goto(f"{saved.as_uri()}#0.2")
    expect(title(page)).to_have_text("Head 0.2")
    page.reload()
    expect(title(page)).to_have_text("Head 0.2")
    page.evaluate("location.hash = '#1.1'")
    expect(title(page)).to_have_text("Head 1.1")
    for wrong in ("#9.9", "#%"):
        page.evaluate("hash => { location.hash = hash }", wrong)
        page.wait_for_timeout(50)
        expect(title(page)).to_have_text("Head 1.1")
    page.get_by_role("link", name="0.1").click()
    assert chosen(page) == {"0.1"}
    assert page.url.endswith("#0.1")


def test_back_returns_to_the_head_before(open_page, saved):
    page = open_page(saved)
    cell(page, "0.1").click()
    for name in ("0.2", "0.0"):
        page.wait_for_timeout(1100)  # a head that is shown for less is only passed on the way
        cell(page, name).click()
    for name in ("0.2", "0.1", "1.1"):
        page.go_back()
        expect(title(page)).to_have_text(f"Head {name}")


def test_roles_have_the_colors_of_the_figures_and_none_is_red(show):
    """Those of the page's source are compared with the figures in test_build.py."""
    page = show()
    colors = page.evaluate("""() => ["0.1", "0.2", "1.1"].map(name =>
        getComputedStyle(document.querySelector(`rect[data-head='${name}']`)).fill)""")
    written = ["#{:02x}{:02x}{:02x}".format(*map(int, re.findall(r"\d+", c)[:3])) for c in colors]
    assert written == ["#24508f", "#c8c8c8", "#1f8a73"]


def test_examples_mark_the_query_and_shade_the_keys(show):
    page = show()
    strongest = page.locator(".strongest li")
    expect(strongest).to_have_count(2)
    first = strongest.nth(0)
    expect(first.locator("b")).to_have_text("0.98")
    expect(first.locator("p")).to_have_text("The old train left the old station")
    expect(first.locator(".query")).to_have_text("old")
    expect(first.locator(".key")).to_have_text("train")
    assert int(first.locator(".key").evaluate("e => getComputedStyle(e).fontWeight")) >= 700
    shaded = first.locator("bdi").evaluate_all(
        "all => all.map(e => getComputedStyle(e).backgroundColor !== 'rgba(0, 0, 0, 0)')"
    )
    assert shaded == [False, False, True, False, False, False, False]
    typical = page.locator(".typical li")
    assert typical.locator(".decile").all_inner_texts() == ["90 %", "10 %"]
    long = typical.nth(0).inner_text()  # only what is near the query and the key
    assert re.search(r"… w26 .*w40.* w48 … w136 .*w150.* w158 …", long)
    expect(typical.nth(1).locator("b")).to_have_text("<0.01")


def test_any_text_is_shown_as_text(show):
    page = show()
    words = page.locator(".strongest li").nth(1).locator("bdi").all_inner_texts()
    assert words == ["A", "↵", "␣", "∅", *HOSTILE, "\ufffdabc", "end"]
    assert page.locator("main script, main img, main b b").count() == 0
    expect(page.locator(".writes .up bdi")).to_have_text(["Paris", HOSTILE[1]])
    expect(page.locator(".writes .down b")).to_have_text("−2.00")


def test_a_role_of_the_legend_fades_the_others(show):
    page = show()
    entry = page.locator(".legend").get_by_role("button", name="induction")
    expect(entry).to_have_text("induction 2")
    entry.click()
    faded = page.locator("circle.faded").evaluate_all("all => all.map(e => e.dataset.head)")
    assert {*faded} == {"0.0", "0.1", "0.2", "1.0"}
    expect(page.locator("rect.faded")).to_have_count(4)
    entry.click()
    expect(page.locator(".faded")).to_have_count(0)


def test_the_axes_can_be_chosen(show):
    page = show()
    before = dot(page, "0.2").bounding_box()
    page.locator("[data-control=x]").select_option("first")
    assert dot(page, "0.2").bounding_box()["x"] > before["x"] + 100
    expect(page.locator(".values")).to_contain_text("first0.05")
    expect(page.locator(".scatter .title").first).to_have_text("weight for the first token →")


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(
    "width", [1280, *(pytest.param(width, marks=pytest.mark.long) for width in (1000, 400)), 320]
)
def test_nothing_is_cut_at_any_width(show, width, dark):
    page = show(width=width, dark=dark)
    expect(title(page)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    cut = page.locator(".explore *:visible:not(.spoken, .whole)").evaluate_all(
        "all => all.filter(e => { const box = e.getBoundingClientRect();"
        " return box.width && (box.right > innerWidth + 1 || box.left < -1) })"
        ".map(e => e.outerHTML.slice(0, 80))"
    )
    assert not cut
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 22, 26)" if dark else "rgb(255, 255, 255)")
    if width < 700:
        page.locator(".jump").click()
        page.wait_for_timeout(50)
        assert abs(page.locator("#head").bounding_box()["y"]) < 2
