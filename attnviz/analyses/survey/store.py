"""The long table of a survey: a row for each sentence, head and statistic, in one Parquet file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from attnviz.analyses.survey.measure import HeadStatistics, TextStatistics

_VALUES = ("value", "even", "shuffled", "shuffled_keys")
_SCHEMA = pa.schema(
    [
        ("sentence", pa.int64()),
        ("tokens", pa.int32()),
        ("stack", pa.dictionary(pa.int8(), pa.string())),
        ("layer", pa.int16()),
        ("head", pa.int16()),
        ("statistic", pa.dictionary(pa.int8(), pa.string())),
        *((name, pa.float32()) for name in _VALUES),
    ]
)
_REPEATED: Any = [name for name in _SCHEMA.names if name not in _VALUES]


def written(
    path: Path, heads: HeadStatistics, parts: Iterable[TextStatistics]
) -> Iterator[TextStatistics]:
    """Yield the parts of a survey, each once its rows are written; the file ends with the last."""
    with pq.ParquetWriter(path, _SCHEMA, compression="zstd", use_dictionary=_REPEATED) as writer:
        for part in parts:
            writer.write_table(_table(heads, part))
            yield part


def _table(heads: HeadStatistics, statistics: TextStatistics) -> pa.Table:
    """Return one row for each sentence, head and statistic that a text has."""
    text, head, statistic = np.nonzero(~statistics.value.isnan().numpy())
    stacks = list(dict.fromkeys(name.stack for name in heads.heads))
    stack_codes = np.array([stacks.index(name.stack) for name in heads.heads], np.int8)
    columns: list[Any] = [
        np.array(statistics.numbers, np.int64)[text],
        np.array(statistics.tokens, np.int32)[text],
        pa.DictionaryArray.from_arrays(stack_codes[head], stacks),
        np.array([name.layer for name in heads.heads], np.int16)[head],
        np.array([name.head for name in heads.heads], np.int16)[head],
        pa.DictionaryArray.from_arrays(statistic.astype(np.int8), list(heads.names)),
    ]
    for name in _VALUES:
        columns.append(getattr(statistics, name).numpy()[text, head, statistic])
    return pa.table(columns, schema=_SCHEMA)
