"""The functions that a run calls with tensors, each of which can be called again with others.

Python shows every call to a profile function (`sys.setprofile`), so nothing in the model is
replaced.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.runtime.compat import outside_dispatch_modes

# Packages whose functions are no part of a model.
_LIBRARIES = frozenset({"torch", "attnviz", "accelerate", "importlib", "typing", "einops"})
_PLAIN = (Tensor, nn.Module, torch.dtype, torch.device, str, int, float, bool, type(None))


@dataclass(frozen=True, eq=False)
class FunctionCall:
    """A call of a Python function or method, with its arguments.

    code : of the function. arguments : by name. rest : positional arguments without a name. options
    : keyword arguments without a parameter.
    """

    code: CodeType
    namespace: dict[str, Any]
    arguments: dict[str, Any]
    rest: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The arguments that are tensors of real numbers."""
        return {
            name: value
            for name, value in self.arguments.items()
            if isinstance(value, Tensor) and value.is_floating_point()
        }

    @torch.no_grad()
    def again(self, **changed: Tensor) -> Tensor:
        """Call the function again with other tensors, and return its (first) result."""
        count, keywords = self.code.co_argcount, self.code.co_kwonlyargcount
        names = self.code.co_varnames[: count + keywords]
        arguments = {**self.arguments, **changed}
        function = FunctionType(self.code, self.namespace, self.code.co_name)
        with outside_dispatch_modes():
            result = function(
                *(arguments[name] for name in names[:count]),
                *self.rest,
                **{name: arguments[name] for name in names[count:]},
                **self.options,
            )
        tensor = first_tensor(result)
        assert tensor is not None  # as in the call that was watched
        return tensor


def first_tensor(result: object) -> Tensor | None:
    """Return a result that is a tensor, or the first of several results if that is one."""
    result = result[0] if isinstance(result, tuple) and result else result
    return result if isinstance(result, Tensor) else None


class FunctionCallWatcher:
    """Context in which every call that takes several tensors and returns one is shown.

    on_enter : called without arguments before such a call; what it returns is passed on. on_return
    : takes the call, its result and what `on_enter` returned.
    """

    def __init__(
        self,
        on_enter: Callable[[], Any],
        on_return: Callable[[FunctionCall, Tensor, Any], None],
    ) -> None:
        self._on_enter, self._on_return = on_enter, on_return
        self._running: list[tuple[FrameType, FunctionCall, Any]] = []
        self._ignored: set[CodeType] = set()

    def __enter__(self) -> FunctionCallWatcher:
        """Start to watch this thread."""
        self._before = sys.getprofile()
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *error: object) -> None:
        """Put back the profile function that was there."""
        sys.setprofile(self._before if callable(self._before) else None)
        self._running.clear()

    def _on_event(self, frame: FrameType, event: str, result: Any) -> None:
        if event == "call":
            if frame.f_code not in self._ignored and (call := self._read(frame)) is not None:
                self._running.append((frame, call, self._on_enter()))
        elif event == "return" and self._running and self._running[-1][0] is frame:
            _, call, mark = self._running.pop()
            if (tensor := first_tensor(result)) is not None:
                sys.setprofile(None)
                try:
                    self._on_return(call, tensor, mark)
                finally:
                    sys.setprofile(self._on_event)

    def _read(self, frame: FrameType) -> FunctionCall | None:
        """Return the call of a frame; None if it cannot be called again, or takes no tensors."""
        code, namespace = frame.f_code, frame.f_globals
        is_of_library = str(namespace.get("__name__", "")).partition(".")[0] in _LIBRARIES
        flags, count = code.co_flags, code.co_argcount + code.co_kwonlyargcount
        is_suspended = flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE)
        if is_of_library or is_suspended or code.co_freevars or count < 2:
            self._ignored.add(code)
            return None
        values, names = frame.f_locals, code.co_varnames
        rest, options = (), {}
        if flags & inspect.CO_VARARGS:
            rest = values[names[count]]
        if flags & inspect.CO_VARKEYWORDS:
            options = values[names[count + bool(flags & inspect.CO_VARARGS)]]
        call = FunctionCall(code, namespace, {n: values[n] for n in names[:count]}, rest, options)
        given = [*call.arguments.values(), *rest, *options.values()]
        # A cache, for example, would be written a second time.
        are_plain = all(isinstance(value, _PLAIN) or _is_plain_tuple(value) for value in given)
        return call if are_plain and len(call.tensors) > 1 else None


def _is_plain_tuple(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, _PLAIN) for item in value)
