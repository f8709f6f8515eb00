"""The calls that a model makes with tensors, each of which can be made again with others.

While a run is watched, the functions and methods of the model's code are wrapped.

Some modules mix tokens in their own `forward`, between the calls of two submodules. This code is
run again: the module runs on the same inputs, and each submodule returns what it returned in the
run that was watched, but for one. So queries, keys and gates stay as they were.

How a model computes is read here, too: hooks, replaced forwards, adapters, quantization, config.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.jit import ScriptModule
from transformers import PreTrainedConfig

from attnviz.capture.watch import EndRunError, map_tensors
from attnviz.models.checkpoint import changed_buffers
from attnviz.models.objects import adapters
from attnviz.results import Computation
from attnviz.runtime import compat
from attnviz.runtime.compat import outside_dispatch_modes, replaced_forwards

functions_lock = threading.RLock()  # functions belong to modules of Python: all threads share them
# Packages whose functions are no part of a model.
_LIBRARIES = frozenset({"torch", "attnviz", "accelerate", "peft", "contextlib", "functools"})
_PLAIN = (Tensor, nn.Module, torch.dtype, torch.device, str, int, float, bool, type(None))
VALUES = "values"  # of a call inside a module, by name
_FEWEST_REACHED = 4  # one feature in so many of a result must depend on a value
# Hooks of these packages gather outputs, place tensors or build a weight from stored ones.
_GATHERING = ("transformers.", "accelerate.", "peft.", "torch.nn.utils.", "attnviz.")
_PACKAGES = ("transformers", "torch")  # which define the modules of models
# Fields that loading or building a model sets, and that no number depends on.
_IGNORED = {
    "architectures", "down_ops", "dtype", "fusion_config", "id2label", "label2id",
    "output_attentions", "output_hidden_states", "problem_type", "quantization_config",
    "return_dict", "torch_dtype", "transformers_version", "transformers_weights", "use_cache",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class FunctionCall:
    """A call of a function or method."""

    function: FunctionType
    arguments: dict[str, Any]  # by name, those with a default value among them

    @classmethod
    def read(
        cls, function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> FunctionCall | None:
        """Return a call; None if it takes fewer than two tensors, or what may be written twice."""
        given = [*args, *kwargs.values()]
        # A cache, for example, would be written a second time.
        if sum(map(_is_real, given)) < 2 or not all(map(_is_plain, given)):
            return None
        try:
            bound = inspect.signature(function).bind(*args, **kwargs)
        except (TypeError, ValueError):
            return None
        bound.apply_defaults()
        return cls(function, bound.arguments)

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.function.__qualname__

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The arguments that are tensors of real numbers."""
        return {name: value for name, value in self.arguments.items() if _is_real(value)}

    def wide(self) -> FunctionCall:
        """Return the call with arguments of float32."""
        wide = {name: tensor.float() for name, tensor in self.tensors.items()}
        return replace(self, arguments={**self.arguments, **wide})

    @torch.no_grad()
    def again(self, **changed: Tensor) -> Tensor:
        """Call the function again with other tensors, and return its (first) result."""
        result = call_by_name(self.function, {**self.arguments, **changed})
        assert result is not None  # as in the call that was watched
        return result


def first_tensor(result: object) -> Tensor | None:
    """Return a result that is a tensor, or the first of several results if that is one."""
    result = result[0] if isinstance(result, tuple) and result else result
    return result if isinstance(result, Tensor) else None


def call_by_name(function: Callable[..., Any], arguments: dict[str, Any]) -> Tensor | None:
    """Call a function of a model, which is no part of its run; return its (first) result."""
    bound = inspect.BoundArguments(inspect.signature(function), arguments)
    with outside_dispatch_modes():
        return first_tensor(function(*bound.args, **bound.kwargs))


