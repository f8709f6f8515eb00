"""Pointing at a word of an answer lights the passage that raised it most."""

import dataclasses

import pytest
import torch
from families import tiny
from fetched import load
from playwright.sync_api import expect

import attnviz
from attnviz import InputError
from attnviz.results.text import signed

SHORT = "the old train left.\n\nthe dog likes the bank.\n\na man sees the quiet river.\n\na man"
QUESTION = "Question: What is the job of Maria Kovacs?\nAnswer: Maria Kovacs is a"
FACTS = (
    "The Danube flows through ten countries.",
    "Maria Kovacs was born in Szeged. She works in Vienna as a baker.",
    "Copper melts at 1085 degrees.",
)


@pytest.fixture(scope="module")
def decoder(bare_tokenizer):
    return attnviz.load(tiny("llama"), tokenizer=bare_tokenizer)


@pytest.fixture(scope="module")
def why(decoder):
    return attnviz.explain(SHORT, groups="passage", generate=4, model=decoder)


def page_of(result, why, folder):
    attnviz.view(result, explain=why).save(folder / "view.html")
    return folder / "view.html"


def expect_lit(page, why, lost, *, asked=True):
    """Expect that the passage with the largest of some numbers is lit, beside all numbers."""
    numbers = [signed(number) for number in lost.tolist()]
    expect(page.locator(".group .lost")).to_have_text(numbers)
    largest = max(why.sources, key=lambda n: float(lost[n]))
    is_lit = float(lost[largest]) >= why.least
    expect(page.locator(".group.lit")).to_have_count(int(is_lit))
    expect(page.locator(".group.dim")).to_have_count((len(numbers) - 1) * (is_lit and asked))
    said = page.locator(".reply .found")
    if is_lit:
        expect(page.locator(".group.lit .number")).to_have_text(str(largest + 1))
        expect(said).to_contain_text(f"passage {largest + 1} raises it by {numbers[largest]}")
    else:
        expect(said).to_contain_text("no passage alone raises it by")


def test_hover_and_focus_light_the_passage_of_a_word(decoder, why, open_page, tmp_path):
    page = open_page(page_of(decoder.attend(SHORT), why, tmp_path))
    assert page.locator(".group").count() == len(why.words)
    for part, words in zip(page.locator(".group").all(), why.words, strict=True):
        shown = "".join(part.inner_text().split()[1:-1])
        assert shown  # without the first token, which stays readable
        assert words.replace(" ", "").endswith(shown)
    answer = page.locator(".reply .word")
    expect(page.locator(".reply .found")).to_have_text(why.headline)
    for n, lost in enumerate(why.by_answer):
        assert answer.nth(n).inner_text().startswith(why.answer[n])
        answer.nth(n).hover()
        expect_lit(page, why, lost)
    page.mouse.move(2, 2)
    expect(page.locator(".group.dim")).to_have_count(0)
    expect(page.locator(".group .lost")).to_have_text([*map(signed, why.effect.tolist())])
    answer.nth(0).focus()
    expect_lit(page, why, why.by_answer[0])
    page.keyboard.press("ArrowRight")
    expect(answer.nth(1)).to_be_focused()
    expect_lit(page, why, why.by_answer[1])
    page.locator("[data-control=words]").select_option("pieces")
    expect(page.locator(".group")).to_have_count(len(why.words))


def test_no_passage_is_lit_below_the_floor(decoder, why, open_page, tmp_path):
    less = torch.cat([why.by_answer[:1] * 1e-6, why.by_answer[1:]])
    altered = dataclasses.replace(why, by_answer=less)
    page = open_page(page_of(decoder.attend(SHORT), altered, tmp_path), width=400, dark=True)
    page.locator(".reply .word").first.hover()
    expect_lit(page, altered, less[0])
    expect(page.locator(".reply .wrong")).to_contain_text("not those that were checked")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_a_page_of_the_generated_text_marks_its_passages(decoder, why, open_page, tmp_path):
    page = open_page(page_of(decoder.attend(SHORT, generate=4), why, tmp_path))
    expect(page.locator(".group")).to_have_count(len(why.words))
    expect(page.locator(".text .made .word")).not_to_have_count(0)
    with pytest.raises(InputError, match="of another text than the page"):
        attnviz.view(decoder.attend("the dog likes the bank"), explain=why)


@pytest.mark.real
def test_the_passage_with_the_fact_is_lit(open_page, tmp_path):
    model, prompt = load("smollm2", torch.float32), "\n\n".join([*FACTS, QUESTION])
    why = attnviz.explain(prompt, groups="passage", generate=2, model=model)
    page = open_page(page_of(model.attend(prompt), why, tmp_path))
    page.locator(".reply .word").first.hover()
    assert why.answer[0].startswith("baker")
    expect(page.locator(".group.lit .number")).to_have_text("2")
    expect_lit(page, why, why.by_answer[0])
