"""Pointing at a generated token shows its explanation in the page."""

import re

import numpy as np
import pytest
from families import tiny
from playwright.sync_api import expect

import attnviz
from tests.browser.test_build import stops

TEXT = "the old train left the quiet station"


@pytest.fixture(scope="module")
def decoder(bare_tokenizer):
    """Return a tiny decoder whose texts have no special tokens."""
    return attnviz.load(tiny("llama"), tokenizer=bare_tokenizer)


@pytest.fixture(scope="module")
def explained(decoder):
    return attnviz.explain_generation(TEXT, generate=2, measure=True, model=decoder)


@pytest.fixture(scope="module")
def saved(decoder, explained, tmp_path_factory):
    """Return pages of a generation with and without explanations."""
    folder, result = (
        tmp_path_factory.mktemp("pages"),
        attnviz.attend(TEXT, generate=3, model=decoder),
    )
    attnviz.view(result, explain=explained).save(folder / "with.html")
    attnviz.view(result).save(folder / "without.html")
    return folder


def numbers_of(result):
    """Return what the page says of the words with the largest contributions."""
    largest = sorted(result.sources, key=lambda n: -abs(float(result.credit[n])))[:3]
    return [
        f"“{result.names[n]}” {float(result.credit[n]):+.2f}".replace("-", "−") for n in largest
    ]


def expect_explained(page, result):
    """Expect the line, the colors and the marked token of an explanation."""
    line = page.locator(".why .found")
    expect(line).to_contain_text(f"{result.question}:")
    for part in numbers_of(result):
        expect(line).to_contain_text(part)
    words = page.locator(".headline .word")
    expect(words.nth(len(result.tokens))).to_have_class(re.compile(r"\bexplained\b"))
    largest = float(result.credit[result.sources].abs().max())
    colors = stops("sides").T  # which are those of the figures
    for n in range(len(result.tokens)):
        shown = words.nth(n).evaluate("""word => {
            const context = document.createElement('canvas').getContext('2d');
            context.fillStyle = getComputedStyle(word).backgroundColor;
            context.fillRect(0, 0, 1, 1);
            return [...context.getImageData(0, 0, 1, 1).data];
        }""")
        if n not in result.sources:
            assert shown[3] == 0, result.words[n]
        else:
            at = (float(result.credit[n]) / largest + 1) / 2
            expected = [np.interp(at, np.linspace(0, 1, len(part)), part) for part in colors]
            assert shown == pytest.approx([*expected, 255], abs=4), result.words[n]


def test_hover_and_focus_show_the_numbers_of_explain(saved, explained, open_page):
    page = open_page(saved / "with.html")
    expect_explained(page, explained[0])  # before anything is pointed at
    words = page.locator(".headline .word")
    words.nth(8).hover()
    expect_explained(page, explained[1])
    rho, low, high = explained[1].rank_correlations["split"]
    agreement = f"measured effects {rho:.2f} ({low:.2f} to {high:.2f} over words)".replace("-", "−")
    expect(page.locator(".why .details")).to_contain_text(agreement)
    words.nth(1).hover()  # a word of the text has its attention
    expect(page.locator(".why")).to_contain_text("Point at a generated token")
    expect(page.locator(".hint")).to_contain_text("→")
    page.mouse.move(2, 2)
    words.nth(6).focus()
    page.keyboard.press("ArrowRight")
    expect(words.nth(7)).to_be_focused()
    expect_explained(page, explained[0])
    page.keyboard.press("ArrowRight")
    expect_explained(page, explained[1])
    page.keyboard.press("Enter")  # it stays
    words.nth(8).blur()
    expect_explained(page, explained[1])
    page.locator("[data-control=explain]").select_option("attention")
    expect(page.locator(".hint")).to_contain_text("→")
    expect(words.nth(8)).to_have_class(re.compile(r"\bchosen\b"))


def test_a_page_without_explanations_has_none_of_it(saved, open_page):
    page = open_page(saved / "without.html")
    expect(page.locator(".why")).to_be_hidden()
    expect(page.locator("[data-control=explain]")).to_have_count(0)
    page.locator(".headline .word").nth(7).hover()
    expect(page.locator(".hint")).to_contain_text("→")
    assert page.locator(".explained, .unread").count() == 0
