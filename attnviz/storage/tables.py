"""What is written of each kind of figure as a long table: one row for each number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from attnviz.records import (
    AttentionMap,
    AttentionSteps,
    HeadMaps,
    SenseResult,
    ShiftResult,
    WorkedExample,
)
from attnviz.storage.contents import Drawn, contents

Columns = dict[str, Sequence[Any]]


@singledispatch
def long_table(drawn: Drawn) -> Columns:
    """Return the columns of the table, all of one length; raise InputError where it is none."""
    contents(drawn)  # refuses what is no figure
    raise NotImplementedError(type(drawn).__name__)


@long_table.register
def _(drawn: AttentionMap) -> Columns:
    return _stacked({"query": drawn.rows, "key": drawn.columns}, {"weight": drawn.weights})


@long_table.register
def _(drawn: HeadMaps) -> Columns:
    heads = tuple(range(drawn.weights.shape[1]))
    named: dict[str, Sequence[Any]] = {
        "layer": drawn.layers,
        "head": heads,
        "query": drawn.rows,
        "key": drawn.columns,
    }
    return _stacked(named, {"weight": drawn.weights})


@long_table.register
def _(drawn: ShiftResult) -> Columns:
    layers, heads, _ = drawn.secant.value.shape
    owners = {at: word for word, positions in enumerate(drawn.positions) for at in positions}
    words = [drawn.words[owners[at]] for at in range(len(drawn.tokens))]
    table = _stacked(
        {"layer": range(layers), "head": range(heads), "token": drawn.tokens},
        {
            "value": drawn.secant.value,
            "routing": drawn.secant.routing,
            "ledger": drawn.ledger.attention,
        },
    )
    return {**table, "word": [words[at] for at in table["token_position"]]}


@long_table.register
def _(drawn: SenseResult) -> Columns:
    states, count = drawn.right.shape
    x, y = drawn.plane.unbind(-1)
    numbers = {"right": drawn.right, "x": x, "y": y}
    table = _stacked({"state": range(states), "occurrence": range(count)}, numbers)
    each = [drawn.occurrences[at] for at in table["occurrence"]]
    return {
        **table,
        "sense": [one.sense for one in each],
        "sentence": [one.sentence for one in each],
        "start": [one.start for one in each],
        "end": [one.end for one in each],
    }


@long_table.register(AttentionSteps)
@long_table.register(WorkedExample)
def _(drawn: AttentionSteps | WorkedExample) -> Columns:
    """One stage after the other, by row and column."""
    found: dict[str, list[Any]] = {"stage": [], "row": [], "column": [], "value": []}
    for name, values in contents(drawn).tensors.items():
        table = values if values.dim() == 2 else values.reshape(-1, values.shape[-1])
        for row, numbers in enumerate(table.double().tolist()):
            found["stage"] += [name] * len(numbers)
            found["row"] += [row] * len(numbers)
            found["column"] += range(len(numbers))
            found["value"] += numbers
    return dict(found)


def _stacked(dimensions: Mapping[str, Sequence[Any]], numbers: Mapping[str, Tensor]) -> Columns:
    """Return arrays of the same dimensions as columns; labels come with their positions."""
    sizes = [len(each) for each in dimensions.values()]
    columns: Columns = {}
    for axis, (name, labels) in enumerate(dimensions.items()):
        shape = [1] * len(sizes)
        shape[axis] = -1
        at = torch.arange(sizes[axis]).reshape(shape).expand(sizes).flatten().tolist()
        if labels and isinstance(labels[0], str):
            columns[f"{name}_position"] = at
        columns[name] = [labels[i] for i in at]
    return columns | {name: each.flatten().tolist() for name, each in numbers.items()}
