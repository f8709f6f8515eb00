"""The functions that a model calls with tensors, each of which can be called again with others.

While a run is watched, the functions of the Python modules that define the model, and the methods
of its classes, are wrapped. The model's own code computes: a wrapper calls it and looks at what it
took and returned.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from attnviz.runtime.compat import outside_dispatch_modes

functions_lock = threading.RLock()  # functions belong to modules of Python: all threads share them
# Packages whose functions are no part of a model.
_LIBRARIES = frozenset({"torch", "attnviz", "accelerate", "peft", "contextlib", "functools"})
PLAIN = (Tensor, nn.Module, torch.dtype, torch.device, str, int, float, bool, type(None))


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

    with functions_lock:
        owners = _owners(model)
        functions = [one for one in functions_of(model) if _may_mix(*one[1:])]
        values = [value for owner in owners for value in vars(owner).values()]
        operators: set[Any] = {value for value in values if _is_operator(value)}
        try:
            for owner, name, function in functions:
                setattr(owner, name, wrap(function))
            for operator in operators:
                operator.apply = wrap(_apply(operator))
            yield
        finally:
            for owner, name, function in functions:
                setattr(owner, name, function)
            for operator in operators:
                del operator.apply


def functions_of(model: nn.Module) -> list[tuple[Any, str, FunctionType]]:
    """Return the functions of a model's classes, and of the Python modules that define them.

    Each with its owner and its name there.
    """
    return [
        (owner, name, function)
        for owner in _owners(model)
        for name, function in vars(owner).items()
        if isinstance(function, FunctionType)
    ]


def _is_operator(value: object) -> bool:
    """Whether this is an operator of a model with derivatives of its own."""
    is_operator = isinstance(value, type) and issubclass(value, Function) and _is_own(value)
    return is_operator and "apply" not in vars(value)


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
    """Whether a class or function is part of a model."""
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
    return all(isinstance(item, PLAIN) for item in (value if isinstance(value, tuple) else [value]))
