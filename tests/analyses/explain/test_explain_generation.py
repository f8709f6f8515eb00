"""Each token of a generation is explained as `explain` explains it, and its page says so."""

import pytest
from commands import run
from families import tiny

import attnviz
from attnviz import InputError

TEXT = "the old train left the quiet station"


@pytest.fixture(scope="module")
def decoder(bare_tokenizer):
    return attnviz.load(tiny("llama"), tokenizer=bare_tokenizer)


@pytest.fixture(scope="module")
def explained(decoder):
    return attnviz.explain_generation(TEXT, generate=3, model=decoder)


@pytest.fixture(scope="module")
def generated(decoder):
    return attnviz.attend(TEXT, generate=4, model=decoder)


def test_a_token_is_explained_as_by_explain(decoder, explained, generated):
    first, second, third = explained
    whole = attnviz.explain(f"{TEXT} {first.target}", methods=(), model=decoder)
    assert (second.target, second.against) == (whole.target, whole.against)
    assert second.credit.tolist() == pytest.approx(whole.credit.tolist(), abs=1e-6, nan_ok=True)
    assert second.value == pytest.approx(whole.value, abs=1e-6)
    assert (second.causal, second.rank_correlations) == ({}, {})
    assert second.checked_agreement.verdict == "verified"
    measured = attnviz.explain_generation(TEXT, generate=2, measure=True, model=decoder)[1]
    assert measured.rank_correlations["split"] == whole.rank_correlations["split"]
    assert measured.headline == whole.headline
    labels = generated.records[0].query_axis.labels
    assert [third.tokens, (*third.tokens, third.target)] == [labels[:-1], labels]
    assert second.provenance.text == f"{TEXT} {first.target}"


def test_a_page_needs_the_explanations_of_its_tokens(decoder, explained, generated):
    data = attnviz.view(generated, explain=explained).data()["payload"]
    assert [one["position"] for one in data["explanations"]] == [7, 8, 9]
    assert data["explanations"][1]["credit"][1:7] == pytest.approx(
        explained[1].decomposition.credit[1:7].tolist(), rel=1e-3
    )
    assert data["explanations"][1]["credit"][0] is data["explanations"][1]["credit"][7] is None
    assert "explanations" not in attnviz.view(generated).data()["payload"]
    other = attnviz.attend("a new train left the quiet station", generate=4, model=decoder)
    with pytest.raises(InputError, match="no token of this result"):
        attnviz.view(other, explain=explained)
    with pytest.raises(InputError, match="does not read the last token"):
        attnviz.view(attnviz.attend(TEXT, generate=1, model=decoder), explain=explained[:1])
    with pytest.raises(InputError, match="A page of two results"):
        attnviz.view(generated, compare=generated, explain=explained)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--explain"], "--generate 2 or more"),
        (["--explain", "--generate", "1"], "--generate 2 or more"),
        (["--measure", "--generate", "3"], "Add --explain"),
        (["--explain", "--generate", "3", "--pair", "b"], "one text and nothing else"),
    ],
)
def test_the_command_refuses_what_has_no_explanation(options, said, capsys):
    assert run(["view", TEXT, *options]) == 2
    assert said in capsys.readouterr().err


def test_an_encoder_generates_no_tokens(model):
    with pytest.raises(InputError, match="does not generate tokens"):
        attnviz.explain_generation(TEXT, generate=2, model=model)
