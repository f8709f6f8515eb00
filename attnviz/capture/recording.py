"""The first run: look on as the model calls its attention functions.

transformers' models fetch the function that computes their attention from `AttentionInterface`.
While a run is recorded, the function handed out is wrapped: the model's own still computes, ours
only looks on. So the run is the model's, bit for bit, and nothing in the model is replaced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from attnviz.capture.projections import Holder, arrived
from attnviz.errors import ModelError

# Score terms that a record does not hold. A map without them would be wrong.
_FURTHER_TERMS = ("indices",)


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """One call of an attention function, for a batch of N texts.

    query (N, H, m, d_k), key and value (N, G, n, …), bias and mask (N or 1, H or 1, m, n), sinks
    (H,), input (N, m, d_model), key_input (N, n, d_model), rotation (cos, sin), each
    (N or 1, m, r).
    """

    path: str
    call: int
    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    soft_cap: float | None
    bias: Tensor | None
    mask: Tensor | None
    sinks: Tensor | None
    causal: bool
    input: Tensor | None
    key_input: Tensor | None
    rotation: tuple[Tensor, Tensor] | None
    holder: Holder | None


@torch.no_grad()
def record(
    model: nn.Module, inputs: Mapping[str, Tensor], projections: Mapping[str, Holder]
) -> list[AttentionCall]:
    """Run the model and return its attention calls in the order of execution.

    Raises
    ------
    ModelError : no call was seen, a module that holds an attention's weights made none, or a call
        has terms that a record does not hold.
    """
    recorder = _Recorder(model, projections)
    for path in projections:
        module = model.get_submodule(path)
        module.register_forward_pre_hook(recorder.arrive, with_kwargs=True)
    with _looking_on(recorder.look):
        model(**inputs)
    _expect(model, recorder.calls, projections)
    return recorder.calls


class _Recorder:
    """Keeps what arrives at each attention module, and every call of an attention function."""

    def __init__(self, model: nn.Module, projections: Mapping[str, Holder]) -> None:
        self.calls: list[AttentionCall] = []
        self._name = type(model).__name__
        self._paths = {module: path for path, module in model.named_modules()}
        self._projections = projections
        self._arrived: dict[str, dict[str, Any]] = {}
        self._counts: Counter[str] = Counter()

    def arrive(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep what enters a module: X, what keys and values are made of, and the rotation."""
        self._arrived[self._paths[module]] = arrived(module, args, kwargs)

    def look(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        arguments: Mapping[str, Any],
    ) -> None:
        """Keep one call of an attention function."""
        if (path := self._paths.get(module)) is None:
            return  # another model, running in another thread
        self._expect_known_terms(path, mask, arguments)
        scale = arguments.get("scaling")
        seen = self._arrived.get(path, {})
        self.calls.append(
            AttentionCall(
                path=path,
                call=self._counts[path],
                query=query.detach(),
                key=key.detach(),
                value=value.detach(),
                scale=query.shape[-1] ** -0.5 if scale is None else float(scale),
                soft_cap=arguments.get("softcap"),
                bias=arguments.get("position_bias"),
                mask=mask,
                sinks=_first(arguments, "s_aux", "sinks"),
                causal=bool(getattr(module, "is_causal", False)),
                input=seen.get("input"),
                key_input=seen.get("key_input"),
                rotation=seen.get("rotation"),
                holder=self._projections.get(path),
            )
        )
        self._counts[path] += 1

    def _expect_known_terms(
        self, path: str, mask: Tensor | None, arguments: Mapping[str, Any]
    ) -> None:
        if terms := [name for name in _FURTHER_TERMS if arguments.get(name) is not None]:
            raise ModelError(
                f"Expected scores of every query with every key, but {path} of {self._name} "
                f"selects keys by {', '.join(terms)}. This cannot be shown."
            )
        if mask is not None and mask.dtype == torch.bool:
            raise ModelError(
                f"Expected a mask that is added to the scores, but {path} of {self._name} has one "
                "of booleans. This model cannot be shown."
            )


@contextmanager
def _looking_on(look: Callable[..., None]) -> Iterator[None]:
    """Have `look` see the arguments of every attention function that transformers hands out."""
    get_interface = AttentionInterface.get_interface

    def get_watched(self: AttentionInterface, name: str, default: Callable[..., Any]) -> Any:
        function = get_interface(self, name, default)

        def watched(
            module: nn.Module,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            attention_mask: Tensor | None,
            **arguments: Any,
        ) -> Any:
            look(module, query, key, value, attention_mask, arguments)
            return function(module, query, key, value, attention_mask, **arguments)

        return watched

    with patch.object(AttentionInterface, "get_interface", get_watched):
        yield


def _first(arguments: Mapping[str, Any], *names: str) -> Any:
    """Return the first of these arguments that was given a value."""
    return next((arguments[name] for name in names if arguments.get(name) is not None), None)


def _expect(
    model: nn.Module, calls: list[AttentionCall], projections: Mapping[str, Holder]
) -> None:
    name = type(model).__name__
    if not calls and not projections:
        raise ModelError(
            f"Expected a model whose attention goes through transformers' attention interface, "
            f"but {name} has none that attnviz can see. Choose a BERT-, GPT-2- or Llama-like model."
        )
    missing = sorted(set(projections) - {call.path for call in calls})
    if missing:
        raise ModelError(
            f"Expected to record {len(projections)} attention modules of {name}, but saw nothing "
            f"of {len(missing)}: {', '.join(missing[:3])}. Nothing is drawn that was not recorded."
        )
