"""One head, stage by stage: each stage follows from the previous ones and matches the model."""

from dataclasses import replace

import pytest
import torch
from families import OWN_CODE, TWO_SIDED, tiny
from torch.nn.functional import scaled_dot_product_attention as attention
from torch.testing import assert_close

import attnviz

TEXT = "the train left the station on time"
CLOSE = {"atol": 2e-6, "rtol": 2e-6}


@pytest.fixture(scope="module")
def steps(train):
    return attnviz.steps(train, layer=5, head=3, word="train")


def test_the_numbers_match_the_model(model, steps):
    """Compare with hooks on the unmodified transformers modules, independent of attnviz."""
    seen = {}
    layer = model.module.encoder.layer[5].attention
    own, last = layer.self, layer.output.dense
    hooks = [
        module.register_forward_hook(lambda _, given, out, name=name: seen.update({name: out}))
        for name, module in (("Q", own.query), ("K", own.key), ("V", own.value), ("output", last))
    ]
    hooks.append(last.register_forward_pre_hook(lambda _, given: seen.update(heads=given[0])))
    hooks.append(own.query.register_forward_pre_hook(lambda _, given: seen.update(X=given[0])))
    with torch.no_grad():
        model.module(**model.tokenizer(TEXT, return_tensors="pt"))
    for hook in hooks:
        hook.remove()
    head = slice(3 * 32, 4 * 32)
    for name, value in seen.items():
        whole = name in ("X", "heads", "output")
        model_value = value[0] if whole else value[0, :, head]
        assert_close(steps[name].values.float(), model_value, **CLOSE)
    Q, K, V = (seen[name][0, :, head].double() for name in "QKV")
    # Each is a sum of 32 products of numbers up to 5, which themselves differ by up to 2e-6.
    assert_close(steps["scores"].values, Q @ K.T, atol=2e-5, rtol=0)
    assert_close(steps["scaled scores"].values, Q @ K.T / 32**0.5, **CLOSE)
    assert_close(steps["A"].values, attention(Q, K, V), **CLOSE)


def test_the_values_of_all_keys_add_up_to_the_attention_vector(steps):
    assert_close(steps.contributions.sum(0), steps["A"].values[steps.row], **CLOSE)
    assert_close(steps.shares.sum(), torch.tensor(1.0, dtype=torch.float64))
    assert steps["heads"].part == (96, 128)
    assert torch.equal(steps["heads"].values[:, 96:128], steps["A"].values)


# One of each kind, and those with code of their own
KINDS = ["bert", "gpt2", "llama-biased", "gemma2", "gpt-oss", "t5-encoder", "t5", "bart", *OWN_CODE]


@pytest.mark.parametrize("family", KINDS)
def test_every_kind_of_attention_has_steps(family, tokenizer):
    """Scores, their terms, weights and outputs are consistent in every stack."""
    target = {"target": "the station"} if family in TWO_SIDED else {}
    result = attnviz.load(tiny(family), tokenizer=tokenizer).attend(TEXT, **target)
    for stack in result.stacks:
        part = result.stack(stack)
        for record in part:
            steps = attnviz.steps(part, layer=record.layer, head=record.heads - 1)
            names = [stage.name for stage in steps.stages]
            assert names[names.index("scores") :][:2] == ["scores", "scaled scores"]
            assert names[names.index("weights") :][:3] == ["weights", "A", "heads"]
            for stage in steps.stages:
                assert stage.passed in (True, None), (record, stage.name)
                assert len(stage.values) == len(
                    steps.queries if stage.rows == "query" else steps.keys
                )
                if stage.factors:
                    (m, inner), (same, n) = stage.factors
                    assert inner == same, stage
                    assert (m, n) == tuple(stage.values.shape), stage
            Q, K = steps["Q"].values, steps["K"].values
            assert_close(Q @ K.T, steps["scores"].values, atol=2e-4, rtol=1e-4)
            full = steps["full scores" if "full scores" in steps else "scaled scores"].values
            if record.sinks is None:
                assert_close(full.softmax(-1), steps["weights"].values, **CLOSE)
            # A uses V as rounded by the model: a mean of its rows has at most the same error.
            V, own = steps["V"].values, record.value[-1].double()
            near = {**CLOSE, "atol": CLOSE["atol"] + float((V - own).abs().max())}
            assert_close(steps["weights"].values @ V, steps["A"].values, **near)


