"""Every stage of the real models agrees, and planted faults are caught."""

import sys
from functools import partial
from unittest.mock import patch

import pytest
import torch
from fetched import SPEECH, attended, inputs, load

from attnviz.models import NAMED
from attnviz.results.projection import STAGES

pytestmark = pytest.mark.real
POSITIONS = {"dinov2-small": {"patches"}, **{name: {"tokens", "frames"} for name in SPEECH}}
DTYPES = (torch.float32, torch.bfloat16)


SLOW = {*SPEECH, "dinov2-small"}  # they have hundreds of positions
ONCE = {*SLOW, "smollm2", "gemma3-270m"}  # which have many layers
# The first have the most positions, and test_wrong_positions.py verifies a small Whisper.
BY_HAND = {*SPEECH, "antiberty", "gemma3-270m"}


def cases(*faults):
    """Return every model in two dtypes, with each fault; large ones once, and without.

    MiniLM and RXNMapper have one fault in each dtype, the other one.
    """

    def is_long(name, dtype, fault):
        if name == "rxnmapper":
            return DTYPES.index(dtype) != (faults.index(*fault) if faults else 0)
        if name == "minilm" and faults:
            return DTYPES.index(dtype) == faults.index(*fault)
        if name in BY_HAND or (name in SLOW and faults):
            return True
        if name == "rxnfp":
            return bool(faults) or dtype != DTYPES[0]
        return name in ONCE and (bool(faults) or dtype != DTYPES[0])

    return [
        pytest.param(
            name, dtype, *fault, marks=pytest.mark.long if is_long(name, dtype, fault) else ()
        )
        for name in ("minilm", *NAMED)
        for dtype in DTYPES
        for fault in ([(fault,) for fault in faults] or [()])
    ]


@pytest.mark.parametrize("tried", ["sample", pytest.param("all", marks=pytest.mark.long)])
@pytest.mark.parametrize(("name", "dtype"), cases())
def test_all_stages_agree(name, dtype, tried):
    tried = tried if name in ONCE else "all"
    result = attended(name, dtype, tried)
    assert result.agreement.verdict == "verified", result.agreement.summary()
    for record in result.records:
        compared = {check.stage for check in result.agreement.checks if check.path == record.path}
        assert compared >= set(STAGES)
    positions = result.agreement.positions
    assert {*positions.changed} == POSITIONS.get(name, {"tokens"})
    last = max(record.layer for record in result.records)
    one = name in SLOW and tried == "sample"  # a short text is tried in every layer
    assert positions.layers == (1 if one else 1 + last)


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
        result = model.attend(**inputs(name))
    assert result.agreement.verdict == "failed"
    last = max(result.records, key=lambda record: record.layer).query.shape[0] - 1
    assert last in result.agreement.first_difference.failed_heads


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("positions", ["sample", "all"])
@pytest.mark.parametrize(
    ("name", "path", "axis"),
    [
        ("minilm", "embeddings.word_embeddings", 1),
        pytest.param("smollm2", "model.embed_tokens", 1, marks=pytest.mark.long),
        ("rxnmapper", "albert.embeddings.word_embeddings", 1),
        pytest.param("dinov2-small", "embeddings.patch_embeddings", 1, marks=pytest.mark.long),
        pytest.param("whisper-tiny.en", "model.encoder.conv2", 2, marks=pytest.mark.long),
        pytest.param("whisper-tiny.en", "model.decoder.embed_tokens", 1, marks=pytest.mark.long),
    ],
)
def test_rows_that_are_one_on_are_caught(name, path, axis, positions):
    model = load(name, torch.float32)
    module = model.module.get_submodule(path)
    hook = module.register_forward_hook(lambda module, args, output: output.roll(1, axis))
    try:
        report = model.attend(**inputs(name), positions=positions).agreement
    finally:
        hook.remove()
    assert report.parts["positions"] == "failed"
    assert report.parts["output"] == "verified"
