"""Attribution methods compared with plain transformers; clear errors for unsupported models."""

from contextlib import contextmanager
from itertools import pairwise

import pytest
import torch
from families import tiny
from torch.testing import assert_close

import attnviz
from attnviz import InputError
from attnviz.attribution import methods
from attnviz.attribution.deeplift import DeepLift
from attnviz.attribution.interventions import AttentionKnockout
from attnviz.attribution.methods import gradients

CASH = "The bank was full of cash."
ROW = 2
NAMES = (
    "attention-value-norm", "direct-attribution", "ensemble",
    "gradient-attention", "gradient-input", "integrated-gradients", "late-rollout",
    "partial-split", "raw-attention", "rollout", "split", "value-zeroing",
)  # fmt: skip


@pytest.fixture(scope="module")
def bank(model):
    return attnviz.shift("bank", CASH, methods=NAMES, model=model)


@contextmanager
def eager(module):
    """Run the model with its written-out attention, which returns weights."""
    before = module.config._attn_implementation
    module.set_attn_implementation("eager")
    try:
        yield module
    finally:
        module.set_attn_implementation(before)


def coordinate(result, states):
    return states[:, ROW].mean(0) @ result.decomposition.direction.to(states)


def test_gradient_attention_matches_the_weights_from_transformers(model, bank):
    ids = model.tokenizer(CASH, return_tensors="pt")
    with eager(model.module) as module:
        embedded = module.get_input_embeddings()(ids["input_ids"]).detach().requires_grad_()
        output = module(
            inputs_embeds=embedded, attention_mask=ids["attention_mask"], output_attentions=True
        )
        y = coordinate(bank, output.last_hidden_state)
        gradients = torch.autograd.grad(y, output.attentions)
    products = [(a * g)[0].sum(0) for a, g in zip(output.attentions, gradients, strict=True)]
    total = torch.stack(products).sum(0).detach()
    expected = (total - total.diag().diag()).sum(0).double()
    assert_close(bank.methods["gradient-attention"], expected, atol=1e-5, rtol=1e-4)


def test_the_late_rollout_is_the_product_of_the_last_third_of_the_layers(model, bank):
    ids = model.tokenizer(CASH, return_tensors="pt")
    with eager(model.module) as module, torch.no_grad():
        attentions = module(**ids, output_attentions=True).attentions
    assert len(attentions) == 6
    identity = torch.eye(len(bank.words), dtype=torch.float64)
    fourth, fifth = ((one[0].double().mean(0) + identity) / 2 for one in attentions[4:])
    assert_close(bank.methods["late-rollout"], (fifth @ fourth)[ROW], atol=1e-6, rtol=1e-5)


def test_integrated_gradients_add_up_to_the_difference_from_masked_words(model, bank):
    """Completeness (Sundararajan et al. 2017), up to the error of a 32-point integral."""
    masked = model.tokenizer("[MASK] bank [MASK] [MASK] [MASK] [MASK] [MASK]", return_tensors="pt")
    with torch.no_grad():
        end, start = (
            coordinate(bank, model.module(**ids).last_hidden_state)
            for ids in (model.tokenizer(CASH, return_tensors="pt"), masked)
        )
    attribution = bank.methods["integrated-gradients"]
    assert attribution.sum().item() == pytest.approx((end - start).item(), rel=0.03)
    assert attribution[[0, ROW, 8]].abs().max() == 0  # equal at both ends of the path


def test_the_ensemble_is_the_mean_of_three_methods_of_equal_size(bank):
    ranked = [row for row in range(1, 8) if row != ROW]
    members = [bank.methods[name] for name in ("split", "gradient-attention", "direct-attribution")]
    expected = torch.stack([one / one[ranked].abs().sum() for one in members]).mean(0)
    assert_close(bank.methods["ensemble"], expected)
    assert bank.methods["ensemble"][ranked].abs().sum() <= 1


def test_the_split_is_that_of_the_reference(model):
    """Also without a gate, where the method by itself has nothing to compare with."""
    result = attnviz.shift(
        "bank", CASH, reference="mask", methods=["split", "ensemble"], model=model
    )
    assert_close(result.methods["split"], result.decomposition.credit)
    assert result.methods["split"].abs().max() > 0