def test_the_share_of_a_key_is_what_it_adds_along_the_sum(steps):
    """By hand: 3 along the sum, 1 against it, and one orthogonal to it."""
    weights = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64)
    values = torch.tensor([[6.0, 2.0], [-4.0, 0.0], [0.0, -4.0]], dtype=torch.float64)
    stages = (replace(steps["weights"], values=weights), replace(steps["V"], values=values))
    report = replace(steps.agreement, digest=None)
    steps = replace(
        steps, stages=stages, queries=("q",), keys=tuple("abc"), row=0, agreement=report
    )
    assert_close(steps.contributions, torch.tensor([[3.0, 1], [-1, 0], [0, -1]]).double())
    assert_close(steps.shares, torch.tensor([1.5, -0.5, 0.0], dtype=torch.float64))


FORMULAS = {
    "gpt2": {"full scores": "scaled + mask"},
    "bloom": {"full scores": "scaled + bias + mask"},
    "gemma2": {"full scores": "cap(scaled, 50) + mask"},
    "deepseek-v3": {
        "K": "rotate([norm(X W^DK) W^K, X W^RK])", "Q": "rotate(norm(X W^DQ) W^Q)",
    },
    "bitnet": {"output": "norm(heads) W^O"},
    "afmoe": {"output": "gate(heads) W^O"},
}  # fmt: skip


@pytest.mark.parametrize("family", FORMULAS)
def test_score_terms_norms_and_gates_stand_in_the_formulas(family, tokenizer):
    result = attnviz.load(tiny(family), tokenizer=tokenizer).attend(TEXT)
    steps = attnviz.steps(result, layer=1, head=1)
    for name, formula in FORMULAS[family].items():
        assert steps[name].formula == formula


def test_cross_attention_takes_keys_and_values_from_the_other_sequence(tokenizer):
    result = attnviz.load(tiny("t5"), tokenizer=tokenizer).attend(TEXT, target="late")
    steps = attnviz.steps(result, layer=1, head=2)
    assert steps.stack == "cross"
    assert [stage.name for stage in steps.stages][:2] == ["X", "C"]
    assert steps["K"].formula == "C W^K"
    assert steps["C"].rows == steps["V"].rows == "key"
    assert len(steps["C"].values) == len(steps.keys) == 9
    assert len(steps["X"].values) == len(steps.queries) != 9


def test_padding_is_left_out(model):
    short, _ = model.attend(["the train left", TEXT])
    alone = model.attend("the train left")
    padded, plain = (attnviz.steps(r, layer=2, head=1, word="left") for r in (short, alone))
    assert padded.queries == plain.queries == ("[CLS]", "the", "train", "left", "[SEP]")
    for one, other in zip(padded.stages, plain.stages, strict=True):
        assert_close(one.values, other.values, atol=2e-5, rtol=1e-5)


def test_the_followed_word(model, train):
    steps = attnviz.steps
    assert steps(train, layer=0, head=0).word == "train"  # the first content word
    second = steps(train, layer=0, head=0, word="the#2")
    assert (second.word, second.row) == ("the", 4)
    assert steps(train, layer=0, head=0, word=3).word == "left"
    split = model.attend("unbelievably late")
    first = steps(split, layer=0, head=0, word="unbelievably")
    assert (first.word, first.row) == ("un", 1)
    assert first.notes == (
        "“unbelievably” is 5 pieces, un, ##bel, ##ie, ##va, ##bly; the first is followed",
    )
    assert steps(split, layer=0, head=0, word="##va").row == 4


def test_a_sink_is_a_stage_whose_weight_is_named_and_nothing_requires_grad(tokenizer):
    result = attnviz.load(tiny("gpt-oss"), tokenizer=tokenizer).attend(TEXT)
    assert not result.weights(layer=0, head=0).requires_grad
    steps = attnviz.steps(result, layer=0, head=0)
    assert steps["weights"].formula == "softmax(full, sink)"
    assert not any(stage.values.requires_grad for stage in steps.stages)
    steps = attnviz.steps(result, layer=0, head=0, word="train")
    lost = 1 - steps["weights"].values[steps.row].sum().item()
    assert lost > 0.005
    assert f"{lost:.0%} of the weight of this row goes to a sink, which is no key" in steps.notes
