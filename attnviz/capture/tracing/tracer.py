"""A trace of the operators of a run: every softmax over products q·k, with all that lies between.

torch shows each operator that it executes to a dispatch mode. The elements of batched products of
two activations are numbered, their provenance follows the scores (provenance.py), and a softmax
whose input is made of such products is an attention. The product that its weights enter gives the
values. Nothing here knows a model; products with a parameter (linear layers, routers) do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnviz.capture.tracing.nodes import Mixture, Product, Softmax, TraceNodes
from attnviz.capture.tracing.provenance import (
    ConstantStorages,
    Provenance,
    ProvenanceMap,
    apply,
    constants,
    mix,
    shares_storage,
    storage_key,
)
from attnviz.runtime.compat import CAST, SOFTMAX, TorchDispatchMode, is_in_place

# Operators that move numbers without computing, and the indices of their arguments with numbers.
_MOVES = {
    "cat": (0,), "stack": (0,), "constant_pad_nd": (0,), "index": (0,), "gather": (0,),
    "index_select": (0,), "repeat": (0,), "roll": (0,), "flip": (0,), "copy": (0, 1),
    "index_put": (0, 2), "slice_scatter": (0, 1), "select_scatter": (0, 1),
}  # fmt: skip
_COPIES = {"clone", CAST}
_ROW_REDUCTIONS = {"max", "amax", "logsumexp"}


class SoftmaxCollector(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Base of the dispatch modes of this package: collects the softmaxes of an attention function.

    Two modes extend it: `OperatorTracer` follows all operators outside attention functions; the
    monitor of the row sampler notices attention that goes past the functions.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._softmaxes: list[Softmax] | None = None

    @property
    def is_collecting(self) -> bool:
        """Whether an attention function runs, whose arguments describe its scores."""
        return self._softmaxes is not None

    @contextmanager
    def collect_softmaxes(self) -> Iterator[list[Softmax]]:
        """Collect every softmax that runs in this context."""
        before, self._softmaxes = self._softmaxes, []
        try:
            yield self._softmaxes
        finally:
            self._softmaxes = before

    def run_and_collect(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None
    ) -> Any:
        """Run an operator, and collect it if it is a softmax."""
        result = func(*args, **(kwargs or {}))
        if self._softmaxes is not None and func.overloadpacket.__name__ in SOFTMAX:
            self._softmaxes.append(Softmax(args[0], result, args[1]))
        return result


class OperatorTracer(SoftmaxCollector):  # type: ignore[no-untyped-call]
    """Dispatch mode that follows scores through the operators of a run.

    Parameters
    ----------
    parameters : sequence of Tensor
        The parameters and buffers of the model, which do not depend on the input.
    on_softmax : callable
        Takes every attention, at its softmax.
    on_unreadable : callable
        Takes the reason why one cannot be followed.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        on_softmax: Callable[[Softmax], None],
        on_unreadable: Callable[[str], None],
    ) -> None:
        super().__init__()
        self.provenance = ProvenanceMap()
        self._on_softmax, self._on_unreadable = on_softmax, on_unreadable
        self._constants = ConstantStorages(parameters)
        self._nodes = TraceNodes()
        # Exponentials of scores that no sum has divided yet.
        self._exponentials: dict[int, tuple[int, Tensor, Provenance, Tensor]] = {}

    def forget(self, depth: int) -> None:
        """Drop what was followed in modules deeper than `depth`."""
        self.provenance.forget(depth)
        self._nodes.forget(depth)
        self._exponentials = {
            key: exponential
            for key, exponential in self._exponentials.items()
            if exponential[0] <= depth
        }

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled():  # composite operators are dispatched whole
            with self:
                decomposed = func.decompose(*args, **kwargs)
            if decomposed is not NotImplemented:
                return decomposed
        if self.is_collecting:
            return self.run_and_collect(func, args, kwargs)
        name, in_place = func.overloadpacket.__name__, is_in_place(func)
        # An operator in place overwrites its input, which an unknown operator is compared with.
        before = args[0].clone() if in_place and self.provenance.get(args[0], "score") else None
        result = func(*args, **kwargs)
        self._constants.note(args, result)
        name = name.removesuffix("_") if in_place else name
        self._follow(name, func, args, kwargs, result, before)
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
            return  # it shares the memory, or takes the shape only
        self._note_use(name, args, result)
        if name in _ROW_REDUCTIONS and self._reduces_rows(args):
            values = result if isinstance(result, Tensor) else result[0]
            shift = Provenance("shift", torch.zeros_like(values, dtype=torch.long))
            self.provenance.set(values, shift)
            return
        if not isinstance(result, Tensor) or not result.is_floating_point():
            return
        if name in ("bmm", "baddbmm"):
            self._multiply(args, kwargs, result)
        elif name in ("mm", "addmm"):
            if not any(matrix in self._constants for matrix in args[-2:]):
                batched = (*args[:-2], *(matrix.unsqueeze(0) for matrix in args[-2:]))
                self._multiply(batched, kwargs, result.unsqueeze(0))
        elif name in SOFTMAX:
            self._normalize(args[0], self.provenance.get(args[0], "score"), args[1], result)
        elif name == "exp":
            self._exponentiate(args[0] if before is None else before, args[0], result)
        elif name == "div" and self._completes_softmax(args[0], result):
            _, scores, provenance, _ = self._exponentials[storage_key(args[0])]
            self._normalize(scores, provenance, -1, result)
        elif name in _MOVES:
            self._move(func, name, args, kwargs, result)
        elif shares_storage(result, args) and not is_in_place(func):
            return
        elif name in _COPIES:
            if (copied := self.provenance.get(args[0])) is None and name == "clone":
                copied = Provenance("place", self.provenance.places(args[0]))
            if copied is not None and not (copied.kind == "place" and name == CAST):
                self.provenance.set(result, copied)
        else:
            self._compute(name, args, kwargs, result, before)

    def _note_use(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        """Note the weights that an operator computes with; moving or copying them is no use."""
        if name in _COPIES or name in _MOVES:
            return
        if isinstance(result, Tensor) and shares_storage(result, args):
            return
        for arg in args:
            if (weight := self.provenance.get(arg, "weight")) is not None:
                for softmax in self._nodes.softmaxes_of(weight.origin):
                    softmax.used = True

    def _reduces_rows(self, args: tuple[Any, ...]) -> bool:
        if self.provenance.get(args[0], "score") is None or len(args) < 2:
            return False
        dim = args[1][0] if isinstance(args[1], list) else args[1]
        return dim in (-1, args[0].dim() - 1)

    def _completes_softmax(self, exponential: Tensor, result: Tensor) -> bool:
        return _is_distribution(result) and storage_key(exponential) in self._exponentials

    def _multiply(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Tensor) -> None:
        left, right = args[-2:]
        if any(storage_key(side) in self._exponentials for side in (left, right)):
            self._on_unreadable("its values are mixed before its softmax is done")
            return
        for weights, values, output in (
            (left, right, result),
            (right.mT, left.mT, result.mT),
        ):
            if (weight := self.provenance.get(weights, "weight")) is not None:
                mixture = Mixture(weight.origin, values.detach(), output.clone())
                self._mix_values(mixture, weights)
                return
        if any(self._constants.is_parameter(side) for side in (left, right)):
            return
        product = Product(
            self.provenance.reserve(result.numel()),
            left.detach(),
            right.detach().mT,
            self.provenance.places(left)[..., 0],
            self.provenance.places(right)[..., 0, :],
            sum(side not in self._constants for side in (left, right)),
        )
        self._nodes.products.append((self.provenance.depth, product))
        origin = torch.arange(result.numel(), device=result.device).view(result.shape)
        wide = torch.promote_types(result.dtype, torch.float32)
        factor = torch.ones(result.shape, dtype=wide, device=result.device)
        offset = torch.zeros_like(factor)
        if len(args) == 3:
            factor *= kwargs.get("alpha", 1)
            offset += kwargs.get("beta", 1) * args[0].to(wide)
        self.provenance.set(result, Provenance("score", product.first + origin, factor, offset))

    def _mix_values(self, mixture: Mixture, weights: Tensor) -> None:
        mixed = self._nodes.softmaxes_of(mixture.elements)
        for softmax in mixed:
            exact = len(mixed) == 1 and softmax.has_weights(weights, mixture.elements)
            softmax.mixtures.append(replace(mixture, exact_weights=exact))
            softmax.used = True

    def _exponentiate(self, scores: Tensor, tracked: Tensor, result: Tensor) -> None:
        """Follow a softmax written as an exponential and a division by its sum."""
        if (score := self.provenance.get(tracked, "score")) is None:
            return
        score = score.with_fields(field.clone() for field in score.fields())
        if _is_distribution(result):  # of scores minus their log-sum-exp
            self._normalize(scores, score, -1, result)
        else:
            exponential = self.provenance.depth, scores, score, result
            self._exponentials[storage_key(result)] = exponential
            self.provenance.drop(result)

    def _normalize(
        self, scores: Tensor, provenance: Provenance | None, dim: int, result: Tensor
    ) -> None:
        if provenance is None:
            return
        softmax = Softmax(
            scores,
            result,
            dim,
            self.provenance.reserve(result.numel()),
            provenance.with_fields(field.clone() for field in provenance.fields()),
            self._nodes.products_of(provenance),
        )
        self._nodes.softmaxes.append((self.provenance.depth, softmax))
        origin = torch.arange(result.numel(), device=result.device).view(result.shape)
        self.provenance.set(result, Provenance("weight", softmax.first + origin))
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
        tracked = [
            provenance
            for tensor in tensors
            if (provenance := self.provenance.get(tensor)) is not None
        ]
        like = next((provenance for provenance in tracked if provenance.kind != "place"), None)
        if like is None:
            if name == "copy" and not tracked:
                return  # a buffer that is filled with numbers of no interest
            like = Provenance("place", result)
        lifted = [self.provenance.lift(tensor, like) for tensor in tensors]
        fields = []
        for number, _ in enumerate(like.fields()):
            moved = iter([provenance.fields()[number] for provenance in lifted])
            new: list[Any] = list(args)
            for i in _MOVES[name]:
                if i < len(new):
                    several = isinstance(new[i], list | tuple)
                    new[i] = [next(moved) for _ in new[i]] if several else next(moved)
            if name == "constant_pad_nd":
                fill = args[2] if len(args) > 2 else 0
                new = [new[0], new[1], (-1, 0, fill, 0)[number]]
            if name == "copy":
                fields.append(new[1].expand(result.shape))
                continue
            if is_in_place(func):
                new[0] = new[0].clone()
            fields.append(func(*new, **kwargs))
        self.provenance.set(result, like.with_fields(fields))

    def _compute(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Tensor,
        before: Tensor | None,
    ) -> None:
        tracked = [
            (i, provenance)
            for i, arg in enumerate(args)
            if (provenance := self.provenance.get(arg)) is not None
        ]
        if weight := next((p for _, p in tracked if p.kind == "weight"), None):
            if weight.origin.shape == result.shape:  # dropout, a cast, a mask on heads or rows
                used = result != 0
                self.provenance.set(result, replace(weight, origin=weight.origin.where(used, -1)))
            return
        shifted = name == "sub" and any(provenance.kind == "shift" for _, provenance in tracked)
        scores = [(i, provenance) for i, provenance in tracked if provenance.kind == "score"]
        if not scores:
            return
        main, score = scores[0]
        if len(scores) > 1:
            main, score = max(scores, key=lambda argument: self._nodes.rank(argument[1]))
        values = [before if i == 0 and before is not None else arg for i, arg in enumerate(args)]
        computed = score if shifted else apply(name, main, dict(scores), values, kwargs)
        if computed is None:
            value = values[main]
            if value.shape != result.shape:
                return  # a reduction: these are scores no longer
            same = (value == result) | (value.isnan() & result.isnan())
            computed = mix(same, score, constants(result, score))
        fields = computed.fields()
        self.provenance.set(
            result, computed.with_fields(field.expand(result.shape) for field in fields)
        )


def _is_distribution(result: Tensor) -> bool:
    if not result.dim() or result.shape[-1] < 2:
        return False
    # A row whose keys are all masked sums to more.
    return bool(((result.sum(-1) - 1).abs() < 1e-2).float().mean() > 0.5)
