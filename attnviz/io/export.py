"""Write results in formats that other programs read too; read safetensors back bit for bit.

The metadata of a safetensors file has `about`, for other programs, and for attnviz the `tree` of
the result, the `format` of that tree, the version of `attnviz` that wrote it, the day on which it
was `saved`, and `sha256`: the digest of the file with zeros in place of the digest itself. A file
that changed by one bit is refused.

The tree is JSON. A tuple is a list. Anything else that JSON lacks is an object with one key:

- a record, by the name of its type: {"Axis": {"labels": […], …}};
- a mapping: {"dict": {…}};
- a tensor, by its name in the file and the order of its dimensions in memory, on which matrix
  products depend in the last bit: {"tensor": ["weights", 0, 1]};
- a float that is not finite, by its bits: {"float": "7ff8000000000000"};
- a record that is already in the tree, by the first path to it: {"same": "records.0.key_axis"}.

A record is built if its values are of the types of its fields, without those that only older
versions had. Nothing is called because a file says so.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import pkgutil
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import is_dataclass, make_dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from attnviz import io as files
from attnviz.errors import InputError
from attnviz.results import AgreementReport, AttentionResult, digests_of
from attnviz.results.arguments import checked_scalars, fits
from attnviz.results.base import SAVABLE, Result, Savable, digest_of, finite, stored
from attnviz.runtime import version_of
from attnviz.runtime.libraries import MemoryBudget, is_out_of_memory

FORMAT = 1  # increase it when older versions of attnviz cannot read what is written
_MAX_HEADER = 100_000_000  # bytes, as in safetensors
_SHA256, _BLANK = b'"sha256":"', b"0" * 64
# What files of older versions have, and results no longer: fields, and records in them.
_FORMER = {
    "CompareResult": ("roles",), "ExplainResult": ("heads", "lens"), "ExploreResult": ("planes",),
    "HeadExample": ("count",), "SensesResult": ("plane", "explained", "plane_accuracy"),
    "SurveyResult": ("clusters", "distances"),
}  # fmt: skip
_FORMER_RECORDS = ("HeadEffects", "LogitLens", "QueryKeyPlane")

_hints = cache(get_type_hints)  # of a record

_DTYPES = {
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.uint8, torch.bool,
}  # fmt: skip


@checked_scalars
def save_result(result: Savable, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write a result: its numbers and labels, its provenance and its verdict.

    Parameters
    ----------
    result : a result of attnviz
        .safetensors holds any result, also that of `attend`, and `load_result` reads it again. The
        other formats hold what a figure shows.
    path : str or path
        Its suffix chooses the format. json: everything as one object, an image as a data URI. npz:
        the arrays, their labels, and all else as the JSON text `about`. safetensors: the arrays,
        and all else as JSON in the header under `about`. parquet: a long table, one row for each
        number, with all else as JSON under `about` in its metadata.
    force : bool, optional
        Overwrite an existing file.

    Raises
    ------
    InputError, OutputError
        The file cannot be written there, or no figure shows the result.

    Examples
    --------
    >>> import attnviz
    >>> from tempfile import TemporaryDirectory
    >>> result = attnviz.attend("the train left the station")
    >>> with TemporaryDirectory() as folder:
    ...     attnviz.save_result(result, f"{folder}/train.safetensors")
    ...     again = attnviz.load_result(f"{folder}/train.safetensors")
    >>> again.tokens == result.tokens
    True
    """
    path = files.check_output(path, files.DATA_SUFFIXES, force=force)
    suffix = path.suffix.lower()
    with files.atomic(path) as temporary:
        if suffix == ".safetensors":
            _write_result(temporary, result)
        elif suffix == ".json":
            temporary.write_text(to_json(to_data(result)) + "\n", encoding="utf-8")
        elif suffix == ".parquet":
            _write_table(_as_drawn(result), temporary)
        else:
            _write_arrays(_as_drawn(result), temporary)


