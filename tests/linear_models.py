"""Tiny models without a softmax, and the matrices of their layers by the equations of the papers.

A recurrence carries what each source token has added to the state, one token after the other. It
takes the arguments of a record, in float64, and the parameters of the module; nothing else of the
code that it is compared with. `decay` is a factor on the logarithm of every decay.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, normalize, silu, softplus
from transformers import (
    Mamba2Config,
    Mamba2Model,
    MambaConfig,
    MambaModel,
    Qwen3NextConfig,
    Qwen3NextModel,
    RwkvConfig,
    RwkvModel,
    xLSTMConfig,
    xLSTMModel,
)

from attnviz.results import LinearAttention

TOKENS = {"mamba": 24, "mamba2": 24, "qwen3_next": 72, "rwkv": 24, "xlstm": 24}
CHUNK = {"mamba2": 8, "qwen3_next": 64, "xlstm": 16}


def build(family: str) -> nn.Module:
    """Return a model whose first layer is linear, with gates that are neither open nor closed."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 30522, "hidden_size": 32, "num_hidden_layers": 1}
    match family:
        case "mamba":
            model = MambaModel(MambaConfig(**sizes, state_size=4))
        case "mamba2":
            config = Mamba2Config(
                **sizes, num_heads=4, head_dim=16, state_size=8, n_groups=2, chunk_size=8
            )
            model = Mamba2Model(config)
        case "qwen3_next":
            model = hybrid(["linear_attention", "full_attention"])  # its cache needs both
        case "rwkv":
            sizes["num_hidden_layers"] = 2  # it initializes no less
            model = RwkvModel(RwkvConfig(**sizes, attention_hidden_size=32, context_length=128))
        case "xlstm":
            sizes |= {"hidden_size": 64, "num_heads": 4, "chunk_size": 16}
            model = xLSTMModel(xLSTMConfig(**sizes, qk_dim_factor=1.0, v_dim_factor=1.0))
    sharpen(model)
    return model.eval()


def hybrid(layer_types: list[str]) -> nn.Module:
    """Return a Qwen3-Next with layers of these types."""
    config = Qwen3NextConfig(
        vocab_size=30522, hidden_size=32, intermediate_size=32, num_hidden_layers=len(layer_types),
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, linear_num_key_heads=1,
        linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=16, num_experts=2,
        num_experts_per_tok=1, moe_intermediate_size=16, shared_expert_intermediate_size=16,
        layer_types=layer_types,
    )  # fmt: skip
    model = Qwen3NextModel(config)
    sharpen(model)
    return model.eval()


class SaturatedSum(torch.nn.Module):
    """Mixes tokens by nothing linear."""

    def forward(self, hidden_states: Tensor, **options: object) -> Tensor:
        return hidden_states.cumsum(dim=1).tanh()


@torch.no_grad()
def sharpen(model: nn.Module) -> None:
    """Redraw matrices so that they preserve the size of vectors, and gates so that they vary."""
    for name, parameter in model.named_parameters():
        last = name.rpartition(".")[2]
        if last == "A_log":
            parameter.copy_(-1.5 + 0.3 * torch.randn_like(parameter))
        elif last in ("dt_bias", "time_decay"):
            parameter.copy_(-1 + 0.3 * torch.randn_like(parameter))
        elif parameter.dim() > 1 and "embed" not in name:
            parameter.copy_(torch.randn_like(parameter) * parameter[0].numel() ** -0.5)


def mamba(record: LinearAttention, module: nn.Module, decay: float = 1.0) -> Tensor:
    """h_t = exp(Δ_t A) h_{t-1} + Δ_t B_t x_t; y_t = (C_t h_t + D x_t) silu(z_t) (Gu & Dao 2023)."""
    a = {name: x.double() for name, x in record.arguments.items()}
    step = softplus(a["dt"] + module.dt_proj.bias.double()[:, None])  # (D, T)
    heads, T = step.shape
    M = torch.zeros(heads, T, T, dtype=torch.float64)
    state = torch.zeros(heads, a["A"].shape[1], T, dtype=torch.float64)  # by source token
    for t in range(T):
        state = state * torch.exp(decay * a["A"] * step[:, t, None])[:, :, None]
        state[:, :, t] += step[:, t, None] * a["B"][:, t]
        M[:, t] = torch.einsum("n,dns->ds", a["C"][:, t], state)
        M[:, t, t] += module.D.double()
    return M * silu(a["z"])[:, :, None]


