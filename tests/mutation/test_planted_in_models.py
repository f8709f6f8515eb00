"""Each planted fault is caught and named, in models of every kind."""

from collections import Counter, defaultdict

import pytest
import torch
from captures import checks_of
from faults import BY_NAME, FAULTS
from pairing import kept
from planting import IN_FLOAT16, expect_caught, plant
from weakened import RULES, is_found

PAIRS = [(fault.name, place) for fault in FAULTS for place in fault.places]


def dtypes_of(fault, place):
    """Return the dtypes of a pair. Float16 lies between the others: it is tested in some places."""
    dtypes = BY_NAME[fault].dtypes
    return [dtype for dtype in dtypes if place in IN_FLOAT16 or dtype != torch.float16]


CASES = [(*pair, dtype) for pair in PAIRS for dtype in dtypes_of(*pair)]


def rotated():
    """Return each fault in two models, and each model with two faults, its dtypes in turn."""
    used, there = Counter(), Counter(place for _, place in PAIRS)
    for number in kept([[*enumerate(pair)] for pair in PAIRS], each=2):
        fault, place = PAIRS[number]
        dtypes = dtypes_of(fault, place)
        turn = used[place] % len(dtypes)
        used[place] += 1
        for dtype in dtypes if there[place] < 3 else [dtypes[turn]]:
            yield fault, place, dtype


KEPT = {*rotated(), *(tuple(pair) for _, *pair in RULES.values())}  # the others with `-m long`


@pytest.mark.parametrize(
    ("fault", "place", "dtype"),
    [pytest.param(*case, marks=() if case in KEPT else pytest.mark.long) for case in CASES],
    ids=str,
)
def test_each_planted_fault_is_caught_and_named(fault, place, dtype, captured, honest):
    family = place.partition("/")[0]
    captures, proofs = captured(family, dtype), honest(family, dtype)
    checks = [
        expect_caught(BY_NAME[fault], captures[text], proofs[text], index, record)
        for text, index, record in plant(BY_NAME[fault], place, captures)
    ]
    assert checks, "the fault was not planted"


def test_each_fault_is_kept_in_two_models_and_each_model_with_two_faults_and_every_dtype():
    for column, other in ((0, 1), (1, 0), (1, 2)):
        of_all, of_kept = defaultdict(set), defaultdict(set)
        for cases, found in ((CASES, of_all), (KEPT, of_kept)):
            for case in cases:
                found[case[column]].add(case[other])
        least = 3 if other == 2 else 2
        assert all(len(of_kept[one]) >= min(least, len(of_all[one])) for one in of_all)


@pytest.mark.parametrize("rule", RULES)
def test_a_kept_pair_finds_each_weakened_rule(rule, captured):
    _, name, place, dtype = RULES[rule]
    fault, captures = BY_NAME[name], captured(place.partition("/")[0], dtype)
    assert any(
        is_found(rule, fault, checks_of(record, captures[text].references[index]))
        for text, index, record in plant(fault, place, captures)
    )
