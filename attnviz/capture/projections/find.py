"""Where an attention module keeps its weights: found by the names of what it holds.

No model family is named here. What is found is handed on as plain matrices, in the orientation of
the formula: X W + b.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.results import Linear, Norm

# The names under which transformers' attention modules keep their projections.
SEPARATE = (
    ("query", "key", "value"),
    ("q_proj", "k_proj", "v_proj"),
    ("q_lin", "k_lin", "v_lin"),
    ("query_proj", "key_proj", "value_proj"),
    ("linear_q", "linear_k", "linear_v"),
    ("Wq", "Wk", "Wv"),
    ("q", "k", "v"),
)
FUSED = ("c_attn", "qkv_proj", "query_key_value", "Wqkv", "qkv", "W_pack", "in_proj")
KEY_AND_VALUE = (("q_attn", "c_attn"), ("q_proj", "kv_proj"))
# Latent attention: X → narrow vector → norm → heads; part of the narrow vector turns.
LATENT_QUERY = (("q_a_proj",), ("q_a_layernorm", "q_a_norm"), ("q_b_proj",))
LATENT_KEY_AND_VALUE = (("kv_a_proj_with_mqa",), ("kv_a_layernorm", "kv_a_norm"), ("kv_b_proj",))
_OUTPUT = ("o_proj", "out_proj", "out_lin", "c_proj", "dense", "o", "linear_out", "proj", "Wo")
_OUTPUT_OF_PARENT = ("output.dense",)  # the parent holds W^O, the child the heads
QUERY_NORMS = ("q_norm", "query_layernorm", "q_layernorm", "q_layer_norm", "query_norm", "qk_norm")
KEY_NORMS = ("k_norm", "key_layernorm", "k_layernorm", "k_layer_norm", "key_norm", "qk_norm")
VALUE_NORMS = ("v_norm", "value_layernorm", "v_layernorm", "value_norm")
GATES = ("gate_proj", "g_proj", "output_gate", "gate")
OUTPUT_NORMS = ("attn_sub_norm", "inner_attn_ln", "sub_norm", "o_norm")  # of what enters W^O
_EPS = ("variance_epsilon", "eps", "epsilon")


@dataclass(frozen=True, eq=False)
class Holder:
    """One attention module, and the module that multiplies its heads by W^O (or None)."""

    module: nn.Module
    output: nn.Module | None


def find_holders(model: nn.Module) -> dict[str, Holder]:
    """Return every module that holds what makes queries, keys and values, by its path."""
    return {
        path: Holder(module, find_output(model, path))
        for path, module in model.named_modules()
        if _holds_attention(module)
    }


def find_output(model: nn.Module, path: str) -> nn.Module | None:
    """Return the module that multiplies the concatenated heads by W^O, or None."""
    parent, _, _ = path.rpartition(".")
    candidates = [f"{path}.{name}" for name in _OUTPUT]
    candidates += [f"{parent}.{name}" for name in _OUTPUT_OF_PARENT]
    for candidate in candidates:
        try:
            module = model.get_submodule(candidate.lstrip("."))
        except AttributeError:
            continue
        if isinstance(getattr(module, "weight", None), Tensor):
            return module
    return None


def _holds_attention(module: nn.Module) -> bool:
    # Values may be made by the matrix of the keys.
    needed = [names[:2] for names in SEPARATE] + [*KEY_AND_VALUE]
    needed += [LATENT_KEY_AND_VALUE[0] + LATENT_KEY_AND_VALUE[2]]
    return fused(module) is not None or any(
        all(held(module, name) is not None for name in names) for names in needed
    )


def fused(module: nn.Module) -> Linear | None:
    """Return the one matrix of a module that makes queries, keys and values."""
    for name in FUSED:
        linear = held(module, name)
        # What enters other mixers than attention bears this name too; it has other widths.
        if linear is None or (name == "in_proj" and not _in_three(module, linear)):
            continue
        if not any(name == both and held(module, query) for query, both in KEY_AND_VALUE):
            return linear
    return None


def _in_three(module: nn.Module, linear: Linear) -> bool:
    d_in, d_out = linear.weight.shape
    return d_out == 3 * d_in and any("head" in name for name in vars(module))


def held(module: nn.Module, *names: str) -> Linear | None:
    """Return the first of these children that is a plain matrix (and a bias)."""
    found = (plain(getattr(module, name, None)) for name in names)
    return next((linear for linear in found if linear is not None), None)


def plain(child: Any) -> Linear | None:
    """Return W (d_in, d_out) and b as views of a module that does nothing but X W + b, else None.

    torch's Linear stores Wᵀ, transformers' Conv1D stores W. A child with children of its own (an
    adapter, a quantised layer) does more than multiply.
    """
    weight, bias = getattr(child, "weight", None), getattr(child, "bias", None)
    if not isinstance(child, nn.Module) or any(child.children()):
        return None
    if not isinstance(weight, Tensor) or weight.dim() != 2 or not weight.is_floating_point():
        return None
    stored_transposed = not hasattr(child, "nf")  # as Conv1D calls its width
    return Linear(
        weight.detach().mT if stored_transposed else weight.detach(),
        bias.detach() if isinstance(bias, Tensor) else None,
    )


def norms(module: nn.Module, names: tuple[str, ...], heads: int, width: int) -> Iterator[Norm]:
    """Return what the norm among these children may do to `heads` heads, the likeliest first."""
    children = (getattr(module, name, None) for name in names)
    child = next((child for child in children if isinstance(child, nn.Module)), None)
    if child is None:
        return
    parts = [part for part in child.modules() if not any(part.children())]  # one for each head?
    weight, bias = _stacked(parts, "weight"), _stacked(parts, "bias")
    whole = weight is not None and weight.dim() == 1 and weight.numel() == heads * width
    kind = type(parts[0]).__name__
    centred = bias is not None or ("Layer" in kind and "RMS" not in kind)
    for centre in (centred, not centred):
        for offset in (0.0, 1.0) if weight is not None else (0.0,):
            yield Norm(
                kind="layer" if centre else "rms",
                over="width" if whole and heads > 1 else "head",
                weight=weight,
                bias=bias,
                eps=_eps(parts[0]),
                offset=offset,
            )


def _stacked(parts: list[nn.Module], name: str) -> Tensor | None:
    found = [getattr(part, name, None) for part in parts]
    tensors = [value.detach() for value in found if isinstance(value, Tensor)]
    if not tensors or len(tensors) < len(parts):
        return None
    return tensors[0] if len(tensors) == 1 else torch.stack(tensors)


def _eps(norm: nn.Module) -> float:
    found = (getattr(norm, name, None) for name in _EPS)
    return next((float(eps) for eps in found if eps is not None), 1e-6)
