"""Faults beside the maps: in the decomposition of a shift, and in the stages of a head."""

import importlib
from dataclasses import replace

import pytest
import torch

import attnviz
from attnviz.agreement import verify
from attnviz.attribution import deeplift
from attnviz.attribution.decomposition import decompose
from attnviz.attribution.target import Readout
from attnviz.capture.capture import capture
from attnviz.capture.watch import restoring
from attnviz.inputs.batch import encode
from attnviz.results import AttentionResult

TEXT = "the train left the station on time"
PAIR = ["the bank was full of mud.", "the bank was full of cash."]
EXACT = 1e-5  # relative to the length of the shift, in float32


def error_of(model, tokenizer, tally, kind="planted"):
    """Return the difference between a shift and the sum of its contributions."""
    inputs = dict(tokenizer(PAIR, return_tensors="pt"))
    with restoring(model.module):
        error = decompose(Readout.word(model.module, [2]), inputs).error
    if kind == "planted":
        tally.fault("in the account of a shift")
    tally.figure(kind, "sum of a shift", torch.float32, error / EXACT)
    return error


def test_without_a_fault_all_parts_add_up(model, tokenizer, tally):
    assert error_of(model, tokenizer, tally, "honest") < EXACT


def without_routing(parts):
    return lambda *given: (parts(*given)[0], torch.zeros_like(parts(*given)[1]))


def without_head_2(parts):
    def fault(*given):
        value, routing = (part.clone() for part in parts(*given))
        value[2] = routing[2] = 0
        return value, routing

    return fault


@pytest.mark.parametrize("fault", [without_routing, without_head_2])
def test_a_missing_contribution_is_detected(model, tokenizer, monkeypatch, fault, tally):
    room = importlib.import_module("attnviz.attribution.decomposition")
    monkeypatch.setattr(room, "_parts", fault(room._parts))
    assert error_of(model, tokenizer, tally) > 100 * EXACT


def test_a_norm_scale_off_by_1_percent_is_detected(model, tokenizer, monkeypatch, tally):
    original = deeplift.DeepLift.other

    def off(tracer, name, *call):
        result = original(tracer, name, *call)
        if name == "rsqrt":
            result.register_hook(lambda g: g * 1.01)
        return result

    monkeypatch.setattr(deeplift.DeepLift, "other", off)
    assert error_of(model, tokenizer, tally) > 10 * EXACT


def test_an_unknown_function_increases_the_error(model, tokenizer, monkeypatch, tally):
    def derivative(tracer, x, shape, weight, bias, eps):
        return torch.layer_norm(x, x.shape[-1:], weight, bias, eps)

    monkeypatch.setattr(deeplift.DeepLift, "normalize", derivative)
    assert error_of(model, tokenizer, tally) > 100 * EXACT


def test_the_faulty_stage_is_named(model, tally):
    tally.fault("in a head taken apart")
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
