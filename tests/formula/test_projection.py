"""Projection, norm and rotary position embedding, compared with their definitions."""

import math

import pytest
import torch
from rotary_angles import rotary_angles

from attnviz.formula.projection import (
    clip,
    head_linear,
    layer_norm,
    linear,
    regroup,
    rms_norm,
    rotary,
    share,
)


def close(actual, expected, atol=1e-12):
    expected = torch.as_tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


def random(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)


def positions(count):
    return torch.arange(count, dtype=torch.float64)


@pytest.mark.parametrize("bias", [True, False])
def test_linear_is_torchs_layer_with_its_weight_transposed(bias):
    layer = torch.nn.Linear(4, 3, bias=bias, dtype=torch.float64)
    X = random(2, 5, 4)
    close(linear(X, layer.weight.mT, layer.bias), layer(X))


def test_rms_norm_by_hand():
    x = torch.tensor([3.0, 4.0], dtype=torch.float64)
    weight = torch.tensor([1.0, 2.0], dtype=torch.float64)
    close(rms_norm(x, weight, eps=0.0), [3 / math.sqrt(12.5), 8 / math.sqrt(12.5)])
    close(rms_norm(x, weight, eps=12.5), [3 / 5, 8 / 5])


def test_every_head_can_have_its_own_norm_weight():
    x, weight = random(2, 3, 4), random(2, 4, seed=1)
    together = rms_norm(x, weight.unsqueeze(-2))
    close(together[1], rms_norm(x[1], weight[1]))


def test_clip_keeps_small_numbers_and_is_idempotent():
    x = random(5, 6)
    assert clip(10 * x, 2.0).abs().max() == 2
    close(clip(x, 100.0), x)


def test_shared_features_come_last_in_every_head():
    heads, shared = random(3, 4, 2), random(4, 5, seed=1)
    joined = share(shared, heads)
    assert torch.equal(joined[..., :2], heads)
    assert all(torch.equal(head, shared) for head in joined[..., 2:])


def test_rotary_angles_position_by_position():
    cos, sin = rotary_angles(positions(4), width=6, base=100.0)
    for position in range(4):
        angles = [position * 100 ** (-2 * i / 6) for i in range(3)] * 2
        close(cos[position], [math.cos(angle) for angle in angles])
        close(sin[position], [math.sin(angle) for angle in angles])


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_multiplies_each_pair_as_a_complex_number(interleaved):
    """The definition of Su et al.: the pair (a, b) is a + ib, rotated by e^{iθ}."""
    x = random(2, 3, 5, 8)
    theta = positions(5).outer(100.0 ** (-positions(3) / 3))  # width 6: 6 and 7 are unchanged
    a, b = (x[..., 0:6:2], x[..., 1:6:2]) if interleaved else (x[..., :3], x[..., 3:6])
    turned = torch.complex(a, b) * torch.polar(torch.ones_like(theta), theta)

    result = rotary(x, *rotary_angles(positions(5), 6, base=100.0), interleaved=interleaved)

    real = result[..., 0:6:2] if interleaved else result[..., :3]
    imaginary = result[..., 1:6:2] if interleaved else result[..., 3:6]
    close(real, turned.real)
    close(imaginary, turned.imag)
    assert torch.equal(result[..., 6:], x[..., 6:])


def test_regroup_turns_interleaved_pairs_into_halves():
    assert regroup(positions(4)).tolist() == [0, 2, 1, 3]


def test_each_sequence_of_a_batch_may_have_its_own_positions():
    x = random(2, 3, 4, 6)
    cos, sin = rotary_angles(torch.stack((positions(4), positions(4) + 7)), 6)
    together = rotary(x, cos.unsqueeze(1), sin.unsqueeze(1))
    close(together[1], rotary(x[1], *rotary_angles(positions(4) + 7, 6)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_dtype_is_preserved(dtype):
    x = random(3, 4, dtype=dtype)
    assert linear(x, x.mT, x[:, 0]).dtype == dtype
    assert rms_norm(x, x[0]).dtype == dtype
    assert layer_norm(x, x[0], x[1]).dtype == dtype
    assert head_linear(x, x.mT[None], x[None, :, 0]).dtype == dtype
    assert clip(x, 0.5).dtype == dtype
    assert rotary(x, *rotary_angles(positions(3), 4)).dtype == dtype


def test_gradients_flow():
    x, weight = random(3, 4).requires_grad_(), random(4, seed=1).requires_grad_()
    cos, sin = rotary_angles(positions(3), 4)
    assert torch.autograd.gradcheck(
        lambda x, w: rotary(rms_norm(linear(x, w.diag(), w), w), cos, sin), (x, weight)
    )