def to_data(result: Savable) -> dict[str, Any]:
    """Return everything that a figure shows, as types of JSON."""
    from PIL import Image

    numbers = {
        name: files.data_uri(Image.fromarray(a.numpy()), "png") if name == "image" else a.tolist()
        for name, a in _as_drawn(result).to_arrays().items()
    }
    schema = files.SCHEMA.format(type(result).__name__)
    return {"schema": schema, "generator": files.GENERATOR, **numbers, **_about(result)}


def to_json(data: dict[str, Any]) -> str:
    """Return data as one JSON object; NaN and infinity become null."""
    text = json.dumps(finite(data), ensure_ascii=False, indent=1, allow_nan=False)
    return text.encode("utf-8", "backslashreplace").decode()  # lone surrogates are not UTF-8


def _as_drawn(result: object) -> Result:
    if isinstance(result, Result):
        return result
    raise InputError(
        f"No figure shows {type(result).__name__}. Save it as .safetensors, or save what "
        "attention_map, head_maps, steps or example returns."
    )


def _about(result: Savable) -> dict[str, Any]:
    return {**(result.labels() if isinstance(result, Result) else {}), **result.about()}


def _write_arrays(result: Result, path: Path) -> None:
    arrays: dict[str, Any] = {name: array.numpy() for name, array in result.to_arrays().items()}
    arrays |= {name: np.array(labels) for name, labels in result.labels().items()}
    with path.open("wb") as file:
        np.savez_compressed(file, about=np.array(to_json(result.about())), **arrays)
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = files.GENERATOR.encode()


