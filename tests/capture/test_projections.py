"""Properties found in a module: layouts, rotary angles, and the contribution of each head."""

import pytest
import torch
from families import TARGETS, TEXTS, tiny
from torch import nn
from transformers.pytorch_utils import Conv1D

import attnviz
from attnviz.capture.capture import capture
from attnviz.capture.projections.find import (
    Sizes,
    angles,
    find_attention_modules,
    layouts,
    linear_child,
    norms,
    plain_linear,
    read_inputs,
)
from attnviz.formula.projection import rotary_angles
from attnviz.inputs.batch import Inputs, encode
from attnviz.results import (
    Rotation,
)
from attnviz.results.projection import follow, source


def captured(family, tokenizer):
    model = attnviz.load(tiny(family), tokenizer=tokenizer)
    targets = TARGETS[:1] if model.module.config.is_encoder_decoder else None
    batch = encode(model.checkpoint, Inputs(TEXTS[:1], targets=targets))
    return capture(model.module, batch.inputs, batch.axes)[0]


@pytest.mark.parametrize(
    "family",
    [
        "bert",
        "gpt2",
        "llama",
        "gpt-neox",
        "gpt-bigcode",
        "phi3",
        "glm",
        "deepseek-v3",
        "bart",
        "t5",
    ],
)
def test_head_contributions_sum_to_the_output(family, tokenizer):
    """Σ_h A_h (X W_h^V + b_h) W_h^O + b^O equals the output of the module."""
    each = captured(family, tokenizer)
    for record, reference in zip(each.records, each.references, strict=True):
        projection = record.projection
        X = follow(projection.value.before, source(record, "value").double())
        output = torch.zeros(())
        part, shared = projection.value, record.heads // len(projection.value.weight)
        for head in range(record.heads):
            values = X @ part.weight[head // shared].double()
            if part.bias is not None:
                values = values + part.bias[head // shared]
            mixed = record.weights(head, dtype=torch.float64) @ values
            output = output + mixed @ projection.output.weight.chunk(record.heads)[head].double()
        if projection.output.bias is not None:
            output = output + projection.output.bias
        torch.testing.assert_close(output.float(), reference.output, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["bert", "gpt2", "gpt-neox", "phi3", "deepseek-v3"])
def test_matrices_are_copies_that_texts_share(family, tokenizer):
    model = attnviz.load(tiny(family), tokenizer=tokenizer)
    own = {each.untyped_storage().data_ptr() for each in model.module.parameters()}
    for records in zip(*model.attend(TEXTS[:2]), strict=True):
        for part in ("query", "key", "value", "output"):
            first, second = (getattr(record.projection, part).weight for record in records)
            assert first.untyped_storage().data_ptr() not in own
            assert first.data_ptr() == second.data_ptr()


class Fused(nn.Module):
    """A module with one fused matrix; column c of W holds the number c."""

    def __init__(self, columns):
        super().__init__()
        self.qkv_proj = nn.Linear(1, columns, bias=False)
        self.qkv_proj.weight.data = torch.arange(float(columns)).unsqueeze(-1)


def columns(part):
    return part.weight[:, 0].int().tolist()


def test_every_layout_of_a_fused_matrix_two_heads_two_features():
    found = {
        stage: [columns(part) for part in layouts(Fused(12), stage, Sizes(2, 2, 2))]
        for stage in ("query", "key", "value")
    }
    # Side by side, then head by head; then both with the values before the keys.
    assert found["query"] == [[[0, 1], [2, 3]], [[0, 1], [6, 7]]] * 2
    assert found["key"][:2] == [[[4, 5], [6, 7]], [[2, 3], [8, 9]]]
    assert found["key"][2:] == found["value"][:2] == [[[8, 9], [10, 11]], [[4, 5], [10, 11]]]


def test_a_fused_matrix_of_grouped_heads_and_one_that_is_too_narrow():
    sizes = Sizes(4, 1, 1)  # four queries and two key heads: q q q q k k v v, or q q k v, twice
    assert [columns(part) for part in layouts(Fused(8), "key", sizes)][:2] == [
        [[4], [5]],
        [[2], [6]],
    ]
    assert [columns(part) for part in layouts(Fused(8), "query", sizes)][1] == [[0], [1], [4], [5]]
    assert [*layouts(Fused(4), "key", sizes)] == []


def test_plain_matrices_and_extra_steps():
    linear, conv = nn.Linear(3, 2), Conv1D(2, 3)  # Conv1D takes its widths in the opposite order
    for module in (linear, conv):
        X = torch.randn(4, 3)
        found = plain_linear(module)
        torch.testing.assert_close(X @ found.weight + found.bias, module(X))
    assert plain_linear(nn.Sequential(linear)) is None
    assert plain_linear(nn.LayerNorm(3)) is None
    assert plain_linear(None) is None
    adapted = nn.Linear(3, 2)
    adapted.adapter = nn.Linear(3, 2)
    assert plain_linear(adapted) is None
    assert linear_child(nn.ModuleDict({"q": linear, "k": adapted}), "k", "query", "q") is not None


def test_mixing_without_attention_has_no_holder():
    mixer = nn.Module()
    mixer.in_proj, mixer.out_proj = nn.Linear(8, 32), nn.Linear(16, 8)
    assert find_attention_modules(nn.ModuleDict({"mixer": mixer})) == {}


def test_one_norm_per_head_is_stacked_and_one_for_all_is_wide():
    module = nn.Module()
    module.q_norm = nn.ModuleList([nn.LayerNorm(3) for _ in range(2)])
    module.k_norm = nn.RMSNorm(6, eps=0.5)
    query = next(norms(module, ("q_norm",), 2, 3))
    assert (query.kind, query.over, query.weight.shape) == ("layer", "head", (2, 3))
    key = next(norms(module, ("missing", "k_norm"), 2, 3))
    assert (key.kind, key.over, key.eps) == ("rms", "width", 0.5)
    assert [*norms(module, ("missing",), 2, 3)] == []


def test_angles_in_every_form_that_models_pass():
    cos, sin = rotary_angles(torch.arange(5), 6)
    expected = cos.unsqueeze(0), sin.unsqueeze(0)
    once = cos[:, :3], sin[:, :3]
    pairs = tuple(part.repeat_interleave(2, -1) for part in once)
    forms = {
        "halves": (cos, sin),
        "once": once,
        "side by side": pairs,
        "with a dimension for heads": tuple(part[None, None] for part in (cos, sin)),
        "complex": torch.complex(*once),
        "sines, then cosines": torch.cat(once[::-1], -1),
    }
    for name, form in forms.items():
        found = angles(form)
        assert all(torch.equal(*both) for both in zip(found, expected, strict=True)), name
    assert angles(None) is None
    assert angles((cos, sin[:2])) is None
    assert angles((1, 2)) is None


def test_inputs_are_found_by_name_or_position():
    class Attention(nn.Module):
        def forward(self, states, mask=None, position_embeddings=None, key_value_states=None):
            raise NotImplementedError

    X, cos = torch.ones(1, 2, 4), torch.ones(2, 4)
    for args, kwargs in [
        ((X, None, (cos, cos), X), {}),
        ((), {"states": X, "position_embeddings": (cos, cos), "key_value_states": X}),
    ]:
        found = read_inputs(Attention(), args, kwargs, texts=1, rotations={})
        assert torch.equal(found.input, X)
        assert torch.equal(found.key_input, X)
        assert found.input is not X  # the model may modify it later
        assert found.rotation[0].shape == (1, 2, 4)
    nothing = read_inputs(Attention(), (), {}, texts=1, rotations={})
    assert (nothing.input, nothing.key_input, nothing.rotation) == (None, None, None)
    of_pictures = {"position_embeddings": (cos.expand(3, 1, 2, 4),) * 2}
    assert read_inputs(Attention(), (X,), of_pictures, texts=1, rotations={}).rotation is None


def test_angles_that_modules_share_are_read_once_while_nothing_writes_them():
    class Attention(nn.Module):
        def forward(self, states, position_embeddings=None):
            raise NotImplementedError

    both, known = (torch.ones(2, 4), torch.zeros(2, 4)), {}

    def rotation(given):
        return read_inputs(Attention(), (), {"position_embeddings": given}, 1, known).rotation

    first = rotation(both)
    assert rotation(both)[0] is first[0]
    assert rotation((both[0].clone(), both[1]))[0] is not first[0]
    both[0].mul_(0.5)
    assert rotation(both)[0].max() == 0.5


def test_a_step_with_missing_inputs_is_refused():
    with pytest.raises(ValueError, match="Rotation needs angles or the input"):
        follow((Rotation(),), torch.ones(1, 2, 4))
