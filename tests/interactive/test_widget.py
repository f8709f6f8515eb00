"""The Python side of the widget; tests/browser/test_jupyter.py covers the other side."""

import sys

import pytest

import attnviz


@pytest.fixture
def view(train):
    return attnviz.view(train, layer=4, head=7, show="head", words=False)


def test_it_starts_like_the_view(view):
    widget = view.widget()
    assert widget.selection == {
        "view": "head", "stack": "encoder", "layer": 4, "heads": [7],
        "query": None, "key": None, "words": False,
    }  # fmt: skip
    assert {"payload": widget.payload, "blocks": widget.blocks} == view.data()


def test_its_selection_can_be_set_in_part(view):
    widget = view.widget()
    widget.selection = {"layer": 2, "heads": [0, 3], "key": None}
    assert widget.selection == {"layer": 2, "heads": [0, 3], "key": None}


@pytest.mark.parametrize(
    "wrong", [{"head": 3}, {"heads": 3}, {"layer": "5"}, {"query": 1.5}, {"words": 1}]
)
def test_an_invalid_selection_is_refused(view, wrong):
    widget = view.widget()
    before = widget.selection
    with pytest.raises(attnviz.InputError, match=r"A selection cannot have '.* keys are view, "):
        widget.selection = wrong
    assert widget.selection == before


def test_without_anywidget_the_error_says_what_to_install(view, monkeypatch):
    monkeypatch.delitem(sys.modules, "attnviz.interactive.widget", raising=False)
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(attnviz.InputError, match=r"pip install 'attnviz\[widget\]'"):
        view.widget()
    assert view._repr_html_().startswith("<iframe")
