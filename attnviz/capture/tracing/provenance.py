"""Where each number of a run comes from: value = factor · product[origin] + offset.

`origin` numbers the elements of all products q·k of the run. Each change that a model makes to its
scores before the softmax (scale, add, mask, cap) is made to their formula too. Operators that move
numbers (shift, pad, gather, write into a buffer) move the fields of the formula in the same way. So
the formula of every score is known at the softmax. A provenance belongs to a storage, not to a
tensor: views need no work, and writing through a view is noticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from attnviz.runtime.compat import storage_id, unwrapped

# place: a copy of an activation, origin is where it was stored. score: made of products q·k.
# weight: a copy of attention weights, origin is the element of the softmax. shift: the largest or
# log-sum-exp of each row of scores; subtracting it from the row does not change the weights.
Kind = Literal["place", "score", "weight", "shift"]
Args: TypeAlias = tuple[Any, ...]  # of an operator
Kwargs: TypeAlias = Mapping[str, Any]
# Places in a vector that a projection returned: its number, times so many, and that of the feature.
VECTOR, VECTORS = 2**20, 2**48  # the latter is the first of these, beyond all other places
TINY = 1e-6  # a weight that is lost in rounding


@dataclass(frozen=True, eq=False)
class Provenance:
    """What the elements of a tensor come from, each field of the tensor's shape.

    value = factor · product[origin] + offset, or with a soft cap
    value = cap · tanh((factor · product[origin] + inner) / cap) + offset.
    """

    kind: Kind
    origin: Tensor  # the number of the element that it comes from; -1 for none
    factor: Any = None  # a tensor; None for a plain copy, as offset
    offset: Any = None
    cap: float | None = None
    inner: Tensor | None = None  # what is added before the cap
    # Of a shift: whether it is the log-sum-exp. Of scores: whether that is subtracted from them.
    log_sum_exp: bool = False

    def fields(self) -> list[Tensor]:
        """Return the tensors that it consists of."""
        fields = (self.origin, self.factor, self.offset, self.inner)
        return [field for field in fields if field is not None]

    def with_fields(self, fields: Iterable[Tensor]) -> Provenance:
        """Return a provenance of the same kind that consists of other tensors."""
        origin, factor, offset, inner = (*fields, None, None, None)[:4]
        assert origin is not None
        return replace(self, origin=origin, factor=factor, offset=offset, inner=inner)

    def clone(self) -> Provenance:
        """Return a copy that the rest of the run does not change."""
        return self.with_fields(tensor.clone() for tensor in self.fields())

    def scaled(self, by: Any) -> Provenance | None:
        """Return the formula times a number or a tensor; None where that is no such formula."""
        cap = self.cap
        if cap is not None:
            if isinstance(by, Tensor) and by.numel() > 1:
                return None
            cap *= float(by)
        inner = None if self.inner is None else self.inner * by
        factor, offset = self.factor * by, self.offset * by
        return replace(self, factor=factor, offset=offset, cap=cap, inner=inner)


def constants(tensor: Tensor, like: Provenance) -> Provenance:
    """Return the provenance of numbers that come from no product."""
    origin = torch.full(tensor.shape, -1, device=tensor.device)
    if like.factor is None:
        return replace(like, origin=origin)
    value = tensor.to(like.factor.dtype, copy=True)  # never the memory of the run itself
    zero = torch.zeros_like(value)
    inner = None if like.inner is None else zero.clone()
    return replace(like, origin=origin, factor=zero, offset=value, inner=inner)


def apply(
    name: str, main: int, tracked: Mapping[int, Provenance], values: Sequence[Any], kwargs: Kwargs
) -> Provenance | None:
    """Return what an operator makes of a score that is its argument `main`; None if unknown."""
    score = tracked[main]
    wide = score.factor.dtype

    def number(value: Any) -> Any:
        return value.to(wide) if isinstance(value, Tensor) else value

    if name in ("add", "sub", "rsub") and len(values) > 1:
        alpha = kwargs.get("alpha", 1)
        signs = {"add": (1, alpha), "sub": (1, -alpha), "rsub": (-alpha, 1)}[name]
        term = signs[1 - main] * number(values[1 - main])
        scaled = score.scaled(signs[main])
        return None if scaled is None else replace(scaled, offset=scaled.offset + term)
    if name == "mul":
        return score.scaled(number(values[1 - main]))
    if name == "div" and main == 0 and "rounding_mode" not in kwargs:
        return score.scaled(1 / number(values[1]))
    if name == "neg":
        return score.scaled(-1)
    if name == "tanh" and score.cap is None:
        inner = score.offset if score.offset.any() else None
        return replace(score, cap=1.0, offset=torch.zeros_like(score.offset), inner=inner)
    if name == "masked_fill" and main == 0:
        fill = torch.as_tensor(values[2], dtype=wide, device=score.origin.device)
        return mix(~values[1], score, constants(fill, score))
    if name == "where" and main > 0:
        other = tracked.get(3 - main)
        if other is None:
            other = constants(torch.as_tensor(values[3 - main]).to(score.origin.device), score)
        return mix(values[0] if main == 1 else ~values[0], score, other)
    return None


def mix(condition: Tensor, score: Provenance, other: Provenance) -> Provenance:
    """Return the formula of `score` where `condition`, elsewhere that of `other`.

    The origin of a masked score stays known: it tells the query and key of the element.
    """
    keeps_origin = condition | (other.origin < 0)
    inner = score.inner
    if inner is not None:
        inner = torch.where(condition, inner, 0.0 if other.inner is None else other.inner)
    return replace(
        score,
        origin=torch.where(keeps_origin, score.origin, other.origin),
        factor=torch.where(condition, score.factor, other.factor),
        offset=torch.where(condition, score.offset, other.offset),
        inner=inner,
    )


@dataclass(frozen=True, eq=False)
class Product:
    """A batched product Q Kᵀ."""

    depth: int  # how deep the module that computes it is nested
    first: int  # the number of its first element; it has B·m·n
    q: Tensor  # (B, m, d)
    k: Tensor  # (B, n, d)
    q_place: Tensor  # (B, m), where each row was stored
    k_place: Tensor  # (B, n)
    activations: int  # how many of its two sides depend on the input

    @property
    def span(self) -> range:
        """The numbers of its elements."""
        return range(self.first, self.first + self.q_place.numel() * self.k.shape[1])


@dataclass(frozen=True, eq=False)
class Mixture:
    """A batched product A V."""

    elements: Tensor  # (B, m, n), which elements of the softmax A has; -1 for none
    v: Tensor  # (B, n, d_v)
    v_place: Tensor  # (B, n), where each row was stored
    output: Tensor  # (B, m, d_v)
    exact_weights: bool  # whether A has the weights of the softmax; some models sharpen them


@dataclass(eq=False)
class Softmax:
    """One softmax over scores: its input and output, and the formula of every score."""

    scores: Tensor
    weights: Tensor  # of the shape of the scores
    dim: int  # along which it normalizes
    depth: int = 0  # how deep the module that computes it is nested
    first: int = 0  # the number of the first element of the weights
    # That of the scores; None where the arguments of an attention function describe them.
    provenance: Provenance | None = None
    products: list[Product] = field(default_factory=list)  # that the scores are made of
    mixtures: list[Mixture] = field(default_factory=list)  # that the weights enter
    used: bool = False  # whether anything is computed of the weights; some models ignore them
    # Whether an activation, which may be values, is multiplied by something computed of the weights
    # while they have entered no product.
    multiplied: bool = False
    # Why it cannot be read, if an activation is multiplied so.
    reason: str = "its weights enter no product with values"

    @property
    def is_settled(self) -> bool:
        """Whether nothing more is asked about what is computed of its weights."""
        return bool(self.mixtures) or (self.multiplied and not self.products)

    @property
    def span(self) -> range:
        """The numbers of its elements."""
        return range(self.first, self.first + self.weights.numel())

    def has_weights(self, weights: Tensor, elements: Tensor) -> bool:
        """Whether these are its weights, up to rounding; elements: which, -1 for none of them."""
        inside = elements >= 0
        expected = self.weights.flatten()[elements[inside]]
        rounding = max(1e-5, 4 * torch.finfo(weights.dtype).eps)
        difference = (weights[inside] - expected).abs()
        return bool((difference <= rounding * expected + TINY).all())


def elements_in(span: range, numbers: Tensor) -> Tensor:
    """Return numbers counted from the start of a span; -1 in place of those that are not in it."""
    return (numbers - span.start).where((numbers >= span.start) & (numbers < span.stop), -1)


def storage_key(tensor: Tensor) -> int:
    """Return a number that tells the storage of a tensor from all others that are alive."""
    return storage_id(tensor.untyped_storage())


def has_numbers(tensor: Tensor) -> bool:
    """Whether a tensor has memory of its own, one number after the other."""
    return not tensor.is_nested and tensor.layout is torch.strided and not tensor.is_meta


def tensors_in(values: Iterable[Any]) -> list[Tensor]:
    """Return the tensors among the arguments or results of an operator, and those in its lists."""
    flat = (item for one in values for item in (one if isinstance(one, list | tuple) else (one,)))
    return [item for item in flat if isinstance(item, Tensor)]


class ConstantStorages:
    """The parameters of a model, and what it computes of them alone: tables of positions, masks."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        # While a reference exists, even a weak one, its key is not used again.
        self._references: dict[int, StorageWeakRef] = {}
        self._parameters = set[int]()
        self._written = set[int]()  # buffers, which the run may fill: a cache
        self.add(parameters)

    def add(self, parameters: Iterable[Tensor], buffers: Iterable[Tensor] = ()) -> None:
        """Add parameters of a model, and its buffers as long as nothing else is written there."""
        for tensors, keys in ((buffers, self._written), (parameters, set[int]())):
            own = (one for one in map(unwrapped, tensors) if not nn.parameter.is_lazy(one))
            keys |= {self._add(one) for one in own if has_numbers(one)}
            self._parameters |= keys

    def __contains__(self, tensor: Tensor) -> bool:
        if isinstance(tensor, nn.Parameter):  # offloaded ones are loaded while the model runs
            self._parameters.add(self._add(tensor))
        return storage_key(tensor) in self._references

    def is_parameter(self, tensor: Tensor) -> bool:
        """Whether the tensor is a parameter, or a view of one."""
        return tensor in self and storage_key(tensor) in self._parameters

    def note(self, args: Sequence[Any], result: Any) -> None:
        """Note whether the results of an operator depend on constants only."""
        is_constant = all(tensor in self for tensor in tensors_in(args))
        for one in tensors_in([result]):
            if is_constant:
                self._add(one)
            elif not self.is_parameter(one) or storage_key(one) in self._written:
                self._references.pop(storage_key(one), None)

    def _add(self, tensor: Tensor) -> int:
        key, storage = storage_key(tensor), tensor.untyped_storage()
        self._references[key] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        return key


