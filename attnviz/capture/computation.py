"""Read from a model how it computes: hooks, replaced forwards, adapters, quantization, config."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from types import MethodType
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig

from attnviz.capture.calls import functions_lock
from attnviz.models.checkpoint import changed_buffers
from attnviz.models.objects import adapters
from attnviz.results import Computation
from attnviz.runtime import compat

# Hooks of these packages gather outputs, place tensors or build a weight from stored ones.
_LIBRARIES = ("transformers.", "accelerate.", "peft.", "torch.nn.utils.", "attnviz.")
_PACKAGES = ("transformers", "torch")  # which define the modules of models
# Fields that loading or building a model sets, and that no number depends on.
_IGNORED = {
    "architectures", "down_ops", "dtype", "fusion_config", "id2label", "label2id",
    "output_attentions", "output_hidden_states", "problem_type", "quantization_config",
    "return_dict", "torch_dtype", "transformers_version", "transformers_weights", "use_cache",
}  # fmt: skip


def read_computation(model: nn.Module) -> Computation:
    """Return how a model computes as the user has it."""
    with functions_lock:  # those that another thread watches are wrapped meanwhile
        hooks = [("*", _origin(hook)) for hook in compat.global_forward_hooks()]
        forwards, modules = [], dict(model.named_modules())
        put_in = {kind for kind in set(map(type, modules.values())) if _is_put_in(kind)}
        for path, module in modules.items():
            hooks += [(path, _origin(hook)) for hook in compat.forward_hooks(module)]
            forward, kind = compat.placed_forward(module), type(module)
            if kind in put_in or forward != MethodType(kind.forward, module):
                forwards.append((path, ".".join(_origin(forward))))
        implementations = map(compat.attention_implementation, compat.attention_configs(model))
        return Computation(
            attention=", ".join(dict.fromkeys(filter(None, implementations))) or "eager",
            training=model.training,
            hooks=tuple(
                (path, f"{module}.{name}")
                for path, (module, name) in hooks
                if not f"{module}.".startswith(_LIBRARIES)
            ),
            forwards=tuple(forwards),
            adapters=adapters(model),
            quantized=dict(Counter(filter(None, map(_quantization, modules.values())))),
            config=_config_changes(getattr(model, "config", None)),
            buffers=changed_buffers(model),
        )


def _origin(function: Any) -> tuple[str, str]:
    """Return module and qualified name of a function's code, which decorators do not copy."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    if (code := getattr(function, "__code__", None)) is not None:
        return str(function.__globals__.get("__name__")), code.co_qualname
    named = function if hasattr(function, "__qualname__") else type(function)
    return str(named.__module__), str(named.__qualname__)


def _is_put_in(kind: type[nn.Module]) -> bool:
    """Return whether the forward of a class is not that with which it was defined."""
    owner = next(one for one in kind.__mro__ if "forward" in vars(one))
    packages = [name.partition(".")[0] for name in (owner.__module__, _origin(kind.forward)[0])]
    return packages[0] in _PACKAGES and packages[1] not in _PACKAGES


def _quantization(module: nn.Module) -> str | None:
    """Return the kind of a quantized layer: torch's, or the class of its weight; else None."""
    weight = getattr(module, "weight", None)
    if type(module).__module__.startswith("torch.ao.nn.quantized"):
        if not callable(weight):  # a part of a layer
            return None
        prefix = "dynamic " if ".dynamic." in type(module).__module__ else ""
        return f"{prefix}{str(weight().dtype).removeprefix('torch.').replace('qint', 'int')}"
    if not isinstance(weight, Tensor):
        weight = getattr(module, "qweight", None)  # of GPTQ and AWQ
        return type(module).__name__ if isinstance(weight, Tensor) else None
    kind = type(weight)
    if kind.dequantize is not Tensor.dequantize or kind.__module__.startswith("bitsandbytes"):
        return kind.__name__
    is_number = weight.is_floating_point() and weight.element_size() > 1
    return None if is_number else f"{type(module).__name__} {weight.dtype}".replace("torch.", "")


def _config_changes(config: Any) -> dict[str, tuple[str, str]]:
    """Return fields that differ from config.json, if that is known: its value, the present one."""
    kind: Any = type(config)
    try:
        name = str(config.name_or_path)
        settings, _ = PreTrainedConfig.get_config_dict(name, local_files_only=True)
        if settings.get("model_type") != config.model_type:
            return {}
        stored = _stored_fields(kind, json.dumps(settings))
        present = dict(_fields(config.to_dict()))
    except Exception:  # no config, no such file, or one that its class does not read
        return {}
    return {
        field: (stored.get(field, "not set"), present.get(field, "not set"))
        for field in sorted(stored.keys() | present.keys())
        if stored.get(field) != present.get(field)
    }


@functools.lru_cache(16)
def _stored_fields(kind: Any, settings: str) -> dict[str, str]:
    """Return the fields that a config of this class has by the text of a file."""
    return dict(_fields(kind.from_dict(json.loads(settings)).to_dict()))


def _fields(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each field that numbers may depend on, as text."""
    for name, value in settings.items():
        if str(name).startswith("_") or name in _IGNORED:
            continue
        if isinstance(value, Mapping):
            yield from _fields(value, f"{prefix}{name}.")
        else:
            is_text = isinstance(value, str)
            yield f"{prefix}{name}", value if is_text else json.dumps(value, default=str)
