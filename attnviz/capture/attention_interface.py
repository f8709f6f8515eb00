"""Attention that a model fetches from transformers' attention interface: its arguments say all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn
from transformers import AttentionInterface

from attnviz.capture.attention_call import Attention
from attnviz.capture.tracing import Softmax


@contextmanager
def looking_on(look: Callable[..., Any]) -> Iterator[None]:
    """Have `look` see the arguments of every attention function that transformers hands out.

    look(function, eager, module, query, key, value, …) : the function that the model would call,
    the model's own eager one, and what it is called with.
    """
    get_interface = AttentionInterface.get_interface

    def get_watched(self: AttentionInterface, name: str, default: Callable[..., Any]) -> Any:
        function = get_interface(self, name, default)

        def watched(module: nn.Module, *args: Any, **arguments: Any) -> Any:
            return look(function, default, module, *args, **arguments)

        return watched

    with patch.object(AttentionInterface, "get_interface", get_watched):
        yield


def from_arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    arguments: Mapping[str, Any],
    softmax: Softmax,
    output: Tensor,
) -> Attention:
    """Return what an attention function was called with, and what it computed."""
    keys = key.shape[-2]
    sinks = first(arguments, "s_aux", "sinks")
    if gated := sinks is not None and softmax.weights.shape[-1] == keys:
        sinks = None  # no column of the softmax, but a gate on what comes after it
    scale = arguments.get("scaling")
    return Attention(
        query=query,
        key=key,
        value=value,
        scale=query.shape[-1] ** -0.5 if scale is None else float(scale),
        soft_cap=arguments.get("softcap"),
        capped_bias=None,
        bias=_fitting(arguments.get("position_bias"), keys),
        mask=_fitting(mask, keys),
        sinks=None if sinks is None else _per_head(sinks.detach()),
        scores=softmax.scores[..., :keys],  # a sink is one more column
        weights=softmax.weights[..., :keys],
        head_output=None if gated else output.transpose(1, 2),
    )


def _per_head(sinks: Tensor) -> Tensor:
    """Return (H,), or (N, H, m) where each query has its own, of which a column may be left."""
    return sinks if sinks.dim() == 1 else sinks.squeeze(-1)


def _fitting(term: Tensor | None, keys: int) -> Tensor | None:
    return None if term is None else term[..., :keys]


def first(arguments: Mapping[str, Any], *names: str) -> Any:
    """Return the first of these arguments that was given a value."""
    return next((arguments[name] for name in names if arguments.get(name) is not None), None)
