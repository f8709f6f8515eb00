"""The command `view`."""

from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["text", "-o", "view.png"], 2, ".html"),
        (["text", "-o", "none/view.html"], 4, "Create it first"),
        ([""], 2, "at least one word"),
        (["a text", "--compare", "no other words than those"], 2, "share no word"),
        (["a text", "--compare", ""], 2, "at least one word"),
        (
            ["a text", "--pair", "b", "--compare", "a text"],
            2,
            "--compare reads two texts, each alone",
        ),
        (["a text", "--size", "0"], 2, "above 0"),
        (["a text", "--show", "all"], 2, "--show"),
        (["a text", "--layer", "7"], 2, "layer 7 is out of range"),
        (["--image", "none.png", "--compare", "text"], 2, "--compare needs a text to compare with"),
    ],
)
def test_impossible_requests_are_one_line(arguments, code, said, capsys):
    assert run(["view", *arguments]) == code
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not list(Path().glob("*.html"))
