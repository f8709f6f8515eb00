"""Operations between the products q·k and the values, traced among the operators."""

import pytest
import torch
from families import TEXTS, tiny

import attnviz
from attnviz.agreement import verify
from attnviz.capture.capture import capture
from attnviz.formula.attention import softmax_with_sink
from attnviz.results import AttentionRecord, Reference

HEADS, WIDTH = 4, 8


def split(hidden):
    return hidden.unflatten(-1, (HEADS, -1)).transpose(1, 2)


@pytest.fixture
def attended(tokenizer, monkeypatch):
    """Return the attention of a BERT whose first layer computes `weights_of(scores)`."""

    def attend(weights_of):
        module = tiny("bert")
        attention = module.bert.encoder.layer[0].attention.self

        def forward(hidden_states, *_, **__):
            q, k, v = (
                split(part(hidden_states))
                for part in (attention.query, attention.key, attention.value)
            )
            mixed = weights_of(q @ k.mT) @ v
            return mixed.transpose(1, 2).flatten(-2), None

        monkeypatch.setattr(attention, "forward", forward)
        result = attnviz.load(module, tokenizer=tokenizer).attend(TEXTS[0])
        assert result.agreement.verdict == "verified", result.agreement.summary()
        return result

    return attend


def by_distance(scores):
    m, n = scores.shape[-2:]
    return -(torch.arange(m)[:, None] - torch.arange(n)).abs() / 4


def test_a_bias_before_the_soft_cap_is_distinguished_from_one_after_it(attended):
    def weights(scores):
        inside = 3.0 * torch.tanh((scores * 0.3 + by_distance(scores)) / 3.0)
        return (inside + 0.5 * by_distance(scores)).softmax(-1)

    record = attended(weights).records[0]
    bias = by_distance(record.scores()[None])
    assert record.soft_cap == pytest.approx(3.0)
    assert record.scale == pytest.approx(0.3)
    torch.testing.assert_close(record.capped_bias[0], bias, rtol=0, atol=1e-6)
    torch.testing.assert_close(record.bias[0], 0.5 * bias, rtol=0, atol=1e-6)
    rows = slice(1, 3)
    torch.testing.assert_close(record.weights(2, rows), record.weights()[2, rows])


def test_a_missing_bias_before_the_soft_cap_is_caught(attended):
    def weights(scores):
        return (2.0 * torch.tanh((scores * 0.3 + by_distance(scores)) / 2.0)).softmax(-1)

    record = attended(weights).records[0]
    reference = Reference(record.weights(dtype=torch.float64))
    faulty = AttentionRecord(**vars(record) | {"capped_bias": None})
    report = verify([faulty], [reference], versions={}, weights_sha256="")
    assert report.first_difference.stage == "weights"


def test_each_query_can_have_its_own_sink(attended):
    sinks = []

    def weights(scores):
        sink = torch.linspace(-1, 2, scores.shape[-2])[:, None] + torch.arange(HEADS)[:, None, None]
        sinks.append(sink[..., 0])
        return torch.cat([scores * 0.3, sink.expand(1, -1, -1, 1)], -1).softmax(-1)[..., :-1]

    record = attended(weights).records[0]
    torch.testing.assert_close(record.sinks, sinks[0])
    assert (record.weights().sum(-1) < 0.9).any()
    rows = slice(2, 5)
    torch.testing.assert_close(record.weights(1, rows), record.weights()[1, rows])
    shared = softmax_with_sink(torch.zeros(1, 2, 3), torch.zeros(1))
    torch.testing.assert_close(softmax_with_sink(torch.zeros(1, 2, 3), torch.zeros(1, 2)), shared)


def test_outputs_mixed_with_other_weights_are_not_head_outputs(attended):
    def hard(scores):
        weights = (scores * 0.3).softmax(-1)
        best = torch.zeros_like(weights).scatter(-1, weights.argmax(-1, keepdim=True), 1.0)
        return best - weights.detach() + weights

    agreement = attended(hard).agreement
    missing = {stage for place, stage, _ in agreement.not_compared if place == "encoder layer 0"}
    assert missing >= {"head output"}
    assert {check.stage for check in agreement.checks if check.layer == 0} >= {"weights"}


def test_the_output_of_a_patch_grid_is_split_by_text():
    from transformers import SwinConfig, SwinModel

    torch.manual_seed(0)
    config = SwinConfig(image_size=32, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 4],
                        window_size=4, num_channels=1)  # fmt: skip
    model = SwinModel(config).eval()
    for one in capture(model, {"pixel_values": torch.randn(2, 1, 32, 32)}):
        for record, reference in zip(one.records, one.references, strict=True):
            assert reference.output.shape[0] == record.query.shape[1]
        report = verify(one.records, one.references, versions={}, weights_sha256="")
        assert report.first_difference is None
        assert "output" in {check.stage for check in report.checks}
