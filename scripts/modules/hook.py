"""A hook written by hand: what people write to see attention, with none of attnviz in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import multi_head_attention_forward, scaled_dot_product_attention
from torch.nn.functional import softmax as functional_softmax
from torch.overrides import TorchFunctionMode

from attnviz import AttentionRecord

_SOFTMAX = (torch.softmax, functional_softmax, Tensor.softmax)


class MapsByHand(TorchFunctionMode):
    """Keeps the maps of the calls that it sees, of the first input, with heads first."""

    def __init__(self) -> None:
        super().__init__()
        self.maps: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is scaled_dot_product_attention:
            self.maps.append(_by_formula(*args, **kwargs)[0])
        elif func is multi_head_attention_forward and kwargs.get("need_weights", True):
            if not kwargs.get("average_attn_weights", True):
                self.maps.append(result[1][0])
        elif func in _SOFTMAX and result.dim() == 4:
            self.maps.append(result[0])
        return result

    def compared(self, records: Sequence[AttentionRecord]) -> str:
        """Return how many maps of records equal one that was seen, and by how much they differ."""
        errors = []
        for record in records:
            ours = record.weights().double()
            alike = [one for one in self.maps if one.shape == ours.shape]
            if alike:
                errors.append(min(float((ours - one).abs().max()) for one in alike))
        return f"{len(errors)} to {max(errors):.0e}" if errors else "–"


def _by_formula(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Return softmax(scale · Q Kᵀ + mask) in float64."""
    q, k = query.double(), key.double().repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(-1)