def _write_table(result: Result, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # File names may hold lone surrogates, which are not UTF-8.
    columns = {
        name: [x.encode("utf-8", "replace").decode() if isinstance(x, str) else x for x in column]
        for name, column in result.columns_of_table().items()
    }
    about = {"generator": files.GENERATOR, "about": to_json(_about(result))}
    pq.write_table(pa.table(columns).replace_schema_metadata(about), path)


def _write_result(path: Path, result: Savable) -> None:
    """Write a result; the arrays that a figure shows keep their names."""
    tree, tensors = _encode(result, result.to_arrays() if isinstance(result, Result) else {})
    metadata = {
        "about": to_json(_about(result)),
        "tree": json.dumps(tree, allow_nan=False, separators=(",", ":")),
        "format": str(FORMAT),
        "attnviz": version_of("attnviz"),
        "saved": datetime.now(UTC).date().isoformat(),
        "sha256": _BLANK.decode(),
    }
    # Copies, since tensors may share memory. Bytes, since the library's own writer reports a full
    # disk by an exception that is not an OSError.
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    data = save(copies, metadata)
    if (length := int.from_bytes(data[:8], "little")) > _MAX_HEADER:
        raise InputError(
            f"The labels of the result take {length:,} bytes, and a file holds at most "
            f"{_MAX_HEADER:,}. Keep fewer layers, or save a map of the result."
        )
    start = data.index(_SHA256 + _BLANK) + len(_SHA256)
    with path.open("wb") as file:
        file.write(data[:start])
        file.write(hashlib.sha256(data).hexdigest().encode())
        file.write(memoryview(data)[start + len(_BLANK) :])


def read_result(path: Path) -> Savable:
    """Return the result in a file, as `attnviz.load_result` documents it, not recomputed."""
    with files.translated(path, "read", "Name another file, or save the result again."):
        size = files.expect_plain(path)
        try:
            data, metadata = _read(path, size)
            return _decode(json.loads(metadata["tree"]), load(data), metadata.get("saved"))
        except (InputError, OSError):
            raise
        except Exception as error:  # a forged file can raise anything, in any library
            if is_out_of_memory(error):
                what, advice = f"the result in {path}", "Keep fewer layers of it."
                memory = MemoryBudget(what, torch.device("cpu"), advice)
                raise memory.shortage(size) from error
            reason = str(error) if isinstance(error, ValueError) else type(error).__name__
            raise OSError(0, f"its content is not valid: {reason}") from error


def _read(path: Path, size: int) -> tuple[bytes, dict[str, str]]:
    """Return the bytes and the metadata of a file that is unchanged since it was written."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > _MAX_HEADER:
            raise OSError(0, "it is not a safetensors file" if size else "it is empty")
        if 8 + length > size:
            raise OSError(0, "it was cut short")
        metadata: dict[str, str] = json.loads(file.read(length)).get("__metadata__", {})
        if not metadata.keys() >= {"tree", "format", "attnviz", "sha256"}:
            raise OSError(0, "it holds something else, such as the weights of a model")
        file.seek(0)
        data = file.read()
    known = metadata["sha256"].encode()
    digest = hashlib.sha256(data[: 8 + length].replace(_SHA256 + known, _SHA256 + _BLANK))
    digest.update(memoryview(data)[8 + length :])
    if digest.hexdigest().encode() != known:
        raise OSError(0, "it changed after it was written: its SHA-256 differs")
    if metadata["format"] != str(FORMAT):
        raise InputError(
            f"{path} is in format {metadata['format']!r:.20} of attnviz "
            f"{metadata['attnviz']!r:.20}, and this version reads format {FORMAT}. Upgrade attnviz."
        )
    return data, metadata


def _encode(result: object, shown: Mapping[str, Tensor]) -> tuple[list[Any], dict[str, Tensor]]:
    """Return the tree of a result, then of what is `shown` beside it, and the tensors by name."""
    tensors: dict[str, Tensor] = dict(shown)
    # Of memory, and the paths of records by id.
    names: dict[Any, str] = {_memory(tensor): name for name, tensor in shown.items()}

    def encode(value: Any, path: str) -> Any:
        match value:
            case float():
                return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
            case Tensor():
                _expect_dtype(value)
                if (memory := _memory(value)) not in names:
                    while path in tensors:
                        path += "'"
                    names[memory], tensors[path] = path, value
                return _named(names[memory], value)
            case tuple() | list():
                return [encode(entry, f"{path}.{index}") for index, entry in enumerate(value)]
            case Mapping():
                return {"dict": {key: encode(value[key], f"{path}.{key}") for key in value}}
            case Savable():
                if (place := names.setdefault(id(value), path)) != path:
                    return {"same": place}
                _expect_types(type(value), fields := stored(value))
                inner = {n: encode(one, f"{path}.{n}".lstrip(".")) for n, one in fields.items()}
                value.check(numbers=True)
                return {type(value).__name__: inner}
        return value

    if not isinstance(result, Savable):
        raise InputError(
            f"{type(result).__name__} is not a result of attnviz. Make one: attend(text)."
        )
    try:
        tree = [encode(result, "")]
    except ValueError as error:
        raise InputError(f"The result is not valid: {error}. Make it again.") from None
    finally:
        del encode  # it refers to itself, and holds the tensors
    return [*tree, *(_named(name, tensor) for name, tensor in shown.items())], tensors


def _decode(tree: list[Any], tensors: Mapping[str, Tensor], saved: str | None) -> Savable:
    """Return the result of a tree, each record and each tensor once; ValueError for a wrong one.

    saved : the day from which its agreement is, unless it was loaded from another file.
    """
    records: dict[str, Savable] = {}
    restored: dict[str, Tensor] = {}

    def decode(item: Any, path: str) -> Any:
        if isinstance(item, list):
            return tuple(decode(entry, f"{path}.{index}") for index, entry in enumerate(item))
        if not isinstance(item, dict):
            return item
        ((tag, inner),) = item.items()
        match tag:
            case "dict":
                return {key: decode(value, f"{path}.{key}") for key, value in inner.items()}
            case "float":
                return struct.unpack(">d", bytes.fromhex(inner))[0]
            case "same":
                return records[inner]
            case "tensor":
                return tensor(*inner)
        if tag in _FORMER_RECORDS:
            return make_dataclass(tag, inner)(*(decode(one, path) for one in inner.values()))
        return record(tag, inner, path)

    def record(name: str, items: dict[str, Any], path: str) -> Savable:
        kind: Any = _kind(name)
        whole = {key: decode(one, f"{path}.{key}".lstrip(".")) for key, one in items.items()}
        values = {key: one for key, one in whole.items() if key not in _FORMER.get(name, ())}
        _expect_types(kind, values)
        if kind is AgreementReport:
            values |= {"saved": values.get("saved") or saved, "recomputed": ()}
        if isinstance(report := values.get("agreement"), AgreementReport):
            values["agreement"] = _bound(report, kind, values, is_older=saved is None)
        if len(values) < len(whole):
            before = digest_of(whole)
            values = {key: _without_digest(one, before) for key, one in values.items()}
        try:
            records[path] = kind(**values)
            records[path].check(numbers=True)
        except InputError as error:
            raise ValueError(str(error)) from None
        return records[path]

    def tensor(name: str, *order: int) -> Tensor:
        if name not in tensors:
            raise ValueError(f"the tensor {name!r:.60} is missing")
        if name not in restored:
            _expect_dtype(tensors[name])
            inverse = sorted(range(len(order)), key=order.__getitem__)
            restored[name] = tensors[name].permute(order).contiguous().permute(inverse)
        return restored[name]

    root, *shown = tree
    ((name, items),) = root.items()
    result = record(name, items, "")
    decode(shown, "")
    del decode, record  # they refer to each other, and hold the tensors
    if unused := tensors.keys() - restored.keys():
        raise ValueError(f"the result has no tensor {min(unused)!r:.60}")
    return result


def _bound(
    report: AgreementReport, kind: type, values: Mapping[str, Any], *, is_older: bool
) -> AgreementReport:
    """Return the report of a file, altered if it knows no digest; older versions wrote none."""
    has_records = issubclass(kind, AttentionResult)
    if report.given or (report.digests if has_records else report.digest is not None):
        return report
    if not is_older:
        return replace(report, altered=True)
    attentions = values.get("streamed") or values.get("records") or ()
    return replace(report, digests=digests_of(attentions)) if has_records else report


def _without_digest(value: Any, digest: str) -> Any:
    """Return reports without this digest, so that the result gives them one of what is left."""
    if isinstance(value, AgreementReport) and value.digest == digest:
        return replace(value, digest=None)
    is_several = isinstance(value, tuple)
    return tuple(_without_digest(one, digest) for one in value) if is_several else value


def _expect_types(kind: type, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if name not in (hints := _hints(kind)):
            raise ValueError(f"{kind.__name__} has no field {name!r:.60}")
        if not fits(value, hints[name]):
            raise ValueError(f"{kind.__name__}.{name} cannot hold this {type(value).__name__}")


def _expect_dtype(tensor: Tensor) -> None:
    if tensor.dtype not in _DTYPES:
        raise ValueError(f"no tensor of a result is of {tensor.dtype}")


def _kind(name: str) -> type[Savable]:
    """Return the type of this name. Importing a result registers its type."""
    if name not in SAVABLE:
        analyses = importlib.import_module("attnviz.analyses")
        for module in pkgutil.walk_packages(analyses.__path__, "attnviz.analyses."):
            if module.name.endswith("result"):
                importlib.import_module(module.name)
    kind: Any = SAVABLE.get(name)
    if not is_dataclass(kind):
        raise ValueError(f"attnviz has no type {name!r:.60}")
    return kind  # type: ignore[return-value]


def _named(name: str, tensor: Tensor) -> dict[str, list[Any]]:
    strides = tensor.stride()
    return {"tensor": [name, *sorted(range(tensor.dim()), key=lambda d: -strides[d])]}


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    """Return a key that tensors share only if they are the same numbers in the same place."""
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
