"""A survey of a corpus: what it says of the bundled model and of others, and what it refuses."""

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from families import tiny

import attnviz
from attnviz.app import run
from attnviz.capture import BatchedAttention
from attnviz.errors import InputError
from attnviz.terminal.console import console
from tests.analyses.survey.english import sentences


def test_it_finds_the_heads_that_are_known(found):
    census, _ = found
    roles = {str(head): role for head, role in zip(census.heads, census.roles, strict=True)}
    assert roles["0.2"] == "previous token"
    assert roles["1.8"] == "next token"
    assert roles["2.11"] == "previous token"
    at = census.of("previous")
    best = int(census.mean[:, at].argmax())
    assert str(census.heads[best]) == "0.2"
    assert census.low[best, at] > 0.9 > census.even[best, at]
    assert census.p_even[best, at] < 0.01
    assert census.agreement.verdict == "verified"
    assert census.agreement.largest_difference("statistics") < 2e-6
    assert census.compared >= 1
    assert census.texts == 128


def test_what_even_weights_say_nothing_of_is_told_against_shuffled_texts(found):
    census, _ = found
    for name in ("entropy", "most read"):
        at = census.of(name)
        assert census.even[:, at].isnan().all()
        assert census.shuffled[:, at].isfinite().all()
        assert census.p_even[:, at].min() == 1 > 0.01 > census.p_shuffled[:, at].min()


def test_a_model_without_roles_gets_none(texts, tokenizer):
    # Random weights: whatever is more than even, no head gives a quarter more to one relation.
    model = attnviz.load(tiny("bert", torch.float32), tokenizer=tokenizer)
    census = attnviz.survey(texts[:16], model=model)
    assert not [role for role in census.roles if role and not role.startswith("rests")]


def test_a_causal_model_is_measured_too(texts, tokenizer):
    model = attnviz.load(tiny("gpt2", torch.float32), tokenizer=tokenizer)
    census = attnviz.survey(texts[:8], model=model)
    assert census.mean[:, census.of("next")].abs().max() == 0
    assert census.heads[0].stack == "decoder"


