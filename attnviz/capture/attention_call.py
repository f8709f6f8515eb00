"""One attention that a model executed, however it was captured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from attnviz.capture.projections import AttentionModule, ModuleInputs


@dataclass(frozen=True, eq=False)
class Attention:
    """The tensors of an attention over N texts (1 where it is computed once for all of them).

    Attributes
    ----------
    query, key, value : Tensor
        (N, H, m, d_k), (N, G, n, d_k) and (N, G, n, d_v).
    scale : float
        The factor of q·k.
    soft_cap : float or None
        The bound of the scores.
    capped_bias, bias, mask : Tensor or None
        Added to the scores before the cap, and after it: (N or 1, H or 1, m, n).
    sinks : Tensor or None
        Scores beside those of the keys, (H,) or (N, H, m).
    scores, weights : Tensor
        The model's own input and output of the softmax, (N, H, m, n).
    head_output : Tensor or None
        The model's own A·V, (N, H, m, d_v); None where more than weights and values enters it.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    soft_cap: float | None
    capped_bias: Tensor | None
    bias: Tensor | None
    mask: Tensor | None
    sinks: Tensor | None
    scores: Tensor
    weights: Tensor
    head_output: Tensor | None

    @cached_property
    def is_causal(self) -> bool:
        """Whether no query of some text reads a later key (padding may)."""
        m, n = self.weights.shape[-2:]
        return m == n > 1 and not self.weights.triu(1).flatten(1).any(1).all()


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """An attention and the module that executed it.

    Attributes
    ----------
    path : str
        The module.
    call : int
        0, 1, … where one module executes several.
    attention : Attention
        Its tensors.
    inputs : ModuleInputs
        The inputs of the module.
    module : AttentionModule or None
        The module with its projections, if it is of a known kind.
    through_interface : bool
        Whether transformers' attention interface showed it; otherwise the operators did.
    merged_heads : Tensor or None
        The input of W^O, cut into heads: (N, H, m, d_v).
    output : Tensor or None
        The output of W^O, (N, m, d_model).
    """

    path: str
    call: int
    attention: Attention
    inputs: ModuleInputs
    module: AttentionModule | None
    through_interface: bool
    merged_heads: Tensor | None
    output: Tensor | None

    def to(self, device: torch.device) -> AttentionCall:
        """Return the call with all tensors on one device."""
        rotation = self.inputs.rotation
        if rotation is not None:
            rotation = rotation[0].to(device), rotation[1].to(device)
        inputs = replace(_move(self.inputs, device), rotation=rotation)
        return replace(_move(self, device), attention=_move(self.attention, device), inputs=inputs)


_Tensors = TypeVar("_Tensors", Attention, ModuleInputs, AttentionCall)


def _move(holder: _Tensors, device: torch.device) -> _Tensors:
    tensors: dict[str, Any] = {
        name: tensor.to(device)
        for name, tensor in vars(holder).items()
        if isinstance(tensor, Tensor)
    }
    return replace(holder, **tensors)
