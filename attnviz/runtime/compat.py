"""Every private name of torch, transformers and accelerate that attnviz uses, and why.

No public name does the same. A release of these libraries may change any of them, so no other
module uses one (`tests/capture/test_compat.py`), and this is the file to repair.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache, wraps
from threading import Lock
from traceback import walk_stack
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch.vmap import _flat_vmap

# TorchDispatchMode is documented, but only importable from here.
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map_only as tree_map_only

# The names of operators as a dispatch mode sees them: torch.softmax and Tensor.to.
SOFTMAX = frozenset({"_softmax", "_safe_softmax"})
CAST = "_to_copy"
FUSED_ATTENTION = "_scaled_dot_product_"  # what their names start with

_wrap_lock = Lock()


def outside_dispatch_modes() -> AbstractContextManager[None]:
    """Run a callback of a capture outside every dispatch mode: it is no part of the run."""
    return _disable_current_modes()


def outside_function_modes() -> AbstractContextManager[None]:
    """Run what follows outside every function mode: it is replaced as a whole."""
    return torch._C.DisableTorchFunction()


_uncompiled: list[Any] = []  # the stance of torch.compile, once for each block


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run what `torch.compile` made as it was written, in all threads, while any block runs."""
    with _wrap_lock:
        first = _uncompiled[0] if _uncompiled else torch.compiler.set_stance("force_eager")
        _uncompiled.append(first)
    try:
        yield
    finally:
        with _wrap_lock:
            _uncompiled.pop()
            if not _uncompiled:
                first.__exit__(None, None, None)


def storage_id(storage: torch.UntypedStorage) -> int:
    """Return a number that no other storage has meanwhile; data_ptr() is 0 on the meta device."""
    return int(storage._cdata)


def vmap_sizes() -> list[int]:
    """Return how many calls each `torch.vmap` that runs in this thread stands for, outer first."""
    every = [frame for frame, _ in walk_stack(None) if frame.f_code is _flat_vmap.__code__]
    return [frame.f_locals["batch_size"] for frame in reversed(every)]


