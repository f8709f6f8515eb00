"""The formula of every number that is followed: factor · product[origin] + offset.

Whatever a model does to its scores between the product and the softmax (scale, add, mask, cut) is
done to their formula here; what moves them (shift, pad, gather) is done by the operator itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

# place: a copy of an activation, origin is where it lay. score: made of products q·k.
# weight: a copy of attention weights, origin is the element of the softmax. shift: the largest or
# log-sum-exp of each row of scores, which may be subtracted from the row and is not seen after it.
Kind = Literal["place", "score", "weight", "shift"]


@dataclass(frozen=True, eq=False)
class Shadow:
    """What the elements of a tensor are, each field of the tensor's shape.

    origin : the number of the element that it comes from; -1 for one that comes from none.
    factor, offset : value = factor · product[origin] + offset; both None where it is a plain copy.
    cap : if not None, value = cap · tanh((factor · product[origin] + inner) / cap) + offset.
    inner : what is added before the cap; None where nothing is.
    """

    kind: Kind
    origin: Tensor
    factor: Tensor | None = None
    offset: Tensor | None = None
    cap: float | None = None
    inner: Tensor | None = None

    def parts(self) -> list[Tensor]:
        """Return the tensors that it is made of."""
        parts = (self.origin, self.factor, self.offset, self.inner)
        return [part for part in parts if part is not None]

    def made_of(self, parts: Iterable[Tensor]) -> Shadow:
        """Return the same kind of shadow with other tensors."""
        origin, factor, offset, inner = (*parts, None, None, None)[:4]
        assert origin is not None
        return Shadow(self.kind, origin, factor, offset, self.cap, inner)


def constants(tensor: Tensor, like: Shadow) -> Shadow:
    """Return the shadow of numbers that come from no product."""
    origin = torch.full(tensor.shape, -1, device=tensor.device)
    if like.factor is None:
        return replace(like, origin=origin)
    value = tensor.to(like.factor.dtype, copy=True)  # never the memory of the run itself
    zero = torch.zeros_like(value)
    inner = None if like.inner is None else zero
    return replace(like, origin=origin, factor=zero, offset=value, inner=inner)


def apply(
    name: str,
    main: int,
    shadows: Mapping[int, Shadow],
    values: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Shadow | None:
    """Return what an operator makes of a score that is its argument `main`; None if unknown."""
    shadow = shadows[main]
    assert shadow.factor is not None
    assert shadow.offset is not None
    wide = shadow.factor.dtype

    def number(value: Any) -> Any:
        return value.to(wide) if isinstance(value, Tensor) else value

    if name in ("add", "sub", "rsub") and len(values) > 1:
        alpha = kwargs.get("alpha", 1)
        signs = {"add": (1, alpha), "sub": (1, -alpha), "rsub": (-alpha, 1)}[name]
        scaled = _scale(shadow, signs[main])
        term = signs[1 - main] * number(values[1 - main])
        return None if scaled is None else _shift(scaled, term)
    if name == "mul":
        return _scale(shadow, number(values[1 - main]))
    if name == "div" and main == 0 and "rounding_mode" not in kwargs:
        return _scale(shadow, 1 / number(values[1]))
    if name == "neg":
        return _scale(shadow, -1)
    if name == "tanh" and shadow.cap is None:
        inner = shadow.offset if shadow.offset.any() else None
        return replace(shadow, cap=1.0, offset=torch.zeros_like(shadow.offset), inner=inner)
    if name == "masked_fill" and main == 0:
        filled = torch.as_tensor(values[2], dtype=wide, device=shadow.origin.device)
        return mix(~values[1], shadow, constants(filled, shadow))
    if name == "where" and main > 0:
        other = shadows.get(3 - main)
        if other is None:
            other = constants(torch.as_tensor(values[3 - main]).to(shadow.origin.device), shadow)
        return mix(values[0] if main == 1 else ~values[0], shadow, other)
    return None


def _scale(shadow: Shadow, by: Any) -> Shadow | None:
    assert shadow.factor is not None
    assert shadow.offset is not None
    cap = shadow.cap
    if cap is not None:
        if isinstance(by, Tensor) and by.numel() > 1:
            return None
        cap *= float(by)
    inner = None if shadow.inner is None else shadow.inner * by
    return replace(
        shadow, factor=shadow.factor * by, offset=shadow.offset * by, cap=cap, inner=inner
    )


def _shift(shadow: Shadow, by: Any) -> Shadow:
    assert shadow.offset is not None
    return replace(shadow, offset=shadow.offset + by)


def mix(keep: Tensor, shadow: Shadow, other: Shadow) -> Shadow:
    """Take the one formula where `keep`, elsewhere the other; an element stays what it was of."""
    assert shadow.factor is not None
    assert other.factor is not None
    assert shadow.offset is not None
    assert other.offset is not None
    # What is hidden is still known by the query and key that it would be of.
    mine = keep | (other.origin < 0)
    inner = shadow.inner
    if inner is not None:
        inner = torch.where(keep, inner, 0.0 if other.inner is None else other.inner)
    return replace(
        shadow,
        origin=torch.where(mine, shadow.origin, other.origin),
        factor=torch.where(keep, shadow.factor, other.factor),
        offset=torch.where(keep, shadow.offset, other.offset),
        inner=inner,
    )
