"""Long tables: every number once, beside its labels. What cannot be written is refused."""

import json

import pyarrow.parquet as pq
import pytest
import torch
from families import tiny
from golden.saved_results import BANK

import attnviz
from attnviz import InputError
from attnviz.app import run


def read(tmp_path, drawn):
    attnviz.save_result(drawn, tmp_path / "x.parquet", force=True)
    table = pq.read_table(tmp_path / "x.parquet")
    return table.to_pylist(), json.loads(table.schema.metadata[b"about"])


def test_a_shift(tmp_path, model):
    drawn = attnviz.shift(
        "bank", "The bank was unbelievably full", verify_causally=True, model=model
    )
    rows, about = read(tmp_path, drawn)
    split, of = drawn.decomposition, {}
    for row in rows:
        of.setdefault(row["quantity"], []).append(row)
    assert sum(row["number"] for row in of["credit"]) == pytest.approx(split.total, rel=1e-4)
    assert len(of["value"]) == len(of["routing"]) == split.value.numel()
    for row in of["value"][::53]:
        at = row["layer"], row["head"], row["token_position"]
        assert row["number"] == split.value[at].item()
        assert row["token"] == drawn.tokens[row["token_position"]]
    for way, lost in drawn.causal.items():
        found = {row["word"]: row["number"] for row in of[f"lost by {way}"]}
        assert found["full"] == lost[5].item()
        assert found["bank"] is None
    assert len(of["direct effect"]) == len(of["total effect"]) == 72
    assert {row["layer"] for row in of["credit"]} == {None}
    assert about["completeness_error"] < 1e-5


def test_senses(tmp_path, tokenizer):
    drawn = attnviz.senses("bank", BANK, model=attnviz.load(tiny("bert"), tokenizer=tokenizer))
    rows, _ = read(tmp_path, drawn)
    assert len(rows) == 4 * len(drawn.occurrences)
    last = [row for row in rows if row["state"] == 3]
    assert sum(row["right"] for row in last) / len(last) == pytest.approx(drawn.scores[3].accuracy)
    assert [row["sentence"] for row in last] == [one.sentence for one in drawn.occurrences]


def test_stages_and_worked_examples(tmp_path, train):
    taken = attnviz.steps(train, layer=2, head=3)
    rows, _ = read(tmp_path, taken)
    assert len(rows) == sum(stage.values.numel() for stage in taken.stages)
    scores = [row for row in rows if row["stage"] == "scores"]
    values = torch.tensor([row["value"] for row in scores], dtype=torch.float64).reshape(
        taken["scores"].values.shape
    )
    assert torch.equal(values.double(), taken["scores"].values.double())
    rows, about = read(tmp_path, attnviz.example("cat"))
    assert about["example"] == "cat"
    assert rows


def test_without_pyarrow_the_error_says_how_to_install_it(tmp_path, train, monkeypatch, capsys):
    monkeypatch.setattr("attnviz.errors.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'attnviz\[parquet\]'"):
        attnviz.save_result(attnviz.head_maps(train), tmp_path / "x.parquet")
    assert run(["heatmap", "a text", "-o", str(tmp_path / "x.parquet")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_figures_and_data_are_not_interchangeable(tmp_path, train):
    drawn = attnviz.attention_map(train, layer=2, head=3)
    with pytest.raises(
        InputError, match=r"'a\.png' must end in \.json, \.npz, \.safetensors, \.parquet: "
    ):
        attnviz.save_result(drawn, tmp_path / "a.png")
    with pytest.raises(InputError, match=r"'a\.json' must end in \.png, \.svg, \.pdf: "):
        attnviz.plot.save(attnviz.plot.heatmap(train).figure, tmp_path / "a.json")
    with pytest.raises(InputError, match="No figure shows AttentionResult"):
        attnviz.save_result(train, tmp_path / "a.json")
    assert not list(tmp_path.iterdir())
