"""A result as a tree that JSON knows, beside its tensors, and back: exactly, and nothing else.

A tuple is a list. Anything else that JSON does not know is an object with one key:

- a record, by the name of its type: {"Axis": {"labels": […], …}};
- a mapping: {"dict": {…}};
- a tensor, by its name in the file and the order of its dimensions in memory, on which products of
  matrices depend in the last bit: {"tensor": ["weights", 0, 1]};
- a float that is not finite, by its bits: {"float": "7ff8000000000000"};
- a record that the tree has elsewhere too, by the first path to it: {"same": "records.0.key_axis"}.

cattrs builds each record by the types of its fields. Nothing is called because a file says so.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, partial
from importlib.util import find_spec
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from cattrs import Converter
from torch import Tensor

from attnviz.errors import InputError
from attnviz.results.base import SAVABLE, Savable

# Types and fields as files of the first format call them.
_FORMER_NAMES = {
    "AttentionSteps": "StepsResult",
    "Census": "SurveyResult",
    "Comparison": "CompareResult",
    "Ledger": "ResidualStream",
    "Secant": "ShiftDecomposition",
    "SenseResult": "SensesResult",
    "Side": "AxisGeometry",
    "Summary": "MapSummary",
    "Visible": "MaskRule",
    "WorkedExample": "ExampleResult",
}
_FORMER_FIELDS = {
    "ShiftResult": {"secant": "decomposition", "ledger": "residual_stream"},
}

_DTYPES = {
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.uint8, torch.bool,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Node:
    """A record on its way: its type, and its fields as yet without types."""

    kind: type[Savable]
    fields: dict[str, Any]


class _MisfitError(Exception):
    """A value is not of the type that a field has."""


def encode(result: object, shown: Mapping[str, Tensor]) -> tuple[list[Any], dict[str, Tensor]]:
    """Return the tree of a result, and the tensors that it names.

    A tensor is called as in `shown`, else by the fields that lead to it ("records.0.query"), and is
    there once, however often it occurs. What is shown but not held follows the result in the tree.

    Raises
    ------
    InputError : it is no result, or holds what its type does not allow.
    """
    if not isinstance(result, Savable):
        raise InputError(
            f"Expected a result of attnviz, got {type(result).__name__}. Make one: attend(text)."
        )
    root = _to_nodes(result)
    try:
        _build(root)
    except ValueError as error:
        raise InputError(f"Expected a valid result, but {error}. Make it anew.") from None
    tensors = dict(shown)
    names = {_memory(tensor): name for name, tensor in shown.items()}
    places: dict[int, str] = {}

    def plain(value: Any, path: str) -> Any:
        match value:
            case Tensor():
                return tensor(value, path)
            case float() if not math.isfinite(value):
                return {"float": struct.pack(">d", value).hex()}
            case tuple():
                return [plain(entry, f"{path}.{index}") for index, entry in enumerate(value)]
            case Mapping():
                entries = {key: plain(entry, f"{path}.{key}") for key, entry in value.items()}
                return {"dict": entries}
            case _Node():
                if (place := places.setdefault(id(value), path)) != path:
                    return {"same": place}
                held = value.fields.items()
                inner = {name: plain(field, _join(path, name)) for name, field in held}
                return {value.kind.__name__: inner}
        return value

    def tensor(value: Tensor, path: str) -> dict[str, list[Any]]:
        if (memory := _memory(value)) not in names:
            while path in tensors:
                path += "'"
            names[memory], tensors[path] = path, value
        return _named(names[memory], value)

    return [plain(root, ""), *(_named(name, value) for name, value in shown.items())], tensors


def decode(tree: list[Any], tensors: Mapping[str, Tensor]) -> Savable:
    """Return the result that a tree describes, of these tensors.

    Raises
    ------
    ValueError : it is no such tree, with what is wrong in words; for a tree that was made to
        deceive also what Python raises (RecursionError, TypeError, …).
    """
    nodes: dict[str, _Node] = {}
    restored: dict[str, Tensor] = {}

    def resolved(item: Any, path: str) -> Any:
        if isinstance(item, list):
            return tuple(resolved(entry, f"{path}.{index}") for index, entry in enumerate(item))
        if not isinstance(item, dict):
            return item
        ((name, inner),) = item.items()
        match name:
            case "float":
                return struct.unpack(">d", bytes.fromhex(inner))[0]
            case "dict":
                return {key: resolved(entry, f"{path}.{key}") for key, entry in inner.items()}
            case "tensor":
                return tensor(*inner)
            case "same":
                return nodes[inner]
        kind = _kind(name)
        former = _FORMER_FIELDS.get(kind.__name__, {})
        held = {key: resolved(entry, _join(path, key)) for key, entry in inner.items()}
        nodes[path] = _Node(kind, {former.get(key, key): value for key, value in held.items()})
        return nodes[path]

    def tensor(name: str, *order: int) -> Tensor:
        if name not in tensors:
            raise ValueError(f"the tensor {name!r:.60} is missing")
        if tensors[name].dtype not in _DTYPES:
            raise ValueError(f"no tensor of a result is of {tensors[name].dtype}")
        if name not in restored:
            back = sorted(range(len(order)), key=order.__getitem__)
            restored[name] = tensors[name].permute(order).contiguous().permute(back)
        return restored[name]

    root, *_ = (resolved(item, "") for item in tree)
    if not isinstance(root, _Node):
        raise ValueError(f"what it holds is a {type(root).__name__}")
    if surplus := tensors.keys() - restored.keys():
        raise ValueError(f"nothing holds the tensor {min(surplus)!r:.60}")
    return _build(root)


def _to_nodes(result: Savable) -> _Node:
    """Return a result as nodes: one for each record, however often it occurs."""
    converter, nodes = Converter(), dict[int, _Node]()

    def node(record: Any) -> _Node:
        if id(record) not in nodes:
            values = {
                field.name: converter.unstructure(getattr(record, field.name))
                for field in fields(record)
            }
            nodes[id(record)] = _Node(type(record), values)
        return nodes[id(record)]

    def entries(values: tuple[Any, ...]) -> tuple[Any, ...]:  # cattrs makes lists of them
        return tuple(map(converter.unstructure, values))

    converter.register_unstructure_hook(tuple, entries)
    converter.register_unstructure_hook_func(is_dataclass, node)
    return node(result)


def _build(root: _Node) -> Savable:
    """Return the result of some nodes; raise ValueError where one does not fit its type."""
    converter, built = Converter(), dict[int, Savable]()

    def record(node: Any, kind: Any) -> Savable:
        if not isinstance(node, _Node) or node.kind is not kind:
            raise _MisfitError
        if id(node) not in built:
            values = {name: field(kind, name, value) for name, value in node.fields.items()}
            try:
                built[id(node)] = kind(**values)
                built[id(node)].check(numbers=True)
            except InputError as error:
                raise ValueError(str(error)) from None
        return built[id(node)]

    def field(kind: Any, name: str, value: Any) -> Any:
        if name not in _hints(kind):
            raise ValueError(f"{kind.__name__} has no field {name!r:.60}")
        try:
            return converter.structure(value, _hints(kind)[name])
        except _MisfitError:
            of = value.kind if isinstance(value, _Node) else type(value)
            raise ValueError(f"{kind.__name__}.{name} cannot hold this {of.__name__}") from None

    def union(value: Any, hint: Any) -> Any:
        for possible in get_args(hint):
            try:
                return converter.structure(value, possible)
            except _MisfitError:
                pass
        raise _MisfitError

    def sequence(value: Any, hint: Any) -> tuple[Any, ...]:
        hints = get_args(hint)
        if not isinstance(value, tuple):
            raise _MisfitError
        if hints[-1] is Ellipsis:
            return tuple(converter.structure(entry, hints[0]) for entry in value)
        if len(value) != len(hints):
            raise _MisfitError
        return tuple(map(converter.structure, value, hints))

    def mapping(value: Any, hint: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise _MisfitError
        of_key, of_entry = get_args(hint)
        return {
            converter.structure(key, of_key): converter.structure(entry, of_entry)
            for key, entry in value.items()
        }

    for simple in (bool, int, float, str, type(None), Tensor):
        converter.register_structure_hook(simple, _expect)
    converter.register_structure_hook_func(is_dataclass, record)
    for structure, origins in (
        (_expect_one_of, (Literal,)),
        (union, (Union, UnionType)),
        (sequence, (tuple,)),
        (mapping, (dict, Mapping)),
    ):
        converter.register_structure_hook_func(partial(_has_origin, origins), structure)
    return record(root, root.kind)


def _has_origin(origins: Collection[Any], hint: Any) -> bool:
    return get_origin(hint) in origins


def _expect(value: Any, kind: type) -> Any:
    """Return a value of a simple type as it is: unlike cattrs does by itself, convert nothing."""
    if isinstance(value, bool):
        fits = kind is bool
    else:
        fits = isinstance(value, (int, float) if kind is float else kind)
    if not fits:
        raise _MisfitError
    return value


def _expect_one_of(value: Any, hint: Any) -> Any:
    if value not in get_args(hint):
        raise _MisfitError
    return value


def _kind(name: str) -> type[Savable]:
    """Return the type of this name; raise ValueError where attnviz has none."""
    name = _FORMER_NAMES.get(name, name)
    if name not in SAVABLE:
        _import_all_results()
    kind: Any = SAVABLE.get(name)
    if not is_dataclass(kind):
        raise ValueError(f"attnviz has no type {name!r:.60}")
    return kind  # type: ignore[return-value]


@cache
def _import_all_results() -> None:
    """Import the results of all analyses, which registers their types."""
    analyses = importlib.import_module("attnviz.analyses")
    for module in pkgutil.iter_modules(analyses.__path__, "attnviz.analyses."):
        if find_spec(f"{module.name}.result"):
            importlib.import_module(f"{module.name}.result")


def _named(name: str, value: Tensor) -> dict[str, list[Any]]:
    """Return how a tree says that a tensor stands here."""
    strides = value.stride()
    return {"tensor": [name, *sorted(range(value.dim()), key=lambda d: -strides[d])]}


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    """Return what tells a tensor from all that are not the same numbers in the same place."""
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}
