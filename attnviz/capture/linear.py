"""Attention without a softmax: calls whose result is linear in one argument, and their matrix.

Linear attention, delta rules and state-space layers mix tokens by a matrix too. Once their gates,
queries and keys are fixed, the result is y = M v for each head. A call of this kind is recognized
by what it does: its result has the shape of one argument, doubles with it, and adds up; and it
carries numbers from one position to others, but not from one head, feature or text to others. M is
the result of the same call with the identity in the place of the values.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from types import FunctionType

import torch
from torch import Tensor

from attnviz.capture.function_calls import FunctionCall
from attnviz.runtime.compat import storage_id

_ROUNDING = 1e-4  # of a sum of two results, relative to the largest number; 100 times in bfloat16
_FEWEST_PROBES, _MOST_PROBES = 4, 16  # random columns by which a matrix is compared
CANARY = 1.01  # the factor on an argument that must be noticed
MATTERS = 1e-3  # by how much of its norm an argument 1 % off changes a result that it matters to


@dataclass(frozen=True)
class Layout:
    """Where the values of a call are, and what their dimensions are.

    value : the name of the argument. tokens : the dimension of the positions. features : the last
    dimension if all numbers along it are mixed by one matrix; None where each has its own.
    """

    value: str
    tokens: int
    features: int | None

    def by_head(self, tensor: Tensor) -> Tensor:
        """Return values, or results, as (N, H, T, d_v)."""
        order = self._order(tensor.dim())
        features = 1 if self.features is None else tensor.shape[self.features]
        texts, tokens = tensor.shape[0], tensor.shape[self.tokens]
        moved = tensor.permute(order).reshape(texts, -1, features, tokens)
        return moved.transpose(2, 3)

    def as_argument(self, values: Tensor, like: Tensor) -> Tensor:
        """Return values (N, H, T, d_v) in the shape that the function takes."""
        order = self._order(like.dim())
        shape = [values.shape[0], *(like.shape[dim] for dim in order[1:])]
        moved = values.transpose(2, 3).reshape(shape)
        return moved.permute([order.index(dim) for dim in range(like.dim())])

    def _order(self, dims: int) -> list[int]:
        """Return the dimensions in the order: texts, heads, features, positions."""
        inner = [dim for dim in range(1, dims) if dim not in (self.tokens, self.features)]
        return [0, *inner, *([] if self.features is None else [self.features]), self.tokens]


class LinearCalls:
    """Recognizes calls that are linear in their values; each function is tested once.

    parameters : those of the model, and its buffers.
    """

    def __init__(self, parameters: list[Tensor]) -> None:
        self._constants = {storage_id(tensor.untyped_storage()) for tensor in parameters}
        self._known: dict[tuple[FunctionType, int], Layout | None] = {}

    def layout(self, call: FunctionCall, result: Tensor, lengths: Collection[int]) -> Layout | None:
        """Return how the values of a call lie; None if its result is not linear in an argument.

        lengths : the numbers of positions that the model reads. A result may be linear in the
        queries too, but these are mixed from feature to feature.
        """
        candidates = [
            name for name, tensor in call.tensors.items()
            if tensor.shape == result.shape and tensor.dim() > 2
        ]  # fmt: skip
        if not candidates or result.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return None
        key = call.function, result.dim()
        if key not in self._known:
            tested = [self._test(call, result, name) for name in candidates]
            found = [
                layout for layout in tested if layout and result.shape[layout.tokens] in lengths
            ]
            # One matrix mixes all features of a value, but the features of each query differently.
            found.sort(key=lambda layout: layout.features is None)
            self._known[key] = found[0] if found else None
        known = self._known[key]
        if known is None or known.value not in candidates:
            return None
        return known if result.shape[known.tokens] in lengths else None

    def activations(self, call: FunctionCall) -> dict[str, Tensor]:
        """Return the tensors of a call that are not parameters."""
        return {
            name: tensor
            for name, tensor in call.tensors.items()
            if storage_id(tensor.untyped_storage()) not in self._constants
        }

    def _test(self, call: FunctionCall, result: Tensor, name: str) -> Layout | None:
        values = call.tensors[name]
        generator = torch.Generator("cpu").manual_seed(0)
        noise = torch.randn(values.shape, generator=generator, device="cpu").to(values)
        try:
            if not torch.equal(call.again(), result):
                return None
            if not torch.equal(call.again(**{name: 2 * values}), 2 * result):
                return None
            parts = call.again(**{name: noise}).double() + result.double()
            difference = (call.again(**{name: values + noise}).double() - parts).abs().max()
            rounding = _ROUNDING * (1 if values.dtype == torch.float32 else 100)
            if not difference <= rounding * parts.abs().max():
                return None
            spread = [dim for dim in range(values.dim()) if _spreads(call, name, noise, dim)]
            if len(spread) != 1 or spread[0] == 0:
                return None
            last = [dim for dim in range(1, values.dim()) if dim != spread[0]][-1]
            ones = torch.zeros_like(values)
            ones.select(spread[0], 0).fill_(1)
            mixed = call.again(**{name: ones})
        except Exception:  # the function refuses other values: it is no mixture of them
            return None
        scale = 1e-5 * mixed.abs().max().item()
        is_shared = torch.allclose(mixed, mixed.narrow(last, 0, 1).expand_as(mixed), atol=scale)
        return Layout(name, spread[0], last if is_shared else None)


def _spreads(call: FunctionCall, name: str, noise: Tensor, dim: int) -> bool:
    """Whether values at the first index of a dimension reach results at others."""
    if noise.shape[dim] < 2:
        return False
    values = torch.zeros_like(noise)
    values.select(dim, 0).copy_(noise.select(dim, 0))
    reached = call.again(**{name: values}).narrow(dim, 1, noise.shape[dim] - 1)
    return bool(reached.any())


@dataclass(frozen=True, eq=False)
class LinearCall:
    """A call whose result is a mixture of its values, in float32 where the model computes in less.

    call : with arguments of float32. layout : of the values.
    """

    call: FunctionCall
    layout: Layout

    @classmethod
    def of(cls, call: FunctionCall, layout: Layout) -> LinearCall:
        """Return a call with arguments of float32, in which rounding hides less."""
        wide = {name: tensor.float() for name, tensor in call.tensors.items()}
        return cls(replace(call, arguments={**call.arguments, **wide}), layout)

    @property
    def _values(self) -> Tensor:
        return self.call.tensors[self.layout.value]

    @property
    def values(self) -> Tensor:
        """The values, (N, H, n, d_v)."""
        return self.layout.by_head(self._values)

    def mixed(self, values: Tensor, **changed: Tensor) -> Tensor:
        """Return the result (N, H, m, d_v) for other values (N, H, n, d_v)."""
        argument = self.layout.as_argument(values, self._values)
        return self.layout.by_head(self.call.again(**{self.layout.value: argument, **changed}))

    def matrix(self) -> Tensor:
        """Return M (N, H, m, n): the results for the identity, block of columns by block."""
        n = self.values.shape[2]
        eye = torch.eye(n, device=self._values.device)
        return self.times(eye)

    def times(self, columns: Tensor) -> Tensor:
        """Return M C (N, H, m, c) for the columns of C (n, c), the same in each text and head.

        As many columns are mixed at once as a head has features.
        """
        values = self.values
        width, blocks = values.shape[3], []
        for start in range(0, columns.shape[1], width):
            block = columns[:, start : start + width]
            filled = torch.zeros_like(values)
            filled[..., : block.shape[1]] = block
            blocks.append(self.mixed(filled)[..., : block.shape[1]])
        return torch.cat(blocks, dim=-1)

    def canaries(self) -> dict[str, Tensor]:
        """Return what the values become where one argument is 1 % off, by its name.

        Arguments that hardly change the result are left out.
        """
        exact, changed = self.mixed(self.values), {}
        for name, tensor in self.call.tensors.items():
            if name != self.layout.value:
                other = self.mixed(self.values, **{name: tensor * CANARY})
                if (other - exact).norm() > MATTERS * exact.norm():
                    changed[name] = other
        return changed


@dataclass(frozen=True, eq=False)
class LinearMixing:
    """One linear mixture of values that a model computed, on a batch of N texts.

    Attributes
    ----------
    path : the module that ran. module : the name of its class. function : the name of the call.
    values, result : (N, H, n, d_v) and (N, H, m, d_v), in the model's precision.
    matrix : (N, H, m, n); None in the run that the first is compared with.
    arguments : the other arguments that are no parameters, by name.
    probes : (n, c), random columns; probed : (N, H, m, c), their mixture.
    exact, rounded : (N, H, m, d_v), the mixture of the values in reverse order, in float32 and in
        the model's own precision.
    canaries : the result with one argument 1 % off, by its name.
    """

    path: str
    module: str
    function: str
    values: Tensor
    result: Tensor
    matrix: Tensor | None
    arguments: dict[str, Tensor]
    probes: Tensor
    probed: Tensor
    exact: Tensor
    rounded: Tensor
    canaries: dict[str, Tensor]


def read_mixing(
    path: str,
    module: str,
    call: FunctionCall,
    layout: Layout,
    result: Tensor,
    arguments: dict[str, Tensor],
    *,
    with_matrix: bool,
) -> LinearMixing:
    """Return what a call mixes, with its matrix or with what the matrix is compared with.

    The function is called while its arguments are as they were.
    """
    wide, own = LinearCall.of(call, layout), LinearCall(call, layout)
    values = wide.values
    columns = min(max(values.shape[3], _FEWEST_PROBES), _MOST_PROBES)
    generator = torch.Generator("cpu").manual_seed(0)
    probes = torch.randn(values.shape[2], columns, generator=generator, device="cpu")
    probes = probes.to(values.device)
    is_wide = all(tensor.dtype == torch.float32 for tensor in call.tensors.values())
    exact = wide.mixed(values.flip(2))
    return LinearMixing(
        path=path,
        module=module,
        function=call.function.__qualname__,
        values=own.values,
        result=layout.by_head(result),
        matrix=wide.matrix() if with_matrix else None,
        arguments={name: tensor for name, tensor in arguments.items() if name != layout.value},
        probes=probes,
        probed=wide.times(probes),
        exact=exact,
        rounded=exact if is_wide else own.mixed(own.values.flip(2)),
        canaries={} if with_matrix else wide.canaries(),
    )
