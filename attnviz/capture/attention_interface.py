"""Attention that a model fetches from transformers' `AttentionInterface`.

While a model runs, `intercept_attention` wraps the function that the interface returns to this
thread, so that attnviz sees its arguments: they are all that the weights follow from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import multi_head_attention_forward, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface

from attnviz.capture.tracing.arrange import Attention
from attnviz.capture.tracing.provenance import Softmax
from attnviz.formula.attention import additive_mask
from attnviz.runtime.compat import math_attention, wrap_once

_BLOCK = 2**22  # scores of an eager attention that is computed in blocks of rows
_WHOLE = 2**26  # scores of an eager attention that is computed at once
_NOT_FUSED = ("softcap", "s_aux", "sinks")  # arguments that torch's fused attention does not take


@dataclass(frozen=True, eq=False)
class AttentionCallArgs:
    """The arguments of one attention function, for one text or a batch of texts."""

    function: Callable[..., Any]  # that the model would call
    eager: Callable[..., Any]  # the model's own eager one
    module: nn.Module  # the attention module that calls it
    query: Tensor  # (N, H, m, d_k)
    key: Tensor  # (N, G, n, d_k)
    value: Tensor  # (N, G, n, d_v)
    mask: Tensor | None  # (1 or N, 1 or H, 1 or m, ≥ n), additive or boolean
    arguments: Mapping[str, Any]  # scaling, softcap, position_bias, …
    fused: bool = False  # whether torch's fused attention runs, which is causal without a mask

    @property
    def shape(self) -> tuple[int, int, int]:
        """The numbers of heads, queries and keys: H, m, n."""
        return self.query.shape[1], self.query.shape[2], self.key.shape[2]

    @property
    def scale(self) -> float:
        """The factor of q·k: 1/√d_k unless the model passes another."""
        scale = self.arguments.get("scaling")
        return self.query.shape[-1] ** -0.5 if scale is None else float(scale)

    @property
    def sinks(self) -> Tensor | None:
        """The scores beside those of the keys, in the shape in which the model passes them."""
        sinks = (self.arguments.get(name) for name in ("s_aux", "sinks"))
        return next((tensor.detach() for tensor in sinks if isinstance(tensor, Tensor)), None)

    @property
    def bias(self) -> Tensor | None:
        """The position bias with a row for each query, (1 or N, 1 or H, m, n), or None."""
        return self._by_query(self.arguments.get("position_bias"))

    @property
    def expanded_mask(self) -> Tensor | None:
        """The mask with a row for each query, (1 or N, 1 or H, m, n), or None."""
        return self._by_query(self.mask)

    def _by_query(self, term: Tensor | None) -> Tensor | None:
        _, m, n = self.shape
        return None if term is None else term[..., :n].expand(-1, -1, m, -1)

    @property
    def is_causal(self) -> bool:
        """Whether later keys are hidden without a mask that says so."""
        argument = self.arguments.get("is_causal")
        default = getattr(self.module, "is_causal", True)
        return self.fused and self.mask is None and bool(default if argument is None else argument)

    @property
    def in_blocks(self) -> bool:
        """Whether the model's own function needs too much memory, so that blocks of rows run."""
        H, m, n = self.shape
        slow = not self.fused or any(self.arguments.get(name) is not None for name in _NOT_FUSED)
        return slow and (self.fused or H * m * n > _WHOLE)

    def of_rows(self, rows: slice) -> AttentionCallArgs:
        """Return the arguments for some texts of a batch."""

        def select(term: Tensor | None) -> Tensor | None:
            return term if term is None or len(term) == 1 else term[rows]

        bias = select(self.arguments.get("position_bias"))
        arguments = {**self.arguments, **({} if bias is None else {"position_bias": bias})}
        tensors: dict[str, Any] = {
            name: select(getattr(self, name)) for name in ("query", "key", "value", "mask")
        }
        return replace(self, arguments=arguments, **tensors)

    def call(self) -> Any:
        """Return what the function that the model would call returns: its output, its weights."""
        return self.function(
            self.module, self.query, self.key, self.value, self.mask, **self.arguments
        )

    def output(self) -> Tensor:
        """Return the model's own output (N, m, H, d_v), in blocks of rows where it is large."""
        texts = range(len(self.query))
        if not self.in_blocks:
            output: Tensor = self.call()[0]
        elif len(texts) > 1:
            output = torch.cat([self.of_rows(slice(n, n + 1)).output() for n in texts])
        else:
            H, m, n = self.shape
            rows = torch.arange(m, device=self.query.device)
            blocks = torch.split(rows, max(1, _BLOCK // (H * n)))
            output = torch.cat([self.call_eager(block)[0] for block in blocks], dim=1)
        return output

    def call_eager(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return what the model's own eager function returns for some rows of one text.

        The output (1, R, H, d_v), and the weights (1, H, R, ≥ n) or None.
        """
        arguments = self.arguments
        if (bias := self.bias) is not None:
            arguments = {**arguments, "position_bias": bias[:, :, rows]}
        mask: Tensor | None = None
        if self.is_causal:
            _, m, n = self.shape
            mask = (torch.arange(n, device=rows.device) <= rows[:, None] + n - m)[None, None]
        elif (expanded := self.expanded_mask) is not None:
            mask = expanded[:, :, rows]
        if mask is not None:
            mask = additive_mask(mask, self.query.dtype)
        query = self.query[:, :, rows]
        result = self.eager(self.module, query, self.key, self.value, mask, **arguments)
        return result[0], result[1]


def is_registered_by_user(implementation: str | None) -> bool:
    """Whether an attention implementation is neither transformers' own nor a kernel of the hub."""
    function = AttentionInterface().get(str(implementation))  # type: ignore[no-untyped-call]
    own = str(getattr(function, "__module__", "")).partition(".")[0] == "transformers"
    return function is not None and not own and "/" not in str(implementation)


# What takes the place of attention functions in this thread, of which modules, and whether fused.
_Interception: TypeAlias = tuple[Callable[[AttentionCallArgs], Any], Collection[nn.Module], bool]
_interception: ContextVar[_Interception | None] = ContextVar("interception", default=None)


@contextmanager
def intercept_attention(
    handler: Callable[[AttentionCallArgs], Any],
    modules: Collection[nn.Module],
    *,
    fused: bool = False,
) -> Iterator[None]:
    """Call `handler` in the place of every attention function that transformers returns.

    It returns what the function would: (output, weights). Only calls of `modules` in this thread
    are intercepted. Functions that the user registered are not.
    """
    wrap_once(AttentionInterface, "get_interface", _of_this_thread)
    before = _interception.set((handler, modules, fused))
    try:
        yield
    finally:
        _interception.reset(before)


def _of_this_thread(get_interface: Callable[..., Any]) -> Callable[..., Any]:
    """Return `get_interface` that asks what takes the place of its functions in this thread."""

    def get_intercepted(
        self: AttentionInterface, attn_implementation: str, default: Callable[..., Any]
    ) -> Callable[..., Any]:
        function: Callable[..., Any] = get_interface(self, attn_implementation, default)
        interception = _interception.get()
        # The arguments of a user's function do not say what it computes.
        if interception is None or is_registered_by_user(attn_implementation):
            return function
        handler, modules, fused = interception

        def intercepted(
            module: nn.Module,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            attention_mask: Tensor | None = None,
            **arguments: Any,
        ) -> Any:
            tensors = query, key, value, attention_mask
            if module not in modules:
                return function(module, *tensors, **arguments)
            return handler(AttentionCallArgs(function, default, module, *tensors, arguments, fused))

        return intercepted

    return get_intercepted


class OwnAttention(TorchFunctionMode):
    """Runs torch's functions as they are: under any such mode, torch takes no fast path.

    The fast path of `nn.TransformerEncoderLayer` is one operator, which shows no attention.
    """

    joins_heads = False  # whether torch's attention runs on the heads of all texts, (N·H, m, d)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, is_attention = kwargs or {}, func is scaled_dot_product_attention
        self.joins_heads = is_attention and (args[0] if args else kwargs["query"]).dim() == 3
        return func(*args, **kwargs)


class UnfusedAttention(TorchFunctionMode):
    """Computes torch's fused attention by its operators one by one, in this thread."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is multi_head_attention_forward:  # it is fused where nobody asks for its weights
            output, weights = func(*args, **{**kwargs, "need_weights": True})
            return output, weights if kwargs.get("need_weights", True) else None
        return (math_attention if func is scaled_dot_product_attention else func)(*args, **kwargs)


def from_arguments(args: AttentionCallArgs, softmax: Softmax, output: Tensor) -> Attention:
    """Return the arguments and the results of an attention function as an `Attention`."""
    keys, sinks = args.key.shape[-2], args.sinks
    if gated := sinks is not None and softmax.weights.shape[-1] == keys:
        sinks = None  # they gate the output and are no column of the softmax
    if sinks is not None and sinks.dim() > 1:  # each query has its own
        sinks = sinks.squeeze(-1)
    return Attention(
        query=args.query,
        key=args.key,
        value=args.value,
        scale=args.scale,
        soft_cap=args.arguments.get("softcap"),
        capped_bias=None,
        bias=args.bias,
        mask=args.expanded_mask,
        sinks=sinks,
        scores=softmax.scores[..., :keys],  # a sink is one more column
        weights=softmax.weights[..., :keys],
        head_output=None if gated else output.transpose(1, 2),
    )
