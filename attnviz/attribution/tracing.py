"""Run any model and follow each attention, from the softmax to the product with the values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Self, TypeAlias, TypeGuard
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.overrides import TorchFunctionMode

from attnviz.attribution.target import EVERYWHERE, Place, Readout
from attnviz.capture.watch import restoring
from attnviz.errors import AttnvizError, ModelError, first_line
from attnviz.models.pretrained import forward_parameters
from attnviz.pipeline.attend import Model
from attnviz.runtime.compat import outside_function_modes, tree_map_only

Elementwise: TypeAlias = Callable[[Tensor], Tensor]

MATRICES = {"matmul", "__matmul__", "bmm"}
WEIGHT_PRESERVING = {  # functions that keep attention weights as they are
    "dropout", "to", "type", "type_as", "contiguous", "clone", "float", "half", "bfloat16", "view",
    "reshape", "flatten", "unflatten", "masked_fill",
}  # fmt: skip
_ACTIVATIONS = ("transformers.activations", "torch.nn.modules.activation")
RUNS_SECOND = ContextVar[int]("RUNS_SECOND", default=0)  # N, where runs are the second dimension
_RECENT = 8  # weights that may not have met their values yet


@dataclass(frozen=True, eq=False)
class TracedAttention:
    """One attention: weights (runs, H, m, n), values (runs, H, n, d_v), and their product."""

    weights: Tensor
    values: Tensor
    mixed: Tensor  # in the graph of gradients, and in the shape that the model gives it
    place: Place = EVERYWHERE  # among all tokens


def by_head(x: Tensor, runs: int) -> Tensor:
    """Return (runs, H, m, n) for a tensor that may be (runs · H, m, n)."""
    return x.reshape(runs, -1, *x.shape[1:]) if x.dim() == 3 else x


def moves(value: object) -> TypeGuard[Tensor]:
    """Whether a tensor depends on the tokens, and so may differ between the runs."""
    return isinstance(value, Tensor) and value.requires_grad


def is_among(value: object, tensors: Sequence[Tensor]) -> bool:
    """Whether an object is one of some tensors, by identity."""
    return any(value is tensor for tensor in tensors)


class AttentionTracer(TorchFunctionMode):
    """Follows attention weights while a model runs. Subclasses override the methods.

    readout : what the model runs for, where it may have an encoder and a decoder. on_mix : takes
    each attention, in the graph of gradients. place : that of the attention that runs, among all
    tokens. computed : what modules compute in place of their own code, in the one run.
    """

    def __init__(
        self,
        readout: Readout | None = None,
        on_mix: Callable[[TracedAttention], object] | None = None,
    ) -> None:
        super().__init__()
        self.place, self.computed = EVERYWHERE, dict[nn.Module, Callable[..., Any]]()
        self._places = {} if readout is None else readout.places
        self._on_mix, self._hooks = on_mix, ExitStack()
        self._weights: list[Tensor] = []

    def __enter__(self) -> Self:
        for module, place in self._places.items():
            hook = module.register_forward_pre_hook(partial(self._enter, place))
            self._hooks.enter_context(hook)
        self._hooks.enter_context(computing(self.computed))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._hooks.close()
        self.computed = {}  # methods of the tracer, which would hold itself and its tensors

    def _enter(self, place: Place, *_: object) -> None:
        self.place = place

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Dispatch a torch function to the method that handles it."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "softmax":
            weights = self.softmax(lambda x: func(x, *args[1:], **kwargs), args[0], kwargs)
            self._weights = [*self._weights[-_RECENT:], weights]  # earlier ones have been mixed
            return weights
        # A slice leaves out the weight of a sink that is a parameter.
        keeps = name in WEIGHT_PRESERVING or name == "__getitem__"
        if keeps and args and is_among(args[0], self._weights):
            self._weights.append(weights := func(*args, **kwargs))
            return weights
        if name in MATRICES and is_among(args[0], self._weights):
            return self.mix(args[0], args[1])
        if name == "einsum" and is_among(args[1], self._weights):
            return self._mix_named(*args)
        if name == "baddbmm":
            return self._add_product(*args, **kwargs)
        return self.other(name, func, args, kwargs)

    def _add_product(
        self, bias: Tensor, batch1: Tensor, batch2: Tensor, beta: float = 1, alpha: float = 1
    ) -> Tensor:
        product: Tensor = self.__torch_function__(torch.bmm, (), (batch1, batch2)) * alpha
        return bias * beta + product if beta else product  # a bias that does not count may be NaN

    def _mix_named(self, equation: str, weights: Tensor, values: Tensor) -> Tensor:
        """Return the product of weights and values by the names of their dimensions."""
        inputs, output = equation.split("->")
        of_weights, of_values = inputs.split(",")
        feature = (set(of_values) - set(of_weights)).pop()
        order = [of_values.index(one) for one in (*of_weights[:-2], of_weights[-1], feature)]
        mixed = self.mix(weights, values.permute(order))
        return mixed.permute([(of_weights[:-1] + feature).index(one) for one in output])

    def gate_over(self, gate: Tensor | None, scores: Tensor) -> Tensor | None:
        """Return the keys that a gate, (T, T) or (N, T, T), allows, and a sink, (N, 1, m, n).

        None without a gate, and for scores of other keys.
        """
        if gate is None:
            return None
        gate = gate[..., self.place.queries, self.place.keys]
        gate = gate.reshape(-1, 1, *gate.shape[-2:])
        if scores.shape[-1] == gate.shape[-1] + 1:
            gate = pad(gate, (0, 1), value=True)
        return gate if scores.shape[-2:] == gate.shape[-2:] else None

    def softmax(self, original: Elementwise, scores: Tensor, options: Mapping[str, Any]) -> Tensor:
        """Return the softmax of scores. `original` is the model's call, `options` its keywords."""
        return original(scores)

    def mix(self, weights: Tensor, values: Tensor) -> Tensor:
        """Return the product of weights and values."""
        mixed = weights @ values
        if self._on_mix is None:
            return mixed
        self._on_mix(TracedAttention(weights, values, mixed, self.place))
        return mixed.clone()  # the model may change it in place

    def other(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return the result of any other function."""
        return func(*args, **kwargs)

    def normalize(
        self,
        x: Tensor,
        _: Any,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        """Return the layer norm γ (x - mean) / σ + β, by functions that are followed one by one."""

        def follow(func: Callable[..., Tensor], *args: Tensor) -> Any:
            return self.other(func.__name__, func, args, {})

        centered = x - x.mean(-1, keepdim=True)
        variance = follow(torch.square, centered).mean(-1, keepdim=True)
        output = follow(torch.mul, centered, follow(torch.rsqrt, variance + eps))
        output = output if weight is None else output * weight
        return output if bias is None else self.add_bias(output, bias)

    def add_bias(self, output: Tensor, bias: Tensor) -> Tensor:
        """Return an output with its bias."""
        return output + bias


def activations(
    model: nn.Module, apply: Callable[[Elementwise, Tensor], Tensor]
) -> dict[nn.Module, Callable[[Tensor], Tensor]]:
    """Return `apply(activation, x)` for every activation, also one made of several functions."""

    def run(original: Elementwise, x: Tensor) -> Tensor:
        with outside_function_modes():
            return apply(original, x)

    return {m: partial(run, m.forward) for m in model.modules() if _is_activation(m)}


def _is_activation(module: nn.Module) -> bool:
    """Whether a module applies a function to every number; its code may have a derivative."""
    if type(module).__module__ in _ACTIVATIONS:
        return not isinstance(module, nn.Softmax | nn.MultiheadAttention)
    is_own = not type(module).__module__.startswith("torch.")
    if not is_own or any(True for _ in chain(module.children(), module.parameters())):
        return False
    numbers = torch.linspace(-1, 1, 8, device="cpu").reshape(2, 4)
    changed = numbers.clone()
    changed[0, 0] = 2
    with suppress(Exception), torch.no_grad():  # it takes something else
        before, after = module.forward(numbers), module.forward(changed)
        return before.shape == numbers.shape and bool((before != after).sum() == 1)
    return False


@contextmanager
def computing(functions: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Let each module compute a function in place of its own."""
    with ExitStack() as own:
        for module, function in functions.items():
            own.enter_context(patch.object(module, "forward", function))
        yield


def changing_states(
    blocks: Iterable[nn.Module], change: Callable[[nn.Module, Tensor], Tensor]
) -> AbstractContextManager[None]:
    """Let each block read changed hidden states."""

    def run(block: nn.Module, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if "hidden_states" in kwargs:
            kwargs["hidden_states"] = change(block, kwargs["hidden_states"])
        else:
            args = (change(block, args[0]), *args[1:])
        return own(*args, **kwargs)

    return computing({block: partial(run, block, block.forward) for block in blocks})


def trace_run(
    readout: Readout, inputs: Mapping[str, Tensor], mode: AbstractContextManager[Any]
) -> tuple[list[Tensor], Tensor]:
    """Run a model under a mode, and return the input of its first block and what is read.

    They are (N, T, d) and (N, d), connected by the graph of gradients. An encoder and a decoder
    have one input each, in the order of the tokens.
    """
    starts: dict[nn.Module, Tensor] = {}

    def start_here(block: nn.Module, hidden: Tensor) -> Tensor:
        if block in starts:  # a block that serves several times starts once
            return hidden
        order, shape = [*range(hidden.dim())], [*hidden.shape]
        if shape[:2] != [N, T] and N in shape and T in shape and not readout.stacks:
            order.sort(key=[shape.index(N), shape.index(T), *order].index)
        RUNS_SECOND.set(N if order[0] == 1 else 0)
        starts[block] = hidden.detach().permute(order).requires_grad_()
        return starts[block].permute([order.index(n) for n in range(len(order))])

    starting = changing_states([blocks_of(base)[0] for base in readout.bases], start_here)
    N, T = inputs["input_ids"].shape
    with starting, torch.enable_grad(), readout.alone(), mode:
        end = readout.read(readout.module(**inputs))
    return list(starts.values()), end


@contextmanager
def tracing(model: Model) -> Iterator[None]:
    """Restore the model afterwards, and raise one clear error if its blocks cannot be traced."""
    try:
        with restoring(model.module), torch.enable_grad():
            yield
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        if isinstance(error, AttnvizError | torch.OutOfMemoryError):
            raise
        way = "Choose another kind of model."
        if "padding token" in str(error):  # a classifier finds the end of each text by it
            way = "Set it: model.config.pad_token_id = tokenizer.eos_token_id."
        raise ModelError(
            f"The blocks of {model.name} cannot be traced: {first_line(error)}. {way}"
        ) from error


def expect_gradients(output: Tensor) -> None:
    """Raise ModelError unless torch can differentiate everything that led to an output."""
    nodes: set[Any] = set()
    waiting = [output.grad_fn]
    while waiting:
        if (node := waiting.pop()) is not None and node not in nodes:
            nodes.add(node)
            waiting += [before for before, _ in node.next_functions]
    if not nodes or any("NotImplemented" in node.name() for node in nodes):
        raise ModelError(
            "Some layers of this model run without gradients, in its own code or after dynamic "
            "quantization, and contributions need them. Use another model, or one not quantized."
        )


def blocks_of(base: nn.Module) -> nn.ModuleList:
    """Return the list of blocks that holds most of a model's parameters."""
    towers = (m for m in base.modules() if m is not base and hasattr(m, "main_input_name"))
    text = {"input_ids", "inputs_embeds"}  # towers of images and sounds take neither
    apart = {m for t in towers if text.isdisjoint(forward_parameters(t)) for m in t.modules()}
    lists = [m for m in base.modules() if isinstance(m, nn.ModuleList) and m not in apart]
    sizes = {blocks: sum(p.numel() for p in blocks.parameters()) for blocks in lists if len(blocks)}
    if not sizes or isinstance((largest := max(sizes, key=sizes.__getitem__))[0], nn.ModuleList):
        raise ModelError(
            f"{type(base).__name__} has no blocks in one row, so its output cannot be decomposed. "
            "Choose another model."
        )
    return largest


class StoredRun:
    """The output of every block of a model in one run of one text, which later runs may reuse."""

    def __init__(self, base: nn.Module) -> None:
        self.blocks: Sequence[nn.Module] = list(blocks_of(base))
        self.outputs: list[Any] = []  # by block, in the order of execution
        self.running: int | None = None  # the block that is executed now
        self._order: list[int] = []

    @property
    def in_a_row(self) -> bool:
        """Whether every block ran once, one after the other."""
        return self._order == list(range(len(self.blocks)))

    @contextmanager
    def record(self) -> Iterator[None]:
        """Store the outputs of the blocks while the model runs."""

        def enter(index: int, *_: object) -> None:
            self.running = index

        def leave(index: int, _: nn.Module, __: object, output: Any) -> None:
            self.running = None
            self._order.append(index)
            self.outputs.append(tree_map_only(Tensor, Tensor.detach, output))

        with ExitStack() as hooks:
            for index, block in enumerate(self.blocks):
                hooks.enter_context(block.register_forward_pre_hook(partial(enter, index)))
                hooks.enter_context(block.register_forward_hook(partial(leave, index)))
            yield

    @contextmanager
    def skip(self, count: int, copies: int, states: Tensor | None = None) -> Iterator[None]:
        """Run `copies` from block `count` on; its input is `states` (copies, T, d), or stored."""

        def repeat(tensor: Tensor) -> Tensor:
            single = tensor.dim() > 1 and tensor.shape[0] == 1
            return tensor.repeat(copies, *[1] * (tensor.dim() - 1)) if single else tensor

        def stored(index: int, *_: object, **__: object) -> Any:
            output = tree_map_only(Tensor, repeat, self.outputs[index])
            if states is None or index < count - 1:
                return output
            return states if isinstance(output, Tensor) else (states, *output[1:])

        skipped = enumerate(self.blocks[:count])
        with computing({block: partial(stored, index) for index, block in skipped}):
            yield

    def states(self) -> Tensor:
        """Return the residual stream after each block, (L, T, d)."""
        states = (output if isinstance(output, Tensor) else output[0] for output in self.outputs)
        return torch.cat([state.reshape(1, *state.shape[-2:]) for state in states])
