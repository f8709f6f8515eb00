"""A model's weights as a whole, also where it is spread over devices or a disk.

What accelerate offloads is an empty tensor on "meta", and its values come while its module runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.errors import InputError


def whole(model: nn.Module, name: str, tensor: Tensor) -> Tensor:
    """Return a weight of a model with all its values, on whichever device they are.

    Parameters
    ----------
    name, tensor : as in its ``state_dict``.

    Raises
    ------
    InputError : the tensor has no values.
    """
    return _offloaded(model, name) if tensor.is_meta else tensor.detach()


def whole_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield name and values of each tensor in a ``state_dict``, in the order of names."""
    for name, tensor in sorted(model.state_dict().items()):
        yield name, whole(model, name, tensor)


@contextmanager
def held_whole(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Put whole weights in the place of those that are spread; then all is as it was.

    Nobody else may run the model meanwhile.
    """
    spread = [
        (owner, name, tensor)
        for module in modules
        for owner in module.modules()
        for name, tensor in owner._parameters.items()
        if tensor is not None and tensor.is_meta
    ]
    try:
        for owner, name, tensor in spread:
            owner._parameters[name] = nn.Parameter(whole(owner, name, tensor), requires_grad=False)
        yield
    finally:
        for owner, name, tensor in spread:
            owner._parameters[name] = tensor


def devices(model: nn.Module) -> list[torch.device]:
    """Return the devices that a model computes on; first the one on which it reads its inputs."""
    own = [tensor.device for tensor in model.parameters()]
    run = [
        torch.device(hook.execution_device)
        for module in model.modules()
        for hook in _hooks(module)
        if getattr(hook, "execution_device", None) is not None
    ]
    found = [device for device in [*own[:1], *run, *own] if device.type != "meta"]
    return list(dict.fromkeys(found)) or own[:1] or [torch.device("cpu")]


def _offloaded(model: nn.Module, name: str) -> Tensor:
    """Return the values that accelerate keeps, with the innermost module that has them."""
    path, inner = name.rpartition(".")[0], name.rpartition(".")[2]
    while True:
        for hook in _hooks(model.get_submodule(path)):
            if (values := getattr(hook, "weights_map", None)) is not None:
                with suppress(KeyError):
                    found: Tensor = values[inner].detach()
                    return found
        if not path:
            raise InputError(
                f"Expected weights with values, but {name} is on 'meta', and nothing says where "
                "its values are. Load the model without offloading that."
            )
        path, _, part = path.rpartition(".")
        inner = f"{part}.{inner}"


def _hooks(module: nn.Module) -> list[Any]:
    """Return accelerate's hooks of a module; a sequence of them holds several."""
    hook = getattr(module, "_hf_hook", None)
    return [*getattr(hook, "hooks", ()), hook] if hook is not None else []
