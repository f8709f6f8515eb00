"""Faults beside the maps: in the decomposition of a shift, and in the stages of a head."""

from dataclasses import replace

import pytest
import torch

import attnviz
from attnviz.agreement import verify
from attnviz.attribution import decomposition, deeplift
from attnviz.attribution.target import Readout
from attnviz.capture.capture import capture
from attnviz.capture.watch import restoring
from attnviz.inputs.batch import encode
from attnviz.results import AttentionResult

TEXT = "the train left the station on time"
PAIR = ["the bank was full of mud.", "the bank was full of cash."]
EXACT = 1e-5  # relative to the length of the shift, in float32


def error_of(model, tokenizer):
    """Return the difference between a shift and the sum of its contributions."""
    inputs = dict(tokenizer(PAIR, return_tensors="pt"))
    with restoring(model.module):
        return decomposition.decompose(Readout.word(model.module, [2]), inputs).error


def without_routing(monkeypatch):
    parts = decomposition._parts

    def fault(*given):
        value, routing = parts(*given)
        return value, torch.zeros_like(routing)

    monkeypatch.setattr(decomposition, "_parts", fault)


def without_head_2(monkeypatch):
    parts = decomposition._parts

    def fault(*given):
        value, routing = (part.clone() for part in parts(*given))
        value[2] = routing[2] = 0
        return value, routing

    monkeypatch.setattr(decomposition, "_parts", fault)


def norm_scale_one_percent_off(monkeypatch):
    original = deeplift.DeepLift.other

    def off(tracer, name, *call):
        result = original(tracer, name, *call)
        if name == "rsqrt":
            result.register_hook(lambda g: g * 1.01)
        return result

    monkeypatch.setattr(deeplift.DeepLift, "other", off)


def norm_that_is_differentiated(monkeypatch):
    def derivative(tracer, x, shape, weight, bias, eps):
        return torch.layer_norm(x, x.shape[-1:], weight, bias, eps)

    monkeypatch.setattr(deeplift.DeepLift, "normalize", derivative)


@pytest.mark.parametrize(
    ("fault", "least"),
    [
        (without_routing, 100),
        (without_head_2, 100),
        (norm_scale_one_percent_off, 10),
        (norm_that_is_differentiated, 100),
    ],
)
def test_parts_of_a_shift_that_do_not_add_up_are_detected(
    fault, least, model, tokenizer, monkeypatch
):
    assert error_of(model, tokenizer) < EXACT
    fault(monkeypatch)
    assert error_of(model, tokenizer) > least * EXACT


def test_the_faulty_stage_is_named(model):
    batch = encode(model.checkpoint, [TEXT])
    (captured,) = capture(model.module, batch.inputs, batch.axes)
    records = [replace(r, scale=r.scale * 1.01) if r.layer == 2 else r for r in captured.records]
    agreement = verify(records, captured.references, versions={}, weights_sha256="")
    whole = model.attend(TEXT)
    result = AttentionResult(tuple(records), agreement, whole.provenance)
    faulty = attnviz.steps(result, layer=2, head=4)
    passed = {stage.name: stage.passed for stage in faulty.stages}
    assert passed["Q"]
    assert passed["K"]
    assert passed["V"]
    assert not passed["scores"]
    assert not passed["scaled scores"]
    assert not passed["weights"]
    assert all(stage.passed for stage in attnviz.steps(result, layer=1, head=4).stages[1:])
