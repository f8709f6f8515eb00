"""The formula compared with independent implementations: PyTorch's and ONNX's."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from torch.nn import functional as F  # noqa: N812

from attnviz.formula.attention import (
    attention,
    attention_weights,
    causal_mask,
    hide,
    merge_heads,
    multi_head_attention,
    padding_mask,
    repeat_heads,
    softmax,
    split_heads,
)
from attnviz.formula.projection import (
    linear,
    rms_norm,
    rotary,
    rotary_angles,
)

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


def some_visible():
    """Booleans (2, 1, 5, 7); True is visible, and every row has at least one visible key."""
    visible = random(2, 1, 5, 7, seed=4) > 0
    visible[..., 0] = True
    return visible


# ---------------------------------------------------------------------------------- PyTorch


@pytest.mark.parametrize("dtype", DTYPES)
class TestTorchScaledDotProductAttention:
    def test_a_fully_masked_row(self, dtype):
        Q, K, V = queries_keys_values(dtype)
        visible = some_visible()
        visible[0, 0, 2] = False
        expected = F.scaled_dot_product_attention(Q, K, V, attn_mask=visible)
        close(attention(Q, K, V, mask=hide(~visible)), expected)

    def test_gradients(self, dtype):
        ours = [x.requires_grad_() for x in queries_keys_values(dtype)]
        theirs = [x.detach().clone().requires_grad_() for x in ours]
        attention(*ours, mask=causal_mask(5, 7)).square().sum().backward()
        F.scaled_dot_product_attention(*theirs, is_causal=True).square().sum().backward()
        for our, their in zip(ours, theirs, strict=True):
            assert our.grad.abs().max() > 0.1
            torch.testing.assert_close(
                our.grad, their.grad, rtol=0, atol=10 * TOLERANCE[dtype] * their.grad.abs().max()
            )


def test_bfloat16_stays_within_its_own_precision_of_float64():
    Q, K, V = queries_keys_values(torch.bfloat16)
    exact = F.scaled_dot_product_attention(Q.double(), K.double(), V.double())
    torch.testing.assert_close(attention(Q, K, V).double(), exact, rtol=0, atol=2**-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax(dtype):
    scores = 10 * random(3, 50, dtype=dtype)
    close(softmax(scores), torch.softmax(scores, -1))


def test_gradients_by_finite_differences():
    Q, K, V = (x[0, 0].requires_grad_() for x in queries_keys_values(torch.float64))
    mask = causal_mask(5, 7) + padding_mask(torch.tensor([True] * 6 + [False]))
    assert torch.autograd.gradcheck(lambda *qkv: attention(*qkv, mask=mask), (Q, K, V))


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


# ------------------------------------------------------------------------------------- ONNX


def onnx_operator(name, *inputs, opset=23, outputs=1, **attributes):
    """Run an operator of the ONNX reference implementation; return its last output."""

    def info(label, array):
        return helper.make_tensor_value_info(
            label, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )

    arrays = {f"in{i}": x.detach().numpy() for i, x in enumerate(inputs)}
    names = ["" for _ in range(outputs - 1)] + ["out"]
    graph = helper.make_graph(
        [helper.make_node(name, list(arrays), names, **attributes)],
        name,
        [info(label, array) for label, array in arrays.items()],
        [helper.make_tensor_value_info("out", TensorProto.UNDEFINED, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    (result,) = ReferenceEvaluator(model).run(None, arrays)
    return torch.from_numpy(np.ascontiguousarray(result))


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize("dtype", DTYPES)
class TestOnnxAttention:
    @pytest.mark.parametrize("scale", [None, 0.25])  # its float32 square root is exact
    def test_plain(self, dtype, opset, scale):
        Q, K, V = queries_keys_values(dtype)
        attributes = {} if scale is None else {"scale": scale}
        expected = onnx_operator("Attention", Q, K, V, opset=opset, **attributes)
        close(attention(Q, K, V, scale=scale), expected)

    @pytest.mark.parametrize("key_heads", [1, 2])
    def test_grouped_and_causal(self, dtype, opset, key_heads):
        Q, K, V = queries_keys_values(dtype, key_heads)
        expected = onnx_operator("Attention", Q, K, V, opset=opset, is_causal=1)
        ours = attention(Q, repeat_heads(K, 4), repeat_heads(V, 4), mask=causal_mask(5, 7))
        close(ours, expected)

    def test_additive_mask(self, dtype, opset):
        Q, K, V = queries_keys_values(dtype)
        mask = random(4, 5, 7, dtype=dtype, seed=5)
        close(attention(Q, K, V, mask=mask), onnx_operator("Attention", Q, K, V, mask, opset=opset))

    def test_boolean_mask(self, dtype, opset):
        Q, K, V = queries_keys_values(dtype)
        expected = onnx_operator("Attention", Q, K, V, some_visible(), opset=opset)
        close(attention(Q, K, V, mask=hide(~some_visible())), expected)

    def test_weights(self, dtype, opset):
        Q, K, V = queries_keys_values(dtype)
        expected = onnx_operator(
            "Attention", Q, K, V, opset=opset, outputs=4, is_causal=1, qk_matmul_output_mode=3
        )
        close(attention_weights(Q, K, mask=causal_mask(5, 7)), expected)

    def test_heads_side_by_side(self, dtype, opset):
        """With three dimensions, the operator splits and merges the heads."""
        Q, K, V = (merge_heads(x) for x in queries_keys_values(dtype, key_heads=2))
        expected = onnx_operator(
            "Attention", Q, K, V, opset=opset, q_num_heads=4, kv_num_heads=2, is_causal=1
        )
        K, V = (repeat_heads(split_heads(x, 2), 4) for x in (K, V))
        ours = merge_heads(attention(split_heads(Q, 4), K, V, mask=causal_mask(5, 7)))
        close(ours, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("width", [8, 4])
def test_onnx_rotary_embedding(dtype, interleaved, width):
    x = random(2, 3, 5, 8, dtype=dtype)
    cos, sin = rotary_angles(torch.arange(5, dtype=dtype) + 11, width)
    half = (part[None, :, : width // 2].expand(2, -1, -1) for part in (cos, sin))
    expected = onnx_operator(
        "RotaryEmbedding", x, *half, interleaved=int(interleaved), rotary_embedding_dim=width
    )
    close(rotary(x, cos, sin, interleaved=interleaved), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_normalization(dtype):
    x, weight, eps = random(2, 3, 8, dtype=dtype), random(8, dtype=dtype, seed=1), 2.0**-6
    ours = rms_norm(x, weight, eps)
    close(ours, onnx_operator("RMSNormalization", x, weight, axis=-1, epsilon=eps))
    close(ours, F.rms_norm(x, (8,), weight, eps))
