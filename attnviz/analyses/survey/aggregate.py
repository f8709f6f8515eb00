"""From the tables of a survey to what is said of every head."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from attnviz.analyses.survey.bootstrap import (
    Estimates,
    Estimator,
    Floats,
    Mean,
    draw,
)
from attnviz.analyses.survey.result import HeadName
from attnviz.analyses.survey.statistics import SHARES, STATISTICS
from attnviz.analyses.survey.table import from_table
from attnviz.runtime.memory import give_back

# Shuffling the keys of a row does not change its entropy, and spreads what is read most.
_NO_EVEN = ("entropy", "most read")


@dataclass(frozen=True, eq=False)
class Told:
    """What the texts of a survey say of K heads and S statistics: K · S numbers, head by head.

    value : the statistics. above_even, above_shuffled : their differences from those of even
    weights and of shuffled tokens. even, shuffled : the means of these, (K, S). excess : the mean
    of `above_even` on one half of the texts, chosen by chance, (K, S). tested : the same on the
    other half. texts, tokens : how many.
    """

    value: Estimates
    above_even: Estimates
    above_shuffled: Estimates
    even: Floats
    shuffled: Floats
    excess: Floats
    tested: Estimates
    texts: int
    tokens: int


def tell(tables: Iterable[pa.Table], heads: Sequence[HeadName], *, seed: int = 0) -> Told:
    """Go over the tables of a survey, one after the other."""
    shape = len(heads), len(STATISTICS)
    width = len(heads) * len(STATISTICS)
    shares = np.tile(SHARES, len(heads))
    value, above_shuffled, chosen, tested = [Estimator(shares) for _ in range(4)]
    sums = [Mean(width) for _ in range(3)]
    no_even = [STATISTICS.index(name) for name in _NO_EVEN]
    texts = tokens = 0
    for table in tables:
        found = from_table(table, heads)
        found.even[:, :, no_even] = np.nan
        own, even, shuffled = (
            each.reshape(-1, width) for each in (found.value, found.even, found.shuffled)
        )
        times, named = draw(found.numbers, seed), _half(found.numbers, seed)
        value.add(times, own)
        excess = own - even
        chosen.add(times[named], excess[named])
        tested.add(times[~named], excess[~named])
        above_shuffled.add(times, own - shuffled)
        for one, some in zip(sums, (even, shuffled, excess[named]), strict=True):
            one.add(some)
        texts += len(found.numbers)
        tokens += int(found.tokens.sum())
        give_back()
    even, shuffled, excess = (each.mean().reshape(shape) for each in sums)
    return Told(
        value=value.estimates(),
        above_even=chosen.joined(tested).estimates(),
        above_shuffled=above_shuffled.estimates(),
        even=even,
        shuffled=shuffled,
        excess=excess,
        tested=tested.estimates(),
        texts=texts,
        tokens=tokens,
    )


def _half(numbers: NDArray[np.int64], seed: int) -> NDArray[np.bool_]:
    """Return which texts are in the half by which heads are named."""
    return np.array([Random(f"half {seed} {number}").random() < 0.5 for number in numbers.tolist()])
