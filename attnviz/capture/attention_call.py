"""One attention that a model executed, in whichever way it was seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from attnviz.capture.projections import Arrived, Holder


@dataclass(frozen=True, eq=False)
class Attention:
    """The tensors of an attention, for N texts (1 where it was computed once for all).

    What the weights follow from: query (N, H, m, d_k), key (N, G, n, d_k), value (N, G, n, d_v),
    capped_bias, bias and mask (N or 1, H or 1, m, n), sinks (H,) or (N, H, m). What the model made
    of it: scores and weights (N, H, m, n), head_output (N, H, m, d_v), None where more enters it
    than weights and values.
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
        """Whether no query sees what comes after it, in a text at least (padding may)."""
        m, n = self.weights.shape[-2:]
        return m == n > 1 and not self.weights.triu(1).flatten(1).any(1).all()


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """An attention and the module that executed it.

    call : 0, 1, … where one module executes several. through_interface : whether transformers'
    attention interface showed it; else the operators did. given (N, H, m, d_v) : what W^O was
    given, as heads. output (N, m, d_model) : what it made of that.
    """

    path: str
    call: int
    attention: Attention
    arrived: Arrived
    holder: Holder | None
    through_interface: bool
    given: Tensor | None
    output: Tensor | None

    def to(self, device: torch.device) -> AttentionCall:
        """Return the same on one device, where layers lie on several."""
        turned = self.arrived.rotation
        rotation = None if turned is None else (turned[0].to(device), turned[1].to(device))
        arrived = replace(_moved(self.arrived, device), rotation=rotation)
        attention = _moved(self.attention, device)
        return replace(_moved(self, device), attention=attention, arrived=arrived)


_Held = TypeVar("_Held", Attention, Arrived, AttentionCall)


def _moved(found: _Held, device: torch.device) -> _Held:
    tensors: dict[str, Any] = {
        name: own.to(device) for name, own in vars(found).items() if isinstance(own, Tensor)
    }
    return replace(found, **tensors)
