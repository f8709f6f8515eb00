"""All texts of a batch at once: for numbers of many texts, where a record of each takes long."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from attnviz.capture.attention_call import AttentionCall
from attnviz.capture.attention_interface import looking_on
from attnviz.capture.fused_attention import (
    Called,
    additive,
    is_fast,
    seeing,
)
from attnviz.capture.restore import unchanged
from attnviz.capture.run_model import running
from attnviz.capture.two_runs import lean, run_watched
from attnviz.errors import ModelError
from attnviz.formula.score_terms import HIDDEN
from attnviz.results import AttentionRecord, Axis, MaskRule


class _AllSeenError(Exception):
    """Ends a run after its last attention."""


_SHORT = 512  # tokens, up to which eager attention is faster than the fused one on a CPU


@dataclass(frozen=True, eq=False)
class Together:
    """One attention of a batch of N texts of T tokens: what its weights follow from.

    known : the same attention of one text, for what all texts share. query (N, H, T, d_k), key
    (N, G, T, d_k), capped_bias, bias and mask (1 or N, 1 or H, T, T). own : the weights of some
    queries of the first text, (1, H, R, T), by the model's own code; None where it does not tell.
    causal : whether later keys are hidden without a mask that says so.
    """

    known: AttentionRecord
    query: Tensor
    key: Tensor
    own: Callable[[slice], Tensor] | None
    capped_bias: Tensor | None = None
    bias: Tensor | None = None
    mask: Tensor | None = None
    sinks: Tensor | None = None
    causal: bool = False

    def weights(self, rows: slice) -> Tensor:
        """Return our weights of some queries of every text, (N, H, R, T), float32 or wider."""
        N, H, T, _ = self.query.shape
        of_rows = range(T)[rows]

        def of_heads(term: Tensor | None) -> Tensor | None:
            if term is None or len(term) == term.shape[1] == 1:  # the same for all
                return None if term is None else term[0, :, rows]
            return term[:, :, rows].expand(N, H, -1, -1).flatten(0, 1)

        sinks = self.sinks
        if sinks is not None:
            sinks = sinks.repeat(N) if sinks.dim() == 1 else sinks[:, :, rows].flatten(0, 1)
        # One head after the other, text by text: each is grouped with the keys of its own text.
        record = replace(
            self.known,
            query_axis=Axis.numbered(len(of_rows)),
            key_axis=Axis.numbered(T),
            query=self.query[:, :, rows].flatten(0, 1),
            key=self.key.flatten(0, 1),
            value=self.key[:, :, :0].flatten(0, 1),  # weights ask for none
            capped_bias=of_heads(self.capped_bias),
            bias=of_heads(self.bias),
            mask=of_heads(self.mask),
            sinks=sinks,
            visible=MaskRule(after=0, offset=of_rows.start) if self.causal else None,
        )
        weights = record.weights()
        return weights.reshape(N, H, *weights.shape[1:])

    def readable(self, rows: slice) -> Tensor:
        """Return which keys the first head of each text may read, (1 or N, R, T)."""
        if self.mask is not None:
            return self.mask[:, 0, rows] > HIDDEN
        j = torch.arange(self.query.shape[2], device=self.query.device)
        return (j[rows, None] >= j if self.causal else torch.ones_like(j[rows, None] >= j))[None]


@torch.no_grad()
def read_together(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    known: Sequence[AttentionRecord],
    on_attention: Callable[[Together], None],
) -> None:
    """Run the untouched model once on a batch and hand on every attention as it passes by.

    The model's own attention gives it its output, the fused one where texts are long, and nothing
    is kept. An attention that transformers' interface does not show is recorded as in `capture`.

    Parameters
    ----------
    inputs : what its forward takes, N texts padded on the right to one length.
    known : the attentions of one text, as `capture` found them.

    Raises
    ------
    ModelError : the model executes other attentions than those.
    """
    texts, length = inputs["input_ids"].shape

    def expect_whole(found: Together) -> Together:
        if found.query.shape[::2][:2] != (texts, length) or found.key.shape[2] != length:
            raise ModelError(
                f"Expected {found.known.path} to attend over {texts} texts as they are, but it "
                "cuts or joins them. Choose another model."
            )
        return found

    if not all(record.through_interface for record in known):
        (calls,) = run_watched(model, texts, lean(model, inputs))
        _expect_same(model, [call.path for call in calls], known)
        for call, record in zip(calls, known, strict=True):
            on_attention(expect_whole(_recorded(call, record, texts)))
        return
    paths = {module: path for path, module in model.named_modules()}
    done: list[str] = []

    def look(called: Called) -> Tensor:
        done.append(paths[called.module])
        _expect_same(model, done, known[: len(done)])
        on_attention(expect_whole(_called(called, known[len(done) - 1])))
        if len(done) == len(known):
            raise _AllSeenError  # what follows the last attention is nobody's business here
        return called.output()

    fast = length > _SHORT and is_fast(model)
    with (
        unchanged(model, "sdpa" if fast else "eager"),
        looking_on(seeing(look, paths, fast=fast)),
        running(model),
        suppress(_AllSeenError),
    ):
        lean(model, inputs)()
    _expect_same(model, done, known)


def _expect_same(model: nn.Module, paths: Sequence[str], known: Sequence[AttentionRecord]) -> None:
    if list(paths) != [record.path for record in known]:
        raise ModelError(
            f"Expected {type(model).__name__} to execute the same attentions for every text, but "
            "it does not. Choose another model."
        )


def _called(called: Called, known: AttentionRecord) -> Together:
    """Return what a function was called with; it says all that the weights follow from."""
    _, m, n = called.shape
    bias, mask = called.arguments.get("position_bias"), called.every_mask
    first, positions = called.of_text(0), torch.arange(m, device=called.query.device)

    def own(rows: slice) -> Tensor:
        found = first.eager_weights(positions[rows])
        assert found is not None
        return found

    return Together(
        known,
        called.query,
        called.key,
        None if first.eager_weights(positions[:1]) is None else own,
        bias=None if bias is None else bias[..., :n].expand(-1, -1, m, -1),
        mask=None if mask is None else additive(mask, called.query.dtype),
        sinks=known.sinks,
        causal=called.causal,
    )


def _recorded(call: AttentionCall, known: AttentionRecord, texts: int) -> Together:
    """Return what the operators of a run showed."""
    seen = call.attention
    Q, K = (each.expand(texts, -1, -1, -1) for each in (seen.query, seen.key))
    weights = seen.weights[:1]
    terms = seen.capped_bias, seen.bias, seen.mask, seen.sinks
    return Together(known, Q, K, lambda rows: weights[:, :, rows], *terms)
