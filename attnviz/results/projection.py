"""How an attention module makes queries, keys and values of its input: as data, not as code.

Every family of models does it a little differently: a norm here, a rotation there, matrices fused
in one order or another. Written as data, each is the same few steps with other numbers, and one
short function (`stages.project`) computes them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from torch import Tensor

from attnviz.errors import ModelError
from attnviz.results.base import Savable


@dataclass(frozen=True, eq=False)
class Linear(Savable):
    """The map X W + b: `weight` W (d_in, d_out), `bias` b (d_out,) or None."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, eq=False)
class Norm(Savable):
    """A norm over the features of one head, or of all heads together.

    kind : "rms" divides by the root mean square, "layer" subtracts the mean before.
    over : "head", or "width" for all heads side by side.
    weight : (d,), or (heads, d) where every head has its own; None without one.
    bias : as `weight`.
    eps : what is added to the mean square.
    offset : what is added to the weight: 1 in models that store its distance from 1.
    """

    kind: Literal["rms", "layer"]
    over: Literal["head", "width"]
    weight: Tensor | None
    bias: Tensor | None
    eps: float
    offset: float = 0.0


@dataclass(frozen=True)
class Clip(Savable):
    """Cut every number to what lies between -bound and bound."""

    bound: float


@dataclass(frozen=True, eq=False)
class Factor(Savable):
    """Multiply by a number, beside the scale of the scores, or by one per position (T, 1)."""

    factor: float | Tensor


@dataclass(frozen=True)
class Rotation(Savable):
    """Turn pairs of features by the angles that the record holds.

    first : the first feature that turns; those before, and those after the last, stay.
    interleaved : the pairs are the features (2i, 2i + 1), and not (i, i + r/2).
    regrouped : the pairs are taken from (2i, 2i + 1) and put at (i, i + r/2).
    backwards : the angles are negative.
    """

    first: int = 0
    interleaved: bool = False
    regrouped: bool = False
    backwards: bool = False


@dataclass(frozen=True, eq=False)
class Gate(Savable):
    """Multiply each head by what X lets through: opening(X W_h + b_h).

    weight : (heads, d_in, d), or (heads, d_in, 1) for one number per head. bias : (heads, d or 1).
    """

    weight: Tensor
    bias: Tensor | None = None
    opening: Literal["sigmoid", "softplus"] = "sigmoid"


Step: TypeAlias = Norm | Clip | Factor | Rotation | Gate


@dataclass(frozen=True, eq=False)
class HeadProjection(Savable):
    """How one of Q, K and V is made of the input X: X W_h + b_h for every head h, then steps.

    weight : (heads, d_in, d), where possible a view of the model's own.
    bias : (heads, d), or None.
    before : what is done to X first: in latent attention a map to a narrower vector, and its norm.
    beside : (d_in, r), features made of X itself that all heads share, put after their own.
    after : the steps that follow, on every head.
    """

    weight: Tensor
    bias: Tensor | None = None
    before: tuple[Linear | Norm, ...] = ()
    beside: Linear | None = None
    after: tuple[Step, ...] = ()

    @property
    def linear(self) -> bool:
        """Whether this is a matrix (and a bias) alone, once `before` is done."""
        return not self.after and self.beside is None


@dataclass(frozen=True, eq=False)
class Projection(Savable):
    """How one attention module makes Q, K, V from its input X, and its output from the heads.

    heads : the number of query heads H.
    query, key, value : None where attnviz does not know how the module makes them.
    output : W^O (H·d_v, d_model), or None where the module has none that attnviz recognises.
    before_output : the steps between A·V of each head and W^O, none in most models; None where
        there is something that attnviz does not know.
    """

    heads: int
    query: HeadProjection | None
    key: HeadProjection | None
    value: HeadProjection | None
    output: Linear | None = None
    before_output: tuple[Step, ...] | None = ()

    def value_of(self, head: int) -> Linear:
        """Return W_h^V (d_model, d_v) and its bias, of the value that query head `head` reads.

        In latent attention it multiplies not X but the latent vector: see `HeadProjection.before`
        and `stages.value_input`.

        Raises
        ------
        ModelError : the values are not known, or are more than a matrix makes (they are normed).
        """
        if self.value is None or not self.value.linear:
            raise ModelError(
                "Expected values that are a linear map of the input, but this module's "
                f"{'are not known' if self.value is None else 'are changed after it'}. What each "
                "head adds cannot be told by matrices here; use the record's `value` instead."
            )
        shared = head // (self.heads // len(self.value.weight))
        bias = self.value.bias
        return Linear(self.value.weight[shared], None if bias is None else bias[shared])

    def output_of(self, head: int) -> Tensor:
        """Return W_h^O (d_v, d_model), the rows of W^O that read one head.

        The bias, `output.bias`, belongs to no head: it is added once.

        Raises
        ------
        ModelError : the module has no W^O that attnviz recognises.
        """
        if self.output is None:
            raise ModelError(
                "Expected a module with a matrix W^O that attnviz recognises, but it has none. "
                "What each head adds to the output cannot be told here."
            )
        return self.output.weight.chunk(self.heads)[head]
