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
    split_heads,
)
from attnviz.formula.projection import linear, rotary, rotary_angles

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


def test_bfloat16_stays_within_its_own_precision_of_float64():
    Q, K, V = queries_keys_values(torch.bfloat16)
    exact = F.scaled_dot_product_attention(Q.double(), K.double(), V.double())
    torch.testing.assert_close(attention(Q, K, V).double(), exact, rtol=0, atol=2**-6)


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


def onnx_operator(name, *inputs, outputs=1, **attributes):
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
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    (result,) = ReferenceEvaluator(model).run(None, arrays)
    return torch.from_numpy(np.ascontiguousarray(result))


def grouped(Q, K, V):
    return attention(Q, repeat_heads(K, 4), repeat_heads(V, 4), mask=causal_mask(5, 7))


def some_mask(Q):
    return random(4, 5, 7, dtype=Q.dtype, seed=5)


# The number of key heads, further inputs of the operator, its attributes, and the formula
ONNX = {
    "plain": (4, [], {}, attention),
    "scaled": (4, [], {"scale": 0.25}, lambda *QKV: attention(*QKV, scale=0.25)),
    "one key head": (1, [], {"is_causal": 1}, grouped),
    "grouped": (2, [], {"is_causal": 1}, grouped),
    "additive": (4, [some_mask], {}, lambda Q, K, V: attention(Q, K, V, mask=some_mask(Q))),
    "boolean": (
        4,
        [lambda Q: some_visible()],
        {},
        lambda *QKV: attention(*QKV, mask=hide(~some_visible())),
    ),
    "weights": (
        4,
        [],
        {"is_causal": 1, "qk_matmul_output_mode": 3, "outputs": 4},
        lambda Q, K, V: attention_weights(Q, K, mask=causal_mask(5, 7)),
    ),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ONNX)
def test_onnx_attention(name, dtype):
    key_heads, further, attributes, ours = ONNX[name]
    QKV = queries_keys_values(dtype, key_heads)
    inputs = [make(QKV[0]) for make in further]
    close(ours(*QKV), onnx_operator("Attention", *QKV, *inputs, **attributes))


@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_side_by_side(dtype):
    """With three dimensions, the operator splits and merges the heads."""
    Q, K, V = (merge_heads(x) for x in queries_keys_values(dtype, key_heads=2))
    heads = {"q_num_heads": 4, "kv_num_heads": 2}
    expected = onnx_operator("Attention", Q, K, V, is_causal=1, **heads)
    close(merge_heads(grouped(split_heads(Q, 4), split_heads(K, 2), split_heads(V, 2))), expected)


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
