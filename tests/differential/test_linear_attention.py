"""Linear attention: its matrices against the papers' recurrences, and planted faults."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from linear_models import CHUNK, RECURRENCES, TOKENS, SaturatedSum, build, hybrid
from transformers import Mamba2Model

import attnviz
from attnviz import InputError
from attnviz.agreement import verify
from attnviz.capture.capture import capture
from attnviz.results import LinearAttention, LinearReference

FAMILIES = [*RECURRENCES]


@cache
def captured(
    family: str, dtype: torch.dtype = torch.float32
) -> tuple[LinearAttention, LinearReference, torch.nn.Module]:
    """Return the record of the first linear layer, its reference and its module."""
    model = build(family).to(dtype)
    ids = torch.randint(30522, (1, TOKENS[family]), generator=torch.Generator().manual_seed(0))
    (one,) = capture(model, {"input_ids": ids})
    pairs = zip(one.records, one.references, strict=True)
    record, reference = next(pair for pair in pairs if pair[0].signed)
    assert isinstance(record, LinearAttention)
    assert isinstance(reference, LinearReference)
    return record, reference, model.get_submodule(record.path)


def verdict(record: LinearAttention, reference: LinearReference) -> str:
    report = verify([record], [reference], versions={}, weights_sha256="")
    return report.verdict


@pytest.mark.parametrize("family", FAMILIES)
def test_the_matrix_is_that_of_the_papers_recurrence(family):
    record, reference, module = captured(family)
    expected = RECURRENCES[family](record, module)
    assert expected.abs().triu(1).max() == 0
    assert (expected.tril(-1) != 0).any()
    largest = expected.abs().amax((1, 2), keepdim=True)
    assert ((record.matrix - expected).abs() / largest).max() < 1e-5
    mixed = record.matrix.double() @ record.value.double()
    assert (mixed - reference.head_output).abs().max() <= 1e-5 * mixed.abs().max()
    assert verdict(record, reference) == "verified"


def faults(
    family: str, record: LinearAttention, module: torch.nn.Module
) -> dict[str, torch.Tensor]:
    """Return wrong matrices by what is wrong with them."""
    M, recurrence = record.matrix, RECURRENCES[family]
    exact = recurrence(record, module)
    wrong = {
        "decay off by 1 %": M + (recurrence(record, module, decay=1.01) - exact).float(),
        "heads swapped": M.flip(0),
        "off by one token": M.roll(1, dims=2).tril(),
    }
    if family in CHUNK:  # what lies before the chunk of a query is not read
        chunk = torch.arange(M.shape[1]) // CHUNK[family]
        wrong["wrong chunk boundary"] = M * (chunk[:, None] == chunk)
    if family == "qwen3_next":
        wrong["erase term left out"] = recurrence(record, module, erase=False).float()
    if family == "mamba":
        gate = torch.nn.functional.silu(record.arguments["z"])
        wrong["gate left out"] = M / gate[:, :, None]
    else:  # as if no decay were applied
        wrong["gate left out"] = M + (recurrence(record, module, decay=0.0) - exact).float()
    return wrong


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
def test_planted_faults_are_caught(family, dtype):
    record, reference, module = captured(family, dtype)
    assert verdict(record, reference) == "verified"
    for fault, matrix in faults(family, record, module).items():
        assert verdict(replace(record, matrix=matrix), reference) == "failed", fault
    values = record.value.clone()
    values[-1] *= 1.01
    assert verdict(replace(record, value=values), reference) == "failed", "values 1 % off"


def test_a_slope_in_half_precision_is_judged_as_in_float32():
    record, reference, _ = captured("mamba", torch.bfloat16)
    report = verify([record], [reference], versions={}, weights_sha256="")
    (check,) = (one for one in report.checks if one.stage == "head output")
    assert check.largest_difference > 1e-4  # the result itself is rounded
    assert max(map(abs, check.slope_errors)) < 1e-6
    assert max(check.slope_tolerances) < 1e-3
    off = reference.rounding + 0.001 * reference.head_output
    assert verdict(record, replace(reference, rounding=off)) == "failed"
    # A function that gives other bits when it is called again is judged by what it rounds.
    assert verdict(record, replace(reference, reproduced=False)) != "failed"
    other = reference.rounding.flip(1)  # as large
    assert verdict(record, replace(reference, rounding=other, reproduced=False)) != "failed"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_matrix_of_a_text_of_one_token_is_one_number(family):
    (one,) = capture(build(family), {"input_ids": torch.tensor([[5]])})
    signed = [record for record in one.records if record.signed]
    assert signed
    assert {record.matrix.shape[1:] for record in signed} == {(1, 1)}


class Mixture(torch.nn.Module):
    """Mixes all tokens of a table of pairs, along its rows or along its columns."""

    def __init__(self, *, by_rows: bool) -> None:
        super().__init__()
        self.by_rows = by_rows
        self.gate = torch.nn.Linear(4, 4)
        self.values = torch.nn.Linear(4, 4)

    def combine(self, gates, values):
        if self.by_rows:
            return torch.einsum("nikd,njkd->nijd", gates, values)
        return torch.einsum("nkid,nkjd->nijd", gates, values)

    def forward(self, table):
        return self.combine(self.gate(table).sigmoid(), self.values(table))


def test_a_method_may_do_something_else_by_a_switch_of_its_module():
    torch.manual_seed(0)
    model = torch.nn.ModuleList([Mixture(by_rows=True), Mixture(by_rows=False)])
    model.forward = lambda table: model[1](model[0](table))
    (one,) = capture(model.eval(), {"table": torch.randn(1, 6, 6, 4)})
    for pair in zip(one.records, one.references, strict=True):
        assert verdict(*pair) != "failed"
    assert len(one.records) == 2


def test_an_argument_that_goes_unnoticed_proves_nothing():
    record, reference, _ = captured("mamba2")
    blind = replace(reference, canaries={"dt": reference.head_output})
    assert verdict(record, blind) != "verified"
    assert verdict(record, replace(reference, canaries={})) == "not proven"


def test_settings_of_a_saved_model_may_be_lists(tmp_path):
    build("mamba2").save_pretrained(tmp_path)
    model = Mamba2Model.from_pretrained(tmp_path)
    assert isinstance(model.config.time_step_limit, list)
    (one,) = capture(model, {"input_ids": torch.arange(20)[None]})
    assert [record.signed for record in one.records] == [True]


@pytest.fixture(scope="module")
def mixed(tokenizer):
    """A result of two linear layers and one of softmax attention."""
    model = hybrid(["linear_attention", "linear_attention", "full_attention"])
    before = {name: vars(type(m)).get("forward") for name, m in model.named_modules()}
    result = attnviz.load(model, tokenizer=tokenizer).attend("the train left the station on time")
    assert before == {name: vars(type(m)).get("forward") for name, m in model.named_modules()}
    return result


def test_a_hybrid_says_which_layers_are_which(mixed):
    assert mixed.stacks == ("decoder", "linear")
    assert [record.signed for record in mixed.records] == [False, True, True]
    assert any("1 of 3 layers that mix tokens is softmax attention" in n for n in mixed.notes)
    assert "4 of linear attention" in mixed.agreement.summary()
    assert mixed.agreement.verdict == "verified"
    assert len(mixed.without_linear("steps need").records) == 1
    with pytest.raises(InputError, match="has linear attention only"):
        mixed.stack("linear").without_linear("the page shows")


def test_layers_of_another_kind_are_named(tokenizer):
    model = hybrid(["linear_attention", "full_attention"])
    model.layers[0].linear_attn = SaturatedSum()
    notes = " ".join(attnviz.load(model, tokenizer=tokenizer).attend("the train left").notes)
    assert "not shown: 1 layer with SaturatedSum" in notes


def test_signed_maps_are_drawn_around_zero(mixed, tmp_path):
    stack = mixed.stack("linear")
    ax = attnviz.plot.heatmap(stack, layer=1, head=0)
    (mesh, *_) = ax.collections
    assert mesh.norm.vmin == -mesh.norm.vmax == -stack.weights(1, 0).abs().max()
    assert "largest weight between two words" in ax.figure.texts[0].get_text()
    drawn = attnviz.attention_map(stack, layer=1, head=0, special="remove")
    assert torch.equal(drawn.weights, stack.weights(1, 0)[1:-1, 1:-1])  # not renormalized
    stack.save(tmp_path / "linear.safetensors")
    again = attnviz.load_result(tmp_path / "linear.safetensors")
    assert torch.equal(again.weights(1, 0), stack.weights(1, 0))
    assert again.agreement.verdict == "verified"
    with pytest.raises(InputError, match="Scores need a softmax"):
        again.records[0].scores()
