"""A result of a long text: its maps are reduced while the model runs, and some rows compared."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

import torch
from torch import Tensor

from attnviz import agreement
from attnviz.capture import (
    ReducedAttention,
    ReductionOptions,
    Sample,
    capture_streamed,
)
from attnviz.errors import InputError, whole_number
from attnviz.inputs import Batch, Inputs
from attnviz.models.checkpoint import Checkpoint
from attnviz.pipeline.provenance import provenance, versions
from attnviz.results import AttentionResult, Axis, StreamedAttention
from attnviz.results.content_words import content_positions

_CELLS, _POOLED = 500, 2**23  # a side of a pooled map, and cells of all heads together: 64 MB
_TOP = 1024  # keys of each query at most
_SAMPLED, _FEWEST = 2**18, 4  # weights of a layer that are compared with the model's own, and rows


@dataclass(frozen=True)
class Wanted:
    """What is kept of a streamed text: layers and heads (None for all), cells and top keys.

    exact : the layers of which exact parts can be had; None for those that are named.
    """

    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    cells: int | None = None
    top: int = 0
    exact: tuple[int, ...] | None = None

    @classmethod
    def of(
        cls,
        layers: int | Sequence[int] | None,
        heads: int | Sequence[int] | None,
        cells: int | None,
        top: int,
        exact: int | Sequence[int] | None = None,
    ) -> Wanted:
        """Return what was asked for, checked as far as it can be without a model.

        Raises
        ------
        InputError : what should be a number is none, or cannot be.
        """
        if cells is not None and whole_number(cells, "cells") < 1:
            raise InputError(f"Expected cells to be 1 or more, got {cells}.")
        if not 0 <= whole_number(top, "top") <= _TOP:
            raise InputError(f"Expected top to be from 0 to {_TOP} keys, got {top}.")
        named, some = _numbers(layers, "a layer"), _numbers(exact, "a layer")
        if named and some and (other := [one for one in some if one not in named]):
            raise InputError(
                f"Expected exact layers among those that are kept, {', '.join(map(str, named))}, "
                f"got {other[0]}. Name it in layers too."
            )
        return cls(named, _numbers(heads, "a head"), cells, top, named if exact is None else some)


def _numbers(given: Any, what: str) -> tuple[int, ...] | None:
    if given is None:
        return None
    several = (given,) if isinstance(given, int) else given
    if isinstance(several, str) or not isinstance(several, Iterable):
        raise InputError(f"Expected {what}, or a list of them, got {given!r}.")
    found = tuple(dict.fromkeys(whole_number(one, what) for one in several))
    if not found:
        raise InputError(f"Expected {what}, counted from 0, or a list of them, got {given!r}.")
    return found


def streamed_result(
    checkpoint: Checkpoint, given: Inputs, batch: Batch, wanted: Wanted
) -> AttentionResult:
    """Return the result of one text."""
    axis, device = batch.axes["text"][0], checkpoint.device
    rows = sampled_rows(len(axis), head_counts(checkpoint)[1]).to(device)
    keep = _keep(checkpoint, wanted, axis, device)
    taken = _Taken(rows, keep.marked, keep.exact)
    capture_streamed(
        checkpoint.module, batch.inputs, batch.axes, rows, keep, taken.prove, taken.keep_some
    )
    proof = agreement.report(
        taken.proofs,
        str(checkpoint.module.dtype).removeprefix("torch."),
        str(device),
        versions=versions(),
        weights_sha256=checkpoint.current_sha256(),
        rows=(len(rows), len(axis)),
    )
    source = provenance(checkpoint, given, batch, 0, proof, None)
    return AttentionResult((), proof, source, streamed=tuple(taken.attentions))


class _Taken:
    """What is left of the attentions that passed by, and the proof of each.

    exact : the layers of which to keep what the weights follow from.
    """

    def __init__(self, rows: Tensor, marked: Tensor | None, exact: Collection[int]) -> None:
        self._rows, self._marked, self._exact = rows, marked, exact
        self._weights: dict[tuple[str, int], Tensor] = {}  # of the rows, by the model itself
        self.proofs: list[agreement.Proof] = []
        self.attentions: list[StreamedAttention] = []

    def prove(self, sample: Sample) -> None:
        """Compare some rows of an attention with the model's own."""
        record = sample.record
        rows = self._rows.to(record.query.device)
        self.proofs.append(agreement.prove_rows(record, sample.reference, rows))
        self._weights[record.path, record.call] = sample.reference.weights.cpu()

    def keep_some(self, streamed: ReducedAttention) -> None:
        """Compare the run in which an attention was reduced, and keep what came of it."""
        record, summary = streamed.record, streamed.summary
        device = record.query.device
        weights = self._weights.pop((record.path, record.call)).to(device)
        reduced = agreement.Reduced(summary, streamed.heads, self._marked)
        rows = self._rows.to(device)
        self.proofs.append(
            agreement.prove_streamed(record, streamed.attended, weights, rows, reduced)
        )
        self.attentions.append(
            StreamedAttention(
                path=record.path,
                call=record.call,
                layer=record.layer,
                stack=record.stack,
                query_axis=record.query_axis,
                key_axis=record.key_axis,
                heads=record.heads,
                layers=streamed.layers,
                kept=streamed.heads,
                summary=summary,
                record=record if record.layer in self._exact else None,
            )
        )


def head_counts(checkpoint: Checkpoint) -> tuple[int, int]:
    """Return how many layers a model has, and heads in each, as far as its config says so."""
    config = checkpoint.module.config
    names = "num_hidden_layers", "num_attention_heads"
    layers, heads = (int(getattr(config, name, None) or 12) for name in names)
    return layers, heads


def _keep(
    checkpoint: Checkpoint, wanted: Wanted, axis: Axis, device: torch.device
) -> ReductionOptions:
    """Return what is to be kept, with as many cells as there is room for."""
    layers, heads = head_counts(checkpoint)
    count = len(wanted.layers or range(layers)) * len(wanted.heads or range(heads))
    cells = wanted.cells or min(_CELLS, max(1, isqrt(_POOLED // count)))
    marked = content_positions(axis).to(device)
    return ReductionOptions(
        wanted.layers, wanted.heads, cells, wanted.top, marked, wanted.exact or ()
    )


def sampled_rows(length: int, heads: int) -> Tensor:
    """Return which queries of a text are compared with the model's own: the last, and any others.

    The same for every run, so that a result can be had again.
    """
    count = min(length, max(_FEWEST, _SAMPLED // (heads * length)))
    others = torch.randperm(length - 1, generator=torch.Generator().manual_seed(length))
    last = torch.tensor([length - 1])
    return torch.cat([others[: count - 1], last]).sort().values
