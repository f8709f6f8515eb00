"""A long text: every head's map reduced while the model runs, and never stored.

The untouched model runs first, under its own fast attention, and some rows are kept as it computes
them (sampling.py). Then it runs again with our attention, which gives the model its output and
reduces the weights on the way. Layer by layer both are handed on and forgotten.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.capture.interface import first, looking_on
from attnviz.capture.placing import Place, place
from attnviz.capture.projections import Holder, arrived, find_holders, understood
from attnviz.capture.sampling import Rules, Sample, attention_output, expect_readable, sample
from attnviz.capture.unchanged import one_at_a_time, unchanged
from attnviz.errors import ModelError
from attnviz.progress import part
from attnviz.records import AttentionRecord, Axis, Reference, Summary
from attnviz.streaming import Scoring, attend, fused, summarise


@dataclass(frozen=True)
class Kept:
    """What is to be kept of each attention.

    layers, heads : which; None for all. cells, top, marked : as in `attnviz.streaming.summarise`.
    """

    layers: Collection[int] | None = None
    heads: Sequence[int] | None = None
    cells: int = 512
    top: int = 0
    marked: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Passing:
    """One attention as it passes by.

    record : with its rule in the place of a mask. summary : of the maps of the heads kept.
    reference, rows : what the model computes by itself for some queries, and which (R,).
    """

    record: AttentionRecord
    summary: Summary
    reference: Reference
    rows: Tensor


@torch.no_grad()
def capture_streamed(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    axes: Mapping[str, Sequence[Axis]],
    rows: Tensor,
    kept: Kept,
    on_attention: Callable[[Passing], None],
) -> None:
    """Run `model` twice on one text and hand on every attention as it passes by.

    Parameters
    ----------
    model, inputs, axes : as in `capture`, of one text of T tokens.
    rows : (R,), the queries of which the model's own weights are taken.

    Raises
    ------
    ModelError : an attention that transformers' interface does not show as a whole.
    """
    length = len(axes["text"][0])
    lean = {"use_cache": False, "logits_to_keep": 1}  # nothing that grows with the text
    known = inspect.signature(model.forward).parameters
    given = {**inputs, **{name: value for name, value in lean.items() if name in known}}

    def run() -> None:
        model(**given)

    with one_at_a_time:
        with part(0, 2, "the model reads"), unchanged(model, "sdpa"):
            samples = sample(model, run, rows, length)
        streamer = _Streamer(model, axes, rows, kept, samples, on_attention)
        with part(1, 2, "maps are reduced"), unchanged(model, "sdpa"), looking_on(streamer.look):
            streamer.watch()
            run()


class _Streamer:
    """Our attention in the place of the model's, in one run."""

    def __init__(
        self,
        model: nn.Module,
        axes: Mapping[str, Sequence[Axis]],
        rows: Tensor,
        kept: Kept,
        samples: Sequence[Sample],
        on_attention: Callable[[Passing], None],
    ) -> None:
        self._model, self._rows, self._kept = model, rows, kept
        self._on_attention = on_attention
        self._paths = {module: path for path, module in model.named_modules()}
        self._holders = find_holders(model)
        self._rules = Rules()
        self._entered: dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        places = place([each.outline for each in samples], 0, axes)
        self._count = len(samples)
        self._expected = enumerate(zip(samples, places, strict=True))

    def watch(self) -> None:
        """Remember what enters each module while it runs."""
        for module in self._model.modules():
            module.register_forward_pre_hook(self._enter, with_kwargs=True)
            module.register_forward_hook(self._leave)

    def look(
        self,
        function: Callable[..., Any],
        eager: Callable[..., Any],
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        **arguments: Any,
    ) -> Any:
        """Compute the model's attention, and what is kept of its weights."""
        path = self._paths[module]
        number, (sampled, where) = next(self._expected, (0, (None, None)))
        if sampled is None or where is None or sampled.path != path:
            raise ModelError(
                f"Expected {type(self._model).__name__} to execute the same attentions in every "
                "run, but two runs on the same input differ. This model cannot be verified."
            )
        expect_readable(path, query, arguments, len(where.query_axis))
        given = module, query, key, value, mask, arguments
        with part(number, self._count):
            if self._kept.layers is not None and where.layer not in self._kept.layers:
                return attention_output(function, eager, *given)
            record = self._record(sampled, where, *given)
            output, summary = self._reduced(record)
            if sampled.gated:  # more enters the output than weights and values
                output = attention_output(function, eager, *given)[0][0].transpose(0, 1)
            self._on_attention(Passing(record, summary, sampled.reference, self._rows))
        return output.to(value.dtype).transpose(0, 1)[None].contiguous(), None

    def _reduced(self, record: AttentionRecord) -> tuple[Tensor, Summary]:
        """Return the attention vectors (H, m, d_v) of all heads, the summary of those kept."""
        scoring, heads = Scoring.of(record), self._kept.heads
        how: dict[str, Any] = {"cells": self._kept.cells, "top": self._kept.top}
        how["marked"] = self._kept.marked
        if heads is None or len(heads) == record.heads:
            return attend(scoring, record.value, **how)
        told = fused(scoring, record.value)
        output = told[0] if told else attend(scoring, record.value, cells=1)[0]
        lse = None if told is None else told[1][list(heads)]
        return output, summarise(scoring.of_heads(heads), lse=lse, **how)

    def _record(
        self,
        sampled: Sample,
        where: Place,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        arguments: Mapping[str, Any],
    ) -> AttentionRecord:
        rule, n = self._rules.of(module, query, key, mask, arguments), key.shape[-2]
        additive = None if rule is not None or mask is None else _additive(mask, query.dtype)[0]
        bias, sinks = arguments.get("position_bias"), first(arguments, "s_aux", "sinks")
        scale, seen = arguments.get("scaling"), arrived(module, *self._entered[module], 1)
        record = AttentionRecord(
            path=sampled.path,
            call=sampled.call,
            layer=where.layer,
            stack=where.stack,
            query_axis=where.query_axis,
            key_axis=where.key_axis,
            query=query[0],
            key=key[0],
            value=value[0],
            scale=query.shape[-1] ** -0.5 if scale is None else float(scale),
            soft_cap=arguments.get("softcap"),
            bias=None if bias is None else bias[0, ..., :n],
            mask=additive,
            sinks=None if sinks is None or sampled.gated else sinks.detach(),
            input=None if seen.input is None else seen.input[0],
            rotation=None if seen.rotation is None else (seen.rotation[0][0], seen.rotation[1][0]),
            visible=rule,
        )
        return _with_projections(record, self._holders.get(sampled.path), sampled, self._rows)

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._entered[module] = args, kwargs

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._entered.pop(module, None)


def _with_projections(
    record: AttentionRecord, holder: Holder | None, sampled: Sample, rows: Tensor
) -> AttentionRecord:
    """Find out from some positions how the module makes Q, K, V and its output."""
    some = record.at(rows)
    heads = sampled.reference.head_output, sampled.given
    return replace(record, projection=understood(some, holder, *heads).projection)


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
