"""Result methods: invariants, arrays, table, file, printed text and figure."""

import io
from dataclasses import FrozenInstanceError, replace
from html import escape

import matplotlib.pyplot as plt
import pytest
import torch
from golden.saved_results import SAVED
from reports import forget_day
from rich.console import Console

import attnviz
from attnviz import InputError
from attnviz.io.export import to_data
from attnviz.results.base import Result, as_html, doc, documented, stored
from attnviz.runtime import text_as_html

NAMES = ("map", "map-image", "maps", "steps", "senses", "shift", "survey", "compare", "example")


@pytest.fixture(scope="module", params=NAMES)
def result(request):
    return attnviz.load_result(SAVED / f"{request.param}.safetensors")


@pytest.fixture(scope="module")
def whole():
    return attnviz.load_result(SAVED / "result-bert.safetensors")


def printed(renderable):
    console = Console(file=io.StringIO(), width=100)
    console.print(renderable)
    return console.file.getvalue()


def test_arrays_labels_and_metadata_match_the_file(result, tmp_path):
    assert isinstance(result, Result)
    arrays = result.to_arrays()
    assert arrays
    assert all(isinstance(array, torch.Tensor) for array in arrays.values())
    result.save(tmp_path / "x.json")
    result.save(tmp_path / "x.safetensors")
    data = to_data(result)
    assert {*arrays, *result.labels(), *result.about()} == data.keys() - {"schema", "generator"}
    again = attnviz.load_result(tmp_path / "x.safetensors")
    report = getattr(result, "agreement", None)
    known = again if report is not None and report.saved else forget_day(again)
    assert known.about() == result.about()
    assert again.labels() == result.labels()


def test_the_table_has_a_row_for_each_number(result):
    is_map = isinstance(result, attnviz.AttentionMap)  # whose own table has its rows and columns
    frame = result.to_frame(wide=False) if is_map else result.to_frame()
    columns = result.columns_of_table()
    assert list(frame.columns) == list(columns)
    assert len(frame) == len(next(iter(columns.values()))) > 0


def test_a_notebook_shows_the_figure_and_what_the_command_line_prints(result):
    html = result._repr_html_()
    assert html.startswith("<img")
    assert f'alt="{escape(repr(result))}"' in html
    first = printed(result).split("\n")[0].split()
    assert first[0] in html
    assert not plt.get_fignums()  # a notebook draws every figure that is open


def test_a_result_that_cannot_be_drawn_shows_its_text(whole):
    html = replace(whole, records=whole.records[:1]).stack()._repr_html_()
    assert html.startswith("<img")

    def fails(**keywords):
        raise InputError("there is no such figure")

    assert as_html(whole, fails) == text_as_html(whole)
    assert text_as_html(whole).startswith("<pre")


def test_labels_are_escaped_for_a_notebook():
    drawn = attnviz.load_result(SAVED / "map.safetensors")
    evil = replace(drawn, rows=("<script>", *drawn.rows[1:]))
    assert "<script>" not in evil._repr_html_()
    assert "&lt;script&gt;" in evil._repr_html_()


def test_inconsistent_results_cannot_be_built(whole):
    drawn = attnviz.load_result(SAVED / "map.safetensors")
    with pytest.raises(InputError, match="AttentionMap should have a weight for each pair"):
        replace(drawn, rows=drawn.rows[1:])
    with pytest.raises(InputError, match="Axis should have words that have a label"):
        replace(whole.records[0].query_axis, word_labels=())
    with pytest.raises(InputError, match="AttentionRecord should have a scale that is a number"):
        replace(whole, records=(replace(whole.records[0], scale=float("nan")),))
    with pytest.raises(InputError, match="StageCheck should have failed heads"):
        replace(whole.agreement.checks[0], failed_heads=(), finite=False)


def test_a_field_is_described_once_and_listed_in_the_docstring(monkeypatch):
    monkeypatch.setattr("attnviz.results.base.SAVABLE", {})

    @documented
    class Heads(Result):
        """Some heads.

        Examples
        --------
        >>> Heads
        """

        names: tuple[str, ...] = doc("The names of K heads.", label=True)
        weights: torch.Tensor = doc("(K,).")
        notes: tuple[str, ...] = doc("Further lines of the caption.", default=(), later="0.2")

    lines = Heads.__doc__.split("\n")
    assert lines[:5] == ["Some heads.", "", "Attributes", "----------", "names : tuple[str, ...]"]
    assert lines[9:13] == ["    Further lines of the caption.", "", "Examples", "--------"]
    heads = Heads(("0.1", "0.2"), torch.ones(2))
    assert heads.labels() == {"names": ["0.1", "0.2"]}
    assert "notes" not in stored(heads)
    assert "notes" in stored(replace(heads, notes=("short",)))
    with pytest.raises(FrozenInstanceError):
        heads.names = ()
