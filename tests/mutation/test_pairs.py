"""The pairs of a fault and a model that are kept find what all pairs find."""

from collections import defaultdict

import pytest
import torch
from faults import FAULTS
from pairs import KEPT, TABLE, name_of
from planting import compared_with_fault, dtypes_in, plant
from weakened import WEAKENED, weaknesses_found

BY_NAME = {fault.name: fault for fault in FAULTS}
WHOLE = [
    (fault, place, dtype)
    for fault in FAULTS
    for place in fault.places
    for dtype in dtypes_in(fault, place)
]


def weaknesses(fault, place, dtype, captured):
    """Return the weakened rules that a fault finds in any of the texts."""
    captures = captured(place.partition("/")[0], dtype)
    return {
        name
        for text, index, record in plant(fault, place, captures)
        for name in weaknesses_found(fault, compared_with_fault(captures[text], index, record))
    }


def test_the_table_names_every_fault_and_every_model():
    named = {name: {*of["planted in"]} for name, of in TABLE["faults"].items()}
    assert named == {fault.name: {*fault.places} for fault in FAULTS}


def test_each_fault_is_kept_in_two_models_and_each_model_with_two_faults_and_every_dtype():
    places, faults, dtypes = defaultdict(set), defaultdict(set), defaultdict(set)
    for fault, place, dtype in KEPT:
        places[fault].add(place)
        faults[place].add(fault)
        dtypes[place].add(dtype)
    planted_in, in_dtypes = defaultdict(set), defaultdict(set)
    for fault, place, dtype in WHOLE:
        planted_in[place].add(fault.name)
        in_dtypes[place].add(name_of(dtype))
    assert dtypes == in_dtypes
    assert all(len(faults[place]) >= min(2, len(planted_in[place])) for place in planted_in)
    assert all(len(places[fault.name]) >= min(2, len(fault.places)) for fault in FAULTS)


@pytest.mark.parametrize("rule", TABLE["weakened rules"])
def test_a_kept_pair_finds_each_weakened_rule(rule, captured):
    fault, place, dtype = TABLE["weakened rules"][rule]["first"].split()
    assert (fault, place, dtype) in KEPT
    assert rule in weaknesses(BY_NAME[fault], place, getattr(torch, dtype), captured)


def test_every_rule_that_is_weakened_is_found():
    assert {*WEAKENED} == {*TABLE["weakened rules"]}
