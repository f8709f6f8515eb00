"""The long table of a survey, a row for each sentence, head and statistic, and back to numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from attnviz.analyses.survey.bootstrap import Floats
from attnviz.analyses.survey.measure import Measured
from attnviz.analyses.survey.result import HeadName
from attnviz.analyses.survey.statistics import STATISTICS

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
    """Return one row for each sentence, head and statistic that a text has."""
    N, K, S = measured.value.shape
    heads, stacks = measured.heads, list(dict.fromkeys(head.stack for head in measured.heads))
    there = ~measured.value.isnan().numpy()

    def flat(values: object, kind: type) -> NDArray[Any]:
        found: NDArray[Any] = np.broadcast_to(np.asarray(values, kind), (N, K, S))[there]
        return found

    def of_heads(values: object) -> NDArray[Any]:
        return flat(np.asarray(values)[:, None], np.int16)

    def named(codes: NDArray[Any], names: list[str]) -> pa.DictionaryArray:
        return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int8)), names)

    columns: list[Any] = [
        flat(np.array(measured.numbers)[:, None, None], np.int64),
        flat(np.array(measured.tokens)[:, None, None], np.int32),
        named(of_heads([stacks.index(head.stack) for head in heads]), stacks),
        of_heads([head.layer for head in heads]),
        of_heads([head.head for head in heads]),
        named(flat(np.arange(S), np.int8), list(STATISTICS)),
        *(flat(getattr(measured, name).numpy(), np.float32) for name in VALUES),
    ]
    return pa.table(columns, schema=SCHEMA)


@dataclass(frozen=True, eq=False)
class Numbers:
    """What a table says of N texts: their numbers and lengths (N,), and values (N, K, S) or NaN."""

    numbers: NDArray[np.int64]
    tokens: NDArray[np.int64]
    value: Floats
    even: Floats
    shuffled: Floats


def from_table(table: pa.Table, heads: Sequence[HeadName]) -> Numbers:
    """Return the numbers of some heads in a long table, whatever the order of its rows."""
    columns = {name: table.column(name).combine_chunks() for name in table.schema.names}
    stacks = columns["stack"].dictionary.to_pylist()
    own = np.array([_code(stacks.index(each.stack), each.layer, each.head) for each in heads])
    code = _code(*(_whole(columns[name]) for name in ("stack", "layer", "head")))
    order = np.argsort(own)
    head = order[np.searchsorted(own, code, sorter=order)]
    names = columns["statistic"].dictionary.to_pylist()
    statistic = np.array([STATISTICS.index(name) for name in names])[_whole(columns["statistic"])]
    numbers, text = np.unique(_whole(columns["sentence"]), return_inverse=True)
    tokens = np.zeros(len(numbers), np.int64)
    tokens[text] = _whole(columns["tokens"])
    found = {}
    for name in VALUES:
        found[name] = np.full((len(numbers), len(heads), len(STATISTICS)), np.nan)
        found[name][text, head, statistic] = columns[name].to_numpy()
    return Numbers(numbers, tokens, **found)


def _code(stack: Any, layer: Any, head: Any) -> Any:
    """Return one number for a head, or for each of many."""
    return stack << 32 | layer << 16 | head


def _whole(column: Any) -> NDArray[np.int64]:
    """Return the whole numbers of a column; of names, their places in its dictionary."""
    found = column.indices if isinstance(column, pa.DictionaryArray) else column
    return np.asarray(found.to_numpy(), np.int64)
