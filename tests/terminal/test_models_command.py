"""`attnviz models`: installed architectures and their verification."""

import pytest

import attnviz
from attnviz.app import run
from attnviz.models import architectures as catalogue


def test_a_row_for_each_model_and_a_summary(capsys):
    assert run(["models", "distilbert", "bloom", "falcon_mamba"]) == 0
    out, err = capsys.readouterr()
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["model", "attn", "reached", "compared", "largest", "state"]
    assert [line[:4] for line in lines[1:4]] == [
        ["bloom", "2", "operators", "QKVSAHO"],
        ["distilbert", "2", "interface", "QKVSAHO"],
        ["falcon_mamba", "2", "functions", "····AH·"],
    ]
    found = attnviz.architectures(["distilbert", "bloom", "falcon_mamba"])
    assert " ".join(out.split()).endswith(catalogue.summary(found))
    assert err == ""


def test_it_fits_a_terminal_of_eighty_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    assert run(["models"]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) > 500
    assert max(map(len, out.splitlines())) <= 100  # including color codes


def test_a_state_filters_the_rows_and_shows_reasons(capsys):
    assert run(["models", "dinat", "--state", "not run"]) == 0
    out = capsys.readouterr().out
    assert "dinat: needs the package natten, which was not installed" in out
    assert run(["models", "bert", "--state", "not run"]) == 0
    assert capsys.readouterr().out.startswith("no such architecture; checked with transformers ")


def test_a_different_transformers_version_is_reported(capsys, monkeypatch):
    monkeypatch.setattr("attnviz.runtime.version_of", lambda name: "5.24.0")
    assert run(["models", "bert"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "installed is transformers 5.24.0"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["brt"], "no model 'brt'. Did you mean bert"),
        (["bert", "qqqqq"], "no model 'qqqqq'. Name a part of one."),
        (["--state", "good"], "'--state'"),
    ],
)
def test_unknown_names_are_one_line_and_exit_code_two(capsys, arguments, said):
    assert run(["models", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert said in err
