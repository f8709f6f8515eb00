"""What moved a word: exact parts, a causal check that owes them nothing, and clear refusals."""

import json
from pathlib import Path

import pytest
import torch
from families import tiny
from legible import check_texts
from torch.testing import assert_close

import attnviz
from attnviz.cli import run
from attnviz.errors import InputError, ModelError
from attnviz.records import spearman

CASH = "The bank was full of cash."
REGIONS = {"tech": ["computer", "I love phones"], "fruit": ["banana", "I love cherries"]}


@pytest.fixture(scope="module")
def bank(model):
    return attnviz.shift("bank", CASH, model=model)


@pytest.fixture(scope="module")
def verified(model):
    return attnviz.shift("bank", CASH, verify_causally=True, model=model)


@pytest.fixture(scope="module")
def apple(model):
    return attnviz.shift("apple", "I love apple phones", toward=REGIONS, model=model)


def end_of(model, text, at):
    with torch.no_grad():
        ids = model.tokenizer(text, return_tensors="pt")
        return model.module(**ids).last_hidden_state[0, at].double()


def test_the_parts_add_up(bank, apple):
    for result in (bank, apple):
        assert result.secant.error < 1e-5
        assert result.secant.credit_error < 1e-5
        assert result.ledger.error < 1e-5
        assert result.agreement.verdict == "verified"


def test_what_masking_loses_is_what_the_model_says(model, bank):
    """Against plain runs of the model, without any of our own."""
    along = bank.secant.direction.double()
    masked = CASH.replace("cash", "[MASK]")
    lost = (end_of(model, CASH, 2) - end_of(model, masked, 2)) @ along
    assert list(bank.causal) == ["mask"]
    assert bank.words[6] == "cash"
    assert bank.causal["mask"][6].item() == pytest.approx(lost.item(), abs=1e-4)
    assert bank.causal["mask"][[0, 2, 8]].isnan().all()  # special tokens, and the word itself
    assert not bank.causal["mask"][bank.sources].isnan().any()


def test_the_gated_reference_is_nearly_the_word_alone(model, bank):
    """In it the word reads only itself and special tokens."""
    gated = end_of(model, CASH, 2) - bank.secant.direction.double() * bank.secant.length
    alone = end_of(model, "bank", 1)
    assert torch.cosine_similarity(gated, alone, dim=0) > 0.85


def test_every_change_and_every_head(model, verified, bank):
    assert list(verified.causal) == ["mask", "replace", "knock-out", "delete"]
    assert_close(verified.causal["mask"], bank.causal["mask"], equal_nan=True)
    at = verified.sources
    scaled = [each[at] / each[at].std(correction=0) for each in verified.causal.values()]
    assert_close(verified.consensus[at], torch.stack(scaled).mean(0))
    assert list(verified.rank_correlations) == [*verified.causal, "consensus"]
    assert verified.patched.shape == (6, 12)
    r, rho = verified.heads_correlation
    assert r > 0.99
    assert rho > 0.95
    assert bank.patched is bank.heads_correlation is bank.consensus is None


def test_the_mask_as_reference(model):
    result = attnviz.shift("bank", CASH, reference="mask", model=model)
    alone = end_of(model, "[MASK] bank [MASK] [MASK] [MASK] [MASK] [MASK]", 2)
    delta = end_of(model, CASH, 2) - alone
    assert result.secant.length == pytest.approx(delta.norm().item(), rel=1e-4)
    assert result.reference == "the same text, where all other words are [MASK]"
    assert result.secant.error < 1e-5
    assert result.credit[[0, 2, 8]].abs().max() < 1e-5  # only what was masked differs at the start


def test_rank_correlation():
    """By hand: 1 - 6 Σd² / n (n² - 1), and the mean rank where two tie."""
    a = torch.tensor([0.1, 0.4, 0.3, 0.9, 0.2])
    assert spearman(a, torch.tensor([1.0, 4.0, 3.0, 2.0, 5.0])) == pytest.approx(
        1 - 6 * (0 + 0 + 0 + 9 + 9) / 120
    )
    assert spearman(a[:3], torch.tensor([1.0, 2.0, 2.0])) == pytest.approx(0.75**0.5)
    assert spearman(a[:2], a[:2]) is None
    assert spearman(a, torch.zeros(5)) is None


def test_a_neighbour_moves_apple_toward_what_it_points_at(model, apple):
    pie = attnviz.shift("apple", "I love apple pie", toward=REGIONS, model=model)
    neighbour = 4
    assert apple.words[neighbour] == "phones"
    assert apple.credit[neighbour] > 0 > pie.credit[neighbour]
    assert apple.causal["mask"][neighbour] > 0 > pie.causal["mask"][neighbour]
    assert apple.path[-1] > pie.path[-1]
    assert apple.path[0] == pytest.approx(pie.path[0].item())  # the static word, at one place
    for result in (apple, pie):  # distances and place on the axis are of one triangle
        to_tech, to_fruit = result.distances.unbind(1)
        assert_close(result.path, (1 + to_fruit**2 - to_tech**2) / 2)


