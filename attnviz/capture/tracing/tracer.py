"""The operators of a run, watched: every softmax over products q·k, with all that stood between.

torch shows each operator that it executes to a dispatch mode. Batched products of two activations
are numbered, their shadows follow the scores (shadows.py), and a softmax whose input is made of
such products is an attention. The product that its weights enter gives the values. Nothing here
knows a model; products with a parameter (linear layers, routers) are none of two activations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attnviz.capture.tracing.constants import Fixed, lies_in, storage_key
from attnviz.capture.tracing.nodes import (
    Mixture,
    Product,
    Seen,
    Softmax,
)
from attnviz.capture.tracing.provenance import ShadowMemory
from attnviz.capture.tracing.symbolic import (
    Shadow,
    apply,
    constants,
    mix,
)

# Operators that move numbers without computing, and which of their arguments hold the numbers.
_MOVES = {
    "cat": (0,), "stack": (0,), "constant_pad_nd": (0,), "index": (0,), "gather": (0,),
    "index_select": (0,), "repeat": (0,), "roll": (0,), "flip": (0,), "copy": (0, 1),
    "index_put": (0, 2), "slice_scatter": (0, 1), "select_scatter": (0, 1),
}  # fmt: skip
_COPIES = {"clone", "_to_copy"}
_OF_ROWS = {"max", "amax", "logsumexp"}
_SOFTMAX = {"_softmax", "_safe_softmax"}


class OperatorWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follow scores through the operators of a run.

    Tell `on_softmax` of every attention, and `on_unread` why one cannot be followed.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        on_softmax: Callable[[Softmax], None],
        on_unread: Callable[[str], None],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._on_unread = on_unread
        self.memory = ShadowMemory()
        self._fixed = Fixed(parameters)
        self._on_softmax = on_softmax
        self._seen = Seen()
        self._noted: list[Softmax] | None = None
        # Exponentials of scores that no sum has divided yet.
        self._by_hand: dict[int, tuple[int, Tensor, Shadow, Tensor]] = {}

    @contextmanager
    def only_noting(self) -> Iterator[list[Softmax]]:
        """Collect every softmax without following anything: its scores are told by another."""
        before, self._noted = self._noted, []
        try:
            yield self._noted
        finally:
            self._noted = before

    def forget(self, depth: int) -> None:
        """Drop what was followed in modules deeper than `depth`."""
        self.memory.forget(depth)
        self._seen.forget(depth)
        self._by_hand = {key: each for key, each in self._by_hand.items() if each[0] <= depth}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled():  # then composite operators come whole
            with self:
                taken_apart = func.decompose(*args, **kwargs)
            if taken_apart is not NotImplemented:
                return taken_apart
        name = func.overloadpacket.__name__
        if self._noted is not None:
            result = func(*args, **kwargs)
            if name in _SOFTMAX:
                self._noted.append(Softmax(args[0], result, args[1]))
            return result
        writes = func._schema.is_mutable
        # In place the values before are lost, but an operator that is not known needs them.
        before = args[0].clone() if writes and self.memory.of(args[0], "score") else None
        result = func(*args, **kwargs)
        self._fixed.note(args, result)
        self._follow(name.removesuffix("_") if writes else name, func, args, kwargs, result, before)
        return result

    def _follow(
        self,
        name: str,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Any,
        before: Tensor | None,
    ) -> None:
        if func.is_view or name.endswith("_like") or name.startswith("new_"):
            return  # shares the memory, or takes the shape only
        self._note_use(name, args, result)
        if name in _OF_ROWS and self._is_of_rows(args):
            values = result if isinstance(result, Tensor) else result[0]
            self.memory.cast(values, Shadow("shift", torch.zeros_like(values, dtype=torch.long)))
            return
        if not isinstance(result, Tensor) or not result.is_floating_point():
            return
        if name in ("bmm", "baddbmm"):
            self._multiply(args, kwargs, result)
        elif name in ("mm", "addmm"):
            if not any(part in self._fixed for part in args[-2:]):
                whole = (*args[:-2], *(part.unsqueeze(0) for part in args[-2:]))
                self._multiply(whole, kwargs, result.unsqueeze(0))
        elif name in _SOFTMAX:
            self._normalise(args[0], self.memory.of(args[0], "score"), args[1], result)
        elif name == "exp":
            self._exponentiate(args[0] if before is None else before, args[0], result)
        elif name == "div" and _is_distribution(result) and storage_key(args[0]) in self._by_hand:
            _, scores, formula, _ = self._by_hand[storage_key(args[0])]
            self._normalise(scores, formula, -1, result)
        elif name in _MOVES:
            self._move(func, name, args, kwargs, result)
        elif lies_in(result, args) and not func._schema.is_mutable:
            return
        elif name in _COPIES:
            if (shadow := self.memory.of(args[0])) is None and name == "clone":
                shadow = Shadow("place", self.memory.places(args[0]))
            if shadow is not None and not (shadow.kind == "place" and name == "_to_copy"):
                self.memory.cast(result, shadow)
        else:
            self._compute(name, args, kwargs, result, before)

    def _note_use(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        """Note which weights something is computed of; to move or copy them is not to use them."""
        if name in _COPIES or name in _MOVES:
            return
        if isinstance(result, Tensor) and lies_in(result, args):
            return
        for arg in args:
            if (weight := self.memory.of(arg, "weight")) is not None:
                for softmax in self._seen.softmaxes_of(weight.origin):
                    softmax.used = True

    def _is_of_rows(self, args: tuple[Any, ...]) -> bool:
        if self.memory.of(args[0], "score") is None or len(args) < 2:
            return False
        dim = args[1][0] if isinstance(args[1], list) else args[1]
        return dim in (-1, args[0].dim() - 1)

    def _multiply(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Tensor) -> None:
        left, right = args[-2:]
        if any(storage_key(part) in self._by_hand for part in (left, right)):
            self._on_unread("its values are mixed before its softmax is done")
            return
        for weights, values, output in (
            (left, right, result),
            (right.mT, left.mT, result.mT),
        ):
            if (shadow := self.memory.of(weights, "weight")) is not None:
                mixture = Mixture(shadow.origin, values.detach(), output.clone())
                self._mix_values(mixture, weights)
                return
        if any(self._fixed.is_parameter(part) for part in (left, right)):
            return
        product = Product(
            self.memory.reserve(result.numel()),
            left.detach(),
            right.detach().mT,
            self.memory.places(left)[..., 0],
            self.memory.places(right)[..., 0, :],
            sum(part not in self._fixed for part in (left, right)),
        )
        self._seen.products.append((self.memory.depth, product))
        origin = torch.arange(result.numel(), device=result.device).view(result.shape)
        wide = torch.promote_types(result.dtype, torch.float32)
        factor = torch.ones(result.shape, dtype=wide, device=result.device)
        offset = torch.zeros_like(factor)
        if len(args) == 3:
            factor *= kwargs.get("alpha", 1)
            offset += kwargs.get("beta", 1) * args[0].to(wide)
        self.memory.cast(result, Shadow("score", product.first + origin, factor, offset))

    def _mix_values(self, mixture: Mixture, weights: Tensor) -> None:
        mixed = self._seen.softmaxes_of(mixture.elements)
        for softmax in mixed:
            unchanged = len(mixed) == 1 and softmax.holds(weights, mixture.elements)
            softmax.mixtures.append(replace(mixture, unchanged=unchanged))
            softmax.used = True

    def _exponentiate(self, scores: Tensor, tracked: Tensor, result: Tensor) -> None:
        """Follow a softmax that is written by hand: the exponential, then divided by its sum."""
        if (shadow := self.memory.of(tracked, "score")) is None:
            return
        shadow = shadow.made_of(part.clone() for part in shadow.parts())
        if _is_distribution(result):  # of scores less their log-sum-exp
            self._normalise(scores, shadow, -1, result)
        else:
            self._by_hand[storage_key(result)] = self.memory.depth, scores, shadow, result
            self.memory.drop(result)

    def _normalise(self, scores: Tensor, shadow: Shadow | None, dim: int, result: Tensor) -> None:
        if shadow is None:
            return
        softmax = Softmax(
            scores,
            result,
            dim,
            self.memory.reserve(result.numel()),
            shadow.made_of(part.clone() for part in shadow.parts()),
            self._seen.products_of(shadow),
        )
        self._seen.softmaxes.append((self.memory.depth, softmax))
        origin = torch.arange(result.numel(), device=result.device).view(result.shape)
        self.memory.cast(result, Shadow("weight", softmax.first + origin))
        self._on_softmax(softmax)

    def _move(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Tensor
    ) -> None:
        tensors = [
            tensor
            for i in _MOVES[name]
            if i < len(args)
            for tensor in (args[i] if isinstance(args[i], list | tuple) else [args[i]])
            if isinstance(tensor, Tensor)
        ]
        shadows = [found for tensor in tensors if (found := self.memory.of(tensor)) is not None]
        kinds = [found.kind for found in shadows]
        like = next((found for found in shadows if found.kind != "place"), None)
        if like is None:
            if name == "copy" and not kinds:
                return  # nothing lies in a buffer that is filled from elsewhere
            like = Shadow("place", result)
        lifted = [self.memory.lift(tensor, like) for tensor in tensors]
        parts = []
        for number, _ in enumerate(like.parts()):
            moved = iter([shadow.parts()[number] for shadow in lifted])
            new: list[Any] = list(args)
            for i in _MOVES[name]:
                if i < len(new):
                    several = isinstance(new[i], list | tuple)
                    new[i] = [next(moved) for _ in new[i]] if several else next(moved)
            if name == "constant_pad_nd":
                filled = args[2] if len(args) > 2 else 0
                new = [new[0], new[1], (-1, 0, filled, 0)[number]]
            if name == "copy":
                parts.append(new[1].expand(result.shape))
                continue
            if func._schema.is_mutable:
                new[0] = new[0].clone()
            parts.append(func(*new, **kwargs))
        self.memory.cast(result, like.made_of(parts))

    def _compute(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Tensor,
        before: Tensor | None,
    ) -> None:
        tracked = [(i, found) for i, arg in enumerate(args) if (found := self.memory.of(arg))]
        if weight := next((found for _, found in tracked if found.kind == "weight"), None):
            if weight.origin.shape == result.shape:  # dropout, a cast, a mask on heads or rows
                used = result != 0
                self.memory.cast(result, replace(weight, origin=weight.origin.where(used, -1)))
            return
        shifted = name == "sub" and any(found.kind == "shift" for _, found in tracked)
        tracked = [(i, found) for i, found in tracked if found.kind == "score"]
        if not tracked:
            return
        main, shadow = tracked[0]
        if len(tracked) > 1:
            main, shadow = max(tracked, key=lambda each: self._seen.rank(each[1]))
        values = [before if i == 0 and before is not None else arg for i, arg in enumerate(args)]
        found = shadow if shifted else apply(name, main, dict(tracked), values, kwargs)
        if found is None:
            value = values[main]
            if value.shape != result.shape:
                return  # a reduction: no scores any more
            same = (value == result) | (value.isnan() & result.isnan())
            found = mix(same, shadow, constants(result, shadow))
        self.memory.cast(result, found.made_of(part.expand(result.shape) for part in found.parts()))


def _is_distribution(result: Tensor) -> bool:
    if not result.dim() or result.shape[-1] < 2:
        return False
    # A row that sees nothing sums to more.
    return bool(((result.sum(-1) - 1).abs() < 1e-2).float().mean() > 0.5)
