"""Run a model on a long text: reduce its maps meanwhile, and compare a sample of their rows."""

from __future__ import annotations

from collections.abc import Collection
from math import isqrt

import torch
from torch import Tensor

from attnviz import agreement
from attnviz.capture import ReducedAttention, ReductionOptions, Sample, capture_streamed
from attnviz.inputs import Batch
from attnviz.models.checkpoint import Checkpoint
from attnviz.pipeline.options import AttendOptions
from attnviz.results import AgreementReport, Axis, StreamedAttention
from attnviz.results.words import content_positions

_MOST_CELLS = 500  # rows and columns of a pooled map by default
_CELL_BUDGET = 2**23  # cells of all pooled maps together: 64 MB
_SAMPLED_WEIGHTS = 2**18  # of a layer, compared with the model's own
_FEWEST_ROWS = 4  # compared of each head


def stream(
    checkpoint: Checkpoint, batch: Batch, options: AttendOptions, versions: dict[str, str]
) -> tuple[tuple[StreamedAttention, ...], AgreementReport]:
    """Return the reduced attentions of one text, and their agreement with the model's own."""
    module, axis, device = checkpoint.module, batch.axes["text"][0], checkpoint.device
    rows = sampled_rows(len(axis), head_counts(checkpoint)[1]).to(device)
    reduction = _reduction(checkpoint, options, axis, device)
    collector = _Collector(rows, reduction.marked, reduction.exact)
    capture_streamed(
        module,
        batch.inputs,
        batch.axes,
        rows,
        reduction,
        collector.compare_rows,
        collector.compare_and_store,
    )
    report = agreement.report(
        collector.proofs,
        str(module.dtype).removeprefix("torch."),
        str(device),
        versions=versions,
        weights_sha256=checkpoint.current_sha256(),
        rows=(len(rows), len(axis)),
    )
    return tuple(collector.attentions), report


class _Collector:
    """The proofs and the reduced maps of the attentions of a run, in order.

    Parameters
    ----------
    rows : Tensor
        The queries whose rows are compared with the model's own.
    marked : Tensor or None
        The positions of content words.
    exact : collection of int
        The layers whose record (Q, K, V) is stored.
    """

    def __init__(self, rows: Tensor, marked: Tensor | None, exact: Collection[int]) -> None:
        self._rows, self._marked, self._exact = rows, marked, exact
        self._weights: dict[tuple[str, int], Tensor] = {}  # the model's own, of these rows
        self.proofs: list[agreement.Proof] = []
        self.attentions: list[StreamedAttention] = []

    def compare_rows(self, sample: Sample) -> None:
        """Compare some rows of an attention with the model's own."""
        record = sample.record
        rows = self._rows.to(record.query.device)
        self.proofs.append(agreement.prove_rows(record, sample.reference, rows))
        self._weights[record.path, record.call] = sample.reference.weights.cpu()

    def compare_and_store(self, attention: ReducedAttention) -> None:
        """Compare the run in which an attention was reduced, and store the reduced maps."""
        record, summary = attention.record, attention.summary
        device = record.query.device
        weights = self._weights.pop((record.path, record.call)).to(device)
        reduced = agreement.Reduced(summary, attention.heads, self._marked)
        rows = self._rows.to(device)
        self.proofs.append(
            agreement.prove_streamed(record, attention.attended, weights, rows, reduced)
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
                layers=attention.layers,
                kept=attention.heads,
                summary=summary,
                record=record if record.layer in self._exact else None,
            )
        )


def head_counts(checkpoint: Checkpoint) -> tuple[int, int]:
    """Return the number of layers and of heads in each by the config; 12 if it does not say."""
    config = checkpoint.module.config
    names = "num_hidden_layers", "num_attention_heads"
    layers, heads = (int(getattr(config, name, None) or 12) for name in names)
    return layers, heads


def _reduction(
    checkpoint: Checkpoint, options: AttendOptions, axis: Axis, device: torch.device
) -> ReductionOptions:
    """Return what to store, with as many cells as the budget allows."""
    layers, heads = head_counts(checkpoint)
    count = len(options.layers or range(layers)) * len(options.heads or range(heads))
    cells = options.cells or min(_MOST_CELLS, max(1, isqrt(_CELL_BUDGET // count)))
    marked = content_positions(axis).to(device)
    return ReductionOptions(
        options.layers, options.heads, cells, options.top, marked, options.exact or ()
    )


def sampled_rows(length: int, heads: int) -> Tensor:
    """Return the queries whose rows are compared with the model's own: the last, and random ones.

    They are the same in every run, so that a result can be reproduced.
    """
    count = min(length, max(_FEWEST_ROWS, _SAMPLED_WEIGHTS // (heads * length)))
    others = torch.randperm(length - 1, generator=torch.Generator().manual_seed(length))
    last = torch.tensor([length - 1])
    return torch.cat([others[: count - 1], last]).sort().values