def test_the_path_is_0_and_1_at_the_regions_themselves(model):
    regions = {"one": ["I love apple pie"], "other": ["I love apple phones"]}
    for text, place in (("I love apple pie", 1.0), ("I love apple phones", 0.0)):
        result = attnviz.shift("apple", text, toward=regions, model=model)
        assert_close(result.path[1:], torch.full((6,), place).double(), atol=1e-5, rtol=0)


def test_a_minimal_pair(model):
    result = attnviz.shift("bank", CASH, reference=CASH.replace("cash", "mud"), model=model)
    assert result.reference == "“The bank was full of mud.”"
    assert result.secant.credit.abs().argmax() == 6
    assert result.secant.credit[6].item() == pytest.approx(result.secant.total, rel=1e-4)


def test_a_word_of_several_pieces_is_their_mean(model):
    result = attnviz.shift("unbelievably", "It was unbelievably late", model=model)
    assert result.positions[result.at] == (3, 4, 5, 6, 7)
    assert result.words == ("[CLS]", "It", "was", "unbelievably", "late", "[SEP]")
    assert_close(result.credit[3], result.secant.credit[3:8].sum())
    assert_close(result.credit.sum(), result.secant.credit.sum())
    assert result.notes == ("“unbelievably” is 5 pieces, of which the mean is followed",)
    assert result.secant.error < 1e-5


@pytest.mark.parametrize("family", ["gpt2", "llama", "roberta"])
def test_models_of_other_kinds(family, tokenizer):
    model = attnviz.load(tiny(family), tokenizer=tokenizer)
    result = attnviz.shift("bank", "cash filled the bank", model=model)
    assert result.secant.error < 1e-5
    assert result.secant.credit_error < 1e-5
    assert result.ledger.error < 1e-5


@pytest.mark.parametrize(
    ("word", "given", "message"),
    [
        ("bnak", {}, "Expected a word of the text, got 'bnak'. Did you mean bank"),
        ("bank", {"reference": "The bank was full."}, "Expected a reference of 9 tokens"),
        ("bank", {"toward": {"one": ["river"]}}, "Expected two regions to span an axis, got 1"),
        ("bank", {"toward": {"one": ["river"], "two": []}}, "Expected texts for the region 'two'"),
    ],
)
def test_what_does_not_fit_is_one_line(model, word, given, message):
    with pytest.raises(InputError, match=message):
        attnviz.shift(word, CASH, model=model, **given)


def test_a_model_with_two_sides_is_refused(tokenizer):
    model = attnviz.load(tiny("t5"), tokenizer=tokenizer)
    with pytest.raises((InputError, ModelError), match="Expected"):
        attnviz.shift("bank", CASH, model=model)


@pytest.mark.parametrize("width", [89, 120, 183])
def test_the_figure_can_be_read(bank, verified, apple, width):
    for result in (bank, verified, apple):
        figure = attnviz.waterfall(result, width=width)
        said = " ".join(text.get_text() for text, _ in check_texts(figure))
        assert "completeness error" in said
        assert "○ masked, ρ 0.94" in said or result is apple
        assert ("◇ deleted, ρ" in said) == ("each head patched" in said) == (result is verified)
        assert ("on the axis" in said) == (result is apple)
        assert "Verified: 72 heads" in said


@pytest.mark.parametrize("suffix", [".json", ".npz", ".safetensors", ".png"])
def test_the_command_writes_each_format(tmp_path, monkeypatch, capsys, suffix):
    monkeypatch.chdir(tmp_path)
    assert run(["shift", "bank", "The bank was full of {mud|cash}.", "-o", f"x{suffix}"]) == 0
    out = capsys.readouterr().out
    assert "compared with “The bank was full of mud.”" in out
    assert "“cash” brought most" in out
    assert "rank correlation of all paths with each change: masked" in out
    assert "by raw attention" in out
    assert [path.name for path in Path().iterdir()] == [f"x{suffix}"]
    if suffix == ".json":
        data = json.loads(Path("x.json").read_text())
        assert data["completeness_error"] < 1e-5
        assert data["tokens"][6] == "cash"
        assert data["causal_mask"][0] is None
        assert data["agreement"]["verdict"] == "verified"


def test_a_pair_and_a_reference_are_one_too_many(capsys):
    assert run(["shift", "bank", "the bank of {mud|cash}", "--reference", "the bank of sand"]) == 2
    assert "got both. Give one of them" in capsys.readouterr().err


def test_parts_that_do_not_add_up_say_so(tokenizer):
    """A router that chooses experts has no secant."""
    result = attnviz.shift("bank", CASH, model=attnviz.load(tiny("mixtral"), tokenizer=tokenizer))
    assert result.secant.error > 1e-3
    assert "the parts miss the whole by" in result.notes[0]


def test_a_model_that_cannot_be_followed_is_refused_in_one_line(tokenizer):
    with pytest.raises(ModelError, match="Expected a model whose blocks can be followed"):
        attnviz.shift("bank", CASH, model=attnviz.load(tiny("funnel"), tokenizer=tokenizer))


def test_a_region_without_a_name_is_answered_with_an_example(capsys):
    assert run(["shift", "bank", CASH, "--toward", "river"]) == 2
    assert 'For example: --toward river="We sat on the bank."' in capsys.readouterr().err
