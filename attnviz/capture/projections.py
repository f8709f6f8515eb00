"""Where an attention module keeps W^Q, W^K, W^V and W^O: found by looking at the module.

No model family is named here. A module is recognised by the names that its projections bear in
transformers, and what it holds is returned as plain matrices in the orientation X W + b.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from attnviz.records import HeadNorm, Linear, Projection

# The names under which transformers' attention modules keep their projections.
_SEPARATE = (
    ("query", "key", "value"),
    ("q_proj", "k_proj", "v_proj"),
    ("q_lin", "k_lin", "v_lin"),
    ("q", "k", "v"),
)
_FUSED = ("c_attn",)  # Q, K and V side by side in one matrix
_OUTPUT = ("o_proj", "out_proj", "out_lin", "c_proj", "dense", "o")
_OUTPUT_OF_PARENT = ("output.dense",)  # the parent holds W^O, the child the heads


def find_projections(model: nn.Module) -> dict[str, Projection]:
    """Return the projections of every attention module that is recognised, by module path."""
    found = {}
    for path, module in model.named_modules():
        if (qkv := _query_key_value(module)) is not None:
            output = find_output(model, path)
            found[path] = Projection(
                *qkv,
                output=None if output is None else _linear(output),
                query_norm=_norm(module, "q_norm"),
                key_norm=_norm(module, "k_norm"),
            )
    return found


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


def _query_key_value(module: nn.Module) -> tuple[Linear, Linear, Linear] | None:
    for names in _SEPARATE:
        parts = [getattr(module, name, None) for name in names]
        if all(isinstance(getattr(part, "weight", None), Tensor) for part in parts):
            query, key, value = (_linear(part) for part in parts if isinstance(part, nn.Module))
            return query, key, value
    for name in _FUSED:
        if isinstance(fused := getattr(module, name, None), nn.Module):
            query, key, value = _split(_linear(fused))
            return query, key, value
    return None


def _linear(module: nn.Module) -> Linear:
    """Return W (d_in, d_out) and b; torch's Linear stores Wᵀ, transformers' Conv1D stores W."""
    weight, bias = module.weight, module.bias
    assert isinstance(weight, Tensor)
    stored_transposed = isinstance(module, nn.Linear)
    return Linear(
        weight.detach().mT if stored_transposed else weight.detach(),
        bias.detach() if isinstance(bias, Tensor) else None,
    )


def _split(fused: Linear) -> list[Linear]:
    weights = fused.weight.chunk(3, dim=-1)
    biases = (None,) * 3 if fused.bias is None else fused.bias.chunk(3)
    return [Linear(weight, bias) for weight, bias in zip(weights, biases, strict=True)]


def _norm(module: nn.Module, name: str) -> HeadNorm | None:
    norm = getattr(module, name, None)
    if not isinstance(weight := getattr(norm, "weight", None), Tensor):
        return None
    eps: Any = getattr(norm, "variance_epsilon", None) or getattr(norm, "eps", 1e-6)
    return HeadNorm(weight.detach(), eps)
