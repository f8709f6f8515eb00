"""Pairs in place of products: which cases of a parametrized test run, and which with `-m long`.

`@pytest.mark.pairs` on a test keeps cases in which each two values of two parameters meet once;
`@pytest.mark.pairs(each=2)` keeps cases in which each value of each parameter occurs twice.
"""

from collections import Counter, defaultdict
from itertools import combinations

import pytest


def mark_the_rest_as_long(items):
    """Mark the cases of each product that are not kept as long."""
    products = defaultdict(list)
    for item in items:
        if hasattr(item, "callspec") and item.get_closest_marker("pairs"):
            products[item.nodeid.partition("[")[0]].append(item)
    for cases in products.values():
        each = cases[0].get_closest_marker("pairs").kwargs.get("each")
        for case in set(cases) - {cases[n] for n in kept([values_of(c) for c in cases], each)}:
            case.add_marker(pytest.mark.long)


def values_of(item):
    """Return the parameters of a case with what tells their values apart."""
    return [(name, repr(value)) for name, value in item.callspec.params.items()]


def kept(cases, each=None):
    """Return the indices of the cases to keep; a case is a list of (parameter, value)."""
    claims = [case if each else [*combinations(case, 2)] for case in cases]
    there = Counter(claim for of_case in claims for claim in of_case)
    left = {claim: min(each or 1, count) for claim, count in there.items()}
    used, chosen = Counter(), []

    def use(index):
        new = sum(left[claim] > 0 for claim in claims[index])
        return new, -sum(used[value] for value in cases[index])

    rest = [*range(len(cases))]
    while rest:
        best = max(rest, key=use)
        if not use(best)[0]:
            break
        rest.remove(best)
        chosen.append(best)
        used.update(cases[best])
        for claim in claims[best]:
            left[claim] -= 1
    return chosen