def test_each_layer_is_checked_by_its_own_heads(texts, model, monkeypatch):
    weights, heads = BatchedAttention.weights, [7, 2, 0, 11, 4, 9]

    def planted(self, rows):
        found = weights(self, rows).clone()
        found[:, heads[self.known.layer]] *= 1.01
        return found

    monkeypatch.setattr(BatchedAttention, "weights", planted)
    census = attnviz.survey(texts[:1], model=model)
    checks = [check for check in census.agreement.checks if check.stage == "statistics"]
    assert [check.layer for check in checks] == list(range(6))
    assert [check.failed_heads for check in checks] == [(head,) for head in heads]
    assert census.agreement.verdict == "failed"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"seed": 2**63}, "Expected a seed from 0"),
        ({"seed": -1}, "Expected a seed from 0"),
        ({"out": ""}, "Expected a folder for the survey, got no name"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_read(given, said):
    with pytest.raises(InputError, match=said):
        attnviz.survey("no such corpus", **given)


def test_a_statistic_that_no_text_has_is_left_out_and_named(found, capsys):
    census, _ = found
    at = census.of("separators")
    count, mean = census.count.clone(), census.mean.clone()
    count[:, at], mean[:, at] = 0, torch.nan
    without = replace(census, count=count, mean=mean)
    figure = attnviz.plot.survey(without)
    assert len([ax for ax in figure.axes if ax.images and len(ax.images[0].get_array()) == 6]) == 10
    said = " ".join(text.get_text() for text in figure.texts).replace("\n", " ")
    assert "No text has tokens for: separators" in said
    console.print(without)
    row = next(line for line in capsys.readouterr().out.splitlines() if "separators" in line)
    assert row.split()[1] == row.split()[-1] == "–"


def test_an_empty_corpus_is_said(tmp_path, model):
    with pytest.raises(InputError, match="with at least one text, got none"):
        attnviz.survey(["", "  "], model=model)


def test_a_text_that_is_too_long_is_refused_cut_or_left_out(texts, model):
    corpus = [*texts[:4], "word " * 600]
    with pytest.raises(InputError, match="text 5: Expected at most 512 tokens"):
        attnviz.survey(corpus, model=model)
    assert attnviz.survey(corpus, model=model, skip_bad=True).texts == 4
    assert attnviz.survey(corpus, model=model, truncate=True).texts == 5


def test_the_figure_shows_every_statistic_and_names_the_heads(found):
    census, _ = found
    figure = attnviz.plot.survey(census)
    said = " ".join(text.get_text() for text in figure.texts)
    assert "What 72 heads of all-MiniLM-L6-v2 do, on 128 texts" in said
    assert "previous token" in said
    assert "Verified" in said
    maps = [ax for ax in figure.axes if ax.images]
    assert len([ax for ax in maps if ax.images[0].get_array().shape == (6, 12)]) == 11
    shown = maps[2].images[0].get_array()
    np.testing.assert_allclose(
        np.asarray(shown), census.mean[:, census.of("previous")].reshape(6, 12)
    )


def test_the_command_writes_tables_and_the_figure(tmp_path, monkeypatch, capsys, texts):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text("\n".join(sentences(40)))
    assert run(["survey", "corpus.txt", "-o", "out"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "previous token: 0.2" in out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "census.png", "census.safetensors", "parts", "summary.parquet", "survey.json",
    ]  # fmt: skip
    summary = pq.read_table(tmp_path / "out" / "summary.parquet").to_pylist()
    assert len(summary) == 72 * 11
    (best,) = (
        row for row in summary
        if (row["layer"], row["head"], row["statistic"]) == (0, 2, "previous")
    )  # fmt: skip
    assert best["mean"] > 0.9
    assert best["role"] == "previous token"
    assert run(["survey", "corpus.txt", "-o", "out"]) == 2
    assert run(["survey", "none.txt", "-o", "other"]) == 2
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("corpus", [["She sat down."], ["one two", "", "three four"]])
def test_a_text_or_two_are_measured_and_nothing_is_sure_of_them(corpus, model):
    census = attnviz.survey(corpus, model=model)
    assert census.mean[:, census.of("self")].isfinite().all()
    assert census.low.isnan().all()
    assert census.p_even.min() == census.p_shuffled.min() == 1.0
    assert set(census.roles) == {""}


def test_single_words_give_no_head_a_neighbour(model):
    words = [
        "train",
        "cat",
        "dog",
        "river",
        "bank",
        "letter",
        "rain",
        "bird",
        "man",
        "woman",
        "table",
        "apple",
    ]
    census = attnviz.survey(words * 3, model=model)
    assert not {"previous token", "next token"} & set(census.roles)
    assert census.count[:, census.of("previous")].max() == 0


def test_sinks_leave_less_for_even_weights(texts, tokenizer):
    model = attnviz.load(tiny("gpt-oss", torch.float32), tokenizer=tokenizer)
    # Each query shares what it leaves to keys, 1 less the sink, evenly over those that it may read.
    text = attnviz.survey(texts[:1], model=model)
    weights = torch.cat([record.weights() for record in model.attend(texts[0])])
    rows = ~torch.tensor(model.attend(texts[0]).records[0].query_axis.special)
    expected = (weights.sum(-1) / (weights > 0).sum(-1))[:, rows].mean(-1)
    torch.testing.assert_close(text.even[:, text.of("self")].float(), expected)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--address", "127.0.0.1:1"], "no address of a cluster for a survey on this machine"),
        (["--engine", "ray", "--address", "127.0.0.1:1"], "a Ray cluster at 127.0.0.1:1, but"),
        (["--engine", "ray", "--address", "nowhere"], "but: the address is not HOST:PORT"),
    ],
)
def test_a_cluster_that_does_not_answer_is_said_at_once(
    tmp_path, monkeypatch, capsys, texts, arguments, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text("\n".join(texts[:4]))
    assert run(["survey", "corpus.txt", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert said in err
