"""The devices of a model, and its weights wherever accelerate keeps them.

A weight that accelerate offloads is an empty tensor on "meta"; its values are loaded while its
module runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from attnviz.errors import InputError, require
from attnviz.io import check_folder
from attnviz.runtime.compat import accelerate_hook, own_parameters

DeviceMap: TypeAlias = str | int | torch.device | Mapping[str, str | int | torch.device]
_STRATEGIES = ("auto", "balanced", "balanced_low_0", "sequential")  # by accelerate


def one_device(device: str | torch.device) -> torch.device:
    """Return a device of this machine; "auto" is CUDA if available, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    counts = {"cpu": 1, "cuda": torch.cuda.device_count()}
    requested = None
    if isinstance(device, str | torch.device):
        with suppress(RuntimeError):
            requested = torch.device(device)
            expect_float64(requested)
    if requested is None or requested.type not in counts:
        raise InputError(f"{device!r} is not a device: use 'auto', 'cpu', 'cuda' or 'cuda:N'.")
    if (requested.index or 0) >= counts[requested.type]:
        raise InputError(
            f"Device {str(device)!r} is not available: PyTorch finds {counts[requested.type]} of "
            f"the kind {requested.type!r}. Use 'auto' or 'cpu'."
        )
    return requested


def expect_float64(device: torch.device) -> None:
    """Raise InputError for a device without float64, in which every attention is compared."""
    if device.type == "mps":
        raise InputError(
            f"Device {str(device)!r} has no float64, in which attnviz compares every attention: "
            "use 'cpu' (for a model object, model.to('cpu'))."
        )


def device_map_options(
    device_map: DeviceMap | None, folder: str | os.PathLike[str] | None, device: str | torch.device
) -> dict[str, Any]:
    """Return the keywords of `from_pretrained` that place a model; none without a device map."""
    if device_map is None:
        if folder is None:
            return {}
        raise InputError(
            "offload_folder needs a device map: add device_map='auto' (--device-map auto)."
        )
    if device != "auto":
        raise InputError(
            f"device {str(device)!r} and device_map {device_map!r:.80} exclude each other: "
            "leave one of them out."
        )
    require("accelerate", "large", "device_map needs")
    options: dict[str, Any] = {"device_map": device_map, "offload_folder": None}
    if isinstance(device_map, Mapping):
        options["device_map"] = {str(path): _place(place) for path, place in device_map.items()}
    elif device_map not in _STRATEGIES:
        options["device_map"] = {"": _place(device_map, *_STRATEGIES)}
    if folder is not None:
        options["offload_folder"] = os.path.expanduser(folder)  # noqa: PTH111
        check_folder(options["offload_folder"])
    return options


def _place(place: Any, *others: str) -> str | int:
    """Return a device, GPUs by number, or "disk"; others : what a refusal names beside these."""
    if place == "disk":
        return "disk"
    try:
        device = one_device(f"cuda:{place}" if type(place) is int and place >= 0 else place)
    except InputError as error:
        choices = ", ".join(map(repr, ("disk", *others)))
        what = "A device_map" if others else "A place"
        raise InputError(f"{error} {what} may also be {choices}.") from error
    return device.index or 0 if device.type == "cuda" else device.type


def input_device(model: nn.Module) -> torch.device:
    """Return the device on which a model takes its inputs."""
    first = next(model.parameters(), None)
    return devices(model)[0] if first is None or first.is_meta else first.device


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


def whole(model: nn.Module, name: str, tensor: Tensor) -> Tensor:
    """Return the values of a weight of a model, which its ``state_dict`` has as `name`."""
    if not tensor.is_meta:
        return tensor.detach()
    # The innermost module around it that has values has its values.
    path, _, key = name.rpartition(".")
    while True:
        for hook in _hooks(model.get_submodule(path)):
            if (weights_map := getattr(hook, "weights_map", None)) is not None:
                with suppress(KeyError):
                    values: Tensor = weights_map[key].detach()
                    return values
        if not path:
            raise InputError(
                f"{name} is on 'meta' and has no values. Load the model without offloading it."
            )
        path, _, child = path.rpartition(".")
        key = f"{child}.{key}"


def whole_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield name and values of each tensor, also packed ones, in a ``state_dict``, by name."""
    for name, value in sorted(model.state_dict().items()):
        for tensor in value if isinstance(value, tuple) else (value,):
            if isinstance(tensor, Tensor):
                values = whole(model, name, tensor)
                is_plain = type(tensor).dequantize is Tensor.dequantize and not tensor.is_quantized
                yield name, values if is_plain else values.dequantize()


@contextmanager
def held_whole(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Put offloaded weights into their modules for the block, while the model does not run."""
    offloaded = [
        (owner, name, tensor)
        for module in modules
        for owner in module.modules()
        for name, tensor in own_parameters(owner).items()
        if tensor is not None and tensor.is_meta
    ]
    try:
        for owner, name, tensor in offloaded:
            values = whole(owner, name, tensor)
            own_parameters(owner)[name] = nn.Parameter(values, requires_grad=False)
        yield
    finally:
        for owner, name, tensor in offloaded:
            own_parameters(owner)[name] = tensor


def _hooks(module: nn.Module) -> list[Any]:
    """Return accelerate's hooks of a module; a sequential hook holds several."""
    hook = accelerate_hook(module)
    return [*getattr(hook, "hooks", ()), hook] if hook is not None else []
