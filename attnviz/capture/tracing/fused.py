"""One of torch's fused attentions: its arguments say all, and no softmax is seen.

The weights that ours are compared with come from torch's own unfused attention on the same
arguments; its output is that of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnviz.capture.tracing.arrange import Attention, NotExpressibleError
from attnviz.capture.tracing.tracer import SoftmaxCollector
from attnviz.formula.attention import HIDDEN
from attnviz.runtime.compat import FUSED_ATTENTION, math_attention

_NOT_READ = ("cum_seq_q", "cu_seqlens_q", "seqstart_q", "alibi_slopes")


@dataclass(frozen=True, eq=False)
class FusedAttention:
    """The arguments of a call, and the output of the kernel that ran."""

    query: Tensor  # (B, H, m, d_k)
    key: Tensor  # (B, G, n, d_k)
    value: Tensor  # (B, G, n, d_v)
    mask: Tensor | None  # added to the scores, (1 or B, 1 or H, 1 or m, n)
    causal: bool  # whether a query reads no later key
    scale: float
    output: Tensor | None  # (B, H, m, d_v); None if weights were dropped from it
    first: int = 0  # the key at which the first query stands

    @classmethod
    def read(cls, name: str, arguments: Mapping[str, Any], output: Tensor) -> FusedAttention:
        """Return the call of an operator; arguments : by the names of its schema.

        Raises NotExpressibleError for arguments of a kernel that are not read.
        """

        def given(*names: str) -> Any:
            return next((x for x in map(arguments.get, names) if x is not None), None)

        is_kernel = not name.startswith(FUSED_ATTENTION)  # which takes (B, T, H, d)
        has_window = given("window_size_left") not in (None, -1)
        if is_kernel and (has_window or given("softcap") or given(*_NOT_READ) is not None):
            raise NotExpressibleError(f"{name} packs its texts, or changes its scores")
        vectors = given("query", "q"), given("key", "k"), given("value", "v"), output.clone()
        query, key, value, output = (
            x.detach().transpose(1, 2) if is_kernel else x.detach() for x in vectors
        )
        mask, scale = given("attn_mask", "attn_bias", "bias"), given("scale", "softmax_scale")
        if mask is not None:
            mask = mask.detach().view((1,) * (4 - mask.dim()) + mask.shape)
        # flash-attn and the second kind of xformers' masks let the last query read all keys.
        is_last = name == "_flash_attn_forward" or given("custom_mask_type") == 2
        return cls(
            query,
            key,
            value,
            mask,
            bool(given("is_causal", "causal", "custom_mask_type")),
            query.shape[-1] ** -0.5 if scale is None else float(scale),
            None if given("dropout_p") else output,
            key.shape[2] - query.shape[2] if is_last else 0,
        )

    def of_text(self, n: int, texts: int) -> FusedAttention:
        """Return the part of text n of so many; all of it where they share it."""
        rows = len(self.query) // texts if len(self.query) % texts == 0 else 0
        part = slice(n * rows, (n + 1) * rows) if rows else slice(None)
        own: dict[str, Any] = {
            name: x[part] if isinstance(x, Tensor) and len(x) > 1 else x
            for name, x in vars(self).items()
        }
        return FusedAttention(**own)

    def arranged(self, texts: int) -> Attention:
        """Return the attention of N texts; several rows of one text are windows of its positions.

        Then no query reads the keys of another window.
        """
        texts = texts if len(self.query) % texts == 0 else 1
        shared, mask = self.query.shape[1] // self.key.shape[1], self._whole_mask()
        key, value = (x.repeat_interleave(shared, 1) for x in (self.key, self.value))
        scores, weights = _unfused(self.query, key, value, mask, self.scale)
        added = torch.zeros_like(scores[:1, :1]) if mask is None else mask

        def rows(x: Tensor) -> Tensor:
            return x.reshape(texts, -1, *x.shape[1:]).transpose(1, 2).flatten(2, 3)

        def maps(x: Tensor, other: float) -> Tensor:
            blocks = x.expand(len(scores), *x.shape[1:]).reshape(texts, -1, *x.shape[1:])
            N, k, H, m, n = blocks.shape
            if k == 1:
                return blocks[:, 0]
            every, window = x.new_full((N, H, k, m, k, n), other), torch.arange(k, device=x.device)
            every[:, :, window, :, window] = blocks.transpose(0, 1)
            return every.view(N, H, k * m, k * n)

        added = maps(added, -torch.inf)
        hidden = added <= HIDDEN
        bias, lowest = added.masked_fill(hidden, 0.0), torch.finfo(added.dtype).min
        return Attention(
            query=rows(self.query),
            key=rows(self.key),
            value=rows(self.value),
            scale=self.scale,
            soft_cap=None,
            capped_bias=None,
            bias=bias if bias.any() else None,
            mask=torch.zeros_like(bias).masked_fill(hidden, lowest) if hidden.any() else None,
            sinks=None,
            scores=maps(scores, -torch.inf),
            weights=maps(weights, 0.0),
            head_output=None if self.output is None else rows(self.output),
        )

    def _whole_mask(self) -> Tensor | None:
        """Return the mask with a row for each query, and later keys hidden where it is causal."""
        m, n = self.query.shape[2], self.key.shape[2]
        mask = None if self.mask is None else self.mask[..., :n].expand(-1, -1, m, -1)
        if self.causal:
            later = torch.ones(m, n, dtype=torch.bool, device=self.query.device).triu(
                1 + self.first
            )
            zero = self.query.new_zeros(1, 1, m, n) if mask is None else mask
            mask = zero.masked_fill(later, -torch.inf)
        return mask


def _unfused(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the scores and the weights of torch's own attention, one operator after the other."""
    collector = SoftmaxCollector()
    with collector, collector.collect_softmaxes() as softmaxes:
        math_attention(query, key, value, mask, scale=scale)
    (softmax,) = softmaxes
    return softmax.scores, softmax.weights
