"""A trace of the operators of a run: every softmax over products q·k, with all that lies between.

A softmax whose input is made of batched products of two activations is an attention. The product
that its weights enter gives the values. It depends on no model; products with a parameter (linear
layers, routers) do not count.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from attnviz.capture.tracing.provenance import (
    Args,
    ConstantStorages,
    DerivedStorages,
    Kwargs,
    Mixture,
    Product,
    Provenance,
    ProvenanceMap,
    Softmax,
    apply,
    constants,
    elements_in,
    has_numbers,
    mix,
    storage_key,
    tensors_in,
)
from attnviz.runtime.compat import (
    CAST,
    FUSED_ATTENTION,
    SOFTMAX,
    TorchDispatchMode,
    arguments_of,
    draws,
    is_in_place,
)

# Operators that move numbers without computing, and the indices of their arguments with numbers.
_MOVES = {
    "cat": (0,), "stack": (0,), "constant_pad_nd": (0,), "index": (0,), "gather": (0,),
    "index_select": (0,), "repeat": (0,), "roll": (0,), "flip": (0,), "copy": (0, 1),
    "index_put": (0, 2), "scatter": (0, 3), "slice_scatter": (0, 1), "select_scatter": (0, 1),
}  # fmt: skip
_COPIES = {"clone", CAST}
# Operators that join numbers without multiplying them by each other.
_JOINS = {
    "add", "sub", "rsub", "where", "masked_fill", "maximum", "minimum", *_MOVES, *_COPIES,
}  # fmt: skip
# The operators of torch, flash-attn and xformers that compute a whole attention.
_FUSED = re.compile(
    rf"^({FUSED_ATTENTION}(?!\w*_backward)"
    r"|_?(flash_attn|flash_attention|efficient_attention)_(varlen_)?forward)"
)
_UNREAD_NESTED = {*SOFTMAX, "_native_multi_head_attention", "_transformer_encoder_layer_fwd"}
_ROW_REDUCTIONS = {"max", "amax", "logsumexp"}
_UNDIVIDED = "its exponentials are not divided by their sum before they mix values"
Numbered = TypeVar("Numbered", Product, Softmax)


class SoftmaxCollector(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the softmaxes of attention functions, and counts the operators outside these."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._softmaxes: list[Softmax] | None = None
        self.operators: Counter[str] = Counter()  # outside attention functions, by name

    @contextmanager
    def collect_softmaxes(self) -> Iterator[list[Softmax]]:
        """Collect every softmax that runs in this context: in one attention function."""
        before, self._softmaxes = self._softmaxes, []
        try:
            yield self._softmaxes
        finally:
            self._softmaxes = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "overloadpacket", func).__name__
        # Composite operators are dispatched whole there.
        if torch.is_inference_mode_enabled() and hasattr(func, "decompose"):
            with self:
                decomposed = func.decompose(*args, **kwargs)
            if decomposed is not NotImplemented:
                return decomposed
        if self._softmaxes is None:
            self.operators[name] += 1
            return self.run(func, name, args, kwargs)
        result = self.attend(func, name, args, kwargs)
        if name in SOFTMAX:
            self._softmaxes.append(Softmax(args[0], result, args[1]))
        return result

    def attend(self, func: Any, name: str, args: Args, kwargs: Kwargs) -> Any:
        """Run an operator in an attention function, and return its result."""
        return func(*args, **kwargs)

    def run(self, func: Any, name: str, args: Args, kwargs: Kwargs) -> Any:
        """Run an operator outside attention functions, and return its result."""
        return func(*args, **kwargs)


class OperatorTracer(SoftmaxCollector):  # type: ignore[no-untyped-call]
    """Dispatch mode that follows scores through the operators of a run.

    on_softmax : takes every attention, at its softmax. on_fused : takes the
    name, the arguments by name, and the output of every fused one.
    on_unreadable : takes the reason why one cannot be followed. on_other : takes other softmaxes,
    which may mix values, too: of scores that are no products, or of exponentials.
    """

    def __init__(
        self,
        model: nn.Module,
        on_softmax: Callable[[Softmax], None],
        on_fused: Callable[[str, Mapping[str, Any], Tensor], None],
        on_unreadable: Callable[[str], None],
        on_other: Callable[[Softmax], None] | None = None,
    ) -> None:
        super().__init__()
        self.provenance = ProvenanceMap()
        self._on_softmax, self._on_fused = on_softmax, on_fused
        self._on_unreadable, self._on_other = on_unreadable, on_other
        self._constants = ConstantStorages([])
        self.add_constants(model)
        self._derived = DerivedStorages()
        self._products: list[Product] = []
        self._traced: list[Softmax] = []
        self.is_idle = False  # while nothing is followed
        self.joined: set[tuple[int, int]] = set()  # sizes of batches that were joined, of each part
        # Exponentials of scores that no sum has divided yet.
        self._exponentials: dict[int, Softmax] = {}

    def add_constants(self, module: nn.Module) -> None:
        """Add the parameters and buffers of a module, which do not depend on the input."""
        self._constants.add(module.parameters(), module.buffers())

    def forget(self, depth: int) -> None:
        """Drop what was followed in modules deeper than `depth`."""
        self.provenance.forget(depth)
        self._derived.forget()
        self._products = [product for product in self._products if product.depth <= depth]
        self._traced = [softmax for softmax in self._traced if softmax.depth <= depth]
        self._exponentials = {k: x for k, x in self._exponentials.items() if x.depth <= depth}

    def run(self, func: Any, name: str, args: Args, kwargs: Kwargs) -> Any:
        """Run an operator, and follow scores through it."""
        if self.is_idle:
            return func(*args, **kwargs)
        is_fused = bool(_FUSED.search(name))
        tensors = tensors_in(args)
        if any(tensor.is_nested for tensor in tensors) and (is_fused or name in _UNREAD_NESTED):
            self._on_unreadable("its tensors are nested. Give it padded ones, and a mask")
        if name == "flex_attention":
            self._on_unreadable("flex_attention shows no scores")
        if not hasattr(func, "overloadpacket") or not all(map(has_numbers, tensors)):
            return func(*args, **kwargs)
        if is_fused:
            result = func(*args, **kwargs)
            self._on_fused(name, arguments_of(func, args, kwargs), result[0])
            return result
        if in_place := is_in_place(func):
            self._keep(args[0])
        # An operator in place overwrites its input, which an unknown operator is compared with.
        before = args[0].clone() if in_place and self.provenance.get(args[0], "score") else None
        result = func(*args, **kwargs)
        if not all(map(has_numbers, tensors_in([result]))):
            return result
        if not draws(func, args, kwargs):  # random numbers are no table
            self._constants.note(args, result)
        shape_only = name.endswith("_like") or name.startswith("new_")
        if not func.is_view and not shape_only:
            name = name.removesuffix("_") if in_place else name
            self._follow(name, func, args, kwargs, result, before)
            self._note_derived(name, args, result)
        return result

    def _keep(self, written: Tensor) -> None:
        """Keep what attentions are made of as it is, before an operator overwrites it."""
        mixtures = (mixture for softmax in self._traced for mixture in softmax.mixtures)
        for one in (*self._products, *self._traced, *mixtures):
            for name, x in vars(one).items():
                if isinstance(x, Tensor) and storage_key(x) == storage_key(written):
                    object.__setattr__(one, name, x.clone())

    def _follow(
        self, name: str, func: Any, args: Args, kwargs: Kwargs, result: Any, before: Tensor | None
    ) -> None:
        """Follow numbers to an operator's result; before : a score that it overwrites."""
        reduces = name in _ROW_REDUCTIONS and len(args) > 1
        if reduces and self.provenance.get(args[0], "score") is not None:
            dim = args[1][0] if isinstance(args[1], list) else args[1]
            if dim in (-1, args[0].dim() - 1):
                values = result if isinstance(result, Tensor) else result[0]
                origin = torch.zeros_like(values, dtype=torch.long)
                shift = Provenance("shift", origin, log_sum_exp=name == "logsumexp")
                self.provenance.set(values, shift)
                return
        if name in ("topk", "sort") and self.provenance.get(args[0], "score") is not None:
            dim = arguments_of(func, args, kwargs)["dim"]
            moved = args[0], dim, result[1]
            self._move(torch.ops.aten.gather.default, "gather", moved, {}, result[0])
            return
        if not isinstance(result, Tensor) or not (result.is_floating_point() and result.numel()):
            return
        if name == "convolution":
            self.provenance.note_vectors(result, 1)
        if name in ("cat", "stack") and args[1:] in ((), (0,)) and result.dim() > 1:
            parts = {len(x) for x in args[0]}
            self.joined.update((len(args[0]) * n, n) for n in parts if len(parts) == 1)
        if name in ("bmm", "baddbmm"):
            self._multiply(args, kwargs, result)
        elif name in ("mm", "addmm"):
            if args[-1] in self._constants:
                self.provenance.note_vectors(result, 1)
            elif args[-2] not in self._constants:
                batched = (*args[:-2], *(matrix.unsqueeze(0) for matrix in args[-2:]))
                self._multiply(batched, kwargs, result.unsqueeze(0))
        elif name in SOFTMAX:
            self._normalize(args[0], self.provenance.get(args[0], "score"), args[1], result)
        elif name == "_log_softmax" and (score := self.provenance.get(args[0], "score")):
            is_last = args[1] in (-1, result.dim() - 1)
            self.provenance.set(result, replace(score, log_sum_exp=is_last))
        elif name in ("exp", "exp2"):
            self._exponentiate(name, args[0] if before is None else before, args[0], result)
        elif (one := self._divided(name, args)) and (dim := _normalized(result)) is not None:
            softmax = self._normalize(one.scores, one.provenance, dim, result)
            one.mixtures, one.reason = softmax.mixtures, softmax.reason
            self._exponentials.pop(storage_key(result), None)  # where divided in place
        elif name in _MOVES and (name != "scatter" or isinstance(args[3], Tensor)):
            self._move(func, name, args, kwargs, result)
        elif not is_in_place(func) and storage_key(result) in map(storage_key, tensors_in(args)):
            return
        elif name in _COPIES:
            if (copied := self.provenance.get(args[0])) is None and name == "clone":
                copied = Provenance("place", self.provenance.places(args[0]))
            if copied is not None and not (copied.kind == "place" and name == CAST):
                self.provenance.set(result, copied)
        elif name in ("mul", "div") and self.provenance.is_placed(*tensors_in(args)):
            self.provenance.set(result, Provenance("place", self.provenance.places(args[0])))
        else:
            if name == "add" and isinstance(args[0], Tensor) and result.is_contiguous():
                self.provenance.note_same_vectors(result, args[0])
            values = [before, *args[1:]] if before is not None else args
            self._compute(name, args, values, kwargs, result)

    def _note_derived(self, name: str, args: Args, result: Any) -> None:
        """Note what is computed of weights, but for copies, and if an activation is multiplied."""
        tensors = [tensor for tensor in tensors_in(args) if tensor.is_floating_point()]
        derived = [self._derived.of(tensor) for tensor in tensors]
        softmaxes = frozenset[Softmax]().union(*derived)
        if not softmaxes:
            return
        others = [tensor for tensor, of in zip(tensors, derived, strict=True) if not of]
        multiplied = name not in _JOINS and any(self._is_activation(tensor) for tensor in others)
        for softmax in softmaxes:
            softmax.used |= name not in _MOVES and name not in _COPIES
            softmax.multiplied |= multiplied
        for output in tensors_in([result]):
            if output.is_floating_point():
                self._derived.add(output, softmaxes)

    def _is_activation(self, tensor: Tensor) -> bool:
        """Whether a tensor may be values: several numbers that depend on the input, no scores."""
        provenance = self.provenance.get(tensor)
        is_plain = provenance is None or provenance.kind == "place"
        return is_plain and tensor.numel() > 1 and tensor not in self._constants

    def _multiply(self, args: Args, kwargs: Kwargs, result: Tensor) -> None:
        """Follow a batched product: of weights with values, or of queries with keys."""
        left, right = args[-2:]
        if any(storage_key(side) in self._exponentials for side in (left, right)):
            if self._on_other is None:
                self._on_unreadable(_UNDIVIDED)
            return
        for weights, values, output in ((left, right, result), (right.mT, left.mT, result.mT)):
            if (weight := self.provenance.get(weights, "weight")) is not None:
                if self._constants.is_parameter(values):  # which mixes the heads, or the rows
                    return
                softmaxes = _of_elements(self._traced, weight.origin)
                place, values = self.provenance.places(values)[..., 0], values.detach()
                output = output.clone()
                for softmax in softmaxes:
                    elements = elements_in(softmax.span, weight.origin)
                    exact = len(softmaxes) == 1 and softmax.has_weights(weights, elements)
                    softmax.mixtures.append(Mixture(elements, values, place, output, exact))
                    softmax.used = True
                return
        # Scores that are mixed by numbers of no input, across heads or rows, are no vectors.
        pairs = ((left, right), (right, left))
        is_mixed = any(self.provenance.get(x, "score") and y in self._constants for x, y in pairs)
        if is_mixed or any(self._constants.is_parameter(side) for side in (left, right)):
            if right.stride(0) and self._constants.is_parameter(right):
                self.provenance.note_vectors(result, 0, 2)  # a matrix for each head
            return
        product = Product(
            self.provenance.depth,
            self.provenance.reserve(result.numel()),
            left.detach(),
            right.detach().mT,
            self.provenance.places(left)[..., 0],
            self.provenance.places(right)[..., 0, :],
            sum(side not in self._constants for side in (left, right)),
        )
        self._products.append(product)
        origin = product.first + torch.arange(result.numel(), device=result.device)
        wide = torch.promote_types(result.dtype, torch.float32)
        factor = torch.ones(result.shape, dtype=wide, device=result.device)
        offset = torch.zeros_like(factor)
        if len(args) == 3:
            factor *= kwargs.get("alpha", 1)
            if beta := kwargs.get("beta", 1):  # else the table may be memory that was not written
                offset += beta * args[0].to(wide)
        self.provenance.set(result, Provenance("score", origin.view(result.shape), factor, offset))

    def _exponentiate(self, name: str, scores: Tensor, tracked: Tensor, result: Tensor) -> None:
        """Follow a softmax written as an exponential and a division by its sum."""
        if (score := self.provenance.get(tracked, "score")) is None:
            return
        if score.log_sum_exp and name == "exp":
            self._normalize(scores, score, -1, result)
            return
        score = score.clone()
        if name == "exp2" and (natural := score.scaled(math.log(2))) is not None:
            scores, score = scores * math.log(2), natural
        exponential = self._note_other(result, _UNDIVIDED, scores=scores, provenance=score)
        self._exponentials[storage_key(result)] = exponential
        self.provenance.drop(result)

    def _divided(self, name: str, args: Args) -> Softmax | None:
        """Return the exponentials that an operator divides, or multiplies by one divided."""
        sides = {"div": args[:1], "mul": args}.get(name, ())
        keys = [storage_key(side) for side in sides if isinstance(side, Tensor)]
        return next((self._exponentials[key] for key in keys if key in self._exponentials), None)

    def _note_other(self, result: Tensor, reason: str, **formula: Any) -> Softmax:
        """Note what may be an attention that cannot be read; formula : scores, provenance."""
        kept = result if formula else result.new_empty(0)  # which keeps no memory
        formula = {"scores": kept, **formula, "reason": reason}
        other = Softmax(weights=kept, dim=-1, depth=self.provenance.depth, **formula)
        if self._on_other is not None:
            self._derived.add(result, frozenset([other]))
            self._on_other(other)
        return other

    def _normalize(
        self, scores: Tensor, provenance: Provenance | None, dim: int, result: Tensor
    ) -> Softmax:
        if provenance is None:
            return self._note_other(result, "its scores are no products q·k")
        softmax = Softmax(
            scores,
            result,
            dim,
            self.provenance.depth,
            self.provenance.reserve(result.numel()),
            provenance.clone(),
            _of_elements(self._products, provenance.origin),
        )
        self._traced.append(softmax)
        origin = softmax.first + torch.arange(result.numel(), device=result.device)
        self.provenance.set(result, Provenance("weight", origin.view(result.shape)))
        self._derived.add(result, frozenset([softmax]))
        self._on_softmax(softmax)
        return softmax

    def _move(self, func: Any, name: str, args: Args, kwargs: Kwargs, result: Tensor) -> None:
        """Move the fields of a formula as an operator moves its numbers."""
        moved_args = {i: args[i] for i in _MOVES[name] if i < len(args)}
        tensors = tensors_in(moved_args.values())
        tracked = [self.provenance.get(tensor) for tensor in tensors]
        known = [provenance for provenance in tracked if provenance is not None]
        if name == "copy" and not known:
            return  # a buffer that is filled with numbers of no interest
        places = Provenance("place", result)
        like = next((provenance for provenance in known if provenance.kind != "place"), places)
        lifted = [self.provenance.lift(tensor, like).fields() for tensor in tensors]
        moved = []
        for number, _ in enumerate(like.fields()):
            fields = [provenance[number] for provenance in lifted]
            if name == "copy":
                moved.append(fields[1].expand(result.shape))
                continue
            remaining = iter(fields)
            new_args = list(args)
            for i, arg in moved_args.items():
                is_list = isinstance(arg, list | tuple)
                new_args[i] = [next(remaining) for _ in arg] if is_list else next(remaining)
            if name == "constant_pad_nd":
                fill = args[2] if len(args) > 2 else 0
                new_args = [*new_args[:2], (-1, 0, fill, 0)[number]]
            if is_in_place(func):
                new_args[0] = new_args[0].clone()
            moved.append(func(*new_args, **kwargs))
        self.provenance.set(result, like.with_fields(moved))

    def _compute(
        self, name: str, args: Sequence[Any], values: Sequence[Any], kwargs: Kwargs, result: Tensor
    ) -> None:
        """Change the formula of scores, or note which weights are left of a distribution."""
        known = {i: self.provenance.get(arg) for i, arg in enumerate(args)}
        tracked = {i: provenance for i, provenance in known.items() if provenance is not None}
        if weight := next((p for p in tracked.values() if p.kind == "weight"), None):
            if weight.origin.shape == result.shape:  # dropout, a cast, a mask on heads or rows
                used = result != 0
                self.provenance.set(result, replace(weight, origin=weight.origin.where(used, -1)))
            return
        scores = {i: provenance for i, provenance in tracked.items() if provenance.kind == "score"}
        if not scores:
            return
        main = next(iter(scores))
        if len(scores) > 1:
            main = max(scores, key=lambda i: self._rank(scores[i]))
        score = scores[main]
        shift = next((p for p in tracked.values() if p.kind == "shift"), None)
        if name == "sub" and shift is not None:
            computed: Provenance | None = replace(score, log_sum_exp=shift.log_sum_exp)
        else:
            computed = apply(name, main, scores, values, kwargs)
            computed = computed and replace(computed, log_sum_exp=False)
        if computed is None:
            value = values[main]
            if value.shape != result.shape:
                return  # a reduction: these are scores no longer
            same = (value == result) | (value.isnan() & result.isnan())
            computed = mix(same, score, constants(result, score))
        fields = [field.expand(result.shape) for field in computed.fields()]
        self.provenance.set(result, computed.with_fields(fields))

    def _rank(self, score: Provenance) -> tuple[int, bool, int]:
        """Rank the content product (two activations, whole) over one for relative positions."""
        origin, span = score.origin, _span(score.origin)
        if not span:
            return 0, False, 0
        whole = len(span) == origin.numel() == len(torch.unique(origin[origin >= 0]))
        most = max(product.activations for product in _of_elements(self._products, origin))
        return most, whole, -span.start


def _span(elements: Tensor) -> range:
    """Return the numbers from the first of some elements to the last; -1 is none."""
    used = elements[elements >= 0]
    return range(int(used.min()), int(used.max()) + 1) if len(used) else range(0)


def _of_elements(every: Sequence[Numbered], elements: Tensor) -> list[Numbered]:
    """Return the products, or softmaxes, of which some elements may be."""
    first, stop = (span := _span(elements)).start, span.stop
    return [one for one in every if max(one.span.start, first) < min(one.span.stop, stop)]


def _normalized(result: Tensor) -> int | None:
    """Return the last dimension along which most rows sum to 1; masked ones may sum to more."""
    for dim in reversed(range(result.dim())):
        sums = result.sum(dim)
        if result.shape[dim] > 1 and bool(((sums - 1).abs() < 1e-2).float().mean() > 0.5):
            return dim
    return None