class DerivedStorages:
    """What is computed of weights that have entered no product with values, over a whole run."""

    def __init__(self) -> None:
        # While a reference exists, even a weak one, its key is not used again.
        self._derived: dict[int, tuple[StorageWeakRef, frozenset[Softmax]]] = {}

    def of(self, tensor: Tensor) -> frozenset[Softmax]:
        """Return the softmaxes, mixed with no values yet, of whose weights a tensor is computed."""
        _, softmaxes = self._derived.get(storage_key(tensor), (None, frozenset[Softmax]()))
        return frozenset(softmax for softmax in softmaxes if not softmax.is_settled)

    def add(self, tensor: Tensor, softmaxes: frozenset[Softmax]) -> None:
        """Note that a tensor is computed of the weights of some softmaxes."""
        reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        self._derived[storage_key(tensor)] = reference, self.of(tensor) | softmaxes

    def forget(self) -> None:
        """Drop what is computed of weights that have been mixed with values since."""
        self._derived = {
            key: derived
            for key, derived in self._derived.items()
            if not all(softmax.is_settled for softmax in derived[1])
        }


@dataclass(eq=False)
class _TrackedStorage:
    """The provenance of one storage, flat, or only the number of its first element."""

    storage: torch.UntypedStorage  # a reference, so that its key is not used again
    itemsize: int
    first: int
    depth: int
    provenance: Provenance | None = None


