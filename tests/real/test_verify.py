"""Every stage of five real models agrees, and planted faults are caught."""

import sys
from functools import partial
from unittest.mock import patch

import pytest
import torch
from fetched import inputs, load

from attnviz.models.named import NAMED
from attnviz.results.projection import STAGES

pytestmark = pytest.mark.real
DTYPES = (torch.float32, torch.bfloat16)


def cases(*faults):
    """Return every model in two dtypes, with each fault; Whisper takes half a minute each time."""
    return [
        pytest.param(
            name,
            dtype,
            *fault,
            marks=pytest.mark.long
            if name == "whisper-tiny.en" and (faults or dtype != DTYPES[0])
            else (),
        )
        for name in ("minilm", *NAMED)
        for dtype in DTYPES
        for fault in ([(fault,) for fault in faults] or [()])
    ]


@pytest.mark.parametrize(("name", "dtype"), cases())
def test_all_stages_agree(name, dtype):
    result = load(name, dtype).attend(**inputs(name))
    assert result.agreement.verdict == "verified", result.agreement.summary()
    for record in result.records:
        compared = {check.stage for check in result.agreement.checks if check.path == record.path}
        assert compared >= set(STAGES)


def off_by_one_percent(function, module, query, *rest, **arguments):
    """Scale the queries of the last head."""
    query = query.clone()
    query[:, -1] *= 1.01
    return function(module, query, *rest, **arguments)


def without_the_last_head(function, module, query, *rest, **arguments):
    """Zero what the last head adds."""
    output, weights = function(module, query, *rest, **arguments)
    output = output.clone()
    output[:, :, -1] = 0
    return output, weights


@pytest.mark.parametrize(
    ("name", "dtype", "fault"), cases(off_by_one_percent, without_the_last_head)
)
def test_a_planted_fault_is_caught(name, dtype, fault):
    model = load(name, dtype)
    code = sys.modules[type(model.module).__module__]
    changed = partial(fault, code.eager_attention_forward)
    with patch.object(code, "eager_attention_forward", changed):
        result = model.attend(**{**inputs(name), "positions": "sample"})
    assert result.agreement.verdict == "failed"
    last = max(result.records, key=lambda record: record.layer).query.shape[0] - 1
    assert last in result.agreement.first_difference.failed_heads
