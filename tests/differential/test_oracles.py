"""The formula compared with independent implementations: PyTorch's."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from attnviz.formula.attention import (
    attention,
    attention_weights,
    causal_mask,
    multi_head_attention,
    padding_mask,
    split_heads,
)
from attnviz.formula.projection import linear

DTYPES = [torch.float32, torch.float64]
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-12}


def close(actual, expected):
    assert actual.dtype == expected.dtype
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def random(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)


def queries_keys_values(dtype, key_heads=4):
    return (
        random(2, 4, 5, 8, dtype=dtype, seed=1),
        random(2, key_heads, 7, 8, dtype=dtype, seed=2),
        random(2, key_heads, 7, 6, dtype=dtype, seed=3),
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_torch(dtype):
    ours = [x.requires_grad_() for x in queries_keys_values(dtype)]
    theirs = [x.detach().clone().requires_grad_() for x in ours]
    attention(*ours, mask=causal_mask(5, 7)).square().sum().backward()
    F.scaled_dot_product_attention(*theirs, is_causal=True).square().sum().backward()
    for our, their in zip(ours, theirs, strict=True):
        assert our.grad.abs().max() > 0.1
        torch.testing.assert_close(
            our.grad, their.grad, rtol=0, atol=10 * TOLERANCE[dtype] * their.grad.abs().max()
        )


@pytest.mark.parametrize("dtype", DTYPES)
class TestTorchMultiheadAttention:
    """torch.nn.MultiheadAttention with its weights, biases and per-head attention weights."""

    @staticmethod
    def layer(dtype, **widths):
        torch.manual_seed(0)
        layer = torch.nn.MultiheadAttention(12, 3, batch_first=True, dtype=dtype, **widths).eval()
        for bias in (layer.in_proj_bias, layer.out_proj.bias):
            torch.nn.init.normal_(bias)  # biases start at 0, which would hide a missing bias
        return layer.requires_grad_(False)

    @staticmethod
    def ours(layer):
        """The layer's matrices and biases, as `multi_head_attention` expects them."""
        packed = layer.in_proj_weight
        matrices = (
            (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
            if packed is None
            else packed.chunk(3)
        )
        W_q, W_k, W_v = (W.mT for W in matrices)
        b_q, b_k, b_v = layer.in_proj_bias.chunk(3)
        return (W_q, W_k, W_v, layer.out_proj.weight.mT), {
            "heads": 3,
            "b_q": b_q,
            "b_k": b_k,
            "b_v": b_v,
            "b_o": layer.out_proj.bias,
        }

    def test_causal_and_padded_self_attention(self, dtype):
        layer, X = self.layer(dtype), random(2, 5, 12, dtype=dtype)
        real = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
        expected, expected_weights = layer(
            X,
            X,
            X,
            key_padding_mask=~real,
            attn_mask=torch.ones(5, 5, dtype=torch.bool).triu(1),
            average_attn_weights=False,
        )
        matrices, options = self.ours(layer)
        mask = causal_mask(5, 5) + padding_mask(real)
        close(multi_head_attention(X, *matrices, **options, mask=mask), expected)

        Q, K = (
            split_heads(linear(X, W, b), 3)
            for W, b in zip(matrices[:2], (options["b_q"], options["b_k"]), strict=True)
        )
        close(attention_weights(Q, K, mask=mask.unsqueeze(1)), expected_weights)

    def test_cross_attention(self, dtype):
        layer = self.layer(dtype, kdim=7, vdim=7)
        X, other = random(2, 5, 12, dtype=dtype), random(2, 6, 7, dtype=dtype)
        expected, _ = layer(X, other, other)
        matrices, options = self.ours(layer)
        close(multi_head_attention(X, *matrices, **options, context=other), expected)