class ProvenanceMap:
    """The provenance of each storage that is tracked."""

    def __init__(self) -> None:
        self._tracked: dict[int, _TrackedStorage] = {}
        self._next = self._vectors_end = 0
        # Results of projections: the sizes of each, and which of its dimensions are a vector.
        self._vectors: dict[int, tuple[StorageWeakRef, tuple[int, ...], set[int], int]] = {}
        self.depth = 0

    def reserve(self, count: int) -> int:
        """Return the first of `count` new numbers."""
        first = self._next
        self._next += count
        return first

    def forget(self, depth: int) -> None:
        """Drop what was made deeper than `depth`."""
        self._tracked = {key: one for key, one in self._tracked.items() if one.depth <= depth}
        self._vectors = {k: one for k, one in self._vectors.items() if not one[0].expired()}  # type: ignore[no-untyped-call]

    def note_vectors(self, result: Tensor, *dims: int) -> None:
        """Note that a projection returned a tensor; dims : along which the features of one lie."""
        if result.is_contiguous() and result.storage_offset() == 0:
            reference = StorageWeakRef(result.untyped_storage())  # type: ignore[no-untyped-call]
            first = self._vectors_end = self._vectors_end + result.numel()
            self._vectors[storage_key(result)] = reference, tuple(result.shape), {*dims}, first

    def note_same_vectors(self, result: Tensor, source: Tensor) -> None:
        """Note that a tensor was computed of a projection's, number by number: with its bias."""
        is_whole = source.is_contiguous() and source.untyped_storage().nbytes() == source.nbytes
        noted = self._vectors.get(storage_key(source))
        if noted and is_whole and result.numel() == source.numel():
            self.note_vectors(result.view(noted[1]), *noted[2])

    def get(self, tensor: object, kind: Kind | None = None) -> Provenance | None:
        """Return the provenance of a tensor, if it has one (of that kind)."""
        if not isinstance(tensor, Tensor):
            return None
        tracked = self._tracked.get(storage_key(tensor))
        if tracked is None or tracked.provenance is None or tracked.itemsize != tensor.itemsize:
            return None
        if kind is not None and tracked.provenance.kind != kind:
            return None
        fields = tracked.provenance.fields()
        return tracked.provenance.with_fields(_view_like(tensor, flat) for flat in fields)

    def is_placed(self, one: Tensor, *others: Tensor) -> bool:
        """Whether a tensor alone is given, and it is a copy, or what a projection returned."""
        return not others and bool(storage_key(one) in self._vectors or self.get(one, "place"))

    def places(self, tensor: Tensor) -> Tensor:
        """Return the number of the activation that each element is a copy of."""
        if (copied := self.get(tensor, "place")) is not None:
            return copied.origin
        tracked = self._track(tensor)
        numbers = torch.tensor(tracked.first + tensor.storage_offset(), device=tensor.device)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            numbers = numbers.unsqueeze(-1) + torch.arange(size, device=tensor.device) * stride
        return self._of_vectors(storage_key(tensor), numbers, tracked.first)

    def _of_vectors(self, key: int, numbers: Tensor, first: int) -> Tensor:
        """Return the places of numbers that a projection returned, vector by vector."""
        if key not in self._vectors:
            return numbers
        _, sizes, dims, vectors = self._vectors[key]
        rest, scales = numbers - first, [1, 1]
        parts = [torch.zeros_like(numbers), torch.zeros_like(numbers)]
        for dim in reversed(range(len(sizes))):
            is_feature = dim in dims
            parts[is_feature] += rest % sizes[dim] * scales[is_feature]
            scales[is_feature] *= sizes[dim]
            rest = rest // sizes[dim]
        return VECTORS + (vectors + parts[0]) * VECTOR + parts[1]

    def lift(self, tensor: Tensor, like: Provenance) -> Provenance:
        """Return a provenance of the same kind: the tensor's own, or that of plain numbers."""
        if (provenance := self.get(tensor, like.kind)) is not None:
            return provenance
        if like.kind == "place":
            return Provenance("place", self.places(tensor))
        return constants(tensor, like)

    def set(self, tensor: Tensor, provenance: Provenance) -> None:
        """Set the provenance of a tensor, which may be part of a storage that has one already."""
        tracked = self._track(tensor)
        current = tracked.provenance
        if current is None or _layout(current) != _layout(provenance):
            current = self._background(tensor, tracked, provenance)
        tracked.itemsize = tensor.itemsize
        tracked.provenance = replace(current, cap=provenance.cap)
        both = zip(tracked.provenance.fields(), provenance.fields(), strict=True)
        for flat, values in both:
            _view_like(tensor, flat).copy_(values)

    def drop(self, tensor: Tensor) -> None:
        """Forget the provenance of a tensor."""
        if (tracked := self._tracked.get(storage_key(tensor))) is not None:
            tracked.provenance = None

    def _background(
        self, tensor: Tensor, tracked: _TrackedStorage, provenance: Provenance
    ) -> Provenance:
        """Return the provenance of a whole storage, of which a part is going to be written."""
        size = tracked.storage.nbytes() // tensor.itemsize
        if size == tensor.numel():
            return provenance.with_fields(
                torch.empty(size, dtype=field.dtype, device=tensor.device)
                for field in provenance.fields()
            )
        if provenance.kind == "place":
            numbers = tracked.first + torch.arange(size, device=tensor.device)
            key = storage_key(tensor)
            return Provenance("place", self._of_vectors(key, numbers, tracked.first))
        flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return constants(flat.set_(tracked.storage, 0, (size,), (1,)), provenance)

    def _track(self, tensor: Tensor) -> _TrackedStorage:
        storage, key = tensor.untyped_storage(), storage_key(tensor)
        if (tracked := self._tracked.get(key)) is None:
            count = storage.nbytes() // tensor.itemsize
            tracked = _TrackedStorage(storage, tensor.itemsize, self.reserve(count), self.depth)
            self._tracked[key] = tracked
        return tracked


def _layout(provenance: Provenance) -> tuple[Any, ...]:
    """Return what two provenances share if one can be written over a part of the other."""
    return provenance.kind, len(provenance.fields()), provenance.origin.device


def _view_like(tensor: Tensor, flat: Tensor) -> Tensor:
    return flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
