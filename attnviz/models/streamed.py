"""A result of a long text: its maps are reduced while the model runs, and some rows compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

import torch
from torch import Tensor

from attnviz import agreement
from attnviz.capture import Kept, Sample, Streamed, capture_streamed
from attnviz.checkpoints import Checkpoint
from attnviz.errors import InputError, whole_number
from attnviz.inputs import Batch, Given
from attnviz.metrics import content_positions
from attnviz.models.origin import provenance, versions
from attnviz.records import AttentionResult, Axis, StreamedAttention

_CELLS, _POOLED = 500, 2**23  # a side of a pooled map, and cells of all heads together: 64 MB
_SAMPLED, _FEWEST = 2**18, 4  # weights of a layer that are compared with the model's own, and rows


@dataclass(frozen=True)
class Wanted:
    """What is kept of a streamed text: which layers and heads, cells and top keys."""

    layers: Sequence[int] | None = None
    heads: Sequence[int] | None = None
    cells: int | None = None
    top: int = 0


def streamed_result(
    checkpoint: Checkpoint, given: Given, batch: Batch, wanted: Wanted
) -> AttentionResult:
    """Return the result of one text."""
    axis, device = batch.axes["text"][0], checkpoint.module.device
    rows = sampled_rows(len(axis), head_counts(checkpoint)[1]).to(device)
    taken = _Taken(rows, keep=wanted.layers is not None)
    kept = _kept(checkpoint, wanted, axis, device)
    capture_streamed(
        checkpoint.module, batch.inputs, batch.axes, rows, kept, taken.prove, taken.keep_some
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

    keep : whether to keep what the weights follow from.
    """

    def __init__(self, rows: Tensor, *, keep: bool) -> None:
        self._rows, self._keep = rows, keep
        self._weights: dict[tuple[str, int], Tensor] = {}  # of the rows, by the model itself
        self.proofs: list[agreement.Proof] = []
        self.attentions: list[StreamedAttention] = []

    def prove(self, sample: Sample) -> None:
        """Compare some rows of an attention with the model's own."""
        record = sample.record
        self.proofs.append(agreement.prove_rows(record, sample.reference, self._rows))
        self._weights[record.path, record.call] = sample.reference.weights

    def keep_some(self, streamed: Streamed) -> None:
        """Compare the run in which an attention was reduced, and keep what came of it."""
        record, summary = streamed.record, streamed.summary
        weights = self._weights.pop((record.path, record.call))
        self.proofs.append(
            agreement.prove_streamed(record, weights, self._rows, summary, streamed.heads)
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
                kept=streamed.heads,
                summary=summary,
                record=record if self._keep else None,
            )
        )


def head_counts(checkpoint: Checkpoint) -> tuple[int, int]:
    """Return how many layers a model has, and heads in each, as far as its config says so."""
    config = checkpoint.module.config
    names = "num_hidden_layers", "num_attention_heads"
    layers, heads = (int(getattr(config, name, None) or 12) for name in names)
    return layers, heads


def _kept(checkpoint: Checkpoint, wanted: Wanted, axis: Axis, device: torch.device) -> Kept:
    """Return what is wanted, checked as far as can be before the model runs."""
    layers, heads = head_counts(checkpoint)
    chosen = [
        None if each is None else tuple(dict.fromkeys(whole_number(one, what) for one in each))
        for each, what in ((wanted.layers, "a layer"), (wanted.heads, "a head"))
    ]
    for each, most, what in zip(chosen, (layers, heads), ("layer", "head"), strict=True):
        for one in each or ():
            if not 0 <= one < most:
                raise InputError(
                    f"Expected a {what} from 0 to {most - 1}, got {one}. {checkpoint.name} has "
                    f"{most} {what}s, counted from 0."
                )
    count = len(chosen[0] or range(layers)) * len(chosen[1] or range(heads))
    cells = wanted.cells
    if cells is None:
        cells = min(_CELLS, max(1, isqrt(_POOLED // count)))
    marked = content_positions(axis).to(device)
    return Kept(chosen[0], chosen[1], cells, wanted.top, marked)


def sampled_rows(length: int, heads: int) -> Tensor:
    """Return which queries of a text are compared with the model's own: the last, and any others.

    The same for every run, so that a result can be had again.
    """
    count = min(length, max(_FEWEST, _SAMPLED // (heads * length)))
    others = torch.randperm(length - 1, generator=torch.Generator().manual_seed(length))
    last = torch.tensor([length - 1])
    return torch.cat([others[: count - 1], last]).sort().values
