"""Surveys of linear attention, against statistics that are computed weight by weight."""

from __future__ import annotations

import pytest
import torch
from linear_models import build, hybrid

import attnviz
from attnviz import InputError

TEXTS = [
    "the train left the station on time, and nobody noticed.",
    "my sister saw the cat and the cat saw my sister again",
    "Rain.",
] * 3


@pytest.fixture(scope="module")
def mixed(tokenizer):
    """A model with two linear layers and one of softmax attention."""
    layers = ["linear_attention", "linear_attention", "full_attention"]
    return attnviz.load(hybrid(layers), tokenizer=tokenizer)


@pytest.fixture(scope="module")
def measured(mixed):
    return attnviz.survey(TEXTS, model=mixed, stack="linear")


def shares_by_hand(model, text):
    """Return the share of weights on itself, the previous token and negative ones, (K, 3)."""
    result = model.attend(text).stack("linear")
    special = result.records[0].query_axis.special
    rows = [i for i in range(len(special)) if not special[i]]
    by_head = []
    for record in result.records:
        for M in record.matrix.tolist():
            sizes = [sum(map(abs, row)) for row in M]
            itself = [abs(M[i][i]) / sizes[i] for i in rows]
            before = [abs(M[i][i - 1]) / sizes[i] for i in rows if not special[i - 1]]
            negative = [-sum(x for x in M[i] if x < 0) / sizes[i] for i in rows]
            means = [sum(x) / len(x) if x else float("nan") for x in (itself, before, negative)]
            by_head.append(means)
    return torch.tensor(by_head)


def test_signed_statistics_are_those_of_their_definition(mixed, measured):
    expected = torch.stack([shares_by_hand(mixed, text) for text in TEXTS[:3]]).nanmean(0)
    for column, name in enumerate(("|self|", "|previous|", "negative")):
        ours = measured.mean[:, measured.of(name)]
        assert (ours - expected[:, column]).abs().max() < 1e-5, name
    assert measured.mean[:, measured.of("negative")].min() > 0.05
    assert measured.mean[:, measured.of("|next|")].abs().max() == 0


@pytest.mark.parametrize("text", ["Rain", "Rain fell"])
def test_a_text_of_one_token_is_left_out_and_one_of_two_is_not(text, bare_tokenizer):
    model = attnviz.load(build("mamba2"), tokenizer=bare_tokenizer)
    result = attnviz.survey([text, TEXTS[0]], model=model)
    counts = result.count[:, result.of("|self|")]
    assert counts.min() == counts.max() == len(text.split())


def test_a_survey_says_that_weights_are_signed_and_what_is_not_measured(mixed, measured):
    assert measured.signed
    assert measured.compared == 0
    assert {head.stack for head in measured.heads} == {"linear"}
    notes = " ".join(measured.notes)
    assert "weights are signed" in notes
    assert "not measured: 1 layer of softmax attention" in notes
    assert measured.agreement.verdict == "verified"
    softmax = attnviz.survey(TEXTS[:3], model=mixed)
    assert not softmax.signed
    assert "|self|" not in softmax.statistics
    assert "not measured: 2 layers of linear attention" in " ".join(softmax.notes)


def test_a_figure_says_that_weights_are_signed(measured):
    figure = measured.plot(caption="full")
    texts = " ".join(text.get_text() for text in figure.findobj(lambda a: hasattr(a, "get_text")))
    assert "Each statistic of signed weights" in texts
    assert "Mean |weight| of heads with a role" in texts
    assert "weights are signed" in texts


def test_a_head_that_attends_to_itself_is_named_so(tokenizer, monkeypatch):
    model = attnviz.load(build("mamba2"), tokenizer=tokenizer)

    def diagonal(module, inputs, records):
        T = inputs["input_ids"].shape[1]
        return [(-torch.eye(T)).expand(2, record.heads, T, T) for record in records]

    monkeypatch.setattr("attnviz.analyses.survey.measure.capture_matrices", diagonal)
    result = attnviz.survey(TEXTS * 2, model=model)
    assert set(result.roles) == {"own token"}
    assert result.mean[:, result.of("|self|")].min() == 1
    assert result.mean[:, result.of("negative")].min() == 1


def test_what_a_survey_of_linear_attention_refuses(mixed, tokenizer, monkeypatch):
    with pytest.raises(InputError, match="'cross' is not a stack of"):
        attnviz.survey(TEXTS, model=mixed, stack="cross")
    model = attnviz.load(build("mamba2"), tokenizer=tokenizer)
    with pytest.raises(InputError, match="Probes confirm roles by ablation of softmax"):
        attnviz.survey(probe="induction", model=model)
    monkeypatch.setattr("attnviz.analyses.survey.compute._MOST_HEADS", 3)
    with pytest.raises(InputError, match="at most 3 heads, but here each feature may be a head"):
        attnviz.survey(TEXTS, model=model)
