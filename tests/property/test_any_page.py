"""For any input, a page contains only its own elements, and its data are intact."""

import html
import json
import re
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import AWKWARD, slower, strings

import attnviz
from attnviz import AgreementReport, AttentionMap, plot
from attnviz.figures.claims import spelled
from attnviz.interactive import View, static_file
from attnviz.interactive.payload import compact_json
from attnviz.results import Provenance
from attnviz.results.text import literal, source

OWN = [
    *("html", "head", "meta", "meta", "meta", "meta", "title", "style"),
    *("body", "main", "noscript", "p", "p", "p", "script", "script"),
]
BREAKERS = (
    "</script>",
    "<!--<script>",
    "]]>",
    '" onload="x',
    "' x='",
    "\u2028\0",
    "\ud800",
    "&amp;",
)


class Reader(HTMLParser):
    """Collect the elements of a document with their attributes and text."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self.others = [], {}, []
        self.inside = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in ("meta", "p"):
            self.inside.append(dict(attributes).get("id", tag))

    def handle_endtag(self, tag):
        if tag not in ("meta", "p"):
            self.inside.pop()

    def handle_data(self, data):
        element = self.inside[-1] if self.inside else ""
        self.texts[element] = self.texts.get(element, "") + data

    def handle_comment(self, data):
        self.others.append(data)

    handle_pi = unknown_decl = handle_comment


numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
json_like = st.recursive(
    st.none() | st.booleans() | numbers | strings,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strings, inner, max_size=3),
    max_leaves=6,
)


def data_of(text, model, labels):
    """Data of a page with the fields that the document reads, and some labels."""
    description = source(Provenance(model, "0", text, None, "float32", "cpu", {}))
    result = {"source": description, "summary": "verified", "axes": [{"labels": labels}]}
    return {"payload": {"results": [result]}, "blocks": ["c29tZQ=="]}


@example([*AWKWARD, *BREAKERS])
@given(json_like)
def test_no_text_closes_its_script_element(data):
    written = compact_json(data)
    assert written.isascii()
    assert "<" not in written
    assert json.loads(written) == data


@slower(4)
@example(*BREAKERS[:2], list(BREAKERS))
@example("".join(BREAKERS), "".join(BREAKERS), [])
@given(strings, strings, st.lists(strings, max_size=4))
def test_a_page_has_only_its_elements_and_its_data(text, model, labels):
    data = data_of(text, model, labels)
    title = data["payload"]["results"][0]["source"]
    view = View([], title, lambda: data, "view.jinja")
    page = view.html
    read = Reader(page)
    assert [tag for tag, _ in read.elements] == OWN
    assert not read.others
    assert {key for tag, keys in read.elements if tag == "script" for key in keys} == {"id", "type"}
    assert json.loads(read.texts["attnviz-data"]) == data
    assert read.texts["script"] == static_file("attnviz.iife.js")
    assert read.texts["style"] == static_file("attnviz.css")
    assert read.texts["title"] == title
    assert page.encode().decode() == page
    check_frame(view, page, title)


def check_frame(view, page, title):
    """Assert that a frame contains the unchanged page."""
    frame = view._repr_html_()
    assert frame.isascii()
    read = Reader(frame)
    ((tag, attributes),) = read.elements
    assert tag == "iframe"
    assert not read.others
    assert not read.texts
    assert set(attributes) == {"sandbox", "width", "height", "frameborder", "title", "srcdoc"}
    assert attributes["sandbox"] == "allow-scripts allow-downloads"
    assert attributes["srcdoc"] == page
    assert attributes["title"] == title
    (escaped,) = re.findall(r'srcdoc="([^"]*)"', frame)
    assert html.unescape(escaped) == page


def drawn(labels):
    """A map of several tokens, as drawn in a figure."""
    size = len(labels)
    proof = AgreementReport((), (), (), "float32", "cpu", {}, "0")
    return AttentionMap(
        weights=torch.eye(size),
        rows=tuple(labels),
        columns=tuple(labels),
        stack="encoder",
        layer=0,
        heads=(0,),
        notes=(),
        agreement=proof,
        provenance=Provenance("m", "0", " ".join(labels), None, "float32", "cpu", {}),
    )


@slower(200)
@pytest.mark.filterwarnings("ignore:No installed font")
@example(["$\\frac{a}{b}$", "\0", "\u2028", "</text>", "]]>", "&amp;", "_a", "%s", "\x1b[31m"])
@given(st.lists(strings.filter(str.strip), min_size=1, max_size=6))
def test_a_figure_is_xml_with_literal_labels(labels):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "map.svg"
        plot.save(attnviz.plot.heatmap(drawn(labels)).figure, path)
        texts = {"".join(each.itertext()) for each in ElementTree.parse(path).iter()}
    for label in labels:
        whole = literal(spelled(label), 60)
        shortened = [text.partition("…") for text in texts if "…" in text]  # in the middle
        assert whole in texts or any(
            start and whole.startswith(start) and whole.endswith(end) for start, _, end in shortened
        )
