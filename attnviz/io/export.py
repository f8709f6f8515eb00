"""Results to disk and back; and the data behind figures, with labels, provenance and proof."""

from __future__ import annotations

import base64
import io
import json
import math
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnviz.io import surveyed as surveyed
from attnviz.io.contents import (
    Result,
    contents,
    described,
)
from attnviz.io.files import DATA_SUFFIXES, GENERATOR, atomic, check_output
from attnviz.io.result_file import write_result
from attnviz.io.tables import long_table

if TYPE_CHECKING:
    from torch import Tensor


def save_result(drawn: Result, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write a result, or what a figure shows: numbers, labels, notes, provenance and agreement.

    The suffix chooses the format. json: everything as one object, an image as a data URI. npz:
    arrays of the numbers and labels, and all else as the JSON text `about`. safetensors: the
    numbers, and all else as JSON in the header under `about`. parquet: a long table, one row for
    each number, with all else as JSON under `about` in its metadata.
    An existing file is overwritten only with `force`.

    As .safetensors any result can be written, the whole of `attend` among them, and read again by
    `load_result`.

    Raises
    ------
    InputError, OutputError : as `check_output`; or it is no result, or no figure shows it.
    """
    path = check_output(path, DATA_SUFFIXES, force=force)
    suffix = path.suffix.lower()
    with atomic(path) as temporary:
        if suffix == ".safetensors":
            given = described(drawn)
            about = to_json({**given.labels, **given.about})
            write_result(temporary, drawn, given.tensors, about)
            return
        if suffix == ".json":
            temporary.write_text(to_json(to_data(drawn)) + "\n", encoding="utf-8")
            return
        given = contents(drawn)
        if suffix == ".parquet":
            _write_table(drawn, temporary, to_json({**given.labels, **given.about}))
            return
        import numpy as np

        arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in given.tensors.items()}
        arrays |= {name: np.array(each) for name, each in given.labels.items()}
        with temporary.open("wb") as file:
            np.savez_compressed(file, about=np.array(to_json(given.about)), **arrays)
        with zipfile.ZipFile(temporary, "a") as archive:
            archive.comment = GENERATOR.encode()


def _write_table(drawn: Result, path: Path, about: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Halves of surrogate pairs, as names of files may hold them, are no UTF-8.
    columns = {
        name: [x.encode("utf-8", "replace").decode() if isinstance(x, str) else x for x in each]
        for name, each in long_table(drawn).items()
    }
    table = pa.table(columns).replace_schema_metadata({"generator": GENERATOR, "about": about})
    pq.write_table(table, path)


def to_data(drawn: Result) -> dict[str, Any]:
    """Return everything that a figure shows, in types that JSON knows."""
    given = contents(drawn)
    numbers = {
        name: _data_uri(tensor) if name == "image" else tensor.tolist()
        for name, tensor in given.tensors.items()
    }
    return {"generator": GENERATOR, **numbers, **given.labels, **given.about}


def _data_uri(image: Tensor) -> str:
    """Return an RGB image as a PNG that a browser shows without a file."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image.numpy()).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def to_json(data: dict[str, Any]) -> str:
    """Return data as one JSON object; what is no number (NaN, infinity) becomes null."""
    text = json.dumps(_finite(data), ensure_ascii=False, indent=1, allow_nan=False)
    return text.encode("utf-8", "backslashreplace").decode()  # half a surrogate pair is no UTF-8


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