def is_transformed(value: Any) -> bool:
    """Whether a value is a tensor that the transforms of torch.func pass to a program."""
    return isinstance(value, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(value)


def unwrapped(tensor: Tensor) -> Tensor:
    """Return the tensor behind those that the transforms of torch.func pass to a program."""
    while is_transformed(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def is_in_place(operator: Any) -> bool:
    """Whether an ATen operator writes into one of its arguments."""
    return bool(operator._schema.is_mutable)


def arguments_of(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an ATen operator by name, those with a default value among them."""
    arguments = operator._schema.arguments
    default = {one.name: one.default_value for one in arguments}
    return default | dict(zip(default, args, strict=False)) | dict(kwargs)


def wrap_once(owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
    """Replace a function of `owner` by `wrapper` of it, once for all threads: it stays."""
    with _wrap_lock:
        original = getattr(owner, name)
        if not hasattr(original, "wrapped_by_attnviz"):
            wrapped = wraps(original)(wrapper(original))
            vars(wrapped)["wrapped_by_attnviz"] = True
            setattr(owner, name, wrapped)


def draws(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an ATen operator draws random numbers from the generator of the process."""
    if torch.Tag.nondeterministic_seeded not in getattr(operator, "tags", ()):
        return False
    given = arguments_of(operator, args, kwargs)
    if "generator" in given:
        return given["generator"] is None
    # Attention, dropout and recurrent layers draw for dropout only.
    chance = next((name for name in ("dropout_p", "dropout", "p") if name in given), None)
    return chance is None or bool(given.get(chance) and given.get("train", True))


@lru_cache
def with_generator(operator: Any) -> Any:
    """Return the overload of a random operator that takes a generator; None without one."""

    def arguments(overload: Any) -> set[tuple[str, str]]:
        return {(one.name, str(one.type)) for one in overload._schema.arguments}

    packet, known = operator.overloadpacket, arguments(operator)
    overloads = [operator, *(getattr(packet, name) for name in packet.overloads())]
    takers = (one for one in overloads if "generator" in dict(arguments(one)))
    alike = (one for one in takers if dict(arguments(one) ^ known).keys() <= {"generator"})
    return next(alike, None)


def math_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return torch's fused attention, computed by its operators one by one, in this thread."""
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.where(attn_mask, 0.0, -torch.inf).to(query.dtype)
    attend = torch.ops.aten._scaled_dot_product_attention_math
    options = {"scale": scale, "enable_gqa": enable_gqa}
    output: Tensor = attend(query, key, value, attn_mask, dropout_p, is_causal, **options)[0]
    return output


def relative_distances(first: list[Tensor], second: list[Tensor]) -> Tensor:
    """Return the norm of each x - y relative to that of y, in few launches, on one device."""
    norms = torch._foreach_norm(torch._foreach_sub(first, second)), torch._foreach_norm(second)
    device = first[0].device
    apart, lengths = (torch.stack([one.to(device) for one in side]) for side in norms)
    return apart / lengths.clamp(min=torch.finfo(lengths.dtype).tiny)


def fill_with_zeros(*tensors: Tensor) -> None:
    """Fill tensors of one device with zeros, in few launches."""
    torch._foreach_zero_(tensors)


def write_count(tensor: Tensor) -> int:
    """Return how often a tensor was written: cheaper than comparing its bytes."""
    return int(tensor._version)


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Return a module's own parameters, to be replaced without torch's registration hooks."""
    return module._parameters


# The dictionaries of a module that a run may change.
_STATE = tuple(name for name, value in vars(nn.Module()).items() if isinstance(value, dict))


def state_of(module: nn.Module) -> list[dict[Any, Any]]:
    """Return what a run may change in a module: its attributes, and the dictionaries in them."""
    members = module.__dict__
    return [members, *(members[name] for name in _STATE if name in members)]


@contextmanager
def replaced_forwards(modules: Iterable[nn.Module], forward: Callable[..., Any]) -> Iterator[None]:
    """Let modules run another `forward`, without hooks: it is no part of the user's run."""
    names = "forward", "_forward_pre_hooks", "_forward_hooks"
    own = {module: {n: v for n, v in vars(module).items() if n in names} for module in modules}
    try:
        for module in own:
            vars(module).update(zip(names, (forward, OrderedDict(), OrderedDict()), strict=True))
        yield
    finally:
        for module, members in own.items():
            del vars(module)["forward"]
            vars(module).update(members)


def compiled_from(value: object) -> Any:
    """Return what `torch.compile` took to make a module or a function; None for any other."""
    if type(value).__name__ == "OptimizedModule":
        return vars(value)["_modules"]["_orig_mod"]
    is_function = isinstance(value, FunctionType)
    return vars(value).get("_torchdynamo_orig_callable") if is_function else None


def forward_hooks(module: nn.Module) -> list[Callable[..., Any]]:
    """Return the forward pre-hooks and forward hooks of a module."""
    return [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]


def global_forward_hooks() -> list[Callable[..., Any]]:
    """Return the forward pre-hooks and forward hooks that torch calls for every module."""
    hooks = nn.modules.module
    return [*hooks._global_forward_pre_hooks.values(), *hooks._global_forward_hooks.values()]


def keywords_of_call() -> dict[str, Any]:
    """Return the keyword arguments of the module for which torch calls a global pre-hook."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_name not in ("_call_impl", "inner"):
        frame = frame.f_back
    return dict(frame.f_locals.get("kwargs") or {})


def supports_fused_attention(model: nn.Module) -> bool:
    """Whether transformers runs a model under torch's fused attention."""
    return bool(getattr(model, "_supports_sdpa", False))


def attention_configs(model: nn.Module) -> list[Any]:
    """Return every config, or copy, in a model that names an attention implementation, once."""
    owners = (m for m in model.modules() if "config" in vars(m) or hasattr(type(m), "config"))
    every = [config for m in owners if (config := getattr(m, "config", None)) is not None]
    configs = {id(config): config for config in every}
    return [one for one in configs.values() if hasattr(one, "_attn_implementation_internal")]


def attention_implementation(config: Any) -> str | None:
    """Return the attention implementation that a config names."""
    return config._attn_implementation_internal  # type: ignore[no-any-return]


def set_attention_implementation(config: Any, implementation: str | None) -> None:
    """Change the attention implementation that a config names.

    The public `set_attn_implementation` may load kernels from the hub, refuses models that do not
    declare support, and does not reach each copy of a config.
    """
    config._attn_implementation_internal = implementation


def unset_attention_implementation(config: Any) -> None:
    """Remove attention code from the hub that a config.json asks for."""
    config._attn_implementation = None


def accelerate_hook(module: nn.Module) -> Any:
    """Return the hook by which accelerate places or offloads a module, or None."""
    return vars(module).get("_hf_hook")


def placed_forward(module: nn.Module) -> Any:
    """Return the forward of a module without the one by which accelerate places it."""
    return module.forward if accelerate_hook(module) is None else module._old_forward


def sought_tokens(tokenizer: Any) -> Collection[str]:
    """Return the tokens that a tokenizer written in Python looks for as they are."""
    return getattr(getattr(tokenizer, "tokens_trie", None), "_tokens", ())


def initialize(model: Any, module: nn.Module) -> None:
    """Initialize one module of a model as its class does."""
    model._init_weights(module)
