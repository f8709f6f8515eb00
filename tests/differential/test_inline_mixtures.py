"""Mixtures in the code of a module, or in an operator of its own, against the papers' equations."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from linear_models import sharpen
from torch import Tensor
from torch.nn.functional import normalize
from transformers import (
    AutoformerConfig,
    AutoformerModel,
    MiniMaxConfig,
    MiniMaxModel,
    MobileViTV2Config,
    MobileViTV2Model,
    YosoConfig,
    YosoModel,
)

from attnviz.agreement import verify
from attnviz.capture.capture import Capture, capture
from attnviz.results import LinearAttention


def minimax() -> tuple[torch.nn.Module, dict[str, Tensor]]:
    config = MiniMaxConfig(
        vocab_size=30522, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, num_local_experts=2,
        block_size=8, layer_types=["linear_attention", "full_attention"],
    )  # fmt: skip
    return MiniMaxModel(config), {"input_ids": torch.randint(30522, (1, 20))}


def lightning(record: LinearAttention, module: torch.nn.Module) -> Tensor:
    """S_t = λ S_{t-1} + k_t v_tᵀ; o_t = S_tᵀ q_t (Qin et al. 2024)."""
    T, heads = len(record.query_axis), module.num_attention_heads
    q, k, _ = record.arguments["act_fn"].double().reshape(T, heads, 3, -1).unbind(2)
    decay = torch.exp(-module.slope_rate.double()).flatten()
    M = torch.zeros(heads, T, T, dtype=torch.float64)
    state = torch.zeros(heads, k.shape[-1], T, dtype=torch.float64)  # by source token
    for t in range(T):
        state = state * decay[:, None, None]
        state[:, :, t] += k[t]
        M[:, t] = torch.einsum("hk,hks->hs", q[t], state)
    return M


def autoformer() -> tuple[torch.nn.Module, dict[str, Tensor]]:
    config = AutoformerConfig(
        prediction_length=4, context_length=14, lags_sequence=[1], d_model=16, encoder_layers=1,
        decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, input_size=1,
        num_time_features=1, label_length=4, autocorrelation_factor=2,
    )  # fmt: skip
    past, future = torch.randn(1, 15), torch.randn(1, 4)
    inputs = {
        "past_values": past, "past_time_features": torch.randn(1, 15, 1),
        "past_observed_mask": torch.ones(1, 15), "future_values": future,
        "future_time_features": torch.randn(1, 4, 1),
    }  # fmt: skip
    return AutoformerModel(config), inputs


def autocorrelation(record: LinearAttention, module: torch.nn.Module) -> Tensor:
    """y_t = Σ_i softmax(R(τ_i)) v_{t+τ_i}, the τ_i of the largest R = q ⋆ k (Wu et al. 2021)."""
    q, k = (record.arguments[name].double() for name in ("q_proj", "k_proj"))
    T = len(q)
    rows = torch.arange(T)
    products = q @ k.T / q.shape[1]
    delays = torch.stack([products[(rows + delay) % T, rows].sum() for delay in range(T)])
    top = delays.topk(int(module.autocorrelation_factor * math.log(T)))
    M = torch.zeros(T, T, dtype=torch.float64)
    for weight, delay in zip(top.values.softmax(0), top.indices, strict=True):
        M[rows, (rows + delay) % T] += weight
    return M


def mobilevit() -> tuple[torch.nn.Module, dict[str, Tensor]]:
    config = MobileViTV2Config(
        image_size=64, base_attn_unit_dims=[8, 16, 16], n_attn_blocks=[1, 1, 1]
    )
    model = MobileViTV2Model(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # without them hardly anything is left after so many layers
            torch.nn.init.normal_(parameter)
    return model, {"pixel_values": torch.randn(1, 3, 64, 64)}


def separable(record: LinearAttention, module: torch.nn.Module) -> Tensor:
    """y_t = relu(v_t) Σ_s softmax(q)_s k_s: the “values” of the mixture are k (Mehta 2022)."""
    query, _, value = record.arguments["qkv_proj"].double().split([1, *2 * [module.embed_dim]])
    weights = query.softmax(-1)
    return (value.relu()[..., None] * weights[..., None, :]).flatten(0, 1)


def yoso() -> tuple[torch.nn.Module, dict[str, Tensor]]:
    config = YosoConfig(
        vocab_size=30522, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, hash_code_len=4,
    )  # fmt: skip
    return YosoModel(config), {"input_ids": torch.randint(30522, (1, 20))}


def collisions(record: LinearAttention, module: torch.nn.Module) -> Tensor:
    """The chance that q and k fall on one side of each of τ planes (Zeng et al. 2021)."""
    q, k = (normalize(record.arguments[name].double(), dim=-1) for name in ("query", "key"))
    return (1 - torch.acos((q @ k.mT).clamp(-1, 1)) / torch.pi) ** module.hash_code_len


FAMILIES = {
    "minimax": (minimax, lightning),
    "autoformer": (autoformer, autocorrelation),
    "mobilevitv2": (mobilevit, separable),
    "yoso": (yoso, collisions),
}


def captured(family: str) -> tuple[torch.nn.Module, Capture]:
    torch.manual_seed(0)
    model, inputs = FAMILIES[family][0]()
    sharpen(model)
    for name, parameter in model.named_parameters():
        if "q_proj" in name or "k_proj" in name:  # else 1 % of them hardly changes the weights
            parameter.data *= 3
    (one,) = capture(model.eval(), inputs)
    return model, one


@pytest.mark.parametrize("family", FAMILIES)
def test_the_matrix_is_that_of_the_paper(family):
    model, one = captured(family)
    pairs = [pair for pair in zip(one.records, one.references, strict=True) if pair[0].signed]
    record, reference = pairs[0]
    assert isinstance(record, LinearAttention)
    expected = FAMILIES[family][1](record, model.get_submodule(record.path))
    largest = expected.abs().amax((-2, -1), keepdim=True).clamp(min=1e-6)
    assert ((record.matrix - expected).abs() / largest).max() < 1e-5
    T = len(record.query_axis)
    assert (expected * (1 - torch.eye(T))).any()
    for wrong in (record.matrix, record.matrix.roll(1, dims=2), record.matrix * 1.01):
        report = verify(
            [replace(record, matrix=wrong)], [reference], versions={}, weights_sha256=""
        )
        assert report.verdict == ("verified" if wrong is record.matrix else "failed")


def test_queries_may_read_other_positions():
    _, one = captured("autoformer")
    shapes = {record.path: record.matrix.shape[1:] for record in one.records}
    assert shapes["decoder.layers.0.encoder_attn"] == (8, 14)


def test_hooks_of_the_user_run_as_often_as_the_model():
    model, inputs = minimax()
    seen = []
    model.layers[0].self_attn.act_fn.register_forward_hook(lambda *_: seen.append(1))
    counted = []
    model.register_forward_hook(lambda *_: counted.append(1))
    capture(model.eval(), inputs)
    assert len(seen) == len(counted) > 0


def test_the_model_is_restored():
    model, inputs = yoso()
    from transformers.models.yoso.modeling_yoso import YosoCumulation

    capture(model.eval(), inputs)
    assert "apply" not in vars(YosoCumulation)
    assert not any("forward" in vars(module) for module in model.modules())
