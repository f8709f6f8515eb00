"""The cases that are kept of a product hold what `pairs` says."""

from collections import Counter
from itertools import combinations, product

import pytest
from pairing import kept

AXES = {"family": range(9), "width": range(3), "dtype": range(2)}
CASES = [[*zip(AXES, values, strict=True)] for values in product(*AXES.values())]


def test_each_two_values_meet():
    chosen = [CASES[n] for n in kept(CASES)]
    assert len(chosen) < len(CASES)
    met = {pair for case in chosen for pair in combinations(case, 2)}
    assert met == {pair for case in CASES for pair in combinations(case, 2)}


@pytest.mark.parametrize("each", [1, 2])
def test_each_value_occurs(each):
    chosen = [CASES[n] for n in kept(CASES, each)]
    assert len(chosen) == each * 9
    counts = Counter(value for case in chosen for value in case)
    assert all(counts[value] >= each for case in CASES for value in case)


def test_a_single_parameter_is_kept_whole():
    assert len(kept([[("family", n)] for n in range(5)], each=1)) == 5
