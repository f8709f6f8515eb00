"""The matrix that a module multiplies by: stored as it is, adapted by LoRA, or quantized."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.models.wrappers import is_adapted
from attnviz.results import Linear


def linear_child(module: nn.Module, *names: str) -> Linear | None:
    """Return the first of these children that is a plain matrix (and a bias)."""
    children = (plain_linear(getattr(module, name, None)) for name in names)
    return next((linear for linear in children if linear is not None), None)


@torch.no_grad()
def plain_linear(child: Any) -> Linear | None:
    """Return W (d_in, d_out) and b of a module that computes only X W + b, else None.

    They are views of its own where possible. torch's Linear stores Wᵀ, transformers' Conv1D stores
    W. LoRA adds B·A·scaling to W. Any other child with submodules does more than multiply.
    """
    if is_adapted(child):
        return _adapted(child)
    if not isinstance(child, nn.Module) or any(child.children()):
        return None
    weight, bias = _numbers(child), getattr(child, "bias", None)
    if weight is None or weight.dim() != 2:
        return None
    stored_transposed = not hasattr(child, "nf")  # the width of a Conv1D
    return Linear(
        weight.mT if stored_transposed else weight,
        bias.detach() if isinstance(bias, Tensor) else None,
    )


@torch.no_grad()
def rounding_linear(child: Any) -> Linear | None:
    """Return W and b of a layer of torch's dynamic quantization, which also rounds its input."""
    kind = type(child)
    if kind.__name__ != "Linear" or not kind.__module__.startswith("torch.ao.nn.quantized.dynamic"):
        return None
    weight, bias = child.weight(), child.bias()
    if not weight.is_quantized:  # in float16
        return None
    return Linear(weight.dequantize().mT, None if bias is None else bias.detach())


def _adapted(child: Any) -> Linear | None:
    """Return W + Σ A B · scaling over the active adapters of a layer of PEFT.

    Merged adapters are in W already. A variant of LoRA (DoRA) computes something else: None.
    """
    linear = plain_linear(child.base_layer)
    if linear is None or child.merged or child.disable_adapters:
        is_base = not (child.merged and child.disable_adapters)  # which the run would unmerge
        return linear if is_base else None
    weight, bias = linear.weight, linear.bias
    wide = torch.promote_types(weight.dtype, torch.float32)
    for name in child.active_adapters:
        if name not in child.lora_A:
            continue
        down, up = plain_linear(child.lora_A[name]), plain_linear(child.lora_B[name])
        is_variant = name in getattr(child, "lora_variant", {})
        is_variant |= getattr(child, "use_dora", {}).get(name, False)
        if is_variant or down is None or up is None:
            return None
        scaling = child.scaling[name]
        weight = weight.to(wide) + down.weight.to(wide) @ up.weight.to(wide) * scaling
        if up.bias is not None:
            added = up.bias.to(wide) * scaling
            bias = added if bias is None else bias.to(wide) + added
    return Linear(weight, bias)


def _numbers(child: nn.Module) -> Tensor | None:
    """Return the weight of a module as it multiplies by it; None where it has none.

    A module that rounds its input too does more than multiply.
    """
    weight = getattr(child, "weight", None)
    if not isinstance(weight, Tensor):
        return None
    weight = weight.detach()
    if (state := getattr(child.weight, "quant_state", None)) is not None:  # bitsandbytes, 4 bit
        computed: torch.dtype = getattr(child, "compute_dtype", None) or state.dtype
        is_coarse = torch.finfo(computed).eps > torch.finfo(state.dtype).eps
        if is_coarse or getattr(state, "packing_format_for_cpu", False):  # it reads no such packing
            return None
        functional: Any = sys.modules["bitsandbytes"].functional
        numbers: Tensor = functional.dequantize_4bit(weight, state)
        return numbers
    if type(weight).dequantize is not Tensor.dequantize:  # torchao
        rounds_input = getattr(weight, "act_quant_kwargs", None) is not None
        return None if rounds_input else weight.dequantize()
    return weight if weight.is_floating_point() else None
