"""Objects of a user: the model of transformers in one, and a copy of a model that may be changed.

Whatever holds exactly one model is taken apart: compiled, with adapters, parallel, in a pipeline.
None of its libraries is imported. A folder of PEFT, a LoRA adapter without its base model, is
loaded with it: from safetensors only, and all of its weights must fit.

Whatever runs a model runs its shadow, a copy that shares its weights, and nothing else that a run
may change. So the user's model is never changed, not even for a moment, and another thread may use
it meanwhile. Modules, hooks, configs and small buffers are copied; weights are shared. Python
objects that refer to modules of the model (replaced forwards, hooks, bound methods, closures) are
rebuilt, so that they refer to the modules of the shadow.
"""

from __future__ import annotations

import copy
import os
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
)
from transformers.feature_extraction_sequence_utils import SequenceFeatureExtractor
from transformers.image_processing_utils import BaseImageProcessor

from attnviz.errors import InputError, ModelError
from attnviz.models.pretrained import expect_finite, read_json, translate
from attnviz.runtime.compat import compiled_from

_CONFIG, ADAPTER = "adapter_config.json", "adapter_model.safetensors"
_PROCESSORS = (
    "tokenizer", "processing_class", "processor", "image_processor", "feature_extractor",
)  # fmt: skip
_PROCESSOR_TYPES = (ProcessorMixin, BaseImageProcessor, SequenceFeatureExtractor)
_NOT_SEARCHED = (type, ModuleType, FunctionType, MethodType, Tensor, PreTrainedTokenizerBase)
_CONTAINERS = (list, tuple, dict)
_HOPS = 2  # objects that are no modules, one inside the other: an object with a pipeline
_MOST_ITEMS = 64  # items of a list or a dict; larger ones are data
_UNCOMPILED = "what torch.compile made of the model is run uncompiled"
_SMALL = 2**20  # bytes of a buffer that is copied; larger ones hold weights
# Their functions name no module of a user in their globals.
_LIBRARIES = {"torch", "transformers", "accelerate", "peft", "torchao", "bitsandbytes"}
_BUILT_IN = (bool, int, float, complex, str, bytes, type, type(None))
_PLAIN: frozenset[type] = frozenset({*_BUILT_IN, torch.dtype, torch.device, torch.Size})
_SHARED = (Tensor, ModuleType, BuiltinFunctionType, *_PLAIN)
_DEEPEST = 4  # objects between an attribute and a module to which it refers
_MOST_OBJECTS = 20_000  # objects that are searched for modules

Model = TypeVar("Model", bound=nn.Module)


def unwrap(source: Any) -> tuple[Any, PreTrainedTokenizerBase | None, Any, tuple[str, ...]]:
    """Return the only model of transformers inside an object; a model or a name as it is.

    A module of PyTorch that holds none is a model itself. Its tokenizer and its processor follow,
    if the object holds them, and notes: which model was taken, and what is left out.

    InputError: the object holds no model or several of transformers, or it adds something to the
    model that its own attention does not show.
    """
    if source is None or isinstance(source, PreTrainedModel | str | os.PathLike):
        return source, None, None, ()
    name, found = type(source).__name__, _models_in(source)
    if not found and isinstance(source, nn.Module):
        return compiled_from(source) or source, None, None, ()
    if not found:
        raise InputError(
            f"{name} is not a checkpoint: give a folder, a hub name, a model of transformers or "
            "PyTorch, or an object that holds one. Of its weights alone, call "
            "model.load_state_dict(weights). Maps of another program can be recorded with "
            "attnviz.record, or given to attnviz.from_weights."
        )
    if len(found) > 1:
        paths = ", ".join(f"{one.path} ({type(one.value).__name__})" for one in found)
        raise InputError(
            f"This {name} holds {len(found)} models of transformers: {paths}. Pass one of them, "
            "with its tokenizer= or processor=."
        )
    (place,) = found
    for owner in place.owners:
        config = getattr(owner.value, "active_peft_config", None)
        if getattr(config, "is_prompt_learning", False):
            raise InputError(
                f"This {type(owner.value).__name__} puts trained vectors before every text, which "
                "the model inside does not read. Pass the model without them: .get_base_model()."
            )
    note = f"the model is {name}{place.path}"
    if left_out := place.beside():
        note += f"; not shown: {', '.join(left_out)}"
    members = [member for owner in place.owners for member in owner.members()]
    tokenizers = (member for member in members if isinstance(member, PreTrainedTokenizerBase))
    processors = (member for member in members if isinstance(member, _PROCESSOR_TYPES))
    return place.value, next(tokenizers, None), next(processors, None), (note,)


