"""A simulated CUDA device: its tensors say `cuda:0` and hold their numbers on the CPU.

What CUDA refuses is refused here too: operators that mix devices, `numpy()` of a device tensor, a
CPU tensor indexed by a device tensor, a generator of the CPU for a device tensor, a file of tensors
of a device that is not there. A copy to the CPU that does not block holds NaN until something waits
for it. Launches, synchronizations and copies are counted, each with the line of attnviz it is from.

>>> import torch
>>> with SimulatedCuda() as gpu:
...     x = torch.arange(3.0, device="cuda")
...     (x * 2).sum().item()
6.0
>>> gpu.counts
Counts(launches=3, synchronizations=1, to_host=0, to_device=0)

An ATen operator that is no view counts as one launch. A wait for a number or for a shape (`item`,
`nonzero`, a boolean index) is a synchronization, and so is a copy that blocks.

The tensors are a wrapper subclass, whose operators pass through `__torch_dispatch__`. Factories are
kernels of the dispatch key CUDA, so no mode is needed. To the C++ code of torch these tensors are
on the CPU, because its autograd runs on no device that is absent.

`SimulatedCuda(computes=False)` only counts: operators on large tensors of floating-point numbers
return zeros, and kernels do not run.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, nullcontext
from functools import cache, partial
from importlib.util import find_spec
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import torch
import transformers
from torch import Tensor
from torch.utils._device import _device_constructors

import attnviz
from attnviz.streaming import gpu as streaming_gpu

CPU = torch.device("cpu")
_PACKAGE = str(Path(attnviz.__file__).parent) + os.sep
_BACKWARD = str(Path("torch", "autograd", "graph.py"))
_LIBRARY = os.sep + "transformers" + os.sep

# Operators that are no views and launch nothing.
_FREE = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view",
    "detach", "alias", "lift_fresh", "_local_scalar_dense", "is_pinned",
}  # fmt: skip
# Operators that wait for numbers, or for the shape of their result.
_WAITING = {
    "_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim",
    "unique_consecutive", "bincount", "_linalg_eigh", "_linalg_svd",
}  # fmt: skip
_COPIES = {"copy_", "copy", "_to_copy"}
_INDEXING = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"}
# Operators that take a number from a CPU tensor without dimensions, beside the pointwise ones.
_TAKE_NUMBERS = {"fill", "fill_", "masked_fill", "masked_fill_", "index_put", "index_put_"}
_PRODUCTS = {"mm", "bmm", "addmm", "baddbmm"}
_LARGE = 2**16  # numbers of a tensor that is not computed where a device only counts
_ATTENTION = {f"_scaled_dot_product_{kind}_attention" for kind in ("flash", "efficient", "cudnn")}


class DeviceError(RuntimeError):
    """What a CUDA device refuses."""


class Counts(NamedTuple):
    """How often a device was used. A copy that blocks is a synchronization too."""

    launches: int
    synchronizations: int
    to_host: int
    to_device: int


class SimulatedCuda:
    """Context in which torch has CUDA devices.

    Attributes
    ----------
    places : Counter
        How often something happened, by the field of `Counts` and "file.py:line operator". Of what
        the model does in a run that attnviz starts, the file is "model".
    """

    current: SimulatedCuda | None = None

    def __init__(
        self, devices: int = 1, capability: tuple[int, int] = (9, 0), *, computes: bool = True
    ) -> None:
        self.devices, self.capability, self.computes = devices, capability, computes
        self.places: Counter[tuple[str, str]] = Counter()
        self.saved = _SavedStorages(devices)
        self._pending: list[tuple[Tensor, Tensor]] = []
        self._stack = ExitStack()

    @property
    def counts(self) -> Counts:
        """The totals since the last `clear`."""
        totals: Counter[str] = Counter()
        for (kind, _), count in self.places.items():
            totals[kind] += count
        return Counts(*(totals[kind] for kind in Counts._fields))

    def clear(self) -> None:
        """Count from 0."""
        self.places.clear()

    def top(self, kind: str, number: int = 20) -> list[tuple[str, int]]:
        """Return the places at which most happened, with their counts."""
        places = Counter({place: n for (of, place), n in self.places.items() if of == kind})
        return places.most_common(number)

    def count(self, kind: str, operator: str, number: int = 1) -> None:
        """Count one use of the device, or a number of "multiply_adds"."""
        self.places[kind, f"{_place()} {operator}"] += number

    def within(self, kind: str, *files: str) -> int:
        """Return how often something happened in files or folders of attnviz, or anywhere."""
        starts = files or ("",)
        return sum(n for (of, at), n in self.places.items() if of == kind and at.startswith(starts))

    def wait(self, operator: str = "synchronize") -> None:
        """Count a synchronization, after which the copies that did not block are complete."""
        self.count("synchronizations", operator)
        for target, values in self._pending:
            target.copy_(values)
        self._pending.clear()

    def copy_later(self, target: Tensor, values: Tensor) -> None:
        """Fill a CPU tensor with NaN or the largest number, until something waits."""
        with torch.no_grad():
            self._pending.append((target.detach(), values.to(target.dtype, copy=True)))
            if target.is_floating_point():
                target.fill_(torch.nan)
            else:
                target.fill_(True if target.dtype == torch.bool else torch.iinfo(target.dtype).max)

    def __enter__(self) -> SimulatedCuda:
        assert SimulatedCuda.current is None, "There is a simulated device already."
        assert not torch.cuda.is_available(), "There is a real device."
        _device_constructors()  # remembers functions that are replaced now
        for owner, name, value in _replacements(self):
            self._stack.enter_context(patch.object(owner, name, value))
        library = torch.library.Library("aten", "IMPL", "CUDA")
        self._stack.callback(library._destroy)
        for factory in _factories():
            library.impl(factory, partial(_create, factory))
        swap = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        self._stack.callback(torch.__future__.set_swap_module_params_on_conversion, swap)
        SimulatedCuda.current = self
        return self

    def __exit__(self, *error: object) -> None:
        SimulatedCuda.current = None
        self._stack.close()
        for name, function in vars(transformers.utils.import_utils).items():
            if name.startswith("is_") and hasattr(function, "cache_clear"):
                function.cache_clear()  # it remembers that there is a device


class CudaTensor(Tensor):
    """A tensor on a simulated device.

    values : its numbers, on the CPU. place : the device.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values, place, requires_grad=False):
        tensor = Tensor._make_wrapper_subclass(
            cls, values.size(), strides=values.stride(), storage_offset=values.storage_offset(),
            dtype=values.dtype, layout=values.layout, device=CPU, requires_grad=requires_grad,
        )  # fmt: skip
        tensor.values, tensor.place = values, place
        return tensor

    device = property(lambda self: self.place)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        return _run(operator, args, kwargs or {})

    def __repr__(self, **_):
        return f"{self.values!r} on {self.place}"

    def __deepcopy__(self, memo):
        copy = CudaTensor(self.values.clone(), self.place, self.requires_grad)
        return memo.setdefault(id(self), copy)

    def __reduce_ex__(self, protocol):
        if getattr(self, "_is_param", False):
            return torch._utils._rebuild_parameter, (self.detach(), self.requires_grad, {})
        SimulatedCuda.current.saved.mark(self.values.untyped_storage(), str(self.place))
        return _rebuild, (self.values.detach(),)

    def get_device(self):
        return self.place.index

    def untyped_storage(self):
        return self.values.untyped_storage()

    def data_ptr(self):
        return self.values.data_ptr()

    def numpy(self, *_, **__):
        raise TypeError(f"can't convert {self.place} device type tensor to numpy at {_place()}")

    __array__ = numpy

    def new(self, *sizes):
        return torch.empty(sizes, dtype=self.dtype, device=self.place)

    def set_(self, storage, *layout):
        return CudaTensor(self.values.set_(storage, *layout), self.place)

    def new_tensor(self, data, *, device=None, **options):
        return torch.tensor(data, device=device or self.place, **options)

    def tolist(self):
        return self.to(CPU).tolist()

    def cpu(self, *_, **__):
        return self.to(CPU)


