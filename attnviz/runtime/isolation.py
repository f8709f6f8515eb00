"""A run by itself: it draws random numbers of its own, and writes to copies of weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any, Self

import torch
from torch import Tensor, nn

from attnviz.runtime.compat import TorchDispatchMode, draws, is_in_place, with_generator, wrap_once

_lock = Lock()  # of the generators of the process


class IsolatedRun(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode in which a model neither draws from the process nor writes its weights.

    Random operators draw from generators with a seed. Few take no generator, such as dropout on a
    GPU: while one runs, the state of the process's generator is that of this one. A model that
    calls `torch.manual_seed` seeds the generators of this mode. What writes a parameter in place,
    as a model that rescales its layers does, writes to a copy, which is dropped at the end.
    """

    supports_higher_order_operators = True  # which do neither themselves

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}
        self._written: dict[nn.Parameter, Tensor] = {}  # what each held before
        self._outside: Any = None  # the token of the mode around this one
        self.was_needed = False

    def __enter__(self) -> Self:
        wrap_once(torch, "manual_seed", _of_this_thread)
        self._outside = _current.set(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        _current.reset(self._outside)
        for parameter, before in self._written.items():
            parameter.data = before
        self._written.clear()

    def manual_seed(self, seed: int) -> None:
        """Seed the generators of this mode anew."""
        self._seed = seed
        self._generators.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, with a generator of this mode if it is random."""
        kwargs = {**(kwargs or {})}
        parameter = args[0] if args and isinstance(args[0], nn.Parameter) else None
        if parameter is not None and is_in_place(func) and parameter not in self._written:
            self.was_needed, self._written[parameter] = True, parameter.data
            parameter.data = parameter.data.clone()
        if not draws(func, args, kwargs):
            return func(*args, **kwargs)
        named = kwargs.get("device") or torch.get_default_device()
        device = torch.device(next((x.device for x in args if isinstance(x, Tensor)), named))
        if device.type == "meta":
            return func(*args, **kwargs)
        self.was_needed = True
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        generator = self._generators[device]
        if (operator := with_generator(func)) is not None:
            return operator(*args, **{**kwargs, "generator": generator})
        with _lock, _in_place_of_default(generator):
            return func(*args, **kwargs)


_current: ContextVar[IsolatedRun | None] = ContextVar("isolated_run", default=None)


def _of_this_thread(manual_seed: Callable[[Any], torch.Generator]) -> Callable[..., Any]:
    """Return `torch.manual_seed` that seeds the mode of this thread, if there is one."""

    def seed_here(seed: Any) -> torch.Generator:
        if (mode := _current.get()) is None:
            return manual_seed(seed)
        mode.manual_seed(int(seed))
        return torch.default_generator

    return seed_here


@contextmanager
def _in_place_of_default(generator: torch.Generator) -> Iterator[None]:
    is_cuda = generator.device.type == "cuda"
    index = generator.device.index or 0
    default = torch.cuda.default_generators[index] if is_cuda else torch.default_generator
    before = default.get_state()
    default.set_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(default.get_state())
        default.set_state(before)
