"""Where a model's modules go: to one device, or to several and a disk (accelerate)."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import torch
from transformers import PreTrainedModel

from attnviz.errors import InputError, did_you_mean, one_line
from attnviz.models.complete import no_larger_than
from attnviz.models.weight_files import Weights

DeviceMap: TypeAlias = str | int | torch.device | Mapping[str, str | int | torch.device]
_KINDS = ("cpu", "cuda", "mps", "disk")
_CHOSEN = ("auto", "balanced", "balanced_low_0", "sequential")  # by accelerate


def one_device(device: str | torch.device) -> torch.device:
    """Return a device of this machine, where "auto" is CUDA if there is one.

    Raises
    ------
    InputError : there is no such device.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    here = {
        "cpu": 1,
        "cuda": torch.cuda.device_count(),
        "mps": int(torch.backends.mps.is_available()),
    }
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError):
        wanted = None
    if not isinstance(device, str | torch.device) or wanted is None or wanted.type not in here:
        raise InputError(
            "expected device 'auto', 'cpu', 'cuda', 'cuda:N' or 'mps', "
            f"got {device!r}; use one of these"
        )
    if (wanted.index or 0) >= here[wanted.type]:
        raise InputError(
            f"expected a device of this machine, got {str(device)!r}, but PyTorch finds "
            f"{here[wanted.type]} of the kind {wanted.type!r}; use 'auto' or 'cpu'"
        )
    return wanted


@dataclass(frozen=True)
class Placement:
    """What transformers is told: a way to choose, or a device or "disk" for each module.

    folder : for what must be written anew before it lies on the disk; None without one.
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
        """Return what was asked for, checked as far as it can be without a model; None for nothing.

        Raises
        ------
        InputError : it was asked for beside `device`, or in part; a device or a folder that cannot
            be used; accelerate is not installed.
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
        placed: str | dict[str, str | int]
        if isinstance(device_map, Mapping):
            placed = {str(path): _one_place(where) for path, where in device_map.items()}
        elif isinstance(device_map, str) and device_map in _CHOSEN:
            placed = device_map
        elif isinstance(device_map, str) and not device_map.startswith(_KINDS):
            raise InputError(
                f"expected device_map {', '.join(map(repr, _CHOSEN))}, a device, or for each "
                f"module a device or 'disk', got {device_map!r:.80}; use one of these"
            )
        else:
            placed = {"": _one_place(device_map)}
        return cls(placed, None if folder is None else _writable(folder))

    def expect_modules(self, name: str, config: Any, model_class: Any, weights: Weights) -> None:
        """Raise InputError unless the map names modules of the model, and all that have weights."""
        if isinstance(self.device_map, str):
            return
        with no_larger_than(name, weights), torch.device("meta"):
            module = model_class(copy.deepcopy(config))
        known = [path for path, _ in (*module.named_modules(), *module.named_parameters())]
        if unknown := [path for path in self.device_map if path not in known]:
            raise InputError(
                f"{name}: expected a device_map of this model's modules, but it has no "
                f"{unknown[0]!r:.80}. {did_you_mean(unknown[0], known)}"
            )
        for path, _ in module.named_parameters():
            parents = path.split(".")
            if not any(".".join(parents[:n]) in self.device_map for n in range(len(parents) + 1)):
                raise InputError(
                    f"{name}: expected a device_map that places every module, but it leaves out "
                    f"{path}; add it, or '' for all that is not named"
                )


def _one_place(where: Any) -> str | int:
    """Return a place as accelerate and safetensors call it: GPUs have numbers."""
    if where == "disk":
        return "disk"
    found = one_device(f"cuda:{where}" if type(where) is int and where >= 0 else where)
    return found.index or 0 if found.type == "cuda" else found.type


def _writable(folder: str | os.PathLike[str]) -> str:
    """Return a folder in which files can be written; it is made where there is none."""
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
