"""Devices, memory, precision, exceptions and logs of the libraries below attnviz.

A weight that accelerate offloads is an empty tensor on "meta"; its values are loaded while its
module runs.

Linux rarely refuses memory: it kills the process that uses it. So attnviz refuses in advance what
certainly does not fit. An allocation that fails anyway gives the same message.

TF32, float32 products in bfloat16 and autocast are off by up to 1e-2. They are settings of the user
for a model; what attnviz computes, compares and shows is exact: a product is as precise as its
factors.

To see the logs of libraries: `logging.getLogger("attnviz").setLevel("DEBUG")`.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import psutil
import torch
from torch import Tensor, nn

from attnviz.errors import AttnvizError, InputError, ModelError, is_panic, one_line
from attnviz.runtime.compat import accelerate_hook, own_parameters

_OUT_OF_MEMORY = re.compile(r"allocate memory|out of memory|bad_alloc|bad alloc", re.IGNORECASE)
_REQUESTED = re.compile(r"allocate ([\d.]+) ?(bytes|KiB|MiB|GiB|TiB)")
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
K = TypeVar("K")
_LOGGERS = ("transformers", "huggingface_hub", "torch")
_lock = threading.Lock()  # of the settings of precision, which belong to the process
_inside = 0  # how many blocks of full precision run, of all threads
_restore = ExitStack()  # puts the settings back after the last of them


def free(device: torch.device) -> int | None:
    """Return how many bytes this process can still allocate on a device; None if unknown."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    if device.type != "cpu":
        return None
    available = int(psutil.virtual_memory().available + psutil.swap_memory().free)
    if psutil.LINUX:  # a limit set by `ulimit -v`
        process = psutil.Process()
        limit = process.rlimit(psutil.RLIMIT_AS)[0]
        if limit != psutil.RLIM_INFINITY:
            available = min(available, limit - process.memory_info().vms)
    return max(available, 0)


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


def input_device(model: nn.Module) -> torch.device:
    """Return the device on which a model takes its inputs."""
    first = next(model.parameters(), None)
    return devices(model)[0] if first is None or first.is_meta else first.device


def dtype_of(model: nn.Module) -> torch.dtype:
    """Return the precision of a model: that of its first weights that are real numbers."""
    reals = (one.dtype for one in model.parameters() if one.is_floating_point())
    return next(reals, torch.get_default_dtype())


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


def copy_to(device: torch.device, tensor: Tensor) -> Tensor:
    """Copy a tensor to a device; from the memory of the CPU, CUDA is not waited for."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def copy_to_cpu(measured: Sequence[dict[K, Tensor]]) -> list[dict[K, Tensor]]:
    """Copy small tensors to the CPU in one transfer, as float64."""
    if not any(measured):
        return [{} for _ in measured]
    parts = [number.double().flatten() for numbers in measured for number in numbers.values()]
    values = iter(torch.split(torch.cat(parts).cpu(), [len(part) for part in parts]))
    return [
        {name: next(values).view(number.shape) for name, number in numbers.items()}
        for numbers in measured
    ]


@dataclass(frozen=True)
class MemoryBudget:
    """What needs memory, on which device, how to need less, and the error to raise."""

    what: str
    device: torch.device
    advice: str
    error: type[AttnvizError] = InputError

    def expect(self, size: int) -> None:
        """Raise the error if `size` bytes are certainly more than there are."""
        left = free(self.device)
        if left is not None and size > left:
            raise self.shortage(size)

    def shortage(self, size: int | None = None) -> AttnvizError:
        """Return the error: how many bytes are needed, how many are left, how to need less."""
        left = free(self.device)
        need = "More memory" if size is None else f"At least {_readable(size)}"
        # Memory that is left may be unknown, or enough but fragmented.
        is_clear = left is not None and (size is None or size > left)
        rest = _readable(left) if left is not None and is_clear else "not enough"
        return self.error(
            f"{need} is needed for {self.what}, but {rest} is left on {self.device}. {self.advice}"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether something failed because no memory was left."""
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    is_memory_error = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return is_memory_error or bool(_OUT_OF_MEMORY.search(str(error)))


def release_unused() -> None:
    """Return free memory to the system where malloc would keep it (glibc).

    Batches of many shapes leave gaps that fit none of the next, so a long run would keep growing.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _readable(size: int) -> str:
    """Return a size in MB or GB: "5 MB", "1.5 GB"."""
    return f"{size / 2**30:,.1f} GB" if size >= 2**30 else f"{size / 2**20:.0f} MB"


@contextmanager
def translate(memory: MemoryBudget, what: str | None = None, advice: str = "") -> Iterator[None]:
    """Turn the exceptions of libraries into one-line errors: `what` failed, why, and `advice`.

    Without `what` only memory errors are translated.
    """
    try:
        yield
    except AttnvizError:
        raise
    except BaseException as error:
        is_exception = isinstance(error, Exception)
        if is_exception and is_out_of_memory(error):
            size = _REQUESTED.search(str(error))
            requested = None if size is None else int(float(size[1]) * _UNITS[size[2]])
            raise memory.shortage(requested) from error
        if what is None or not (is_exception or is_panic(error)):
            raise
        todo = " Install what is missing." if isinstance(error, ImportError) else f" {advice}"
        raise ModelError(f"{what} ({one_line(error)}).{todo}") from error


def debugging() -> bool:
    """Return whether the logs of libraries are to be shown."""
    return logging.getLogger("attnviz").isEnabledFor(logging.DEBUG)


@contextmanager
def silence_logs() -> Iterator[None]:
    """Keep what libraries log in this thread off the terminal, unless debugging.

    Log files and other threads still get everything, and no level is changed.
    """
    if debugging():
        yield
        return
    thread = threading.get_ident()

    def from_other_thread(record: logging.LogRecord) -> bool:
        return record.thread != thread

    handlers: list[logging.Handler] = [
        handler
        for name in _LOGGERS
        for handler in logging.getLogger(name).handlers
        if type(handler) is logging.StreamHandler  # not a subclass that writes to a file
    ]
    if logging.lastResort is not None:  # of libraries without a handler
        handlers.append(logging.lastResort)
    with ExitStack() as filters:
        for handler in handlers:
            handler.addFilter(from_other_thread)
            filters.callback(handler.removeFilter, from_other_thread)
        yield


@contextmanager
def full_float32() -> Iterator[None]:
    """Multiply float32 matrices in float32 on every device; blocks may be nested or in threads."""
    global _inside
    with _lock:
        _inside += 1
        if _inside == 1:
            _set_full_float32()
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _restore.close()


@contextmanager
def exact_products() -> Iterator[None]:
    """Multiply matrices in the dtype of their factors: full float32, and no autocast."""
    with ExitStack() as stack:
        stack.enter_context(full_float32())
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def _set_full_float32() -> None:
    """Set what TF32 and bfloat16 depend on, where it is not as it should be."""
    mkldnn: Any = torch.backends.mkldnn
    backends = torch.backends.cuda.matmul, mkldnn.matmul
    before = [backend.fp32_precision for backend in backends]
    if all(precision in ("ieee", "none") for precision in before):
        return
    try:
        legacy = torch.get_float32_matmul_precision()
    except RuntimeError:  # only the newer setting was changed
        legacy = "highest"
    # The older setting is changed too: with two settings that differ, torch refuses to read it.
    torch.set_float32_matmul_precision("highest")
    for backend, precision in zip(backends, before, strict=True):
        _restore.callback(setattr, backend, "fp32_precision", precision)
    _restore.callback(torch.set_float32_matmul_precision, legacy)  # the first to be called
