"""Equivalent changes alter no weight, and only their listed stages differ."""

import pytest
import torch
from equivalent import EQUIVALENT
from planting import position
from torch.testing import assert_close

from attnviz.agreement.compare import Visible, model_values, prove

CASES = [
    pytest.param(one, place, id=f"{one.name}-{place}") for one in EQUIVALENT for place in one.places
]


@pytest.mark.parametrize(("one", "place"), CASES)
def test_equivalent_changes_alter_no_weight(one, place, captured):
    captures = captured(place.partition("/")[0], torch.float32)
    index = position(captures[0].records, place)
    padded = next(each for each in captures if any(each.records[index].key_axis.padding))
    record, changed = padded.records[index], one.plant(padded.records[index])
    rows = Visible.of([record], record.mask).rows[0]
    changed_weights, weights = (
        each.weights(dtype=torch.float64)[:, rows] for each in (changed, record)
    )
    assert_close(changed_weights, weights, rtol=0, atol=1e-13)
    (proof,) = prove([(changed, model_values(changed, padded.references[index]))])
    assert {check.stage for check in proof.checks if not check.passed} == set(one.seen)
