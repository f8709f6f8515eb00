"""The site builds without a warning, its links lead somewhere, and it needs no network."""

import os
import re
import subprocess
import sys
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

if os.environ.get("ATTNVIZ_SITE") != "required":  # as in continuous integration
    pytest.importorskip("mkdocs", reason="needs the extra docs: pip install -e '.[docs]'")
    pytest.importorskip("mkdocstrings", reason="needs the extra docs: pip install -e '.[docs]'")
    pytest.importorskip("playwright")

from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort
from playwright.sync_api import TimeoutError

from tests.browser.conftest import AT_HAND, browser  # noqa: F401  (a fixture)

ROOT = Path(__file__).parents[2]
OF_EACH_KIND = (
    "index", "quickstart", "cheat-sheet", "gallery", "lessons", "errors", "architectures",
    "guides/shift", "concepts/splits", "figures/fig00_first_heatmap", "commands/heatmap",
    "api/plot.shift", "api/ShiftResult", "api/view", "changelog",
)  # fmt: skip


class Page(HTMLParser):
    """The links, the pictures, the loaded files and the anchors of a page."""

    def __init__(self, file):
        super().__init__()
        self.links, self.loaded, self.pictures, self.anchors = [], [], [], set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors.add(attributes.get("id"))
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        if tag in ("script", "img", "iframe") and "src" in attributes:
            self.loaded.append(attributes["src"])
        if tag == "link" and attributes.get("rel") != "canonical":
            self.loaded.append(attributes["href"])
        if tag == "img":
            self.pictures.append(attributes)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site, without what its examples show: they run as doctests."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "scripts/build_docs.py", "--skip-examples", "--site", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    found = {file: Page(file) for file in site.rglob("*.html") if file.name != "404.html"}
    return {file: page for file, page in found.items() if "views" not in file.parts}


@pytest.mark.slow
def test_links_lead_to_pages_and_to_places_in_them(site, pages):
    dead = []
    for file, page in pages.items():
        for link in page.links + page.loaded:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            known = pages[target].anchors if target in pages else {parts.fragment}
            if not target.exists() or (parts.fragment and parts.fragment not in known):
                dead.append(f"{file.relative_to(site)}: {link}")
    assert not dead


@pytest.mark.slow
def test_formulas_of_lessons_are_drawn_within_their_paragraphs(site):
    for file in sorted(site.glob("notebooks/lesson_*.html")):
        text = re.sub(r"<(script|pre|code)\b.*?</\1>", "", file.read_text("utf-8"), flags=re.DOTALL)
        assert "$" not in text, file
        assert "</p>\n<math" not in text, file
    assert '<a href="../figures/fig12_apple.html">Figure 12</a>' in text  # of the last lesson


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere_and_pictures_have_a_text(site, pages):
    for file, page in pages.items():
        assert not [one for one in page.loaded if urlsplit(one).scheme not in ("", "data")], file
        assert all("alt" in picture for picture in page.pictures), file
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?https?:", style.read_text(encoding="utf-8")), style


@pytest.mark.slow
def test_every_page_is_in_the_navigation_and_in_llms_txt(site, pages):
    linked = set()
    for file, page in pages.items():
        paths = (unquote(urlsplit(link).path) for link in page.links if "://" not in link)
        linked |= {(file.parent / path).resolve() for path in paths}
    assert set(pages) <= linked
    text = (site / "llms.txt").read_text(encoding="utf-8")
    for address in re.findall(r"\]\((\S+\.html)\)", text):
        assert (site / address).exists()


@pytest.mark.slow
@pytest.mark.browser
def test_pages_opened_from_disk_ask_for_nothing_and_fit_a_phone(site, browser):  # noqa: F811
    page = browser.new_page(viewport={"width": 400, "height": 900})
    asked, failed = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: failed.append(str(error)))
    for name in OF_EACH_KIND:
        page.goto((site / f"{name}.html").as_uri())
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
    assert not [url for url in asked if not url.startswith(AT_HAND)]
    assert not failed


@pytest.mark.slow
@pytest.mark.browser
def test_the_search_works_from_disk_and_by_keyboard(site, browser):  # noqa: F811
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("/")
    page.keyboard.type("attention sink")
    page.wait_for_selector(".md-search-result__item")
    first = page.locator(".md-search-result__item h1").first
    assert first.inner_text() == "Words of the field"
    page.keyboard.press("Enter")
    page.wait_for_url("**/concepts/glossary.html**")


@pytest.mark.slow
@pytest.mark.browser
def test_the_search_finds_what_users_search_for(site, browser):  # noqa: F811
    """Of the queries, 11 in 12 have a page that answers among the first three results."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("/")
    lines = (Path(__file__).with_name("queries.txt")).read_text(encoding="utf-8").splitlines()
    queries = dict(line.split(" | ") for line in lines if not line.startswith("#"))
    assert len(queries) >= 60
    missed = {}
    for query, answers in queries.items():
        found = results(page, query, site)
        if not set(answers.split()) & set(found[:3]):
            missed[query] = found[:3]
    assert len(missed) <= len(queries) / 12, missed


def results(page, query, site):
    """Return the pages that the search lists for a query, each once."""
    for text in ("", query):  # the page reads the line when a key is released
        page.fill(".md-search__input", text)
        page.keyboard.press("End")
        if not text:
            page.wait_for_selector(".md-search-result__item", state="detached")
    with suppress(TimeoutError):  # no results
        page.wait_for_selector(".md-search-result__item", timeout=3_000)
    links = page.eval_on_selector_all(
        ".md-search-result__link", "links => links.map((link) => link.href)"
    )
    files = (unquote(urlsplit(link).path) for link in links)
    names = (Path(file).relative_to(site).with_suffix("").as_posix() for file in files)
    return list(dict.fromkeys(names))


def test_a_dead_link_fails_the_build(tmp_path):
    pages = tmp_path / "pages"
    (pages / "assets").mkdir(parents=True)
    (pages / "index.md").write_text("# A\n\n[here](index.md)\n", encoding="utf-8")
    where = {"docs_dir": str(pages), "site_dir": str(tmp_path / "site")}
    build(load_config(str(ROOT / "gallery" / "mkdocs.yml"), **where))
    (pages / "index.md").write_text("# A\n\n[there](nowhere.md)\n", encoding="utf-8")
    with pytest.raises(Abort, match="1 warnings"):
        build(load_config(str(ROOT / "gallery" / "mkdocs.yml"), **where))