# ------------------------------------------------------------------------------ what torch does


def _run(operator, args, kwargs):
    """Run an operator on CPU tensors, as a device would."""
    gpu = SimulatedCuda.current
    assert gpu is not None, "A tensor has outlived its simulated device."
    call = _Call(operator, args, kwargs)
    call.check_devices()
    call.count(gpu)
    name, target = call.name, call.target
    plain_args, plain_kwargs = _replace((args, kwargs), call.plain)
    plain_kwargs.pop("pin_memory", None)
    if name in _PRODUCTS and torch.backends.cuda.matmul.fp32_precision == "tf32":
        plain_args = *plain_args[:-2], _tf32(plain_args[-2]), _tf32(plain_args[-1])
    if products := _multiply_adds(operator, plain_args, plain_kwargs):
        gpu.count("multiply_adds", name, products)
    if not gpu.computes and name != "_foreach_zero_" and _is_large(plain_args, plain_kwargs):
        result = _uncomputed(operator, plain_args, plain_kwargs)
    elif name in _ATTENTION:
        result = _attention(operator, plain_args, plain_kwargs)
    elif name == "histc":  # of integers, which the CPU does not count
        result = operator(plain_args[0].float(), *plain_args[1:]).to(plain_args[0].dtype)
    else:
        result = operator(*plain_args, **plain_kwargs)
    if call.is_copy and target == CPU and call.is_asynchronous:
        gpu.copy_later(result, plain_args[1 if name == "copy_" else 0])
    written = {}
    if operator._schema.is_mutable:
        written = {id(call.plain(tensor)): tensor for tensor in call.tensors}
        if any(tensor.shape != call.plain(tensor).shape for tensor in call.tensors):
            raise NotImplementedError(f"{operator} changes a shape, which is not simulated.")
    elif target == CPU:
        return result

    def on_device(value):
        if not isinstance(value, Tensor):
            return value
        return written[id(value)] if id(value) in written else CudaTensor(value, target)

    return _replace(result, on_device)


