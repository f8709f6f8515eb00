"""The stages of a head without a softmax: arguments, V, M and M V."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from linear_models import RECURRENCES, build

import attnviz
from attnviz import InputError

TEXT = "the train left the station on time"


@pytest.fixture(scope="module", params=[*RECURRENCES])
def attended(request, tokenizer):
    model = attnviz.load(build(request.param), tokenizer=tokenizer)
    return request.param, model.attend(TEXT).stack("linear")


def test_the_stages_are_the_arguments_and_the_mixture(attended):
    _, result = attended
    record = result.record(0)
    steps = attnviz.steps(result, layer=0, head=1, word="station")
    assert torch.equal(steps["weights"].values, record.matrix[1].double())
    mixed = record.matrix[1].double() @ record.value[1].double()
    assert torch.equal(steps["A"].values, mixed)
    assert (steps.contributions.sum(0) - mixed[steps.row]).abs().max() <= 1e-12 * mixed.abs().max()
    assert {stage.name for stage in steps if stage.passed} == {"weights", "A"}
    assert {stage.why_not for stage in steps if stage.passed is None} == {"not compared by itself"}
    shown = [name for name in record.arguments if name in steps]
    assert shown
    assert any("weights are signed" in note for note in steps.notes)


def test_a_head_has_its_own_part_of_each_argument(attended):
    family, result = attended
    record = result.record(0)
    expected = {
        "mamba": {"dt": 0, "A": 0, "z": 0},
        "mamba2": {"dt": 1, "A": 0, "B": 1, "C": 1},
        "qwen3_next": {"g": 1, "beta": 1},
        "rwkv": {"key": 1},
        "xlstm": {"query": 0, "key": 0, "igate": 0, "fgate": 0},
    }[family]
    assert record.head_dims == expected
    for name in expected.keys() - {"A"}:
        tensor, head = record.arguments[name], record.heads - 1
        last = tensor.select(expected[name], -1).reshape(len(record.query_axis), -1)
        if tensor.dim() == 2 and expected[name] == 0:
            last = tensor[-1][:, None]
        assert torch.equal(record.argument_of(name, head), last), name
    if family == "mamba2":  # four heads share two groups of B
        assert torch.equal(record.argument_of("B", 1), record.arguments["B"][:, 0])
        assert torch.equal(record.argument_of("B", 2), record.arguments["B"][:, 1])


def test_a_wrong_matrix_differs_in_the_stage(attended):
    _, result = attended
    wrong = [
        replace(check, differences=(1.0,) * len(check.differences), failed_heads=(1,))
        if check.stage == "weights"
        else check
        for check in result.agreement.checks
    ]
    failed = replace(result, agreement=replace(result.agreement, checks=tuple(wrong)))
    assert attnviz.steps(failed, layer=0, head=1)["weights"].passed is False
    assert attnviz.steps(result, layer=0, head=1)["weights"].passed is True


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("width", [89, 183])
def test_a_figure_names_the_arguments_and_m(attended, width):
    _, result = attended
    steps = attnviz.steps(result, layer=0, head=1, word="station")
    figure = steps.plot(width=width)
    texts = [text.get_text() for text in figure.findobj(lambda one: hasattr(one, "get_text"))]
    assert {"Matrix M", "Outputs y"} <= {*texts}
    assert any("weights are signed" in text for text in texts)
    meshes = [mesh for ax in figure.axes for mesh in ax.collections]
    assert any(mesh.norm.vmin == -mesh.norm.vmax for mesh in meshes if mesh.get_array() is not None)


def test_pooled_maps_have_no_steps(tokenizer):
    model = attnviz.load(build("mamba2"), tokenizer=tokenizer)
    result = model.attend(f"{TEXT} " * 5, cells=8)
    with pytest.raises(InputError, match="those of this long text are pooled"):
        attnviz.steps(result, layer=0, head=1)


def test_steps_are_saved_and_loaded(tokenizer, tmp_path):
    result = attnviz.load(build("mamba"), tokenizer=tokenizer).attend(TEXT)
    result.save(tmp_path / "linear.safetensors")
    again = attnviz.load_result(tmp_path / "linear.safetensors")
    assert again.records[0].head_dims == result.records[0].head_dims
    steps = attnviz.steps(again, layer=0, head=5)
    assert "dt" in steps
    assert "A" in steps
    assert "argument A" not in steps  # it has no row for each token