def mamba2(record: LinearAttention, module: nn.Module, decay: float = 1.0) -> Tensor:
    """h_t = exp(Δ_t A) h_{t-1} + Δ_t B_t x_t, with one A of each head (Dao & Gu 2024)."""
    a = {name: x.double() for name, x in record.arguments.items()}
    step = softplus(a["dt"] + module.dt_bias.double())  # (T, H)
    T, heads = step.shape
    B, C = (a[name].repeat_interleave(heads // a[name].shape[1], dim=1) for name in "BC")
    M = torch.zeros(heads, T, T, dtype=torch.float64)
    state = torch.zeros(heads, B.shape[2], T, dtype=torch.float64)
    for t in range(T):
        state = state * torch.exp(decay * a["A"] * step[t])[:, None, None]
        state[:, :, t] += step[t, :, None] * B[t]
        M[:, t] = torch.einsum("hn,hns->hs", C[t], state)
        M[:, t, t] += module.D.double()
    return M


def gated_delta(
    record: LinearAttention, module: nn.Module, decay: float = 1.0, *, erase: bool = True
) -> Tensor:
    """S_t = α_t (I - β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ; o_t = S_tᵀ q_t (Yang et al. 2024)."""
    a = {name: x.double() for name, x in record.arguments.items()}
    T, heads = a["beta"].shape
    q, k = (normalize(a[name], dim=-1) for name in ("query", "key"))
    q, k = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (q, k))
    M = torch.zeros(heads, T, T, dtype=torch.float64)
    state = torch.zeros(heads, k.shape[-1], T, dtype=torch.float64)
    for t in range(T):
        state = state * torch.exp(decay * a["g"][t])[:, None, None]
        new = torch.zeros(heads, T, dtype=torch.float64)
        new[:, t] = 1
        if erase:
            new -= torch.einsum("hk,hks->hs", k[t], state)
        state = state + a["beta"][t, :, None, None] * k[t][:, :, None] * new[:, None]
        M[:, t] = torch.einsum("hk,hks->hs", q[t], state) * k.shape[-1] ** -0.5
    return M


def rwkv(record: LinearAttention, module: nn.Module, decay: float = 1.0) -> Tensor:
    """Weights exp(-(t-1-s) w + k_s), and exp(u + k_t) for s = t, normalized (Peng et al. 2023)."""
    key = record.arguments["key"].double().T  # (D, T)
    w = decay * module.time_decay.double().exp()
    T = key.shape[1]
    past = torch.arange(T)[:, None] - 1 - torch.arange(T)
    logs = -past * w[:, None, None] + key[:, None]
    logs.diagonal(dim1=1, dim2=2).copy_(module.time_first.double()[:, None] + key)
    return logs.masked_fill(past < -1, -torch.inf).softmax(-1)


def mlstm(record: LinearAttention, module: nn.Module, decay: float = 1.0) -> Tensor:
    """C_t = f_t C_{t-1} + i_t v_t k_tᵀ, n_t = f_t n_{t-1} + i_t k_t (Beck et al. 2024).

    h_t = C_t q_t / max(|n_tᵀ q_t|, 1), with the gates stabilized by their running maximum m_t.
    """
    a = {name: x.double() for name, x in record.arguments.items()}
    logs = (decay * logsigmoid(a["fgate"])).cumsum(-1)
    gates = logs[:, :, None] - logs[:, None] + a["igate"][:, None]
    gates = gates.masked_fill(torch.ones(gates.shape[1:], dtype=torch.bool).triu(1), -torch.inf)
    largest = gates.amax(-1, keepdim=True).maximum(
        logs[:, :, None]
    )  # the first state is 0, m_0 = 0
    scores = a["query"] @ a["key"].mT * a["key"].shape[-1] ** -0.5 * torch.exp(gates - largest)
    total = scores.sum(-1, keepdim=True).abs()
    return scores / (total.maximum(torch.exp(-largest)) + 1e-6)


RECURRENCES = {
    "mamba": mamba, "mamba2": mamba2, "qwen3_next": gated_delta, "rwkv": rwkv, "xlstm": mlstm,
}  # fmt: skip