def _multiply_adds(operator, args, kwargs):
    """Return the multiply-adds of a product, or of fused attention; 0 for all other operators."""
    schema, name = operator._schema, operator.overloadpacket.__name__
    if name in _PRODUCTS:
        return prod(args[-2].shape) * args[-1].shape[-1]
    if "_scaled_dot_product" not in name:
        return 0
    terms = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | kwargs
    Q, K, V = (terms[side] for side in ("query", "key", "value"))
    whole = prod(Q.shape[:-1]) * K.shape[-2] * (Q.shape[-1] + V.shape[-1])
    return whole // 2 if terms.get("is_causal") else whole


def _is_large(args, kwargs):
    """Return whether an operator takes a large tensor of floating-point numbers."""
    sizes = [0]
    _replace(
        (args, kwargs),
        lambda v: (
            sizes.append(v.numel()) if isinstance(v, Tensor) and v.is_floating_point() else None
        ),
    )
    return max(sizes) > _LARGE


def _uncomputed(operator, args, kwargs):
    """Return what an operator on large tensors returns, without its numbers."""
    if operator._schema.is_mutable:
        return args[0]  # stays as it is
    if operator.is_view or operator._schema.returns[0].type.kind() != "TensorType":
        return operator(*args, **kwargs)

    def on_meta(value):
        if isinstance(value, Tensor):
            return value.to("meta")
        return torch.device("meta") if isinstance(value, torch.device) else value

    shapes = operator(*_replace(args, on_meta), **_replace(kwargs, on_meta))

    def without_numbers(value):
        if not isinstance(value, Tensor):
            return value
        memory = np.zeros(max(1, value.untyped_storage().nbytes()), np.uint8)  # used when written
        return torch.from_numpy(memory).view(value.dtype).as_strided(value.shape, value.stride())

    return _replace(shapes, without_numbers)


_NESTS = tuple, list, dict


def _replace(value, change):
    """Return a value whose parts are changed, in tuples, lists and dictionaries."""
    if isinstance(value, (tuple, list)):
        return type(value)(
            [_replace(part, change) if isinstance(part, _NESTS) else change(part) for part in value]
        )
    if isinstance(value, dict):
        return {name: _replace(part, change) for name, part in value.items()}
    return change(value)


def _create(factory, *args, device=None, pin_memory=None, **kwargs):
    """Run a factory for a tensor on a device."""
    gpu = SimulatedCuda.current
    generator = kwargs.get("generator")
    if generator is not None:
        raise DeviceError(f"Expected a generator on {device}, not on {generator.device}.")
    operator = _operator(factory)
    if operator.overloadpacket.__name__ not in _FREE:
        gpu.count("launches", factory)
    return CudaTensor(operator(*args, device=CPU, **kwargs), _indexed(device))