def test_of_two_words_the_partial_split_is_what_knocking_out_each_loses(model):
    """Each half is then one word, and the contributions of a half add up to its effect."""
    result = attnviz.shift(
        "bank", "cash bank river", methods="partial-split", verify_causally=True, model=model
    )
    lost = result.causal["knock-out"]
    words = [1, 3]
    assert lost[words].abs().min() > 0.01
    assert_close(result.methods["partial-split"][words], lost[words], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_every_division_hides_each_word_once_and_no_neighbors_together(count):
    words = [(2 * word, 2 * word + 1) for word in range(count)]
    parts = gradients.divide(words)
    hidden = [word for part in parts for word in part]
    assert sorted(hidden) == sorted(len(gradients.DIVISIONS) * words)
    for part in parts:
        for word, other in pairwise(part):
            assert other[0] - word[0] > 2


def test_a_method_is_computed_once(small, monkeypatch):
    calls = []
    monkeypatch.setattr(methods, "METHODS", dict(methods.METHODS))

    @methods.method("counted")
    def counted(score):
        calls.append(1)
        return torch.ones(score.ids.shape[1])

    @methods.method("twice")
    def twice(score):
        return 2 * methods.METHODS["counted"](score)

    result = attnviz.shift("bank", CASH, methods=["counted", "twice"], model=small)
    assert_close(result.methods["twice"], 2 * result.methods["counted"])
    assert len(calls) == 1


def test_methods_are_ranked_like_the_decomposition(model, bank):
    assert list(bank.method_correlations) == list(NAMES)
    measured = [*bank.causal, "consensus"]
    assert all(list(rhos) == measured for rhos in bank.method_correlations.values())
    assert bank.method_correlations["gradient-attention"]["mask"] > 0.6
    plain = attnviz.shift("bank", CASH, model=model)
    assert plain.methods == plain.method_correlations == {}
    assert plain.rank_correlations == bank.rank_correlations


@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_other_models(family, tokenizer):
    model = attnviz.load(tiny(family), tokenizer=tokenizer)
    result = attnviz.shift("bank", "cash filled the bank", methods=NAMES, model=model)
    assert list(result.methods) == list(NAMES)
    assert all(len(each) == len(result.words) for each in result.methods.values())
    assert result.methods["gradient-attention"].abs().max() > 0
    assert not any("left out" in note for note in result.notes)


def test_an_unsupported_method_is_skipped_with_a_reason(monkeypatch, small):
    def refuse(target):
        raise ValueError("no embeddings\nmore")

    monkeypatch.setitem(methods.METHODS, "rollout", refuse)
    result = attnviz.shift("bank", CASH, methods=["rollout", "raw-attention"], model=small)
    assert list(result.methods) == ["raw-attention"]
    (note,) = result.notes
    assert note.startswith("rollout is left out: ")
    assert note.endswith("does not support it (no embeddings)")


@pytest.mark.parametrize(
    ("name", "said"),
    [("gradient-attn", r"Did you mean gradient-att"), ("x", f"Use {', '.join(NAMES)}\\.")],
)
def test_an_unknown_method_is_one_line(model, name, said):
    with pytest.raises(InputError, match=rf"not an attribution method\. {said}"):
        attnviz.shift("bank", CASH, methods=[name], model=model)


@pytest.mark.parametrize("bos", [None, "[CLS]"])
@pytest.mark.parametrize("analysis", ["shift", "explain"])
def test_no_run_hides_the_sink(analysis, bos, without_bos, monkeypatch):
    """Neither in references nor in knocked-out words. The parts add up, even if one does."""
    seen = {DeepLift: [], AttentionKnockout: []}

    def watch(tracer):
        softmax = tracer.softmax

        def watched(self, original, scores, options):
            weights = softmax(self, original, scores, options)
            seen[tracer].append(weights[..., 0].min())
            return weights

        monkeypatch.setattr(tracer, "softmax", watched)

    watch(DeepLift)
    watch(AttentionKnockout)
    without_bos.bos_token = bos
    model = attnviz.load(tiny("llama"), tokenizer=without_bos)
    words = ("cash",) if analysis == "shift" else ()
    text = "the bank was full of cash"
    getattr(attnviz, analysis)(*words, text, methods="partial-split", model=model)
    assert all(weights and min(weights) > 0 for weights in seen.values())