@dataclass(frozen=True, eq=False)
class _Place:
    """An object, the path to it, and the objects that it lies in, the innermost first."""

    value: Any
    path: str = ""
    owners: tuple[_Place, ...] = ()

    def children(self) -> Iterator[_Place]:
        """Return what it holds, short and public names first."""
        value, members = self.value, dict(getattr(self.value, "__dict__", {}))
        is_indexed = isinstance(value, (*_CONTAINERS, nn.Sequential, nn.ModuleList, nn.ModuleDict))
        if isinstance(value, nn.Module):
            members |= dict(value.named_children())
        elif is_indexed:
            members = dict(value.items() if isinstance(value, dict) else enumerate(value))
        for name in sorted(members, key=lambda name: (str(name).startswith("_"), len(str(name)))):
            index = name if str(name).isdigit() else repr(name)
            path = f"{self.path}[{index}]" if is_indexed else f"{self.path}.{name}"
            yield _Place(members[name], path, (self, *self.owners))

    def members(self) -> Iterator[Any]:
        """Return what may be its tokenizer or processor: properties by their names come first."""
        for name in _PROCESSORS:
            with suppress(Exception):  # a property of another library
                yield getattr(self.value, name, None)
        yield from (child.value for child in self.children())

    def may_hold_a_model(self) -> bool:
        """Return whether the object is searched: it is no data, and not too deep inside others."""
        if isinstance(self.value, nn.Module):
            return True
        if isinstance(self.value, _CONTAINERS):
            return len(self.value) <= _MOST_ITEMS
        is_hop = (not isinstance(owner.value, (nn.Module, *_CONTAINERS)) for owner in self.owners)
        return sum(is_hop) < _HOPS and not isinstance(self.value, _NOT_SEARCHED)

    def beside(self) -> list[str]:
        """Return the modules that the objects around a model hold beside it."""
        own = set(self.value.modules())
        return [
            f"{child.path} ({type(child.value).__name__})"
            for owner in self.owners
            for child in owner.children()
            if isinstance(child.value, nn.Module) and own.isdisjoint(child.value.modules())
        ]


def _models_in(source: Any) -> list[_Place]:
    """Return the outermost models of transformers in an object, the nearest first."""
    found, seen, places = [], {id(source)}, deque([_Place(source)])
    while places:
        for child in places.popleft().children():
            if id(child.value) in seen:
                continue
            seen.add(id(child.value))
            if isinstance(child.value, PreTrainedModel):
                seen |= {id(module) for module in child.value.modules()}
                found.append(child)
            elif child.may_hold_a_model():
                places.append(child)
    return found


def base_of_adapter(name: str, folder: Path) -> str | None:
    """Return the base of a folder that holds only a LoRA adapter; None for any other folder."""
    if not (folder / _CONFIG).is_file() or any(folder.glob("model*.safetensors*")):
        return None
    settings = read_json(name, folder / _CONFIG)
    base = settings.get("base_model_name_or_path")
    is_lora = settings.get("peft_type") == "LORA" and (folder / ADAPTER).is_file()
    if not is_lora or not isinstance(base, str) or not base:
        raise ModelError(
            f"{name}: a folder of an adapter is one of LoRA, with {ADAPTER}, and its {_CONFIG} "
            "names base_model_name_or_path. Load any other one with peft, and pass the model."
        )
    return base


def add_adapter(name: str, folder: Path, base: PreTrainedModel) -> PreTrainedModel:
    """Return a model with the adapter in a folder; its layers are replaced in place."""
    with translate(name, "the adapter"):
        import peft

        config = peft.PeftConfig.from_pretrained(str(folder))
        config.inference_mode = True
        config.megatron_config = None  # would import a module that the file names
        adapted = peft.PeftModel(base, config)
        report = adapted.load_adapter(str(folder), "default", torch_device=str(base.device))
    if lost := [*report.missing_keys, *report.unexpected_keys]:
        raise ModelError(
            f"{name}: the adapter does not fit {base.config.name_or_path}: {lost[0]:.100} is in "
            "one of them only. Use the base model that it was trained on."
        )
    module: Any = adapted.get_base_model()
    expect_finite(name, module)
    return module.eval().requires_grad_(False)  # type: ignore[no-any-return]