class _Call:
    """An operator with its arguments, at least one of them on a device.

    place : the device. target : where the result is.
    """

    def __init__(self, operator, args, kwargs):
        self.operator, self.args, self.kwargs = operator, args, kwargs
        self.name = name = operator.overloadpacket.__name__
        self.is_copy = name in _COPIES
        self.tensors = []
        _replace((args, kwargs), lambda v: isinstance(v, Tensor) and self.tensors.append(v))
        self.devices = {tensor.device for tensor in self.tensors}
        self.place = next(iter(self.devices - {CPU}))
        asked = kwargs.get("device")
        # C++ code names the CPU where it only means: where the tensor is.
        unasked = name == "_to_copy" and asked == CPU and not getattr(_state, "to_host", False)
        if name in ("copy_", "copy"):
            self.target = args[0].device
        else:
            self.target = self.place if asked is None or unasked else _indexed(asked)

    @property
    def is_asynchronous(self):
        """Whether a copy does not block."""
        args, options = self.args, self.kwargs
        return bool(options.get("non_blocking") or (self.name == "copy_" and args[2:3] == (True,)))

    @staticmethod
    def plain(value):
        """Return a tensor of the CPU for a tensor of a device, and the CPU for a device."""
        if isinstance(value, CudaTensor):
            return value.values
        return CPU if isinstance(value, torch.device) else value

    def check_devices(self):
        """Raise DeviceError unless the tensors are on one device, as far as CUDA needs them."""
        if len(self.devices) == 1 or self.is_copy:
            return
        if len(self.devices) == 2 and _in_backward_of_torch():
            return  # where C++ code makes zeros for these tensors, on the CPU as it believes
        name, args = self.name, self.args
        on_cpu = [tensor for tensor in self.tensors if tensor.device == CPU]
        numbers = all(tensor.dim() == 0 for tensor in on_cpu)
        allowed = numbers and (torch.Tag.pointwise in self.operator.tags or name in _TAKE_NUMBERS)
        if name in _INDEXING:  # the device copies indices to itself
            allowed = args[0].device == self.place and (
                len(args) == 2 or args[2].device == self.place or args[2].dim() == 0
            )
        elif self.operator._schema.is_mutable:
            allowed = allowed and args[0].device == self.place
        if not allowed or len(self.devices - {CPU}) > 1:
            shapes = ", ".join(f"{tuple(t.shape)} on {t.device}" for t in self.tensors)
            raise DeviceError(
                "Expected all tensors to be on the same device: "
                f"{self.operator} at {_place()} of {shapes}"
            )

    def count(self, gpu):
        """Count what the device does."""
        name, args = self.name, self.args
        if self.is_copy and any(tensor.device != self.target for tensor in self.tensors[-1:]):
            gpu.count("to_host" if self.target == CPU else "to_device", name)
            if not self.is_asynchronous:
                gpu.wait(name)
            return
        if not self.operator.is_view and name not in _FREE:
            gpu.count("launches", name)
        if name in _INDEXING:
            indices = [index for index in args[1] if isinstance(index, Tensor)]
            masks = [index for index in indices if index.dtype in (torch.bool, torch.uint8)]
            for _ in (index for index in indices if index.device == CPU):
                gpu.count("to_device", name)
                gpu.wait(name)
            fills = len(args) > 2 and indices == masks and args[2].device == CPU
            if masks and not fills:
                gpu.wait(name)
        shape_unknown = name == "repeat_interleave" and self.kwargs.get("output_size") is None
        number_on_device = name.startswith("masked_fill") and isinstance(args[2], CudaTensor)
        if name in _WAITING or shape_unknown or number_on_device:
            gpu.wait(name)


def _tf32(values):
    """Round float32 to the 10 bits of mantissa that the products of TF32 read."""
    if values.dtype != torch.float32:
        return values
    bits = values.contiguous().view(torch.int32)
    return bits.add(0x1000).bitwise_and(~0x1FFF).view(torch.float32)


_MODES = "__torch_dispatch__", "__torch_function__"  # which pass on the operators of others


def _in_backward_of_torch():
    """Whether autograd calls, from its C++ code and not from a backward function of attnviz."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        is_ours = name.startswith(_PACKAGE) and frame.f_code.co_name not in _MODES
        if is_ours or name.endswith(_BACKWARD):
            return name.endswith(_BACKWARD)
        frame = frame.f_back
    return False


def _place():
    """Return the line of attnviz that runs, or "model" inside a model that attnviz runs."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_PACKAGE) and frame.f_code.co_name not in _MODES:
            return f"{name[len(_PACKAGE) :]}:{frame.f_lineno}"
        if _LIBRARY in name:
            return "model"
        frame = frame.f_back
    return "elsewhere"