@contextmanager
def watching_functions(
    model: nn.Module,
    on_enter: Callable[[], Any],
    on_return: Callable[[FunctionCall, Tensor, Any], None],
) -> Iterator[None]:
    """Show every call of a function of the model that takes several tensors and returns one.

    on_enter : called without arguments before such a call; what it returns is passed on. on_return
    : takes the call, its result and what `on_enter` returned. Other threads are not watched.
    """
    thread, is_idle = threading.get_ident(), True

    def wrap(function: FunctionType) -> Callable[..., Any]:
        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_idle
            call = None
            if is_idle and threading.get_ident() == thread:
                call = FunctionCall.read(function, args, kwargs)
            if call is None:
                return function(*args, **kwargs)
            mark = on_enter()
            result = function(*args, **kwargs)
            if (tensor := first_tensor(result)) is not None:
                is_idle = False  # calling it again is no part of the run
                try:
                    on_return(call, tensor, mark)
                finally:
                    is_idle = True
            return result

        return watched

    with functions_lock, ExitStack() as originals:
        members = [value for owner in _owners(model) for value in vars(owner).values()]
        classes: set[Any] = {value for value in members if isinstance(value, type)}
        operators = [one for one in classes if issubclass(one, Function) and _is_own(one)]
        for operator in (one for one in operators if "apply" not in vars(one)):
            operator.apply = wrap(_apply(operator))
            originals.callback(delattr, operator, "apply")
        for owner, name, function in functions_of(model):
            if _may_mix(name, function):
                setattr(owner, name, wrap(function))
                originals.callback(setattr, owner, name, function)
        yield


def functions_of(model: nn.Module) -> list[tuple[Any, str, FunctionType]]:
    """Return the functions of a model's classes and of their modules, with owner and name."""
    return [
        (owner, name, function)
        for owner in _owners(model)
        for name, function in vars(owner).items()
        if isinstance(function, FunctionType)
    ]


def _apply(function: Any) -> Any:
    """Return what calls a function that has derivatives of its own, with its argument names."""
    original = function.apply

    def apply(*args: Any) -> Any:
        return original(*args)

    signature = inspect.signature(function.forward)
    has_context = function.setup_context is Function.setup_context
    parameters = [*signature.parameters.values()][has_context:]
    vars(apply)["__signature__"] = signature.replace(parameters=parameters)
    apply.__qualname__ = function.__qualname__
    return apply


def _owners(model: nn.Module) -> list[Any]:
    """Return the classes of a model, and the Python modules that define them."""
    classes = {type(module) for module in model.modules()}
    own = [kind for kind in classes if _is_own(kind)]
    names = dict.fromkeys(kind.__module__ for kind in own)
    return [*own, *(sys.modules[name] for name in names if name in sys.modules)]


def _is_own(value: type | FunctionType) -> bool:
    return value.__module__.partition(".")[0] not in _LIBRARIES


def _may_mix(name: str, function: FunctionType) -> bool:
    """Whether this is a Python function of a model that takes two arguments or more."""
    if name.startswith("__") or not _is_own(function):
        return False
    flags = inspect.unwrap(function).__code__
    is_suspended = flags.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE)
    return not is_suspended and flags.co_argcount + flags.co_kwonlyargcount > 1