def adapters(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the adapters of PEFT that a model runs with, of any kind."""
    names: set[str] = set()
    for module in model.modules():
        is_adapter = hasattr(type(module), "adapter_layer_names") and hasattr(module, "base_layer")
        if not is_adapter or getattr(module, "disable_adapters", True):
            continue
        layer: Any = module
        weights = [getattr(layer, kind) for kind in layer.adapter_layer_names]
        names |= {name for name in layer.active_adapters if any(name in one for one in weights)}
        names |= {*layer.merged_adapters}
    return tuple(sorted(names))


def shadow_of(model: Model) -> tuple[Model, tuple[str, ...]]:
    """Return the shadow of a model, and notes on what it does not copy."""
    copier = _Copier(model)
    shadow: Model = copier.module(model)
    return shadow, tuple(dict.fromkeys(copier.notes))


class _Copier:
    """Copies the objects of one model, each once."""

    def __init__(self, model: nn.Module) -> None:
        self.notes: list[str] = []
        self._modules = {id(module) for module in model.modules()}
        self._copies: dict[int, Any] = {}
        self._configs: dict[int, Any] = {}  # the memo of deepcopy
        self._refers: dict[int, bool] = {}
        self._alive: list[object] = []  # so that no id is given twice

    def _keep(self, old: object, new: Any) -> Any:
        self._copies[id(old)] = new
        self._alive.append(old)
        return new

    def module(self, old: nn.Module) -> Any:
        if id(old) in self._copies:
            return self._copies[id(old)]
        if isinstance(old, torch.jit.ScriptModule):
            self.notes.append(f"{type(old).__name__} is scripted, so it is run as it is")
            return old
        if (inside := compiled_from(old)) is not None:
            self.notes.append(_UNCOMPILED)
            return self.module(inside)
        new = self._keep(old, object.__new__(type(old)))
        copies = {"_parameters": self._parameter, "_buffers": self._buffer, "_modules": self.value}
        members = vars(new)
        for name, value in vars(old).items():
            if type(value) in _PLAIN:
                members[name] = value
            elif isinstance(value, dict) and not value:  # most modules have no hooks
                members[name] = value.copy()
            elif name in copies:
                members[name] = {key: copies[name](one) for key, one in value.items()}
            elif name == "_compiled_call_impl":
                self.notes.append(_UNCOMPILED)
                members[name] = None
            else:
                members[name] = self.value(value)
        return new

    def _parameter(self, old: nn.Parameter | None) -> Any:
        """Return a parameter of the same numbers, without gradients; writes to it do not count."""
        is_plain = type(old) is nn.Parameter and type(old.data) is Tensor
        if old is None or not (is_plain or old.requires_grad):
            return old
        if id(old) not in self._copies:
            numbers = old.data if is_plain else old.detach()
            self._keep(old, nn.Parameter(numbers, requires_grad=False))
        return self._copies[id(old)]

    def _buffer(self, old: Tensor | None) -> Any:
        if old is None or old.is_meta or type(old) is not Tensor or old.nbytes > _SMALL:
            return old
        if id(old) not in self._copies:
            self._keep(old, old.detach().clone())
        return self._copies[id(old)]

    def value(self, old: Any) -> Any:
        """Return an object that refers to the copies where it refers to modules of the model."""
        if isinstance(old, _SHARED):
            return old
        if id(old) in self._copies:
            return self._copies[id(old)]
        if isinstance(old, nn.Module):
            return self.module(old) if self._is_around(old) else old
        return self._keep(old, self._copy(old))

    def _copy(self, old: Any) -> Any:
        kind = type(old)
        if (compiled := compiled_from(old)) is not None:
            self.notes.append(_UNCOMPILED)
            return self.value(compiled)
        if kind in (list, set, deque, dict, OrderedDict, defaultdict):
            return self._container(old)
        if isinstance(old, tuple):
            items, make = [self.value(item) for item in old], getattr(kind, "_make", kind)
            return old if _all_same(items, old) else make(items)
        if isinstance(old, PreTrainedConfig | GenerationConfig):
            return copy.deepcopy(old, self._configs)
        if isinstance(old, torch.Generator):
            return old.clone_state()
        if isinstance(old, MethodType):
            function, owner = self.value(old.__func__), self.value(old.__self__)
            is_same = function is old.__func__ and owner is old.__self__
            return old if is_same else MethodType(function, owner)
        if isinstance(old, partial):
            return self._partial(old)
        if isinstance(old, FunctionType):
            return self._function(old)
        if isinstance(old, weakref.ref):
            target = old()
            new = self.value(target)
            return old if new is target else weakref.ref(new)
        if kind.__module__.partition(".")[0] == "accelerate" or self.refers(old):
            return self._object(old)
        return old

    def _container(self, old: Any) -> Any:
        new = copy.copy(old)
        if not _parts_of(old):
            return new
        self._keep(old, new).clear()
        if isinstance(old, dict):
            new.update((self.value(key), self.value(value)) for key, value in old.items())
        else:
            add = new.update if isinstance(old, set) else new.extend
            add(self.value(item) for item in old)
        return new

    def _partial(self, old: partial[Any]) -> partial[Any]:
        parts = [self.value(part) for part in (old.func, *old.args)]
        keywords = {name: self.value(value) for name, value in old.keywords.items()}
        if _all_same([*parts, *keywords.values()], [old.func, *old.args, *old.keywords.values()]):
            return old
        new = partial(parts[0], *parts[1:], **keywords)
        vars(new).update((name, self.value(value)) for name, value in vars(old).items())
        return new

    def _function(self, old: FunctionType) -> FunctionType:
        """Return a function whose closure and globals hold copies in place of modules."""
        cells = old.__closure__ or ()
        closure = tuple(CellType() if self.refers(_content(cell)) else cell for cell in cells)
        names = {name: value for name, value in _named_globals(old) if self.refers(value)}
        if _all_same(cells, closure) and not names:
            return old
        scope = _Globals(old.__globals__) if names else old.__globals__
        new = FunctionType(old.__code__, scope, old.__name__, old.__defaults__, closure or None)
        new.__kwdefaults__, new.__qualname__ = old.__kwdefaults__, old.__qualname__
        new.__module__ = old.__module__
        vars(new).update(vars(old))
        self._keep(old, new)  # what follows may refer to it
        for cell, copied in zip(cells, closure, strict=True):
            if copied is not cell:
                copied.cell_contents = self.value(cell.cell_contents)
        if isinstance(scope, _Globals):
            scope.update((name, self.value(value)) for name, value in names.items())
        if old.__defaults__ is not None:
            new.__defaults__ = tuple(map(self.value, old.__defaults__))
        return new

    def _object(self, old: Any) -> Any:
        try:
            new = object.__new__(type(old))
            members = vars(old)
        except TypeError:
            self.notes.append(f"{type(old).__name__} refers to the model as loaded, and is shared")
            return old
        self._keep(old, new)
        vars(new).update((name, self.value(value)) for name, value in members.items())
        return new

    def refers(self, value: object, depth: int = _DEEPEST, seen: set[int] | None = None) -> bool:
        """Whether an object refers to a module of the model."""
        if depth < 0 or isinstance(value, _SHARED):
            return False
        if isinstance(value, nn.Module):
            return self._is_around(value)
        seen = set() if seen is None else seen
        if id(value) in seen or len(seen) > _MOST_OBJECTS:
            return False
        seen.add(id(value))
        return any(self.refers(part, depth - 1, seen) for part in _parts_of(value))

    def _is_around(self, module: nn.Module) -> bool:
        """Whether a module is one of the model, or holds one."""
        if id(module) in self._modules:
            return True
        if id(module) not in self._refers:
            self._refers[id(module)] = any(id(one) in self._modules for one in module.modules())
            self._alive.append(module)
        return self._refers[id(module)]


class _Globals(dict[str, Any]):
    """The globals of a function, of which some are replaced."""

    def __init__(self, real: dict[str, Any]) -> None:
        super().__init__()
        self._real = real

    def __missing__(self, name: str) -> Any:
        return self._real[name]


def _parts_of(value: Any) -> Iterable[object]:
    """Return the objects to which an object refers, without plain numbers and texts."""
    if isinstance(value, list | tuple | deque | set | frozenset):
        return [item for item in value if type(item) not in _BUILT_IN]
    if isinstance(value, dict):
        return _parts_of([*value.values(), *value])
    if isinstance(value, MethodType):
        return value.__self__, value.__func__
    if isinstance(value, partial):
        return value.func, *value.args, *value.keywords.values()
    if isinstance(value, FunctionType):
        cells = (_content(cell) for cell in value.__closure__ or ())
        return *cells, *(found for _, found in _named_globals(value))
    if isinstance(value, weakref.ref):
        return (value(),)
    if isinstance(value, PreTrainedConfig | GenerationConfig):
        return ()
    members = getattr(value, "__dict__", None)
    return [*members.values()] if isinstance(members, dict) else ()


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def _named_globals(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function of the user names in its globals and may refer to a module."""
    if str(function.__module__).partition(".")[0] in _LIBRARIES:
        return
    for name in set(_names_in(function.__code__)):
        found = function.__globals__.get(name)
        own = isinstance(found, FunctionType) and found.__globals__ is function.__globals__
        if own or isinstance(found, MethodType | partial | nn.Module):
            yield name, found


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _all_same(first: Iterable[object], second: Iterable[object]) -> bool:
    return all(one is other for one, other in zip(first, second, strict=True))
