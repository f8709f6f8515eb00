"""The weights of a model with all their values, wherever accelerate keeps them.

A weight that accelerate offloads is an empty tensor on "meta"; its values are loaded while its
module runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.errors import InputError
from attnviz.runtime.compat import accelerate_hook, own_parameters


def whole(model: nn.Module, name: str, tensor: Tensor) -> Tensor:
    """Return a weight of a model with its values.

    Parameters
    ----------
    name, tensor : str, Tensor
        As in the model's ``state_dict``.

    Raises
    ------
    InputError
        The tensor is on "meta" and nothing holds its values.
    """
    return _offloaded(model, name) if tensor.is_meta else tensor.detach()


def whole_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield name and values of each tensor in a ``state_dict``, in the order of names."""
    for name, tensor in sorted(model.state_dict().items()):
        yield name, whole(model, name, tensor)


@contextmanager
def held_whole(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Put the values of offloaded weights into their modules, and take them out again after.

    The model must not run elsewhere meanwhile.
    """
    offloaded = [
        (owner, name, tensor)
        for module in modules
        for owner in module.modules()
        for name, tensor in own_parameters(owner).items()
        if tensor is not None and tensor.is_meta
    ]
    try:
        for owner, name, tensor in offloaded:
            own_parameters(owner)[name] = nn.Parameter(
                whole(owner, name, tensor), requires_grad=False
            )
        yield
    finally:
        for owner, name, tensor in offloaded:
            own_parameters(owner)[name] = tensor


def devices(model: nn.Module) -> list[torch.device]:
    """Return the devices that a model computes on; the first is where it takes its inputs."""
    parameter_devices = [tensor.device for tensor in model.parameters()]
    execution_devices = [
        torch.device(hook.execution_device)
        for module in model.modules()
        for hook in _hooks(module)
        if getattr(hook, "execution_device", None) is not None
    ]
    ordered = [*parameter_devices[:1], *execution_devices, *parameter_devices]
    real = list(dict.fromkeys(device for device in ordered if device.type != "meta"))
    return real or parameter_devices[:1] or [torch.device("cpu")]


def _offloaded(model: nn.Module, name: str) -> Tensor:
    """Return the values that accelerate keeps, from the innermost module that has them."""
    path, _, key = name.rpartition(".")
    while True:
        for hook in _hooks(model.get_submodule(path)):
            if (weights_map := getattr(hook, "weights_map", None)) is not None:
                with suppress(KeyError):
                    values: Tensor = weights_map[key].detach()
                    return values
        if not path:
            raise InputError(
                f"Expected weights with values, but {name} is on 'meta', and nothing says where "
                "its values are. Load the model without offloading that."
            )
        path, _, child = path.rpartition(".")
        key = f"{child}.{key}"


def _hooks(module: nn.Module) -> list[Any]:
    """Return accelerate's hooks of a module; a sequential hook holds several."""
    hook = accelerate_hook(module)
    return [*getattr(hook, "hooks", ()), hook] if hook is not None else []
