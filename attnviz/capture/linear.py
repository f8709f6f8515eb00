"""Attention without a softmax: calls whose result is linear in one argument, and their matrix.

Linear attention, delta rules and state-space layers mix tokens by a matrix too. Once their gates,
queries and keys are fixed, the result is y = M v for each head. A call of this kind is recognized
by what it does: its result has the shape of one argument, doubles with it, and adds up; and it
carries numbers from one position to others, but not from one head, feature or text to others. M is
the result of the same call with the identity in the place of the values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from attnviz.capture import calls
from attnviz.capture.watch import model_errors, restoring
from attnviz.results import LinearReference
from attnviz.runtime.compat import storage_id

_ROUNDING = 1e-4  # of a sum of two results, relative to the largest number; 100 times in bfloat16
_FEWEST_PROBES, _MOST_PROBES = 4, 16  # random columns by which a matrix is compared
Call = calls.FunctionCall | calls.InlineCall
CANARY = 1.01  # the factor on an argument that must be noticed
MATTERS = 1e-3  # by how much of its norm an argument 1 % off changes a result that it matters to


@dataclass(frozen=True)
class Layout:
    """Where the values of a call are, and what their dimensions are."""

    value: str  # the name of the argument
    texts: int  # N; the first dimension may hold their heads, too
    tokens: int  # the dimension of the positions
    features: int | None  # the last one if a matrix mixes all along it; None where each has its own

    def by_head(self, tensor: Tensor) -> Tensor:
        """Return values, or results, as (N, H, T, d_v)."""
        order = self._order(tensor.dim())
        features = 1 if self.features is None else tensor.shape[self.features]
        shape = self.texts, -1, features, tensor.shape[self.tokens]
        return tensor.permute(order).reshape(shape).mT

    def as_argument(self, values: Tensor, like: Tensor) -> Tensor:
        """Return values (N, H, T, d_v) in the shape that the function takes."""
        order = self._order(like.dim())
        sizes = {dim: like.shape[dim] for dim in order} | {self.tokens: values.shape[2]}
        moved = values.transpose(2, 3).reshape([*sizes.values()])
        # Contiguous: a function may view its argument as complex numbers.
        return moved.permute([order.index(dim) for dim in range(like.dim())]).contiguous()

    def _order(self, dims: int) -> list[int]:
        """Return the dimensions in the order: texts, heads, features, positions."""
        inner = [dim for dim in range(1, dims) if dim not in (self.tokens, self.features)]
        return [0, *inner, *([] if self.features is None else [self.features]), self.tokens]


class LinearCalls:
    """Recognizes calls that are linear in their values; the same code is tested once.

    parameters : those of the model, and its buffers. texts : N, the size of the batch.
    """

    def __init__(self, parameters: list[Tensor], texts: int) -> None:
        self._texts = texts
        self._parameters = {storage_id(tensor.untyped_storage()) for tensor in parameters}
        self._known: dict[object, Layout | None] = {}
        self._known_inline: dict[object, list[tuple[calls.Span, Layout]]] = {}

    def layout(
        self, call: calls.FunctionCall, result: Tensor, lengths: Collection[int]
    ) -> Layout | None:
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
        # A method may do something else by a switch of its module.
        owner = vars(call.arguments["self"]) if "self" in call.arguments else {}
        switches = [(name, value) for name, value in owner.items() if isinstance(value, bool | str)]
        key = call.function, result.dim(), *switches
        if key not in self._known:
            dims = [dim for dim, size in enumerate(result.shape) if size in lengths]
            tested = [_test(call, result, name, self._texts, dims) for name in candidates]
            found = [layout for layout in tested if layout]
            # One matrix mixes all features of a value, but the features of each query differently.
            self._known[key] = min(found, key=lambda one: one.features is None, default=None)
        known = self._known[key]
        if known is None or known.value not in candidates:
            return None
        return known if result.shape[known.tokens] in lengths else None

    def inline(
        self, run: calls.ModuleRun, heads: int, lengths: Collection[int]
    ) -> Iterator[tuple[calls.InlineCall, Layout]]:
        """Return the parts of a module's own code that mix values by other activations.

        heads : the number of heads of the module, or 0 if it is not known. lengths : as in
        `layout`.
        """
        shapes = [() if tensor is None else tuple(tensor.shape) for tensor in run.outputs]
        key = type(run.module), *shapes
        if key not in self._known_inline:
            found: list[tuple[calls.Span, Layout]] = []
            self._known_inline[key] = found
            with suppress(Exception):  # the code cannot run again, or has no derivatives
                found += _spans(run, heads, self._texts)
            if found:  # with one token nothing would show them
                one = [tuple(1 if size in lengths else size for size in dims) for dims in shapes]
                self._known_inline[type(run.module), *one] = found
        for span, layout in self._known_inline[key]:
            yield calls.InlineCall(run, span), layout

    def read(
        self,
        path: str,
        module: nn.Module,
        call: Call,
        layout: Layout,
        result: Tensor,
        *,
        with_matrix: bool,
        cell: int | None = None,
    ) -> LinearMixing:
        """Return what a call mixes, with its matrix or with what the matrix is compared with.

        The function is called while its arguments are as they were.

        path, module : the module that calls it. cell : how many positions are pooled, as in
        `LinearCall`: their result is that of the mean values, and the arguments are not kept.
        """
        # In float32 rounding hides less.
        wide, own = (LinearCall(one, layout, cell or 1) for one in (call.wide(), call))
        values = wide.values
        columns = min(max(values.shape[3], _FEWEST_PROBES), _MOST_PROBES)
        generator, count = torch.Generator("cpu").manual_seed(0), values.shape[2]
        probes = torch.randn(count, columns, generator=generator, device="cpu").to(values.device)
        again, exact = own.mixed(own.values), wide.mixed(values)
        head_output = layout.by_head(result) if own.cell == 1 else again
        arguments = {
            name: tensor
            for name, tensor in call.tensors.items()
            if cell is None
            and name != layout.value
            and storage_id(tensor.untyped_storage()) not in self._parameters
        }
        dims = {name: wide.head_dim(name) for name in arguments} if with_matrix else {}
        return LinearMixing(
            path=path,
            module=type(module).__name__,
            function=call.name,
            values=own.values,
            matrix=wide.times(torch.eye(count, device=values.device)) if with_matrix else None,
            arguments=arguments,
            head_dims={name: dim for name, dim in dims.items() if dim is not None},
            reference=LinearReference(
                weights=wide.times(probes),
                head_output=head_output,
                probes=probes.expand(len(values), -1, -1),
                rounding=again.float() - exact,
                reproduced=torch.equal(again, head_output),
                canaries={} if with_matrix else wide.canaries(),
            ),
        )


def _test(
    call: Call, result: Tensor, name: str, texts: int, dims: Collection[int]
) -> Layout | None:
    """Return how values lie in an argument in which a call is linear; dims : may be positions.

    It is tested in float32: in float16, small numbers do not double.
    """
    is_wide = call.tensors[name].dtype == torch.float32
    generator = torch.Generator("cpu").manual_seed(0)
    try:
        if not torch.equal(call.again(), result):
            return None
        if not is_wide:
            call = call.wide()
            result = call.again()
        values = call.tensors[name]
        noise = torch.randn(values.shape, generator=generator, device="cpu").to(values)
        if not torch.equal(call.again(**{name: 2 * values}), 2 * result):
            return None
        parts = call.again(**{name: noise}).double() + result.double()
        difference = (call.again(**{name: values + noise}).double() - parts).abs().max()
        rounding = _ROUNDING * (1 if is_wide else 100)
        if not difference <= rounding * parts.abs().max():
            return None
        spread = [dim for dim in range(values.dim()) if _spreads(call, name, noise, dim)]
        if len(spread) != 1 or spread[0] == 0 or spread[0] not in dims:
            return None
        last = [dim for dim in range(1, values.dim()) if dim != spread[0]][-1]
        mixed = _of_first(call, name, spread[0])
    except Exception:  # the function refuses other values: it is no mixture of them
        return None
    return Layout(name, texts, spread[0], last if _is_shared(mixed, last) else None)


def _of_first(call: Call, name: str, tokens: int) -> Tensor:
    """Return the result for values that are 1 at the first position, and 0 at others."""
    ones = torch.zeros_like(call.tensors[name])
    ones.select(tokens, 0).fill_(1)
    return call.again(**{name: ones})


def _is_shared(mixed: Tensor, dim: int) -> bool:
    """Whether results are the same along a dimension."""
    scale = 1e-5 * mixed.abs().max().item()
    return torch.allclose(mixed, mixed.narrow(dim, 0, 1).expand_as(mixed), atol=scale)


def _spans(run: calls.ModuleRun, heads: int, texts: int) -> Iterator[tuple[calls.Span, Layout]]:
    """Return the parts of a module's code that are linear in values, and how these lie."""
    ends = set()
    for call in calls.find_spans(run):
        span, result = call.span, call.result
        # Where it depends on nothing else, it is a fixed mixture.
        if span.end in ends or not span.others:
            continue
        if (layout := _test(call, result, calls.VALUES, texts, [span.tokens])) is None:
            continue
        width = _width(_of_first(call, calls.VALUES, span.tokens), span.features, heads)
        if 1 < width < result.shape[span.features]:
            call = calls.InlineCall(run, replace(span, width=width))
            layout = _test(call, call.result, calls.VALUES, texts, range(call.result.dim()))
        if layout is not None:
            ends.add(span.end)
            yield call.span, layout


