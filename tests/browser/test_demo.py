"""The page to begin with: one of its texts and figures is seen, and nothing else can run in it."""

import attnviz
from attnviz.analyses.senses import sentences
from attnviz.interactive import page as pages


def test_every_button_shows_its_part(model, tmp_path, open_page, monkeypatch):
    few = {sense: texts[:2] for sense, texts in sentences.bundled()["bank"].items()}
    monkeypatch.setattr(sentences, "bundled", lambda: {"bank": few})
    monkeypatch.setattr(pages, "_DEMO", pages._DEMO[:2])
    attnviz.demo(model=model).save(path := tmp_path / "demo.html")
    page = open_page(path)
    labels, sections = page.locator("label"), page.locator("section")
    assert labels.count() == sections.count() == 4
    for number in range(4):
        labels.nth(number).click()
        seen = [sections.nth(other).is_visible() for other in range(4)]
        assert seen == [other == number for other in range(4)]
    heads = page.frame_locator("iframe").first.locator(".attnviz")
    heads.wait_for(state="attached")
    assert page.locator("img").evaluate_all("all => all.every(one => one.naturalWidth > 500)")
