"""All texts of a batch at once: faster than a record of each text, for statistics of a corpus."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.capture.attention_interface import AttentionCallArgs
from attnviz.capture.recorder import AttentionCall
from attnviz.capture.search import record_runs
from attnviz.capture.watch import AttentionWatcher, EndRunError, expect_same, minimal_run, watch
from attnviz.errors import ModelError
from attnviz.formula.attention import HIDDEN, additive_mask
from attnviz.results import AttentionRecord, Axis, LinearAttention, MaskRule
from attnviz.runtime.compat import supports_fused_attention

_SHORT = 512  # tokens, up to which eager attention is faster than fused attention on a CPU


@dataclass(frozen=True, eq=False)
class BatchedAttention:
    """One attention of a batch of N texts of T tokens, from which its weights follow."""

    known: AttentionRecord  # the same attention of one text: its path, layer, scale, …
    query: Tensor  # (N, H, T, d_k)
    key: Tensor  # (N, G, T, d_k); another T in a cross-attention, which one input has
    # The weights of some queries of the first text, (1, H, R, T), by the model's own code; None
    # where it does not return them.
    model_weights: Callable[[slice], Tensor] | None
    capped_bias: Tensor | None = None  # (1 or N, 1 or H, T, T), as bias and mask
    bias: Tensor | None = None
    mask: Tensor | None = None
    sinks: Tensor | None = None  # (H,) or (N, H, T)
    causal: bool = False  # whether later keys are hidden without a mask that says so

    def weights(self, rows: slice) -> Tensor:
        """Return our weights of some queries of every text, (N, H, R, T), float32 or wider."""
        N, H, T, _ = self.query.shape
        positions = range(T)[rows]

        def by_head(term: Tensor | None) -> Tensor | None:
            if term is None or len(term) == term.shape[1] == 1:  # the same for all
                return None if term is None else term[0, :, rows]
            return term[:, :, rows].expand(N, H, -1, -1).flatten(0, 1)

        sinks = self.sinks
        if sinks is not None:
            sinks = sinks.repeat(N) if sinks.dim() == 1 else sinks[:, :, rows].flatten(0, 1)
        # N·H heads, text by text: each is grouped with the keys of its own text.
        record = replace(
            self.known,
            query_axis=Axis.numbered(len(positions)),
            key_axis=Axis.numbered(self.key.shape[2]),
            query=self.query[:, :, rows].flatten(0, 1),
            key=self.key.flatten(0, 1),
            value=self.key[:, :, :0].flatten(0, 1),  # weights need none
            capped_bias=by_head(self.capped_bias),
            bias=by_head(self.bias),
            mask=by_head(self.mask),
            sinks=sinks,
            visible=MaskRule(after=0, offset=positions.start) if self.causal else None,
        )
        weights = record.weights()
        return weights.reshape(N, H, *weights.shape[1:])

    def readable(self, rows: slice) -> Tensor:
        """Return which keys the first head of each text may read, (1 or N, R, T)."""
        if self.mask is not None:
            return self.mask[:, 0, rows] > HIDDEN
        i, j = (torch.arange(x.shape[2], device=x.device) for x in (self.query, self.key))
        earlier = i[rows, None] >= j
        return (earlier if self.causal else torch.ones_like(earlier))[None]


@torch.no_grad()
def capture_batch(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    known: Sequence[AttentionRecord],
    on_attention: Callable[[BatchedAttention], None],
    *,
    separate: bool = False,
) -> None:
    """Run the untouched model once on a batch, and pass on each attention when it is executed.

    The model's own attention computes its output, fused attention where texts are long, and
    nothing is stored. An attention that transformers' interface does not show is recorded as in
    `capture`.

    inputs : the arguments of its forward, N texts padded on the right to one length, or one image
    or sound. known : the attentions of one text, from `capture`; the model must execute these and
    no other. separate : there is one text, and other attention than between its tokens is left
    out, if there is some between tokens.
    """
    ids = inputs.get("input_ids")
    texts, length = (1, 0) if ids is None else ids.shape
    run = minimal_run(model, inputs)

    def pass_on(attention: BatchedAttention) -> None:
        (N, _, m, _), n = attention.query.shape, attention.key.shape[2]
        if not separate and (N, m, n) != ((texts, length, length) if length else (1, m, n)):
            raise ModelError(
                f"{attention.known.path} cuts or joins the {texts} texts of a batch, so their "
                "maps cannot be separated. Choose another model."
            )
        on_attention(attention)

    paths = [record.path for record in known]
    if separate or not all(record.through_interface for record in known):
        (recording,) = record_runs(model, texts, run)
        calls = recording.calls
        if separate:
            calls = [call for call in calls if call.path in paths]
            size = length, length
            calls = [one for one in calls if one.attention.scores.shape[2:] == size] or calls
        expect_same(model, [call.path for call in calls], paths)
        for call, record in zip(calls, known, strict=True):
            pass_on(_from_call(call, record, texts))
        return

    fused = length > _SHORT and supports_fused_attention(model)
    watch(model, run, partial(_KnownRun, known, pass_on), fused=fused)


class _KnownRun(AttentionWatcher):
    """Passes on known attentions, and ends the run after the last one."""

    def __init__(self, known: Sequence[AttentionRecord], pass_on: Any, model: nn.Module) -> None:
        super().__init__(model)
        self._known, self._pass_on, self._executed = known, pass_on, list[str]()

    def on_call(self, args: AttentionCallArgs) -> Any:
        self._executed.append(self.paths[args.module])
        known = self._known[: len(self._executed)]
        expect_same(self.model, self._executed, [record.path for record in known])
        self._pass_on(_from_arguments(args, known[-1]))
        if len(known) == len(self._known):
            raise EndRunError  # nothing after the last attention is needed
        return args.output(), None

    def finish(self) -> None:
        expect_same(self.model, self._executed, [record.path for record in self._known])


@torch.no_grad()
def capture_matrices(
    model: nn.Module, inputs: Mapping[str, Tensor], known: Sequence[LinearAttention]
) -> list[Tensor]:
    """Run the untouched model on N texts of one length; return each M of a layer, (N, H, T, T).

    NaN for texts of one token, where nothing is mixed.
    """
    N, T = inputs["input_ids"].shape
    if T == 1:
        return [torch.full((N, record.heads, 1, 1), torch.nan) for record in known]
    (recording,) = record_runs(model, N, minimal_run(model, inputs))
    expect_same(model, [one.path for one in recording.linear], [record.path for record in known])
    return [mixing.matrix for mixing in recording.linear if mixing.matrix is not None]


def _from_arguments(args: AttentionCallArgs, known: AttentionRecord) -> BatchedAttention:
    _, m, n = args.shape
    first_text, positions = args.of_rows(slice(0, 1)), torch.arange(m, device=args.query.device)
    mask = args.expanded_mask

    def model_weights(rows: slice) -> Tensor:
        weights = first_text.call_eager(positions[rows])[1]
        assert weights is not None
        return weights[..., :n]

    return BatchedAttention(
        known,
        args.query,
        args.key,
        None if first_text.call_eager(positions[:1])[1] is None else model_weights,
        bias=args.bias,
        mask=None if mask is None else additive_mask(mask, args.query.dtype),
        sinks=known.sinks,
        causal=args.is_causal,
    )


def _from_call(call: AttentionCall, known: AttentionRecord, texts: int) -> BatchedAttention:
    """Return an attention that was traced among the operators of a run."""
    attention = call.attention
    Q, K = (tensor.expand(texts, -1, -1, -1) for tensor in (attention.query, attention.key))
    weights = attention.weights[:1]
    terms = attention.capped_bias, attention.bias, attention.mask, attention.sinks
    return BatchedAttention(known, Q, K, lambda rows: weights[:, :, rows], *terms)
