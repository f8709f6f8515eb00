"""The folder of a survey: the long table in parts, each of which is there whole or not at all.

A part holds the texts from one number of the corpus to the next, so that what is missing can be
told, and a part that is written twice is the same twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from attnviz.errors import InputError
from attnviz.files import atomic
from attnviz.records import Census
from attnviz.survey.measuring import Measured
from attnviz.survey.statistics import STATISTICS

VALUES = ("value", "even", "shuffled")
SCHEMA = pa.schema(
    [
        ("sentence", pa.int64()),
        ("tokens", pa.int32()),
        ("stack", pa.dictionary(pa.int8(), pa.string())),
        ("layer", pa.int16()),
        ("head", pa.int16()),
        ("statistic", pa.dictionary(pa.int8(), pa.string())),
        *((name, pa.float32()) for name in VALUES),
    ]
)


def long_table(measured: Measured) -> pa.Table:
    """Return one row for each sentence, layer, head and statistic that a text has."""
    columns: dict[str, list[NDArray[Any]]] = {name: [] for name in SCHEMA.names}
    count = len(STATISTICS)
    stacks = list(dict.fromkeys(each.stack for each in measured.layers))
    for each in measured.layers:
        N, H, S = each.value.shape
        values = {name: getattr(each, name).expand(N, H, S).numpy() for name in VALUES}
        there = ~np.isnan(values["value"])
        full: dict[str, NDArray[Any]] = {
            "sentence": np.array(measured.numbers)[:, None, None],
            "tokens": np.array(measured.tokens)[:, None, None],
            "stack": np.full((1, 1, 1), stacks.index(each.stack)),
            "layer": np.full((1, 1, 1), each.layer),
            "head": np.arange(H)[None, :, None],
            "statistic": np.arange(count)[None, None, :],
            **values,
        }
        for name, array in full.items():
            columns[name].append(np.broadcast_to(array, (N, H, S))[there])
    flat = {name: np.concatenate(some) for name, some in columns.items()}
    order = np.lexsort([flat[name] for name in ("statistic", "head", "layer", "stack", "sentence")])
    names = {"stack": stacks, "statistic": list(STATISTICS)}
    return pa.table(
        [
            pa.DictionaryArray.from_arrays(pa.array(flat[name][order], pa.int8()), names[name])
            if name in names
            else pa.array(flat[name][order], SCHEMA.field(name).type)
            for name in SCHEMA.names
        ],
        schema=SCHEMA,
    )


def write_part(folder: Path, number: int, table: pa.Table, about: Mapping[str, str]) -> None:
    """Write a part, whole or not at all."""
    with atomic(part_path(folder, number)) as temporary:
        pq.write_table(table.replace_schema_metadata(dict(about)), temporary, compression="zstd")


def part_path(folder: Path, number: int) -> Path:
    """Return where a part lies."""
    return folder / "parts" / f"{number:06}.parquet"


def read_parts(folder: Path) -> Iterator[pa.Table]:
    """Yield the tables of the parts, in order.

    Raises
    ------
    InputError : a part that is none of ours, or damaged.
    """
    for path in sorted((folder / "parts").glob("*.parquet")):
        try:
            table = pq.read_table(path)
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"Expected {path} to be a part of a survey, but: {str(error).splitlines()[0]:.80}. "
                "Remove it and run again with --resume."
            ) from None
        if table.schema.names != SCHEMA.names:
            raise InputError(
                f"Expected {path} to be a part of a survey, got other columns. Take it away."
            )
        yield table


def largest_difference(folder: Path) -> float:
    """Return the largest difference of our weights from the model's own, in all parts."""
    every = [pq.read_schema(path).metadata for path in (folder / "parts").glob("*.parquet")]
    return max(float((each or {}).get(b"difference", "nan")) for each in every)


def write_summary(folder: Path, census: Census) -> None:
    """Write a row for each head and statistic, with where it all comes from as JSON beside."""
    K, S = census.mean.shape
    of_heads = {
        "stack": [each.stack for each in census.heads],
        "layer": [each.layer for each in census.heads],
        "head": [each.head for each in census.heads],
        "role": census.roles,
        "cluster": census.clusters,
    }
    columns: dict[str, Any] = {
        name: [value for value in values for _ in range(S)] for name, values in of_heads.items()
    }
    columns["statistic"] = list(census.statistics) * K
    numbers = ("mean", "low", "high", "even", "shuffled", "p_even", "p_shuffled", "count")
    columns |= {name: getattr(census, name).flatten().numpy() for name in numbers}
    about = {"provenance": asdict(census.provenance), "agreement": census.agreement.summary()}
    table = pa.table(columns).replace_schema_metadata({"about": json.dumps(about)})
    with atomic(folder / "summary.parquet") as temporary:
        pq.write_table(table, temporary)
