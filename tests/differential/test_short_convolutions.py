"""The mixing times the short convolution before it: exact for each feature, not for each head."""

from __future__ import annotations

import pytest
import torch
from linear_models import TOKENS, build
from torch.nn import functional

from attnviz.capture.capture import capture


@pytest.mark.parametrize("family", ["mamba", "mamba2", "qwen3_next"])
@torch.no_grad()
def test_each_feature_has_its_own_exact_product(family, monkeypatch):
    model = build(family)
    ids = torch.randint(30522, (1, TOKENS[family]), generator=torch.Generator().manual_seed(0))
    (one,) = capture(model, {"input_ids": ids})
    pairs = zip(one.records, one.references, strict=True)
    record, reference = next(pair for pair in pairs if pair[0].signed)
    calls, conv1d = [], functional.conv1d

    def watched(x, weight, bias=None, **options):
        calls.append((x, weight, bias))
        return conv1d(x, weight, bias, **options)

    monkeypatch.setattr(functional, "conv1d", watched)
    model(input_ids=ids)
    x, kernel, bias = calls[0]
    x, kernel = x[0].double(), kernel[:, 0].double()
    bias = torch.zeros(len(kernel)).double() if bias is None else bias.double()
    M, T, K = record.matrix.double(), x.shape[1], kernel.shape[1]

    def banded(kernel):
        lag = torch.arange(T)[:, None] - torch.arange(T)
        taps = kernel[:, (K - 1 - lag).clamp(0, K - 1)]
        return taps * ((lag >= 0) & (lag < K))

    convolution = banded(kernel)
    before = (convolution @ x[:, :, None])[..., 0] + bias[:, None]
    gate = before.sigmoid()  # silu(u) = sigmoid(u) u, with the gate held fixed
    activated, largest = before * gate, reference.head_output.abs().max()
    shares = []
    for head, values in enumerate(record.value.double()):
        products = []
        for feature, column in enumerate(values.T):
            c = int((activated - column).abs().amax(1).argmin())
            model_output = reference.head_output[head, :, feature]
            constant = M[head] @ (gate[c] * bias[c])
            product = M[head] @ (gate[c][:, None] * convolution[c])
            assert (product @ x[c] + constant - model_output).abs().max() < 1e-5 * largest
            wrong = M[head] @ (gate[c][:, None] * banded(kernel[c : c + 1].flip(1))[0])
            assert (wrong @ x[c] + constant - model_output).abs().max() > 1e-5 * largest
            products.append(product)
        stacked = torch.stack(products)
        shares.append(stacked.mean(0).square().sum() / stacked.square().mean(0).sum())
    if family == "mamba":  # one feature a head
        assert min(shares) > 1 - 1e-9
    else:  # the mean over a head's features is not their map
        assert max(shares) < 0.5
