"""The attention that a model runs by itself: fast over all rows, or eager over a few of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.capture.attention_interface import first
from attnviz.errors import ModelError
from attnviz.formula.score_terms import HIDDEN
from attnviz.results import MaskRule

_SCORES = 2**22  # of an eager attention that is computed by blocks of rows
_WHOLE = 2**26  # of one that is computed as a whole
_NO_FAST_WAY = ("softcap", "s_aux", "sinks")  # what torch's fused attention cannot do


def is_fast(model: nn.Module) -> bool:
    """Whether a model can run under torch's fused attention."""
    return bool(getattr(model, "_supports_sdpa", False))


@dataclass(frozen=True, eq=False)
class Called:
    """What a model calls for one attention of a text, or of a batch of them, and with what.

    function : the one that the model would call. eager : its own eager one. fast : whether masks
    are those of torch's fused attention, where none is given for a causal rule.
    """

    function: Callable[..., Any]
    eager: Callable[..., Any]
    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    arguments: Mapping[str, Any]
    fast: bool

    @property
    def shape(self) -> tuple[int, int, int]:
        """How many heads, queries and keys there are: H, m, n."""
        return self.query.shape[1], self.query.shape[2], self.key.shape[2]

    @property
    def sinks(self) -> Tensor | None:
        """The scores beside those of the keys, (H,), if there are any."""
        sinks = first(self.arguments, "s_aux", "sinks")
        if not isinstance(sinks, Tensor):
            return None
        found: Tensor = sinks.detach().flatten()
        return found

    @property
    def bias(self) -> Tensor | None:
        """What is added to the scores of the first text by position, (1 or H, m, n)."""
        bias = self.arguments.get("position_bias")
        if bias is None:
            return None
        _, m, n = self.shape
        found: Tensor = bias[0, ..., :n].expand(-1, m, -1)
        return found

    @property
    def every_mask(self) -> Tensor | None:
        """The mask of every query, (1 or N, 1 or H, m, n)."""
        _, m, n = self.shape
        return None if self.mask is None else self.mask[..., :n].expand(-1, -1, m, -1)

    @property
    def causal(self) -> bool:
        """Whether what comes later is hidden without a mask that says so."""
        told = self.arguments.get("is_causal")
        own = getattr(self.module, "is_causal", True)
        return self.fast and self.mask is None and bool(own if told is None else told)

    def expect_readable(self, path: str, length: int) -> None:
        """Raise ModelError for an attention of which the arguments do not say all."""
        whole = self.query.shape[0] == 1 and self.query.shape[2] == length
        if not whole or self.arguments.get("indices") is not None:
            raise ModelError(
                f"Expected {path} to attend over one text of {length:,} tokens, but it cuts or "
                'selects them. Give a shorter text with mode="full", or choose another model.'
            )

    @property
    def by_blocks(self) -> bool:
        """Whether the model's own function would hold too much: then it runs by blocks of rows."""
        H, m, n = self.shape
        slow = not self.fast or first(self.arguments, *_NO_FAST_WAY) is not None
        return slow and (self.fast or H * m * n > _WHOLE)

    def of_text(self, number: int) -> Called:
        """Return the same for one text of a batch."""

        def one(term: Tensor | None) -> Tensor | None:
            return term if term is None or len(term) == 1 else term[[number]]

        arguments = self.arguments
        if (bias := arguments.get("position_bias")) is not None:
            arguments = {**arguments, "position_bias": one(bias)}
        return replace(
            self,
            query=self.query[[number]],
            key=self.key[[number]],
            value=self.value[[number]],
            mask=one(self.mask),
            arguments=arguments,
        )

    def output(self) -> Tensor:
        """Return the output (N, m, H, d_v) of the function that the model would call."""
        texts = range(len(self.query))
        if self.by_blocks and len(texts) > 1:
            return torch.cat([self.of_text(number).output() for number in texts])
        if not self.by_blocks:
            output: Tensor = self.function(
                self.module, self.query, self.key, self.value, self.mask, **self.arguments
            )[0]
            return output
        H, m, n = self.shape
        rows = torch.arange(m, device=self.query.device)
        blocks = torch.split(rows, max(1, _SCORES // (H * n)))
        return torch.cat([self.eager_rows(block) for block in blocks], dim=1)

    def eager_rows(self, rows: Tensor) -> Tensor:
        """Return the output of some rows, (1, R, H, d_v), by the model's own eager function."""
        output: Tensor = self._eagerly(rows)[0]
        return output

    def eager_weights(self, rows: Tensor) -> Tensor | None:
        """Return the weights of some rows, (1, H, R, n), if the model's own eager function does."""
        weights: Tensor | None = self._eagerly(rows)[1]
        return None if weights is None else weights[..., : self.shape[2]]

    def _eagerly(self, rows: Tensor) -> Any:
        """Return what the model's own eager function makes of some rows of one text."""
        arguments = self.arguments
        if (bias := self.bias) is not None:
            arguments = {**arguments, "position_bias": bias[None, :, rows]}
        mask, hidden = None, None
        if self.causal:
            _, m, n = self.shape
            hidden = (torch.arange(n, device=rows.device) > rows[:, None] + n - m)[None]
        elif (every := self.every_mask) is not None:
            mask = every[:, :, rows]
            hidden = ~mask[0] if mask.dtype == torch.bool else None
        if hidden is not None:
            low = torch.finfo(self.query.dtype).min
            mask = torch.zeros_like(hidden, dtype=self.query.dtype).masked_fill(hidden, low)
            mask = mask[None]
        query = self.query[:, :, rows]
        return self.eager(self.module, query, self.key, self.value, mask, **arguments)


def seeing(
    look: Callable[[Called], Tensor], modules: Collection[nn.Module], *, fast: bool
) -> Callable[..., Any]:
    """Return what `looking_on` takes: `look` answers each call in the place of the function.

    look : given a call, returns the output (N, m, H, d_v). modules : whose calls these are; those
    of another model, running in another thread, pass.
    """

    def see(
        function: Callable[..., Any],
        eager: Callable[..., Any],
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        **arguments: Any,
    ) -> Any:
        given = module, query, key, value, attention_mask
        if module not in modules:
            return function(*given, **arguments)
        return look(Called(function, eager, *given, arguments, fast=fast)), None

    return see


class Rules:
    """Which keys the queries of each attention may read, found once for each mask."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, MaskRule | None]] = {}

    def of(self, called: Called) -> MaskRule | None:
        """Return the rule that an attention follows; None for a mask that follows none."""
        mask, every, (_, m, n) = called.mask, called.every_mask, called.shape
        if mask is None or every is None:
            return MaskRule(after=0 if called.causal else None, offset=n - m)
        if mask.shape[1] > 1:
            return None
        if id(mask) not in self._known:  # kept with its rule, so that no other gets its number
            self._known[id(mask)] = mask, MaskRule.of(every[0, 0])
        return self._known[id(mask)][1]

    def terms(self, called: Called) -> dict[str, Any]:
        """Return what a record has of a call: Q, K, V, bias, and the mask or its rule."""
        rule, every = self.of(called), called.every_mask
        whole = None if rule is not None or every is None else additive(every, called.query.dtype)
        return {
            "query": called.query[0],
            "key": called.key[0],
            "value": called.value[0],
            "bias": called.bias,
            "mask": None if whole is None else whole[0],
            "visible": rule,
        }

    def is_causal(self, called: Called) -> bool:
        """Whether no query sees what comes after it."""
        rule, every = self.of(called), called.every_mask
        if rule is not None or every is None:
            return rule is not None and rule.after == 0
        seen = every if every.dtype == torch.bool else every > HIDDEN
        return not bool(seen.triu(1 + called.shape[2] - called.shape[1]).any())


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask (1 or N, 1 or H, m, n) that says True for what is seen as numbers to add."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
