"""Write results to disk, in formats that other programs read too."""

from __future__ import annotations

import base64
import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

from torch import Tensor

from attnviz.errors import InputError
from attnviz.io.files import DATA_SUFFIXES, GENERATOR, atomic, check_output
from attnviz.io.result_file import write_result
from attnviz.results.arguments import checked_scalars
from attnviz.results.base import Result, Savable, finite


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
    path = check_output(path, DATA_SUFFIXES, force=force)
    suffix = path.suffix.lower()
    with atomic(path) as temporary:
        if suffix == ".safetensors":
            arrays = result.to_arrays() if isinstance(result, Result) else {}
            write_result(temporary, result, arrays, to_json(_about(result)))
        elif suffix == ".json":
            temporary.write_text(to_json(to_data(result)) + "\n", encoding="utf-8")
        elif suffix == ".parquet":
            _write_table(_as_drawn(result), temporary)
        else:
            _write_arrays(_as_drawn(result), temporary)


def to_data(result: Savable) -> dict[str, Any]:
    """Return everything that a figure shows, as types of JSON."""
    numbers = {
        name: _data_uri(array) if name == "image" else array.tolist()
        for name, array in _as_drawn(result).to_arrays().items()
    }
    return {"generator": GENERATOR, **numbers, **_about(result)}


def to_json(data: dict[str, Any]) -> str:
    """Return data as one JSON object; NaN and infinity become null."""
    text = json.dumps(finite(data), ensure_ascii=False, indent=1, allow_nan=False)
    return text.encode("utf-8", "backslashreplace").decode()  # lone surrogates are not UTF-8


def _as_drawn(result: object) -> Result:
    """Return the result if a figure shows it; raise InputError for any other."""
    if isinstance(result, Result):
        return result
    raise InputError(
        f"No figure shows {type(result).__name__}. Save it as .safetensors, or save what "
        "attention_map, head_maps, steps or example returns."
    )


def _about(result: object) -> dict[str, Any]:
    labels = result.labels() if isinstance(result, Result) else {}
    return {**labels, **(result.about() if isinstance(result, Savable) else {})}


def _write_arrays(result: Result, path: Path) -> None:
    import numpy as np

    arrays: dict[str, Any] = {name: array.numpy() for name, array in result.to_arrays().items()}
    arrays |= {name: np.array(labels) for name, labels in result.labels().items()}
    with path.open("wb") as file:
        np.savez_compressed(file, about=np.array(to_json(result.about())), **arrays)
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = GENERATOR.encode()


def _write_table(result: Result, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # File names may hold lone surrogates, which are not UTF-8.
    columns = {
        name: [x.encode("utf-8", "replace").decode() if isinstance(x, str) else x for x in column]
        for name, column in result.columns_of_table().items()
    }
    about = {"generator": GENERATOR, "about": to_json(_about(result))}
    pq.write_table(pa.table(columns).replace_schema_metadata(about), path)


def _data_uri(image: Tensor) -> str:
    """Return an RGB image as a PNG in a data URI."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image.numpy()).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
