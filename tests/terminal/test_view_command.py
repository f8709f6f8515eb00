"""The command `view`."""

from pathlib import Path

from attnviz.app import run


def test_a_page(capsys):
    assert run(["view", "the train left the station", "-o", "train.html"]) == 0
    page = Path("train.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert "the train left the station" in page
    out = capsys.readouterr().out
    assert "verified: 72 heads" in out
    assert "wrote train.html" in out


def test_two_texts(capsys):
    cash = ["--compare", "The bank was full of cash."]
    assert run(["view", "The bank was full of mud.", *cash]) == 0
    assert "full of cash" in Path("view.html").read_text("utf-8")
    assert "on 2 texts" in capsys.readouterr().out
