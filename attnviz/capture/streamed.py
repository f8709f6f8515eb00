"""A long text: the map of every head is reduced while the model runs, and never stored.

The untouched model runs first, under its own fused attention, and some rows are compared as it
computes them (row_sampler.py). Then it runs again with our attention, which computes its output and
reduces the weights. In both runs each attention is passed on and released before the next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.capture.attention_interface import (
    AttentionCallArgs,
    MaskRuleCache,
    intercept_attention,
)
from attnviz.capture.recorder import minimal_run, model_errors
from attnviz.capture.restore import model_lock, restoring
from attnviz.capture.row_sampler import Sample, sample
from attnviz.errors import InputError, ModelError
from attnviz.results import AttentionRecord, Axis, MapSummary
from attnviz.runtime.compat import supports_fused_attention
from attnviz.runtime.progress import part
from attnviz.streaming import (
    ScoreSpec,
    attend,
    fused,
    summarise,
)


@dataclass(frozen=True)
class ReductionOptions:
    """What to compute of each attention.

    Attributes
    ----------
    layers, heads : collection of int or None
        Which layers and heads; None for all.
    cells, top, marked
        As in `attnviz.streaming.summarise`.
    exact : collection of int
        The layers whose records are stored too, for exact weights.
    """

    layers: Collection[int] | None = None
    heads: Sequence[int] | None = None
    cells: int = 512
    top: int = 0
    marked: Tensor | None = None
    exact: Collection[int] = ()


@dataclass(frozen=True, eq=False)
class ReducedAttention:
    """One attention of a run: all that its weights follow from, and their summary.

    Attributes
    ----------
    record : AttentionRecord
        All that the weights follow from.
    attended : Tensor
        (H, m, d_v), the attention vectors of all heads.
    summary : MapSummary
        The reduced maps of `heads`, in this order.
    heads : tuple of int
        Which heads were reduced.
    layers : int
        The number of layers of its stack.
    """

    record: AttentionRecord
    attended: Tensor
    summary: MapSummary
    heads: tuple[int, ...]
    layers: int


@dataclass(frozen=True, eq=False)
class AttentionTemplate:
    """An attention that a model executes: its record without tensors, which each text fills in.

    heads : how many. gated : as in `Sample`.
    """

    record: AttentionRecord
    heads: int
    gated: bool

    @classmethod
    def of(cls, sample: Sample) -> AttentionTemplate:
        """Return the template of a sample: nothing that grows with the text but its axes."""
        empty: dict[str, Any] = dict.fromkeys(
            ("capped_bias", "bias", "mask", "input", "rotation", "projection", "visible")
        ) | {name: torch.empty(0) for name in ("query", "key", "value")}
        return cls(replace(sample.record, **empty), sample.record.heads, sample.gated)


def capture_streamed(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    axes: Mapping[str, Sequence[Axis]],
    rows: Tensor,
    options: ReductionOptions,
    on_sample: Callable[[Sample], None],
    on_reduced: Callable[[ReducedAttention], None],
) -> None:
    """Run `model` twice on one text, and pass on each attention when it is executed.

    Parameters
    ----------
    model, inputs, axes
        As in `capture`, of one text.
    rows : Tensor
        (R,), the queries whose weights the model itself computes.
    options : ReductionOptions
        What the second run computes.
    on_sample : callable
        Takes these rows of each attention of the first run.
    on_reduced : callable
        Takes each attention of the second run.

    Raises
    ------
    InputError
        There is no such layer or head.
    ModelError
        The model computes an attention that transformers' interface does not show as a whole.
    """
    with model_lock:
        with part(0, 2, "the model reads"):
            templates = sample_rows(model, inputs, axes, rows, on_sample)
        _expect_existing(options, templates)
        with part(1, 2, "its maps are reduced"):
            stream_maps(model, inputs, templates, options, on_reduced)


def sample_rows(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    axes: Mapping[str, Sequence[Axis]],
    rows: Tensor,
    on_sample: Callable[[Sample], None],
) -> list[AttentionTemplate]:
    """Run the untouched model and pass on some rows of every attention; return the templates.

    Parameters and errors are those of `capture_streamed`.
    """
    templates: list[AttentionTemplate] = []

    def take(sample: Sample) -> None:
        templates.append(AttentionTemplate.of(sample))
        on_sample(sample)

    run, is_fused = minimal_run(model, inputs), supports_fused_attention(model)
    with restoring(model, "sdpa" if is_fused else "eager"), model_errors(model):
        sample(model, run, axes, rows, take, fused=is_fused)
    return templates


@torch.no_grad()
def stream_maps(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    templates: Sequence[AttentionTemplate],
    options: ReductionOptions,
    on_reduced: Callable[[ReducedAttention], None],
) -> None:
    """Run a model with our attention in the place of its own, and pass on the reduced maps.

    templates : the attentions that it executes. The rest is as in `capture_streamed`.
    """
    run, is_fused = minimal_run(model, inputs), supports_fused_attention(model)
    streamer = _Streamer(model, templates, options, on_reduced)
    with (
        restoring(model, "sdpa" if is_fused else "eager"),
        intercept_attention(streamer.on_call, streamer.paths, fused=is_fused),
        model_errors(model),
    ):
        run()
    streamer.finish()


def _expect_existing(options: ReductionOptions, templates: Sequence[AttentionTemplate]) -> None:
    """Raise InputError for a layer or a head that the model does not have."""
    layers = sorted({template.record.layer for template in templates})
    heads = range(min(template.heads for template in templates))
    for asked, existing, what in (
        (options.layers, layers, "layer"),
        (options.exact, layers, "layer"),
        (options.heads, heads, "head"),
    ):
        missing = [number for number in asked or () if number not in existing]
        if missing:
            raise InputError(
                f"Expected a {what} from 0 to {existing[-1]}, got {missing[0]}. The model has "
                f"{len(existing)} {what}s with attention, counted from 0."
            )


class _Streamer:
    """Our attention in the place of the model's, in one run."""

    def __init__(
        self,
        model: nn.Module,
        templates: Sequence[AttentionTemplate],
        options: ReductionOptions,
        on_reduced: Callable[[ReducedAttention], None],
    ) -> None:
        self._model, self._options = model, options
        self._on_reduced = on_reduced
        self.paths = {module: path for path, module in model.named_modules()}
        self._rules = MaskRuleCache()
        self._templates = templates
        self._executed = 0

    def on_call(self, args: AttentionCallArgs) -> Any:
        """Compute the model's attention, and reduce its weights."""
        number, self._executed = self._executed, self._executed + 1
        self._expect_same(
            number < len(self._templates)
            and self._templates[number].record.path == self.paths[args.module]
        )
        template = self._templates[number]
        with part(number, len(self._templates)):
            if (
                self._options.layers is not None
                and template.record.layer not in self._options.layers
            ):
                return args.output(), None
            record = replace(template.record, **self._rules.terms(args))
            output, summary = self._reduce(record)
            layers = sum(other.record.stack == record.stack for other in self._templates)
            heads = range(record.heads) if self._options.heads is None else self._options.heads
            self._on_reduced(ReducedAttention(record, output, summary, tuple(heads), layers))
        if template.gated:  # more enters the output than weights and values
            return args.output(), None
        return output.to(args.value).transpose(0, 1)[None].contiguous(), None

    def finish(self) -> None:
        """Raise ModelError unless all attentions were executed."""
        self._expect_same(self._executed == len(self._templates))

    def _expect_same(self, same: bool) -> None:
        if not same:
            raise ModelError(
                f"Expected {type(self._model).__name__} to execute the same attentions in every "
                "run, but two runs on the same input differ. This model cannot be verified."
            )

    def _reduce(self, record: AttentionRecord) -> tuple[Tensor, MapSummary]:
        """Return the attention vectors (H, m, d_v) of all heads, and the summary of some."""
        spec, options = ScoreSpec.of(record), self._options
        marked = None if options.marked is None else options.marked.to(record.query.device)
        settings: dict[str, Any] = {"cells": options.cells, "top": options.top, "marked": marked}
        if options.heads is None or len(options.heads) == record.heads:
            return attend(spec, record.value, **settings)
        fused_result = fused(spec, record.value)
        output, lse = fused_result or (attend(spec, record.value, cells=1)[0], None)
        lse = None if lse is None else lse[list(options.heads)]
        return output, summarise(spec.select_heads(options.heads), lse=lse, **settings)