def _width(mixed: Tensor, features: int, heads: int) -> int:
    """Return how many features, side by side, are mixed by one matrix."""
    count = mixed.shape[features]
    most = count // heads if heads and count % heads == 0 else count
    widths = (width for width in range(most, 1, -1) if most % width == 0)
    shared = (w for w in widths if _is_shared(calls.split_heads(mixed, features, w), features + 1))
    return next(shared, 1)


def _spreads(call: Call, name: str, noise: Tensor, dim: int) -> bool:
    """Whether values at the first index of a dimension reach results at others, or several."""
    if noise.shape[dim] < 2:
        return False
    values = torch.zeros_like(noise)
    values.select(dim, 0).copy_(noise.select(dim, 0))
    result = call.again(**{name: values})
    if result.shape[dim] == noise.shape[dim]:
        return bool(result.narrow(dim, 1, noise.shape[dim] - 1).any())
    reached = result.transpose(0, dim).flatten(1).any(1)
    return int(reached.sum()) > 1


@dataclass(frozen=True, eq=False)
class LinearCall:
    """A call whose result mixes its values, in float32 where the model computes in less."""

    call: Call  # with arguments of float32
    layout: Layout  # of the values
    # How many positions, side by side, have the same value and the mean of their results; with n
    # and m all of them are counted.
    cell: int = 1

    @property
    def values(self) -> Tensor:
        """The values, (N, H, n, d_v)."""
        return self.layout.by_head(self._pooled(self.call.tensors[self.layout.value]))

    def mixed(self, values: Tensor, /, **changed: Tensor) -> Tensor:
        """Return the result (N, H, m, d_v) for other values (N, H, n, d_v)."""
        tokens, like = self.layout.tokens, self.call.tensors[self.layout.value]
        argument = self.layout.as_argument(values, like)
        if self.cell > 1:
            argument = argument.repeat_interleave(self.cell, tokens)
            argument = argument.narrow(tokens, 0, like.shape[tokens])
        result = self.call.again(**{self.layout.value: argument, **changed})
        return self.layout.by_head(self._pooled(result))

    def _pooled(self, numbers: Tensor) -> Tensor:
        """Return the mean of each cell of positions, as the function takes or returns them."""
        if self.cell == 1:
            return numbers
        tokens = self.layout.tokens
        cells = torch.split(numbers, self.cell, tokens)  # the last may be smaller
        return torch.cat([cell.mean(tokens, keepdim=True) for cell in cells], dim=tokens)

    def times(self, columns: Tensor) -> Tensor:
        """Return M C (N, H, m, c) for the columns of C (n, c), the same in each text and head.

        As many columns are mixed at once as a head has features.
        """
        values, blocks = self.values, []
        for block in torch.split(columns, values.shape[3], dim=1):
            filled = pad(block, (0, values.shape[3] - block.shape[1])).expand_as(values)
            blocks.append(self.mixed(filled)[..., : block.shape[1]])
        return torch.cat(blocks, dim=-1)

    def canaries(self) -> dict[str, Tensor]:
        """Return the values where one argument is 1 % off, by its name, if they change by it."""
        exact, changed = self.mixed(self.values), {}
        for name, tensor in self.call.tensors.items():
            if name != self.layout.value:
                other = self.mixed(self.values, **{name: tensor * CANARY})
                if (other - exact).norm() > MATTERS * exact.norm():
                    changed[name] = other
        return changed

    def head_dim(self, name: str) -> int | None:
        """Return the dimension of an argument along which its heads lie; None if all share it.

        Its first index reaches the first head alone, or the first few if heads share numbers.
        """
        tensor, heads, exact = self.call.tensors[name], self.values.shape[1], None
        for dim in range(int(len(tensor) == self.layout.texts), tensor.dim()):
            size = tensor.shape[dim]
            if size < 2 or heads % size:
                continue
            if exact is None:
                exact = self.mixed(self.values)
            changed = tensor.clone()
            changed.select(dim, 0).mul_(CANARY)
            difference = self.mixed(self.values, **{name: changed}) != exact
            reached = difference.transpose(0, 1).flatten(1).any(1).nonzero().flatten().tolist()
            if reached == [*range(heads // size)]:
                return dim
        return None


@dataclass(frozen=True, eq=False)
class LinearMixing:
    """One linear mixture of values that a model computed, on a batch of N texts."""

    path: str  # the module that ran
    module: str  # the name of its class
    function: str  # the name of the call
    values: Tensor  # (N, H, n, d_v), in the model's precision
    matrix: Tensor | None  # (N, H, m, n); None in the run that the first is compared with
    arguments: dict[str, Tensor]  # those that are no parameters, by name
    head_dims: dict[str, int]  # along which dimension of these each head has its own
    reference: LinearReference  # each tensor of it has one more dimension, the first: N


def notes_on_unshown(
    model: nn.Module, run: Callable[[], object], shown: Collection[str]
) -> tuple[str, ...]:
    """Return how many layers mix tokens in a way that is not shown, by the class of a module.

    They are neither a softmax nor linear in their values. They are found by what they do: when the
    first token of their input changes, so does their output at others.

    run : runs the model, without a cache. shown : the paths of the modules whose attention is
    shown. Only layers in a list with others that are shown are searched.
    """
    candidates: list[nn.Module] = []
    for path, layers in model.named_modules():
        if isinstance(layers, nn.ModuleList):
            children = layers.named_children()
            blocks = {f"{path}.{name}".lstrip("."): block for name, block in children}
            hidden = [
                block
                for name, block in blocks.items()
                if not any(one == name or one.startswith(f"{name}.") for one in shown)
            ]
            if len(hidden) < len(blocks):
                candidates += [child for block in hidden for child in block.children()]
    if not candidates:
        return ()
    found: Counter[str] = Counter()

    def test(module: nn.Module, *call: Any) -> None:
        if _mixes_tokens(module, *call):
            found[type(module).__name__] += 1

    with restoring(model), torch.no_grad(), model_errors(model):
        for module in dict.fromkeys(candidates):
            module.register_forward_hook(test, with_kwargs=True)
        run()
    return tuple(
        f"not shown: {count} layer{'s' * (count > 1)} with {name}, which mix{'es' * (count == 1)} "
        "tokens by no softmax and by no function that is linear in its values"
        for name, count in found.items()
    )


def _mixes_tokens(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object
) -> bool:
    """Whether another first token changes the output of a module at other positions."""
    given = [*args, *kwargs.values()]
    states = next((one for one in given if isinstance(one, Tensor) and one.dim() == 3), None)
    before = calls.first_tensor(output)
    if states is None or before is None or before.shape[:2] != states.shape[:2]:
        return False
    changed = states.clone()
    changed[:, 0] += 1 + changed[:, 0].abs()
    try:
        other = module.forward(
            *(changed if one is states else one for one in args),
            **{name: changed if one is states else one for name, one in kwargs.items()},
        )
    except Exception:  # a module that cannot run twice on its input is not judged
        return False
    after = calls.first_tensor(other)
    return after is not None and not torch.equal(after[:, 1:], before[:, 1:])