def _is_real(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _is_plain(value: object) -> bool:
    """Whether a value is not written by a function that takes it, unless it is a tensor."""
    if isinstance(value, dict | list):  # of settings
        items = [*value.values()] if isinstance(value, dict) else value
        return all(_is_plain(item) and not isinstance(item, Tensor) for item in items)
    return all(
        isinstance(item, _PLAIN) for item in (value if isinstance(value, tuple) else [value])
    )


@dataclass(frozen=True, eq=False)
class SubmoduleCall:
    """A call of a submodule by the code of a module: its (first) tensor, and what it returned."""

    name: str
    module: nn.Module
    taken: Tensor | None
    output: Any


@dataclass(frozen=True, eq=False)
class ModuleRun:
    """One run of a module: its arguments, the calls of its submodules, and what it returned.

    What may not be written twice, such as a cache, is left out of the arguments.
    """

    module: nn.Module
    arguments: dict[str, Any]
    calls: tuple[SubmoduleCall, ...]
    output: Any

    @classmethod
    def read(
        cls,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        calls: Sequence[SubmoduleCall],
        output: Any,
    ) -> ModuleRun | None:
        """Return a run; None if its arguments cannot be passed again."""
        try:
            bound = inspect.signature(module.forward).bind(*args, **kwargs)
        except TypeError:
            return None
        for name, value in [*bound.arguments.items()]:
            items = value if isinstance(value, tuple) else (value,)
            if not all(isinstance(item, _PLAIN) for item in items):
                del bound.arguments[name]
        return cls(module, bound.arguments, tuple(calls), output)

    @property
    def outputs(self) -> list[Any]:
        """The (first) tensor of real numbers that each call of a submodule returned, or None."""
        tensors = (first_tensor(call.output) for call in self.calls)
        return [tensor if _is_real(tensor) else None for tensor in tensors]

    def replay(self, outputs: Sequence[Tensor | None], until: int | None = None) -> list[Any]:
        """Run the code of the module again; each submodule returns a copy of another output.

        Returned are the (first) tensors that the submodules take, and the result of the module.

        until : the number of the last one that is needed.
        """
        taken: list[Any] = []

        def submodule(*args: Any, **kwargs: Any) -> Any:
            number = len(taken)
            taken.append(tensor_taken(args, kwargs))
            if number == until:
                raise EndRunError
            call, output = self.calls[number], outputs[number]
            if output is None:
                return call.output
            is_alone = isinstance(call.output, Tensor)
            return output.clone() if is_alone else (output.clone(), *call.output[1:])

        arguments = {
            name: value.clone() if isinstance(value, Tensor) else value
            for name, value in self.arguments.items()
        }
        replaced = replaced_forwards([call.module for call in self.calls], submodule)
        with replaced, suppress(EndRunError):
            taken.append(call_by_name(self.module.forward, arguments))
        return taken


def tensor_taken(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Return the first tensor of the arguments of a call."""
    return next((one for one in [*args, *kwargs.values()] if isinstance(one, Tensor)), None)


@dataclass(frozen=True, eq=False)
class Span:
    """From what one submodule returns to what a later one takes."""

    start: int  # the number of the call that returns the values
    end: int  # of the call that takes the result; behind the last call, the module returns it
    tokens: int  # the dimension of the positions
    features: int  # that along which values lie, maybe beside queries and keys
    order: Tensor  # which of them are the values, in the order of the features of the result
    width: int  # how many of these, side by side, are one head's
    others: tuple[int, ...]  # the calls that the result also depends on


@dataclass(frozen=True, eq=False)
class InlineCall:
    """The code of a module between two of its submodules, called with the values of one."""

    run: ModuleRun
    span: Span

    @property
    def name(self) -> str:
        """The module's class, and the submodules between which the code lies."""
        names = [*(call.name for call in self.run.calls), "its result"]
        start, end = names[self.span.start], names[self.span.end]
        return f"{type(self.run.module).__qualname__}.forward from {start} to {end}"

    @property
    def result(self) -> Tensor:
        """What the code computed in the run that was watched."""
        run = self.run
        tensors: list[Any] = [*(call.taken for call in run.calls), first_tensor(run.output)]
        return self._by_head(tensors[self.span.end])

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The values, and what else the result depends on, by the names of the submodules."""
        outputs, span = self.run.outputs, self.span
        source = outputs[span.start]
        tensors = {VALUES: self._by_head(source.index_select(span.features, span.order))}
        for number in span.others:
            if (output := outputs[number]) is not None:
                name = self.run.calls[number].name
                tensors[name if name not in tensors else f"{name}.{number}"] = output
        return tensors

    @torch.no_grad()
    def again(self, **changed: Tensor) -> Tensor:
        """Run the code again with other tensors, and return its result."""
        tensors, outputs, span = self.tensors | changed, self.run.outputs, self.span
        others = [tensor for name, tensor in tensors.items() if name != VALUES]
        for number, tensor in zip(span.others, others, strict=True):
            outputs[number] = tensor
        source, values = outputs[span.start], tensors[VALUES]
        if span.width > 1:
            values = values.flatten(span.features, span.features + 1)
        outputs[span.start] = source.index_copy(span.features, span.order, values.to(source))
        return self._by_head(self.run.replay(outputs, until=span.end)[span.end])

    def wide(self) -> InlineCall:
        """Return the call with tensors of float32."""

        def wide(value: Any) -> Any:
            return map_tensors(value, lambda x: x.float() if x.is_floating_point() else x)

        calls = tuple(replace(call, output=wide(call.output)) for call in self.run.calls)
        return replace(self, run=replace(self.run, arguments=wide(self.run.arguments), calls=calls))

    def _by_head(self, tensor: Tensor) -> Tensor:
        width, features = self.span.width, self.span.features
        return split_heads(tensor, features, width) if width > 1 else tensor


def split_heads(tensor: Tensor, features: int, width: int) -> Tensor:
    """Return a tensor whose features lie in heads, each of so many."""
    shape = tensor.shape
    return tensor.reshape(*shape[:features], -1, width, *shape[features + 1 :])


def find_spans(run: ModuleRun) -> Iterator[InlineCall]:
    """Return each part of the code of a module that may mix values, by what depends on what.

    A value is a feature that reaches one feature of the result, at other positions too. Queries and
    keys reach all features of their head. Derivatives show what reaches what; whether the result
    is linear in the values is for the caller to test.
    """
    leaves = {
        number: output.detach().clone().requires_grad_()
        for number, output in enumerate(run.outputs)
        if output is not None
    }
    with torch.enable_grad():
        results = run.replay([*map(leaves.get, range(len(run.calls)))])
    for end, result in enumerate(results):
        if result is None or not result.requires_grad or result.dim() < 3:
            continue
        reach = _Reach(result, {number: leaf for number, leaf in leaves.items() if number < end})
        reaching = reach.of(torch.ones_like(result))
        others = tuple(n for n, grad in reaching.items() if grad is not None and grad.any())
        for tokens in range(1, result.dim()):
            for number, grad in reach.of_half(tokens).items():
                leaf = leaves[number]
                if grad is None or leaf.dim() != result.dim() or not grad.any():
                    continue
                for features in range(1, result.dim()):
                    rest = [dim for dim in range(result.dim()) if dim not in (tokens, features)]
                    fits = all(leaf.shape[dim] == result.shape[dim] for dim in rest)
                    if features == tokens or not fits:
                        continue
                    order = reach.one_to_one(number, tokens, features)
                    if order is not None:
                        is_all = len(order) == leaf.shape[features]
                        also = tuple(one for one in others if one != number or not is_all)
                        yield InlineCall(run, Span(number, end, tokens, features, order, 1, also))


@dataclass(frozen=True, eq=False)
class _Reach:
    """Which of some tensors reach which parts of a result, by random derivatives."""

    result: Tensor
    leaves: dict[int, Tensor]  # by the numbers of their calls, as what is returned

    def of(self, part: Tensor) -> dict[int, Any]:
        """Return the derivatives of a random sum over a part of the result, which is 1 there."""
        generator = torch.Generator("cpu").manual_seed(0)
        noise = torch.randn(part.shape, generator=generator, device="cpu").to(part)
        tensors, options = [*self.leaves.values()], {"retain_graph": True, "allow_unused": True}
        grads = torch.autograd.grad(self.result, tensors, part * noise, **options)
        return dict(zip(self.leaves, grads, strict=True))

    def of_half(self, tokens: int, part: Tensor | None = None) -> dict[int, Any]:
        """Return what reaches every other position from the positions between, in a part."""
        size = self.result.shape[tokens]
        odd = torch.arange(size, device=self.result.device) % 2
        shape = [size if dim == tokens else 1 for dim in range(self.result.dim())]
        half = odd.reshape(shape).to(self.result).expand_as(self.result)
        even = torch.arange(0, size, 2, device=self.result.device)
        grads = self.of(half if part is None else half * part)
        for number, grad in grads.items():  # positions of other tensors do not correspond
            if grad is not None and grad.dim() > tokens and grad.shape[tokens] == size:
                grads[number] = grad.index_select(tokens, even)
        return grads

    def one_to_one(self, leaf: int, tokens: int, features: int) -> Tensor | None:
        """Return the feature that alone reaches each of the result, read digit by binary digit."""
        count = self.result.shape[features]
        index = torch.arange(count, device=self.result.device)
        shape = [count if dim == features else 1 for dim in range(self.result.dim())]
        rest = [dim for dim in range(self.result.dim()) if dim != features]
        number: Any = 0
        is_value: Any = True
        for digit in range(max(1, (count - 1).bit_length())):
            ones = (index >> digit & 1).reshape(shape)
            reached = []
            for part in (ones, 1 - ones):
                grad = self.of_half(tokens, part.to(self.result))[leaf]
                reached.append(grad.ne(0).sum(dim=rest) > 0)
            is_value = is_value & (reached[0] ^ reached[1])
            number = number + (reached[0].long() << digit)
        sources = is_value.nonzero()[:, 0]
        return _in_order(sources, number[sources], count, len(is_value))


def _in_order(sources: Tensor, numbers: Tensor, count: int, size: int) -> Tensor | None:
    """Return which of `size` features reach each of `count` results; `sources` reach `numbers`.

    Those of a result that is 0 at all positions, as behind a rectifier, lie as the next ones do.
    """
    known = sources.new_full((count,), -1)
    if len(numbers) * _FEWEST_REACHED < count or int(numbers.max()) >= count:
        return None
    known[numbers] = sources
    every = torch.arange(count, device=known.device)
    reached = every[known >= 0]
    following = reached[torch.searchsorted(reached, every).clamp(max=len(reached) - 1)]
    order = known[following] + every - following
    is_inside = int(order.min()) >= 0 and int(order.max()) < size
    return order if is_inside and len(set(order.tolist())) == count else None


def read_computation(model: nn.Module) -> Computation:
    """Return how a model computes as the user has it."""
    with functions_lock:  # those that another thread watches are wrapped meanwhile
        hooks = [("*", _origin(hook)) for hook in compat.global_forward_hooks()]
        forwards, modules = [], dict(model.named_modules())
        modules = {path: one for path, one in modules.items() if not isinstance(one, ScriptModule)}
        put_in = {kind for kind in set(map(type, modules.values())) if _is_put_in(kind)}
        for path, module in modules.items():
            hooks += [(path, _origin(hook)) for hook in compat.forward_hooks(module)]
            forward, kind = compat.placed_forward(module), type(module)
            if kind in put_in or forward != MethodType(kind.forward, module):
                forwards.append((path, ".".join(_origin(forward))))
        implementations = map(compat.attention_implementation, compat.attention_configs(model))
        return Computation(
            attention=", ".join(dict.fromkeys(filter(None, implementations))) or "eager",
            training=model.training,
            hooks=tuple(
                (path, f"{module}.{name}")
                for path, (module, name) in hooks
                if not f"{module}.".startswith(_GATHERING)
            ),
            forwards=tuple(forwards),
            adapters=adapters(model),
            quantized=dict(Counter(filter(None, map(_quantization, modules.values())))),
            config=_config_changes(getattr(model, "config", None)),
            buffers=changed_buffers(model),
        )


def _origin(function: Any) -> tuple[str, str]:
    """Return module and qualified name of a function's code, which decorators do not copy."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    if (code := getattr(function, "__code__", None)) is not None:
        return str(function.__globals__.get("__name__")), code.co_qualname
    named = function if hasattr(function, "__qualname__") else type(function)
    return str(named.__module__), str(named.__qualname__)


def _is_put_in(kind: type[nn.Module]) -> bool:
    """Return whether the forward of a class is not that with which it was defined."""
    owner = next(one for one in kind.__mro__ if "forward" in vars(one))
    packages = [name.partition(".")[0] for name in (owner.__module__, _origin(kind.forward)[0])]
    return packages[0] in _PACKAGES and packages[1] not in _PACKAGES


def _quantization(module: nn.Module) -> str | None:
    """Return the kind of a quantized layer: torch's, or the class of its weight; else None."""
    weight = getattr(module, "weight", None)
    if type(module).__module__.startswith("torch.ao.nn.quantized"):
        if not callable(weight):  # a part of a layer
            return None
        prefix = "dynamic " if ".dynamic." in type(module).__module__ else ""
        return f"{prefix}{str(weight().dtype).removeprefix('torch.').replace('qint', 'int')}"
    if not isinstance(weight, Tensor):
        weight = getattr(module, "qweight", None)  # of GPTQ and AWQ
        return type(module).__name__ if isinstance(weight, Tensor) else None
    kind = type(weight)
    if kind.dequantize is not Tensor.dequantize or kind.__module__.startswith("bitsandbytes"):
        return kind.__name__
    is_number = weight.is_floating_point() and weight.element_size() > 1
    return None if is_number else f"{type(module).__name__} {weight.dtype}".replace("torch.", "")


def _config_changes(config: Any) -> dict[str, tuple[str, str]]:
    """Return fields that differ from config.json, if that is known: its value, the present one."""
    kind: Any = type(config)
    try:
        name = str(config.name_or_path)
        settings, _ = PreTrainedConfig.get_config_dict(name, local_files_only=True)
        if settings.get("model_type") != config.model_type:
            return {}
        stored = _stored_fields(kind, json.dumps(settings))
        present = dict(_fields(config.to_dict()))
    except Exception:  # no config, no such file, or one that its class does not read
        return {}
    return {
        field: (stored.get(field, "not set"), present.get(field, "not set"))
        for field in sorted(stored.keys() | present.keys())
        if stored.get(field) != present.get(field)
    }


@functools.lru_cache(16)
def _stored_fields(kind: Any, settings: str) -> dict[str, str]:
    """Return the fields that a config of this class has by the text of a file."""
    return dict(_fields(kind.from_dict(json.loads(settings)).to_dict()))


def _fields(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each field that numbers may depend on, as text."""
    for name, value in settings.items():
        if str(name).startswith("_") or name in _IGNORED:
            continue
        if isinstance(value, Mapping):
            yield from _fields(value, f"{prefix}{name}.")
        else:
            is_text = isinstance(value, str)
            yield f"{prefix}{name}", value if is_text else json.dumps(value, default=str)
