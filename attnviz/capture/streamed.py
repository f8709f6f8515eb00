"""A long text: every head's map reduced while the model runs, and never stored.

The untouched model runs first, under its own fast attention, and some rows are compared as it
computes them (sampling.py). Then it runs again with our attention, which gives the model its output
and reduces the weights on the way. Attention by attention both are handed on and forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.capture.attention_interface import looking_on
from attnviz.capture.fused_attention import (
    Called,
    Rules,
    is_fast,
    seeing,
)
from attnviz.capture.restore import one_at_a_time, unchanged
from attnviz.capture.row_sampler import Sample, sample
from attnviz.capture.run_model import running
from attnviz.capture.two_runs import lean
from attnviz.errors import InputError, ModelError
from attnviz.results import AttentionRecord, Axis, MapSummary
from attnviz.runtime.progress import part
from attnviz.streaming import (
    Rooms,
    Scoring,
    attend,
    fused,
    summarise,
)


@dataclass(frozen=True)
class Keep:
    """What to keep of each attention.

    layers, heads : which; None for all. cells, top, marked : as in `attnviz.streaming.summarise`.
    exact : the layers of which also that is kept from which exact weights follow.
    """

    layers: Collection[int] | None = None
    heads: Sequence[int] | None = None
    cells: int = 512
    top: int = 0
    marked: Tensor | None = None
    exact: Collection[int] = ()


@dataclass(frozen=True, eq=False)
class Streamed:
    """One attention as it passes by: what its weights follow from, and their summary.

    attended : (H, m, d_v), the attention vectors of all heads. summary : of `heads`, in this order.
    layers : how many its stack has.
    """

    record: AttentionRecord
    attended: Tensor
    summary: MapSummary
    heads: tuple[int, ...]
    layers: int


def capture_streamed(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    axes: Mapping[str, Sequence[Axis]],
    rows: Tensor,
    keep: Keep,
    on_sample: Callable[[Sample], None],
    on_streamed: Callable[[Streamed], None],
) -> None:
    """Run `model` twice on one text and hand on every attention as it passes by.

    Parameters
    ----------
    model, inputs, axes : as in `capture`, of one text.
    rows : (R,), the queries of which the model's own weights are taken.
    keep : what to keep of the second run. on_sample : what the model computed by itself for these
        rows. on_streamed : what is kept.

    Raises
    ------
    ModelError : an attention that transformers' interface does not show as a whole.
    """
    with one_at_a_time:
        with part(0, 2, "the model reads"):
            seen = sample_rows(model, inputs, axes, rows, on_sample)
        _expect_there(keep, seen)
        with part(1, 2, "its maps are reduced"):
            stream_maps(model, inputs, seen, keep, on_streamed)


def sample_rows(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    axes: Mapping[str, Sequence[Axis]],
    rows: Tensor,
    on_sample: Callable[[Sample], None],
) -> list[Seen]:
    """Run the untouched model and hand on some rows of every attention; return which there are.

    Parameters and errors are those of `capture_streamed`.
    """
    seen: list[Seen] = []

    def take(found: Sample) -> None:
        # Of this run nothing is kept that grows with the text but its axes.
        seen.append(Seen(replace(found.record, **_EMPTIED), found.record.heads, found.gated))
        on_sample(found)

    run, fast = lean(model, inputs), is_fast(model)
    with unchanged(model, "sdpa" if fast else "eager"), running(model):
        sample(model, run, axes, rows, take, fast=fast)
    return seen


@torch.no_grad()
def stream_maps(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    seen: Sequence[Seen],
    keep: Keep,
    on_streamed: Callable[[Streamed], None],
) -> None:
    """Run a model with our attention in the place of its own, and hand on what is kept.

    seen : the attentions that it executes. The rest is as in `capture_streamed`.
    """
    run, fast = lean(model, inputs), is_fast(model)
    streamer = _Streamer(model, seen, keep, on_streamed)
    look = seeing(streamer.look, streamer.paths, fast=fast)
    with unchanged(model, "sdpa" if fast else "eager"), looking_on(look), running(model):
        run()
    streamer.finish()


@dataclass(frozen=True, eq=False)
class Seen:
    """An attention that a model executes: its record without what a text fills in.

    heads : how many. gated : as in `Sample`.
    """

    record: AttentionRecord
    heads: int
    gated: bool


_EMPTIED: dict[str, Any] = dict.fromkeys(
    ("capped_bias", "bias", "mask", "input", "rotation", "projection", "visible")
) | {name: torch.empty(0) for name in ("query", "key", "value")}


def _expect_there(keep: Keep, seen: Sequence[Seen]) -> None:
    """Raise InputError for a layer or a head that no attention is."""
    layers = sorted({each.record.layer for each in seen})
    heads = range(min(each.heads for each in seen))
    for wanted, there, what in (
        (keep.layers, layers, "layer"),
        (keep.exact, layers, "layer"),
        (keep.heads, heads, "head"),
    ):
        missing = [one for one in wanted or () if one not in there]
        if missing:
            raise InputError(
                f"Expected a {what} from 0 to {there[-1]}, got {missing[0]}. The model has "
                f"{len(there)} {what}s with attention, counted from 0."
            )


class _Streamer:
    """Our attention in the place of the model's, in one run."""

    def __init__(
        self,
        model: nn.Module,
        seen: Sequence[Seen],
        keep: Keep,
        on_streamed: Callable[[Streamed], None],
    ) -> None:
        self._model, self._keep = model, keep
        self._on_streamed = on_streamed
        self.paths = {module: path for path, module in model.named_modules()}
        self._rules, self._rooms = Rules(), Rooms()
        self._seen = seen
        self._done = 0

    def look(self, called: Called) -> Tensor:
        """Compute the model's attention, and what is kept of its weights."""
        number, self._done = self._done, self._done + 1
        if number >= len(self._seen) or self._seen[number].record.path != self.paths[called.module]:
            self._expect_same(False)
        found, gated = self._seen[number].record, self._seen[number].gated
        with part(number, len(self._seen)):
            if self._keep.layers is not None and found.layer not in self._keep.layers:
                return called.output()
            record = replace(found, **self._rules.terms(called))
            output, summary = self._reduced(record)
            layers = sum(each.record.stack == record.stack for each in self._seen)
            heads = range(record.heads) if self._keep.heads is None else self._keep.heads
            self._on_streamed(Streamed(record, output, summary, tuple(heads), layers))
        if gated:  # more enters the output than weights and values
            return called.output()
        return output.to(called.value).transpose(0, 1)[None].contiguous()

    def finish(self) -> None:
        """Raise ModelError unless all attentions were executed."""
        self._expect_same(self._done == len(self._seen))

    def _expect_same(self, same: bool) -> None:
        if not same:
            raise ModelError(
                f"Expected {type(self._model).__name__} to execute the same attentions in every "
                "run, but two runs on the same input differ. This model cannot be verified."
            )

    def _reduced(self, record: AttentionRecord) -> tuple[Tensor, MapSummary]:
        """Return the attention vectors (H, m, d_v) of all heads, the summary of those kept."""
        scoring, keep = Scoring.of(record), self._keep
        marked = None if keep.marked is None else keep.marked.to(record.query.device)
        how: dict[str, Any] = {"cells": keep.cells, "top": keep.top, "marked": marked}
        if keep.heads is None or len(keep.heads) == record.heads:
            return attend(scoring, record.value, rooms=self._rooms, **how)
        told = fused(scoring, record.value)
        output, lse = told or (attend(scoring, record.value, cells=1)[0], None)
        lse = None if lse is None else lse[list(keep.heads)]
        return output, summarise(scoring.of_heads(keep.heads), lse=lse, **how)
