"""A result as a tree that JSON knows, beside its tensors, and back: exactly, and nothing else.

A tuple is a list, and what JSON does not know is an object with one key that says what it is: a
record by the name of its type ({"Axis": {"labels": […], …}}), a dict, a tensor by its name in the
file and the order of its dimensions in memory (on which products of matrices depend in the last
bit), a float that is no number by its bits, and a record that stands elsewhere too by where
("same").
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from attnviz import results
from attnviz.analyses.compare import result as compare
from attnviz.analyses.example import result as example
from attnviz.analyses.maps import result as maps
from attnviz.analyses.senses import result as senses
from attnviz.analyses.shift import decomposition
from attnviz.analyses.shift import result as shift
from attnviz.analyses.steps import result as steps
from attnviz.analyses.survey import result as survey
from attnviz.errors import InputError
from attnviz.results.validation import broken

# All that a file may name: nothing is imported, and nothing called, because a file says so.
TYPES: dict[str, Any] = {
    name: kind
    for module in (results, compare, example, maps, senses, shift, decomposition, steps, survey)
    for name, kind in vars(module).items()
    if is_dataclass(kind) and not name.startswith("_")
}

# The names of the types in files of the first format.
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


def encode(result: object, shown: Mapping[str, Tensor]) -> tuple[list[Any], dict[str, Tensor]]:
    """Return the tree of a result, and the tensors that are named in it.

    A tensor is called as in `shown`, else by the fields that lead to it ("records.0.query"), and is
    there once, however often it occurs. What is shown but not held follows the result in the tree.

    Raises
    ------
    InputError : it is no result, or holds what its type does not allow.
    """
    if type(result) not in TYPES.values():
        raise InputError(
            f"Expected a result of attnviz, got {type(result).__name__}. Make one: attend(text)."
        )
    tensors = dict(shown)
    names = {_memory(tensor): name for name, tensor in shown.items()}
    places: dict[int, str] = {}

    def node(value: Any, path: str) -> Any:
        if isinstance(value, Tensor):
            return tensor(value, path)
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": struct.pack(">d", value).hex()}
        if isinstance(value, tuple):
            return [node(each, f"{path}.{i}") for i, each in enumerate(value)]
        if isinstance(value, Mapping):
            return {"dict": {key: node(each, f"{path}.{key}") for key, each in value.items()}}
        return record(value, path) if is_dataclass(value) else value

    def record(value: Any, path: str) -> dict[str, Any]:
        if (place := places.setdefault(id(value), path)) != path:
            return {"same": place}
        held = {field.name: getattr(value, field.name) for field in fields(value)}
        wrong = _wrong(type(value), held)
        tree = {} if wrong else {name: node(held[name], _at(path, name)) for name in held}
        if wrong := wrong or _broken(value):  # rules rely on what is within
            raise InputError(f"Expected a sound result, but {wrong}. Make it anew.")
        return {type(value).__name__: tree}

    def tensor(value: Tensor, path: str) -> dict[str, list[Any]]:
        if (memory := _memory(value)) not in names:
            while path in tensors:
                path += "'"
            names[memory], tensors[path] = path, value
        return _named(names[memory], value)

    return [node(result, ""), *(_named(name, each) for name, each in shown.items())], tensors


def decode(tree: list[Any], tensors: Mapping[str, Tensor]) -> Any:
    """Return the result that a tree describes, of these tensors.

    Raises
    ------
    ValueError : it is no such tree, with what is wrong in words; for a tree that was made to
        deceive also what Python raises (RecursionError, TypeError, …).
    """
    made: dict[str, Any] = {}
    laid: dict[str, Tensor] = {}

    def value(node: Any, path: str) -> Any:
        if isinstance(node, list):
            return tuple(value(each, f"{path}.{i}") for i, each in enumerate(node))
        if not isinstance(node, dict):
            return node
        ((kind, inner),) = node.items()
        match kind:
            case "float":
                return struct.unpack(">d", bytes.fromhex(inner))[0]
            case "dict":
                return {key: value(each, f"{path}.{key}") for key, each in inner.items()}
            case "tensor":
                return tensor(*inner)
            case "same":
                return made[inner]
        made[path] = record(kind, inner, path)
        return made[path]

    def tensor(name: str, *order: int) -> Tensor:
        if name not in tensors:
            raise ValueError(f"the tensor {name!r:.60} is missing")
        if tensors[name].dtype not in _DTYPES:
            raise ValueError(f"no tensor of a result is of {tensors[name].dtype}")
        if name not in laid:
            back = sorted(range(len(order)), key=order.__getitem__)
            laid[name] = tensors[name].permute(order).contiguous().permute(back)
        return laid[name]

    def record(kind: str, inner: dict[str, Any], path: str) -> Any:
        kind = _FORMER_NAMES.get(kind, kind)
        if kind not in TYPES:
            raise ValueError(f"attnviz has no type {kind!r:.60}")
        former = _FORMER_FIELDS.get(kind, {})
        held = {
            former.get(name, name): value(each, _at(path, name)) for name, each in inner.items()
        }
        if wrong := _wrong(TYPES[kind], held):
            raise ValueError(wrong)
        found = TYPES[kind](**held)
        if wrong := _broken(found):
            raise ValueError(wrong)
        return found

    result, *_ = (value(each, "") for each in tree)
    if type(result) not in TYPES.values():
        raise ValueError(f"what it holds is a {type(result).__name__}")
    if surplus := tensors.keys() - laid.keys():
        raise ValueError(f"nothing holds the tensor {min(surplus)!r:.60}")
    return result


def _named(name: str, value: Tensor) -> dict[str, list[Any]]:
    """Return how a tree says that a tensor stands here."""
    strides = value.stride()
    return {"tensor": [name, *sorted(range(value.dim()), key=lambda d: -strides[d])]}


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    """Return what tells a tensor from all that are not the same numbers in the same place."""
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _wrong(kind: type, held: Mapping[str, Any]) -> str:
    """Say which field a record of this type cannot have so; nothing where all is well."""
    hints = _hints(kind)
    for name, value in held.items():
        if name not in hints:
            return f"{kind.__name__} has no field {name!r:.60}"
        if not _fits(value, hints[name]):
            return f"{kind.__name__}.{name} cannot hold this {type(value).__name__}"
    return ""


def _broken(record: Any) -> str:
    """Say which rule of its type a record breaks; nothing where all is well."""
    rule = broken(record)
    return rule and f"{type(record).__name__} should have {rule}"


@cache
def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _fits(value: Any, hint: Any) -> bool:
    """Tell whether a value is of a type, as far as the fields of records need it."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is Literal:
        return value in inner
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if inner[-1] is Ellipsis:
            return all(_fits(each, inner[0]) for each in value)
        return len(value) == len(inner) and all(map(_fits, value, inner))
    if inner:  # a dict, or a mapping
        return isinstance(value, origin) and all(
            _fits(key, inner[0]) and _fits(each, inner[1]) for key, each in value.items()
        )
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, int | float if hint is float else hint)
