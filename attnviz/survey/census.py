"""From the parts of a survey to what is said of every head."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from attnviz.errors import InputError
from attnviz.records import HeadName
from attnviz.survey.estimates import Estimates, Estimator, Floats
from attnviz.survey.parts import VALUES
from attnviz.survey.statistics import STATISTICS

_NO_EVEN = ("entropy", "most read")  # which shuffling the keys of a row does not change, or favours


@dataclass(frozen=True, eq=False)
class Told:
    """What the texts of a survey say of K heads.

    heads : their names. value, above_even, above_shuffled : of K · S numbers, head by head: the
    statistics, and their differences from those of even weights and of shuffled tokens. even,
    shuffled : the means of these, (K, S). excess : the mean of `above_even` on the texts of even
    number, (K, S). tested : the same on those of odd number. texts, tokens : how many.
    """

    heads: tuple[HeadName, ...]
    value: Estimates
    above_even: Estimates
    above_shuffled: Estimates
    even: Floats
    shuffled: Floats
    excess: Floats
    tested: Estimates
    texts: int
    tokens: int


def tell(parts: Iterable[pa.Table], *, seed: int = 0) -> Told:
    """Go over the parts of a survey, one after the other.

    Raises
    ------
    InputError : there is no text in them, or they are not of one model.
    """
    heads: tuple[HeadName, ...] = ()
    texts = tokens = 0
    for part in parts:
        names, numbers, lengths, found = _matrix(part)
        if not heads:
            heads, width = names, found["value"].shape[1]
            value, above_even, above_shuffled, tested = (
                Estimator(width, seed=seed) for _ in range(4)
            )
            sums = [_Mean(width) for _ in range(3)]
        elif names != heads:
            raise InputError(
                "Expected the parts of one survey, but their heads differ. Take away those of "
                "another model."
            )
        ahead, order = (found["value"] - found[name] for name in ("even", "shuffled"))
        value.add(numbers, found["value"])
        above_even.add(numbers, ahead)
        above_shuffled.add(numbers, order)
        odd = numbers % 2 == 1
        tested.add(numbers[odd], ahead[odd])
        for one, some in zip(sums, (found["even"], found["shuffled"], ahead[~odd]), strict=True):
            one.add(some)
        texts += len(numbers)
        tokens += int(lengths.sum())
    if not heads:
        raise InputError("Expected a survey with texts, but it has none. Run it on a corpus.")
    shape = len(heads), len(STATISTICS)
    even, shuffled, excess = (each.mean().reshape(shape) for each in sums)
    return Told(
        heads=heads,
        value=value.estimates(),
        above_even=above_even.estimates(),
        above_shuffled=above_shuffled.estimates(),
        even=even,
        shuffled=shuffled,
        excess=excess,
        tested=tested.estimates(),
        texts=texts,
        tokens=tokens,
    )


class _Mean:
    """The mean of numbers that come in parts, NaN left out."""

    def __init__(self, width: int) -> None:
        self._sum, self._count = np.zeros(width), np.zeros(width)

    def add(self, values: Floats) -> None:
        self._sum += np.nansum(values, axis=0)
        self._count += (~np.isnan(values)).sum(0)

    def mean(self) -> Floats:
        with np.errstate(invalid="ignore"):
            return self._sum / self._count


def _matrix(
    part: pa.Table,
) -> tuple[tuple[HeadName, ...], np.ndarray, np.ndarray, dict[str, Floats]]:
    """Return heads, numbers and lengths of the texts, and each value as (texts, heads · S)."""
    columns = {name: part.column(name).combine_chunks() for name in part.schema.names}
    stacks = columns["stack"].dictionary.to_pylist()
    numbers, text = np.unique(columns["sentence"].to_numpy(), return_inverse=True)
    stack = columns["stack"].indices.to_numpy().astype(np.int64)
    layer, head = (columns[name].to_numpy().astype(np.int64) for name in ("layer", "head"))
    codes, at = np.unique((stack << 32) + (layer << 16) + head, return_inverse=True)
    names = tuple(
        HeadName(stacks[code >> 32], int(code >> 16 & 0xFFFF), int(code & 0xFFFF)) for code in codes
    )
    known = pa.array(STATISTICS)
    statistic = pc.index_in(columns["statistic"].dictionary_decode(), known).to_numpy()
    place = at * len(STATISTICS) + statistic
    found = {}
    for name in VALUES:
        matrix = np.full((len(numbers), len(names) * len(STATISTICS)), np.nan)
        matrix[text, place] = columns[name].to_numpy()
        found[name] = matrix
    for name in _NO_EVEN:
        found["even"][:, STATISTICS.index(name) :: len(STATISTICS)] = np.nan
    lengths = np.zeros(len(numbers), np.int64)
    lengths[text] = columns["tokens"].to_numpy()
    return names, numbers, lengths, found
