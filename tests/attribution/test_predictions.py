"""Logits split over layers, heads and source words, and read after each layer."""

import pytest
import torch
from families import tiny
from test_ablation import make_score
from torch.testing import assert_close

import attnviz
from attnviz.attribution.decomposition import decompose, split_stream
from attnviz.attribution.prediction import residual_stream
from attnviz.attribution.reference import gate_of
from attnviz.attribution.target import base_of, copies_of
from attnviz.attribution.tracing import StoredRun
from attnviz.capture.watch import restoring
from attnviz.errors import ModelError


@pytest.fixture(scope="module", params=["gpt2", "llama", "bert"])
def score(request, tokenizer):
    model = tiny(request.param).requires_grad_(False)
    return make_score(attnviz.load(model, tokenizer=tokenizer), special=1)


def test_a_logit_is_the_sum_of_what_heads_and_mlps_added(score):
    """Through the final norm and the unembedding; compared with the model's own logits."""
    with restoring(score.model.module), torch.no_grad():
        logits = score.model.module(**score.inputs).logits[0, score.rows[0]].double()
    with restoring(score.model.module):
        stream = split_stream(score.readout, score.inputs, direction=score.direction)
    assert stream.attention.shape == (3, 4, score.ids.shape[1])
    assert stream.total == pytest.approx((logits[1000] - logits[2000]).item(), rel=1e-5)
    assert stream.error <= 1e-5
    assert stream.attention.abs().sum() > 1e-2


def test_the_difference_of_a_logit_is_split_over_heads_and_sources(score):
    gate = gate_of(score.special, sink=0)
    with restoring(score.model.module):
        split = decompose(
            score.readout, copies_of(score.inputs, 2), direction=score.direction, gate=gate
        )
    assert split.table.shape == (3, 4, score.ids.shape[1])
    assert max(split.error, split.credit_error) <= 1e-5
    assert split.table.abs().sum() > 1e-2


def test_the_parts_go_through_the_final_norm(score, monkeypatch):
    """Without it they are others."""
    names = [name for name, _ in score.model.module.named_modules()]
    name = next(
        name for name in names
        if name in ("model.norm", "transformer.ln_f", "cls.predictions.transform.LayerNorm")
    )  # fmt: skip
    norm = score.model.module.get_submodule(name)
    with restoring(score.model.module):
        whole = split_stream(score.readout, score.inputs, direction=score.direction)
        with monkeypatch.context() as patch:
            patch.setattr(norm, "forward", lambda x: x)
            other = split_stream(score.readout, score.inputs, direction=score.direction)
    assert abs(other.attention.sum() - whole.attention.sum()) > 1e-2


def stream_of(score):
    return residual_stream(score.model, base_of(score.model.module), score.inputs)


def test_the_stream_after_the_last_layer_is_the_prediction(score):
    module, row = score.model.module, score.rows[0]
    with torch.no_grad():
        output = module(**score.inputs, output_hidden_states=True)
    states, logits, read = stream_of(score)
    by_layer = read(states[:, row])
    assert by_layer.shape[0] == len(states) == 3
    assert_close(logits, output.logits[0], atol=1e-5, rtol=1e-5)
    assert_close(by_layer[-1], output.logits[0, row], atol=1e-5, rtol=1e-5)
    # Earlier layers, with the model's own norm and unembedding by hand.
    for layer, state in enumerate(output.hidden_states[1:-1]):
        assert_close(by_layer[layer], by_hand(module, state)[0, row], atol=1e-5, rtol=1e-5)
    assert by_layer[0].argmax() != by_layer[-1].argmax()


def by_hand(module, state):
    with torch.no_grad():
        if hasattr(module, "cls"):
            return module.cls(state)
        norm = module.model.norm if hasattr(module, "model") else module.transformer.ln_f
        return module.lm_head(norm(state))


def test_a_stream_that_is_one_layer_off_is_refused(score, monkeypatch):
    states = StoredRun.states
    monkeypatch.setattr(StoredRun, "states", lambda run: states(run).roll(1, 0))
    with pytest.raises(ModelError, match="cannot be read one by one"):
        stream_of(score)


def test_reading_layers_leaves_the_model_as_it_was(score):
    with torch.no_grad():
        before = score.model.module(**score.inputs).logits
        states, _, read = stream_of(score)
        read(states[:, 2])
        after = score.model.module(**score.inputs).logits
    assert torch.equal(before, after)
    assert not any("forward" in vars(part) for part in score.model.module.modules())
