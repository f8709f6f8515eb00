"""The data behind figures to disk, with labels, provenance and proof."""

from __future__ import annotations

import base64
import io
import json
import math
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnviz.files import DATA_SUFFIXES, atomic, check_output
from attnviz.marks import GENERATOR
from attnviz.storage.contents import Drawn, agreement_data, contents

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Drawn", "agreement_data", "save_data", "to_data", "to_json"]


def save_data(drawn: Drawn, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write what a figure shows: its numbers, labels, notes, provenance and agreement.

    The suffix chooses the format. json: everything as one object, an image as a data URI. npz:
    arrays of the numbers and labels, and all else as the JSON text `about`. safetensors: the
    numbers, and all else as JSON in the header under `about`. parquet: a long table, one row for
    each number, with all else as JSON under `about` in its metadata.
    `force` overwrites also what attnviz did not write.

    Raises
    ------
    InputError, OutputError : as `check_output`.
    """
    path = check_output(path, DATA_SUFFIXES, force=force)
    suffix = path.suffix.lower()
    with atomic(path) as temporary:
        if suffix == ".json":
            temporary.write_text(to_json(to_data(drawn)) + "\n", encoding="utf-8")
            return
        given = contents(drawn)
        if suffix == ".parquet":
            _write_table(drawn, temporary, to_json({**given.labels, **given.about}))
            return
        tensors = {name: tensor.contiguous() for name, tensor in given.tensors.items()}
        if suffix == ".npz":
            import numpy as np

            arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
            arrays |= {name: np.array(each) for name, each in given.labels.items()}
            with temporary.open("wb") as file:
                np.savez_compressed(file, about=np.array(to_json(given.about)), **arrays)
            with zipfile.ZipFile(temporary, "a") as archive:
                archive.comment = GENERATOR.encode()
        else:
            from safetensors.torch import save

            # As bytes: its own writer reports a full disk by an exception of its own.
            about = to_json({**given.labels, **given.about})
            temporary.write_bytes(save(tensors, metadata={"attnviz": "figure", "about": about}))


def _write_table(drawn: Drawn, path: Path, about: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from attnviz.storage.tables import long_table

    table = pa.table(long_table(drawn)).replace_schema_metadata(
        {"generator": GENERATOR, "about": about}
    )
    pq.write_table(table, path)


def to_data(drawn: Drawn) -> dict[str, Any]:
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
    return json.dumps(_finite(data), ensure_ascii=False, indent=1, allow_nan=False)


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
