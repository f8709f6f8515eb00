"""The devices of a model: a single one, or several and the disk (with accelerate)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn
from transformers import PreTrainedModel

from attnviz.errors import InputError, did_you_mean, one_line

DeviceMap: TypeAlias = str | int | torch.device | Mapping[str, str | int | torch.device]
_KINDS = ("cpu", "cuda", "mps", "disk")
_STRATEGIES = ("auto", "balanced", "balanced_low_0", "sequential")  # by accelerate


def one_device(device: str | torch.device) -> torch.device:
    """Return a device of this machine; "auto" is CUDA if available, else the CPU.

    Raises
    ------
    InputError
        There is no such device.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    counts = {
        "cpu": 1,
        "cuda": torch.cuda.device_count(),
        "mps": int(torch.backends.mps.is_available()),
    }
    try:
        requested = torch.device(device)
    except (RuntimeError, TypeError):
        requested = None
    is_named = isinstance(device, str | torch.device)
    if not is_named or requested is None or requested.type not in counts:
        raise InputError(
            "expected device 'auto', 'cpu', 'cuda', 'cuda:N' or 'mps', "
            f"got {device!r}; use one of these"
        )
    if (requested.index or 0) >= counts[requested.type]:
        raise InputError(
            f"expected a device of this machine, got {str(device)!r}, but PyTorch finds "
            f"{counts[requested.type]} of the kind {requested.type!r}; use 'auto' or 'cpu'"
        )
    return requested


@dataclass(frozen=True)
class Placement:
    """A checked device map: a strategy of accelerate, or a device or "disk" for each module.

    Attributes
    ----------
    device_map : str or dict
        What `from_pretrained` takes.
    folder : str or None
        Where weights are written that go to the disk and lie in no file as the model has them.
    """

    device_map: str | dict[str, str | int]
    folder: str | None

    @classmethod
    def of(
        cls,
        device_map: DeviceMap | None,
        folder: str | os.PathLike[str] | None,
        device: str | torch.device,
    ) -> Placement | None:
        """Return the placement, checked as far as possible without a model; None without a map.

        Raises
        ------
        InputError
            Both `device` and `device_map` are given, or a folder without a map; a device or a
            folder cannot be used; accelerate is not installed.
        """
        if device_map is None:
            if folder is None:
                return None
            raise InputError(
                "expected offload_folder beside a device_map, got it alone; add device_map='auto' "
                "(--device-map auto)"
            )
        if device != "auto":
            raise InputError(
                f"expected a device or a device_map, got both ({str(device)!r} and "
                f"{device_map!r:.80}); leave one of them out"
            )
        if find_spec("accelerate") is None:
            raise InputError(
                "expected accelerate, which places a model by device_map, but it is not installed; "
                "run pip install 'attnviz[large]'"
            )
        checked: str | dict[str, str | int]
        if isinstance(device_map, Mapping):
            checked = {str(path): _one_place(device) for path, device in device_map.items()}
        elif isinstance(device_map, str) and device_map in _STRATEGIES:
            checked = device_map
        elif isinstance(device_map, str) and not device_map.startswith(_KINDS):
            raise InputError(
                f"expected device_map {', '.join(map(repr, _STRATEGIES))}, a device, or for each "
                f"module a device or 'disk', got {device_map!r:.80}; use one of these"
            )
        else:
            checked = {"": _one_place(device_map)}
        return cls(checked, None if folder is None else _writable(folder))

    def expect_modules(self, name: str, model: nn.Module) -> None:
        """Raise InputError if the map names a module that the model does not have.

        Accelerate itself refuses a map that leaves modules out.
        """
        if isinstance(self.device_map, str):
            return
        paths = [path for path, _ in (*model.named_modules(), *model.named_parameters())]
        if unknown := [path for path in self.device_map if path not in paths]:
            raise InputError(
                f"{name}: expected a device_map of this model's modules, but it has no "
                f"{unknown[0]!r:.80}. {did_you_mean(unknown[0], paths)}"
            )


def _one_place(place: Any) -> str | int:
    """Return a device or "disk" in accelerate's terms: GPUs have numbers."""
    if place == "disk":
        return "disk"
    device = one_device(f"cuda:{place}" if type(place) is int and place >= 0 else place)
    return device.index or 0 if device.type == "cuda" else device.type


def _writable(folder: str | os.PathLike[str]) -> str:
    """Return the path of a folder in which files can be written; create it if needed."""
    try:
        path = Path(folder).expanduser()
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except (OSError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"expected an offload_folder that can be written, got {str(folder)!r:.80} "
            f"({one_line(error)}); name another"
        ) from error
    return str(path)


def expect_one_process(name: str, module: PreTrainedModel) -> None:
    """Raise InputError for a model loaded for tensor parallelism, whose weights are DTensors."""
    if any(hasattr(parameter, "full_tensor") for parameter in module.parameters()):
        raise InputError(
            f"{name}: tensor parallelism is not supported, and several processes share the weights "
            "of this model; load it in one process with device_map='auto'"
        )
