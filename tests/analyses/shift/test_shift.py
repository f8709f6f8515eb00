"""What moved a word: exact contributions, an independent causal check, and clear errors."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from families import tiny
from readable_text import check_texts
from rich.console import Console
from torch.testing import assert_close
from transformers import CLIPTextConfig, CLIPTextModel

import attnviz
from attnviz.analyses.shift import compute
from attnviz.analyses.shift.compute import read_regions
from attnviz.analyses.shift.result import spearman
from attnviz.app import run
from attnviz.errors import InputError, ModelError

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


def test_the_contributions_add_up(bank, apple):
    for result in (bank, apple):
        assert result.decomposition.error < 1e-5
        assert result.decomposition.credit_error < 1e-5
        assert result.residual_stream.error < 1e-5
        assert result.agreement.verdict == "verified"


def test_the_effect_of_masking_matches_the_model(model, bank):
    """Compare with plain runs of the model, without attnviz."""
    along = bank.decomposition.direction.double()
    masked = CASH.replace("cash", "[MASK]")
    lost = (end_of(model, CASH, 2) - end_of(model, masked, 2)) @ along
    assert list(bank.causal) == ["mask"]
    assert bank.words[6] == "cash"
    assert bank.causal["mask"][6].item() == pytest.approx(lost.item(), abs=1e-4)
    assert bank.causal["mask"][[0, 2, 8]].isnan().all()  # special tokens, and the word itself
    assert not bank.causal["mask"][bank.sources].isnan().any()


def test_the_gated_reference_is_nearly_the_word_alone(model, bank):
    """In the gated reference the word attends only to itself and to special tokens."""
    gated = (
        end_of(model, CASH, 2) - bank.decomposition.direction.double() * bank.decomposition.length
    )
    alone = end_of(model, "bank", 1)
    assert torch.cosine_similarity(gated, alone, dim=0) > 0.85


def test_every_change_and_every_head(model, verified, bank):
    assert list(verified.causal) == ["mask", "replace", "knock-out", "delete"]
    assert_close(verified.causal["mask"], bank.causal["mask"], equal_nan=True)
    at = verified.sources
    scaled = [each[at] / each[at].std(correction=0) for each in verified.causal.values()]
    assert_close(verified.consensus[at], torch.stack(scaled).mean(0))
    assert list(verified.rank_correlations) == [*verified.causal, "consensus"]
    assert verified.direct_effect.shape == verified.total_effect.shape == (6, 12)
    direct, total = verified.head_rank_correlations.values()
    assert direct > 0.95 > total > 0.6
    assert bank.direct_effect is bank.total_effect is bank.consensus is None
    assert bank.head_rank_correlations == {}


def test_direct_and_total_effects_are_named_alike_everywhere(verified):
    names = ["direct effect", "total effect"]
    assert list(verified.head_effects) == list(verified.head_rank_correlations) == names
    assert {"direct_effect", "total_effect"} < verified.to_arrays().keys()
    assert set(names) < set(verified.to_frame()["quantity"])
    assert list(verified.about()["head_rank_correlations"]) == names
    console = Console(width=200)
    with console.capture() as capture:
        console.print(verified)
    assert "with the effect of patching: direct effect 0.99, total effect 0." in capture.get()
    figure = attnviz.plot.shift(verified)
    shown = " ".join(text.get_text() for text, _ in check_texts(figure))
    for name, rho in verified.head_rank_correlations.items():
        assert name.capitalize() in shown
        assert f"ρ {rho:.2f}" in shown


def test_the_total_effect_of_the_last_layer_is_its_direct_effect(verified):
    """A head of the last layer has no other path. Elsewhere it has."""
    direct, total = verified.direct_effect, verified.total_effect
    assert_close(total[-1], direct[-1], atol=1e-5, rtol=1e-4)
    assert (total - direct)[:-1].abs().max() > 0.05


def test_the_mask_as_reference(model):
    result = attnviz.shift("bank", CASH, reference="mask", model=model)
    alone = end_of(model, "[MASK] bank [MASK] [MASK] [MASK] [MASK] [MASK]", 2)
    delta = end_of(model, CASH, 2) - alone
    assert result.decomposition.length == pytest.approx(delta.norm().item(), rel=1e-4)
    assert result.reference == "the same text, where all other words are [MASK]"
    assert result.decomposition.error < 1e-5
    assert result.credit[[0, 2, 8]].abs().max() < 1e-5  # only masked words differ at the start


def test_rank_correlation():
    """By hand: 1 - 6 Σd² / n (n² - 1), with mean ranks for ties."""
    a = torch.tensor([0.1, 0.4, 0.3, 0.9, 0.2])
    assert spearman(a, torch.tensor([1.0, 4.0, 3.0, 2.0, 5.0])) == pytest.approx(
        1 - 6 * (0 + 0 + 0 + 9 + 9) / 120
    )
    assert spearman(a[:3], torch.tensor([1.0, 2.0, 2.0])) == pytest.approx(0.75**0.5)
    assert spearman(a[:2], a[:2]) is None
    assert spearman(a, torch.zeros(5)) is None


def test_a_neighbor_moves_apple_toward_its_sense(model, apple):
    pie = attnviz.shift("apple", "I love apple pie", toward=REGIONS, model=model)
    neighbor = 4
    assert apple.words[neighbor] == "phones"
    assert apple.credit[neighbor] > 0 > pie.credit[neighbor]
    assert apple.causal["mask"][neighbor] > 0 > pie.causal["mask"][neighbor]
    assert apple.path[-1] > pie.path[-1]
    assert apple.path[0] == pytest.approx(pie.path[0].item())  # the static embedding is the same
    for result in (apple, pie):  # distances and positions on the axis form one triangle
        to_tech, to_fruit = result.distances.unbind(1)
        assert_close(result.path, (1 + to_fruit**2 - to_tech**2) / 2)


def test_the_path_is_0_and_1_at_the_regions_themselves(model):
    regions = {"one": ["I love apple pie"], "other": ["I love apple phones"]}
    spanned = read_regions(model, "apple", regions, torch.zeros(1, 1))
    for text, place in (("I love apple pie", 1.0), ("I love apple phones", 0.0)):
        ids = model.tokenizer(text, return_tensors="pt").input_ids
        with torch.no_grad():
            states = model.module(ids, output_hidden_states=True).hidden_states
        path, _ = spanned.place(torch.stack(states)[:, 0, 3].double())
        assert_close(path[1:], torch.full((6,), place).double(), atol=1e-5, rtol=0)


def test_a_minimal_pair(model):
    result = attnviz.shift("bank", CASH, reference=CASH.replace("cash", "mud"), model=model)
    assert result.reference == "“The bank was full of mud.”"
    assert result.decomposition.credit.abs().argmax() == 6
    assert result.decomposition.credit[6].item() == pytest.approx(
        result.decomposition.total, rel=1e-4
    )


def test_the_conclusion_of_a_pair_says_how_the_difference_reaches_the_word(model):
    """The whole shift starts at “cash” by construction; who passes it on is not fixed."""
    pair = attnviz.shift("bank", "The bank was full of {mud|cash}.", model=model)
    assert pair.replaced == ("", "", "", "", "", "", "mud", "", "")
    assert pair.entries == [6]
    direct = pair.decomposition.table.sum((0, 1))
    cash, itself = direct[6].item(), direct[2].item()
    rest = direct.sum().item() - cash - itself
    assert cash + itself + rest == pytest.approx(pair.decomposition.total, rel=1e-5)
    by_head = pair.decomposition.table.sum(-1)
    assert by_head.sum(1).argmax() == 5
    assert divmod(by_head.argmax().item(), 12) == (5, 11)
    expected = (
        "All of the shift starts at “cash” (“mud” in the reference), the only difference. Of "
        f"4.18, “bank” takes {cash:.2f} directly from “cash”, {itself:.2f} from itself and "
        f"{rest:.2f} from other tokens. The strongest layer is 5 ({by_head[5].sum():.2f}), the "
        f"strongest head 11 of layer 5 ({by_head[5, 11]:.2f})."
    )
    assert pair.conclusion() == pair.about()["conclusion"] == expected
    assert pair.about()["replaced"] == {"cash": "mud"}
    name, bars = pair.contributions
    assert name == "direct parts"
    assert_close(bars, direct)
    console = Console(width=1000)
    with console.capture() as capture:
        console.print(pair)
    assert expected in capture.get()
    assert "contributed most" not in capture.get()
    for width in (89, 183):
        texts = [text.get_text() for text, _ in check_texts(attnviz.plot.shift(pair, width=width))]
        assert expected in " ".join(texts)
        assert "Directly, by word" in texts
        assert "Over all paths" not in texts


def test_the_conclusion_of_several_differences_has_the_part_of_each(model):
    pair = attnviz.shift("bank", "The {muddy|rich} bank was full of {mud|cash}.", model=model)
    rich, cash = pair.credit[[2, 7]].tolist()
    assert pair.entries == [2, 7]
    assert (
        f"Of 7.28, {rich:.2f} starts at “rich” and {cash:.2f} starts at “cash”."
        in pair.conclusion()
    )
    assert pair.contributions[0] == "all paths"


def test_the_conclusion_of_a_pair_of_the_word_itself_has_what_it_starts_with(model):
    pair = attnviz.shift("bank", "the {river|bank} of cash", model=model)
    assert pair.entries == [pair.at]
    own = pair.decomposition.start
    assert f", besides {own:.2f} that it starts with." in pair.conclusion()
    assert pair.contributions[0] == "all paths"


@pytest.mark.parametrize("reference", ["gate", "mask"])
def test_without_another_text_the_conclusion_is_the_word_that_contributed_most(model, reference):
    result = attnviz.shift("bank", CASH, reference=reference, model=model)
    assert result.replaced == ()
    most = result.credit.argmax()
    assert result.conclusion().startswith(f"“{result.words[most]}” contributed most, ")
    effect = result.causal["mask"][most]
    assert result.conclusion().endswith(f"; effect of changing it: mask {effect:.2f}.")


def test_the_caption_explains_only_what_is_shown(bank, model):
    pair = attnviz.shift("bank", "The bank was full of {mud|cash}.", model=model)
    for result, is_ranked in ((bank, True), (pair, False)):
        figure = attnviz.plot.shift(result)
        shown = " ".join(text.get_text() for text, _ in check_texts(figure))
        assert ("ρ" in shown) == is_ranked == bool(result.rank_correlations)
        assert "in units of the hidden state" in shown


@pytest.mark.parametrize("texts", [CASH, [CASH], ["The bank lends.", CASH], CASH.upper()])
@pytest.mark.parametrize("name", ["money", "river"])
def test_a_region_with_the_text_itself_is_refused(model, texts, name):
    """The word would define the axis on which it is measured."""
    toward = {"money": "The bank lends.", "river": "The bank floods.", name: texts}
    message = f"The region '{name}' has the text itself, so “bank” would be measured against itself"
    with pytest.raises(InputError, match=message):
        attnviz.shift("bank", CASH, toward=toward, model=model)
    with pytest.raises(InputError, match=message):
        attnviz.shift("bank", CASH.replace("cash", "{mud|cash}"), toward=toward, model=model)


def test_a_word_of_several_pieces_is_their_mean(model):
    result = attnviz.shift("unbelievably", "It was unbelievably late", model=model)
    assert result.positions[result.at] == (3, 4, 5, 6, 7)
    assert result.words == ("[CLS]", "It", "was", "unbelievably", "late", "[SEP]")
    assert_close(result.credit[3], result.decomposition.credit[3:8].sum())
    assert_close(result.credit.sum(), result.decomposition.credit.sum())
    assert result.notes == ("“unbelievably” is 5 pieces, averaged",)
    assert result.decomposition.error < 1e-5


@pytest.mark.parametrize("family", ["gpt2", "llama", "roberta"])
def test_models_of_other_kinds(family, tokenizer):
    model = attnviz.load(tiny(family), tokenizer=tokenizer)
    result = attnviz.shift("bank", "cash filled the bank", model=model)
    assert result.decomposition.error < 1e-5
    assert result.decomposition.credit_error < 1e-5
    assert result.residual_stream.error < 1e-5


@pytest.mark.parametrize(
    ("word", "given", "message"),
    [
        ("bnak", {}, "'bnak' is not a word of the text. Did you mean bank"),
        (
            "bank",
            {"reference": "The bank was full."},
            "The reference has 7 tokens, but the text has 9",
        ),
        ("bank", {"toward": {"one": ["river"]}}, "An axis needs two regions, not 1"),
        ("bank", {"toward": {"one": ["river"], "two": []}}, "The region 'two' has no text"),
        (
            "bank",
            {"toward": {"one": ["x"], "two": "x"}},
            "The regions 'one' and 'two' are one point",
        ),
        ("bank", {"reference": CASH}, "The reference is the same as the text"),
        ("bank", {"reference": "gates"}, "Did you mean gate?"),
        ("bank", {"reference": 7}, "The reference must be gate, mask or a text, not int"),
        (7, {}, "The word must be a string, not int"),
    ],
)
def test_invalid_input_is_one_line(model, word, given, message):
    with pytest.raises(InputError, match=message):
        attnviz.shift(word, CASH, model=model, **given)


def test_an_encoder_decoder_is_refused(tokenizer):
    model = attnviz.load(tiny("t5"), tokenizer=tokenizer)
    with pytest.raises(ModelError, match="does not read one text and nothing else"):
        attnviz.shift("bank", CASH, model=model)


@pytest.mark.parametrize("width", [40, 89, 120, 183])
def test_the_figure_can_be_read(bank, verified, apple, width):
    for result in (bank, verified, apple):
        figure = attnviz.plot.shift(result, width=width)
        said = " ".join(text.get_text() for text, _ in check_texts(figure))
        assert "completeness error" in said
        assert "○ mask, ρ 0.94" in said or result is apple or width == 40
        assert ("◇ delete, ρ" in said) == (result is verified and width > 40)
        assert ("Total effect" in said) == ("Direct effect" in said) == (result is verified)
        assert ("On the axis" in said) == (result is apple)
        assert "Verified: 72 heads" in said


@pytest.mark.parametrize("suffix", [".json", ".npz", ".safetensors", ".png"])
def test_the_command_writes_each_format(tmp_path, monkeypatch, capsys, suffix):
    monkeypatch.chdir(tmp_path)
    assert run(["shift", "bank", "The bank was full of {mud|cash}.", "-o", f"x{suffix}"]) == 0
    out = capsys.readouterr().out
    assert "compared with “The bank was full of mud.”" in out
    out = " ".join(out.split())
    assert "All of the shift starts at “cash” (“mud” in the reference), the only difference." in out
    assert "correlation" not in out  # only one word differs, so there is no ranking
    assert "by raw attention" in out
    assert [path.name for path in Path().iterdir()] == [f"x{suffix}"]
    if suffix == ".json":
        data = json.loads(Path("x.json").read_text())
        assert data["completeness_error"] < 1e-5
        assert data["tokens"][6] == "cash"
        assert data["causal_mask"][0] is None
        assert data["agreement"]["verdict"] == "verified"


def test_a_text_that_is_too_long_is_not_truncated(model):
    with pytest.raises(InputError, match=r"has 605 tokens, but .* reads at most 512\. Shorten"):
        attnviz.shift("bank", "the bank " + "and " * 601, model=model)


@pytest.mark.parametrize("text", ["the bank of {a|b|c}", "the bank of {|b}"])
def test_braces_without_two_sides(model, text):
    with pytest.raises(InputError, match="does not have two sides"):
        attnviz.shift("bank", text, model=model)


def test_a_pair_in_python_too(model):
    result = attnviz.shift("bank", "The {muddy|rich} bank was full of {mud|cash}.", model=model)
    assert result.provenance.text == "The rich bank was full of cash."
    assert result.reference == "“The muddy bank was full of mud.”"
    assert result.decomposition.credit_error < 1e-5
    assert repr(result).startswith("ShiftResult('bank' in 'The rich bank")
    assert len(repr(result.decomposition)) + len(repr(result.residual_stream)) < 200


def test_only_words_that_can_be_read_are_ranked(tokenizer):
    """In a causal model, words after the target have no effect."""
    model = attnviz.load(tiny("llama"), tokenizer=tokenizer)
    text = "the bank was full of cash that old farmers brought"
    result = attnviz.shift("full", text, verify_causally=True, model=model)
    assert [result.words[at] for at in result.sources] == ["the", "bank", "was"]
    later = result.causal["knock-out"][result.at + 1 : -1]
    assert later.abs().max() < 1e-4
    few = attnviz.shift("was", text, verify_causally=True, model=model)
    assert few.rank_correlations == {}


def test_equal_regions_have_no_position(model):
    regions = {"money": "the bank lends", "river": "the bank floods"}
    result = attnviz.shift("bank", "the bank of cash", toward=regions, model=model)
    assert result.path[0].isnan()
    assert result.distances[0].isnan().all()
    assert not result.path[1:].isnan().any()


def test_inflections_count_in_regions_and_texts_without_the_word_are_named(model):
    def end(texts):
        regions = {"one": texts, "two": ["the river bank"]}
        return attnviz.shift("bank", CASH, toward=regions, model=model)

    assert end(["Two banks merged."]).notes == ()
    (note,) = end(["Two banks merged.", "No such thing."]).notes
    assert "“bank” is not in 1 of 2 texts of one" in note


def test_a_reference_with_another_word_is_reported(model):
    (note,) = attnviz.shift("bank", "the {river|bank} of cash", model=model).notes
    assert "the reference has another word in this place" in note


def test_threads_wait_for_each_other(model):
    alone = attnviz.shift("bank", CASH, model=model).decomposition.credit
    with ThreadPoolExecutor(3) as pool:
        both = list(pool.map(lambda _: attnviz.shift("bank", CASH, model=model), range(6)))
    for result in both:
        assert_close(result.decomposition.credit, alone)


@pytest.mark.parametrize("family", ["qwen3-next", "afmoe"])
def test_a_gate_on_attention_is_no_mlp(family, tokenizer):
    result = attnviz.shift("bank", CASH, model=attnviz.load(tiny(family), tokenizer=tokenizer))
    assert (result.residual_stream.attention.abs().sum((1, 2)) > 1e-3).all()
    assert result.residual_stream.error < 1e-5


def test_experts_that_are_not_traced_are_named(tokenizer):
    result = attnviz.shift("bank", CASH, model=attnviz.load(tiny("mixtral"), tokenizer=tokenizer))
    assert "only 0 MLPs were found in 2 layers" in " ".join(result.notes)


def test_a_word_that_nothing_moves_is_refused(tokenizer):
    model = attnviz.load(tiny("gpt2"), tokenizer=tokenizer)
    with pytest.raises(InputError, match=r"Nothing moves '\[CLS\]'"):
        attnviz.shift("[CLS]", CASH, model=model)


def test_a_narrower_dtype_only_adds_rounding():
    result = attnviz.shift("bank", CASH, model=attnviz.load(dtype="bfloat16"))
    assert "rounding in bfloat16; use float32" in result.notes[0]
    assert result.agreement.parts["weights"] == "verified"
    assert "NOT VERIFIED: the sums of the parts are off by" in result.agreement.summary()


def test_a_pair_with_a_reference_is_refused(capsys):
    assert run(["shift", "bank", "the bank of {mud|cash}", "--reference", "the bank of sand"]) == 2
    assert "and a reference are given. Give one of them" in capsys.readouterr().err


def test_contributions_that_do_not_add_up_are_reported(tokenizer):
    """A router that selects experts has no multiplier."""
    result = attnviz.shift("bank", CASH, model=attnviz.load(tiny("mixtral"), tokenizer=tokenizer))
    assert result.decomposition.error > 1e-3
    assert "the parts miss the whole by" in result.notes[0]
    assert "the sums of the parts are off by" in result.agreement.summary()


def test_a_split_of_other_runs_is_not_verified(model, monkeypatch):
    """The ends of the split are those of the model as loaded, or the shift is not verified."""
    assert attnviz.shift("bank", CASH, model=model).agreement.verdict == "verified"
    honest = compute.decompose_residual_stream

    def other_ends(*args, **options):
        stream = honest(*args, **options)
        return replace(stream, total=stream.total + 0.01, bias=stream.bias + 0.01)

    monkeypatch.setattr(compute, "decompose_residual_stream", other_ends)
    report = attnviz.shift("bank", CASH, model=model).agreement
    assert "the lengths of the shift are off by" in report.summary()


def test_a_model_that_cannot_be_traced_is_refused_in_one_line(tokenizer):
    with pytest.raises(ModelError, match="The blocks of FunnelModel cannot be traced"):
        attnviz.shift("bank", CASH, model=attnviz.load(tiny("funnel"), tokenizer=tokenizer))


def test_a_region_without_a_name_gets_an_example(capsys):
    assert run(["shift", "bank", CASH, "--toward", "river"]) == 2
    assert 'Write --toward river="We sat on the bank.", for example.' in capsys.readouterr().err


def test_a_model_whose_states_end_before_its_last_norm_is_verified(tokenizer):
    config = CLIPTextConfig(
        vocab_size=30522, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, bos_token_id=101, eos_token_id=102, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = attnviz.load(CLIPTextModel(config).eval(), tokenizer=tokenizer)
    report = attnviz.shift("bank", CASH, model=model).agreement
    assert "off by" not in report.summary()
