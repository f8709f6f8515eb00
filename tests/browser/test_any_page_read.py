"""Chromium parses any page like Python's parser does: the same elements and the same data."""

import json

from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import AWKWARD, strings

from attnviz.interactive.page import make_frame, make_page, static
from attnviz.results.text import literal

OWN = [
    *("html", "head", "meta", "meta", "meta", "meta", "title", "style"),
    *("body", "main", "noscript", "p", "p", "p", "script", "script"),
]
READ = """frames => frames.map(frame => {
  const read = text => new DOMParser().parseFromString(text, "text/html")
  const names = document => [...document.querySelectorAll("*")].map(each => each.localName)
  const outer = read(frame), page = read(outer.querySelector("iframe").getAttribute("srcdoc"))
  return {
    around: names(outer), inside: names(page), title: page.title,
    data: page.getElementById("attnviz-data").textContent,
    script: page.querySelector("script:not([id])").textContent,
  }
})"""


@example([("".join(AWKWARD), AWKWARD), ("</title><script>", ["</script><script>", "<!--<script>"])])
@settings(max_examples=2)
@given(st.lists(st.tuples(strings, st.lists(strings, max_size=4)), min_size=4, max_size=4))
def test_pages_and_their_frames(browser, several):
    tab = browser.new_page()
    payloads = [
        {"results": [{"source": literal(text, 100), "summary": "verified", "labels": labels}]}
        for text, labels in several
    ]
    pages = [{"payload": each, "blocks": []} for each in payloads]
    frames = [
        make_frame(make_page(page), page["payload"]["results"][0]["source"]) for page in pages
    ]
    contents = tab.evaluate(READ, frames)
    tab.close()
    for payload, page, read in zip(payloads, pages, contents, strict=True):
        assert read["around"] == ["html", "head", "body", "iframe"]
        assert read["inside"] == OWN
        assert json.loads(read["data"]) == page
        assert read["script"] == static("attnviz.iife.js")
        # document.title strips and collapses whitespace.
        assert read["title"].split() == payload["results"][0]["source"].split()
