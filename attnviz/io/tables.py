"""What is written of each kind of figure as a long table: one row for each number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from attnviz.analyses.example.result import ExampleResult
from attnviz.analyses.maps.result import AttentionMap, HeadMaps
from attnviz.analyses.senses.result import SensesResult
from attnviz.analyses.shift.result import ShiftResult
from attnviz.analyses.steps.result import StepsResult
from attnviz.io.contents import Result, contents

Columns = dict[str, Sequence[Any]]


@singledispatch
def long_table(drawn: Result) -> Columns:
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
    """One quantity after the other; what it does not depend on is empty."""
    split, account = drawn.decomposition, drawn.residual_stream
    rows: list[Columns] = []

    def add(quantity: str, numbers: Tensor | None, *dimensions: str) -> None:
        if numbers is None:
            return
        labels = {"token": drawn.tokens, "word": drawn.words, "region": drawn.regions}
        named = {
            name: labels.get(name, range(size))
            for name, size in zip(dimensions, numbers.shape, strict=True)
        }
        table = _stacked(named, {"number": numbers})
        rows.append({"quantity": [quantity] * numbers.numel(), **table})

    add("value", split.value, "layer", "head", "token")
    add("routing", split.routing, "layer", "head", "token")
    add("credit", split.credit, "token")
    for way, lost in drawn.causal.items():
        add(f"lost by {way}", lost, "word")
    add("patched", drawn.patched, "layer", "head")
    add("raw attention", drawn.raw_attention, "word")
    add("rollout", drawn.rollout, "word")
    add("ledger attention", account.attention, "layer", "head", "token")
    add("ledger MLP", account.mlp, "layer")
    add("path", drawn.path, "layer")
    add("distance", drawn.distances, "layer", "region")
    names = dict.fromkeys(name for each in rows for name in each)
    return {
        name: [value for each in rows for value in each.get(name, [None] * len(each["quantity"]))]
        for name in names
    }


@long_table.register
def _(drawn: SensesResult) -> Columns:
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


@long_table.register(StepsResult)
@long_table.register(ExampleResult)
def _(drawn: StepsResult | ExampleResult) -> Columns:
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
    return columns | {name: numbers_of(each) for name, each in numbers.items()}


def numbers_of(values: Tensor) -> list[float | None]:
    """Return the numbers of a tensor, and None where there is none."""
    return [None if value != value else value for value in values.flatten().tolist()]