def _attention(operator, args, kwargs):
    """Return what fused attention on CUDA returns, the output and the log-sum-exp first."""
    schema = operator._schema
    names = [argument.name for argument in schema.arguments]
    terms = dict(zip(names, args, strict=False)) | kwargs
    Q, K, V = (terms[name] for name in ("query", "key", "value"))
    if "flash" in schema.name and (Q.dtype == torch.float32 or Q.shape[-1] % 8):
        raise RuntimeError("Flash attention is for halves of 8, 16, 24... features.")
    K, V = (tensor.repeat_interleave(Q.shape[1] // K.shape[1], dim=1).double() for tensor in (K, V))
    scores = Q.double() @ K.mT * (terms.get("scale") or Q.shape[-1] ** -0.5)
    if terms.get("attn_bias") is not None:
        scores = scores + terms["attn_bias"]
    if terms.get("is_causal"):
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    rest = [None if "Tensor" in str(value.type) else 0 for value in schema.returns[2:]]
    return (scores.softmax(-1) @ V).to(Q.dtype), scores.logsumexp(-1).float(), *rest


# -------------------------------------------------------------------------- what is replaced

_state = threading.local()  # to_host: whether a copy to the CPU is asked for, not only by C++ code


def _to(self, *args, copy=False, **kwargs):
    """Take the place of `Tensor.to`, whose C++ code believes all tensors on the CPU."""
    if args and isinstance(args[0], Tensor):
        args = (args[0].device, args[0].dtype, *args[1:])
    device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
    device, dtype = _indexed(device or self.device), dtype or self.dtype
    if (device, dtype) == (self.device, self.dtype) and not copy and memory_format is None:
        return self
    if not isinstance(self, CudaTensor):
        # Autograd knows no device that is absent.
        self = self if torch.is_grad_enabled() else self.detach()
    _state.to_host = device == CPU
    try:
        return torch.ops.aten._to_copy.default(
            self, device=device, dtype=dtype, non_blocking=non_blocking,
            memory_format=memory_format or torch.preserve_format,
        )  # fmt: skip
    finally:
        _state.to_host = False


def _from_data(function):
    """Return `torch.tensor` or `as_tensor` that copies to a device by an operator.

    Their C++ code copies below the level at which a tensor may have a Python class.
    """

    def create(data, *, device=None, **options):
        default = data.device if isinstance(data, Tensor) else torch.empty(0).device
        device = _indexed(default if device is None else device)
        if isinstance(data, CudaTensor):
            return data.to(device, options.get("dtype"))
        return function(data, device=CPU, **options).to(device)

    return create


def _unpinned(function):
    """Return a factory that allocates plain memory in place of pinned memory."""
    return lambda *args, pin_memory=False, **options: function(*args, **options)


def _one_hot(tensor, num_classes=-1):
    """Take the place of `one_hot`, which creates its classes where C++ code believes the tensor."""
    classes = num_classes if num_classes >= 0 else int(tensor.max()) + 1
    return (tensor[..., None] == torch.arange(classes, device=tensor.device)).long()


def _indexed(device):
    """Return a device with its number."""
    device = torch.device(device)
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def _operator(name):
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


@cache
def _factories():
    """Return the names of the operators that create a tensor on a device from no other tensor."""
    names = []
    for qualified in torch._C._dispatch_get_all_op_names():
        namespace, _, name = qualified.partition("::")
        try:
            arguments = _operator(name)._schema.arguments if namespace == "aten" else ()
        except (AttributeError, RuntimeError):
            continue  # not callable from Python
        kinds = {argument.name: str(argument.type) for argument in arguments}
        if "device" in kinds and not any("Tensor" in kind for kind in kinds.values()):
            names.append(name)
    return tuple(names)


class _SavedStorages:
    """What `torch.save` and `torch.load` ask about storages: on which device each is."""

    def __init__(self, devices):
        self.devices = devices
        self.places = {}  # by storage: the storage, which stays alive, and its device

    def mark(self, storage, place):
        """Note that a storage is on a device, and return it."""
        self.places[storage._cdata] = storage, place
        return storage

    def tag(self, storage):
        """Return the device of a storage, or None if it is on none."""
        storage = getattr(storage, "_untyped_storage", storage)
        return self.places.get(storage._cdata, (None, None))[1]

    def restore(self, storage, place):
        """Return a storage that was read for a device; None if it was read for none."""
        if not place.startswith("cuda"):
            return None
        device = _indexed(place)
        if device.index >= self.devices:
            raise DeviceError(f"Attempting to deserialize on {device} of {self.devices}.")
        return self.mark(storage, str(device))


def _rebuild(values):
    """Return a tensor from a file, on the device that its storage was read for."""
    gpu = SimulatedCuda.current
    place = None if gpu is None else gpu.saved.tag(values.untyped_storage())
    return values if place is None else CudaTensor(values, torch.device(place))


class _Event:
    """An event or a stream of the device."""

    def __init__(self, *_, **__):
        self.time = 0.0

    def synchronize(self):
        SimulatedCuda.current.wait()

    def record(self, *_):
        """Take the time of the host. Whoever waits for one event waits for all."""
        self.time = time.perf_counter()

    wait_event = wait_stream = wait = record

    def elapsed_time(self, end):
        return (end.time - self.time) * 1e3


class _Kernel:
    """A Triton kernel, which Triton's interpreter runs on the CPU."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        def launch(**terms):
            for name, term in terms.items():
                if isinstance(term, Tensor) and not isinstance(term, CudaTensor):
                    raise DeviceError(f"The kernel's argument {name} is on the CPU.")
            SimulatedCuda.current.count("launches", "triton")
            plain = {n: t.values if isinstance(t, CudaTensor) else t for n, t in terms.items()}
            h, m, d = terms["q"].shape
            m = min(m, terms.get("row_tiles", m) * terms["BM"])  # of one launch, on the average
            products = h * m * terms["k"].shape[1] * d // (2 if terms["after"] == 0 else 1)
            SimulatedCuda.current.count("multiply_adds", "triton", products)
            if not SimulatedCuda.current.computes:
                return None
            with torch.utils._python_dispatch._disable_current_modes():
                return self.kernel[grid](**plain)

        return launch


def _replacements(gpu):
    """Yield what a simulated device replaces: owner, name, value."""
    generators = tuple(torch.Generator() for _ in range(gpu.devices))

    def generator(device=0):
        return generators[device if isinstance(device, int) else _indexed(device).index]

    bytes_free = 2**36
    cuda = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: gpu.devices,
        "current_device": lambda: 0,
        "device": nullcontext,
        "default_generators": generators,
        "empty_cache": lambda: None,
        "current_stream": _Event,
        "Event": _Event,
        "Stream": _Event,
        "stream": nullcontext,
        "synchronize": lambda device=None: gpu.wait(),
        "manual_seed_all": lambda seed: [each.manual_seed(seed) for each in generators],
        "get_rng_state": lambda device=0: generator(device).get_state(),
        "set_rng_state": lambda state, device=0: generator(device).set_state(state),
        "get_device_capability": lambda device=None: gpu.capability,
        "get_device_name": lambda device=None: "simulated",
        "get_device_properties": lambda device=None: SimpleNamespace(
            multi_processor_count=2, total_memory=bytes_free, name="simulated"
        ),
        "mem_get_info": lambda device=None: (bytes_free, bytes_free),
        "memory_allocated": lambda device=None: 0,
        "memory_reserved": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "reset_peak_memory_stats": lambda device=None: None,
    }
    functions = {
        "tensor": _from_data(torch.tensor),
        "as_tensor": _from_data(torch.as_tensor),
        "empty": _unpinned(torch.empty),
        "empty_like": _unpinned(torch.empty_like),
    }
    methods = {
        "to": _to,
        "cuda": lambda self, device=None, **options: _to(self, device or "cuda", **options),
        "pin_memory": lambda self, *_: self,
        "is_pinned": lambda self, *_: not self.is_cuda,
    }
    replaced = {torch.cuda: cuda, torch: functions, Tensor: methods}
    yield from ((owner, *item) for owner, items in replaced.items() for item in items.items())
    yield torch.nn.functional, "one_hot", _one_hot
    yield torch.version, "cuda", "13.0"
    registry = torch.serialization._package_registry
    yield (
        torch.serialization,
        "_package_registry",
        [(0, gpu.saved.tag, gpu.saved.restore), *registry],
    )
    if os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None:
        import triton_interpreter  # noqa: F401

        from attnviz.streaming import triton_kernels

        for name, value in list(vars(triton_kernels).items()):
            if type(value).__name__ == "InterpretedFunction" and not name.startswith("_"):
                yield triton_kernels, name, _Kernel(value)
    else:  # compiled kernels need a device that exists
        yield streaming_gpu, "available", lambda device=None: False
