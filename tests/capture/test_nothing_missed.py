"""No softmax over products q·k is missed silently, however the module is written."""

import threading

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close
from torch.utils._python_dispatch import _len_torch_dispatch_stack
from transformers import PretrainedConfig, PreTrainedModel

import attnviz
from attnviz import ModelError

N, T, H, D = 2, 6, 4, 16


class Layer(nn.Module):
    """Four heads; a subclass defines how scores become outputs."""

    num_heads = H

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(H * D, H * D) for _ in range(3))

    def forward(self, x):
        q, k, v = (
            part(x).view(len(x), T, H, D).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        return self.attend(q, k, v).transpose(1, 2).reshape(len(x), T, H * D)

    def attend(self, q, k, v):
        return (q @ k.mT / D**0.5).softmax(-1) @ v


class ByHand(Layer):
    def attend(self, q, k, v):
        exp = (q @ k.mT / D**0.5).exp()
        return (exp / exp.sum(-1, keepdim=True)) @ v


class TwoAtOnce(Layer):
    def attend(self, q, k, v):
        one, other = (q @ k.mT / D**0.5).softmax(-1), (k @ q.mT / D**0.5).softmax(-1)
        return torch.cat([one, other], -1) @ torch.cat([v, v], -2)


class Fused(Layer):
    def attend(self, q, k, v):
        return scaled_dot_product_attention(q, k, v)


class OfTorch(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(H * D, H, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


class DividedLate(Layer):
    def attend(self, q, k, v):
        exp = (q @ k.mT / D**0.5).exp()
        return (exp @ v) / exp.sum(-1, keepdim=True)


class Summed(Layer):
    def attend(self, q, k, v):
        return ((q @ k.mT).softmax(-1).unsqueeze(-1) * v.unsqueeze(2)).sum(3)


class Averaged(Layer):
    def attend(self, q, k, v):
        return (q @ k.mT).softmax(-1).mean(1, keepdim=True) @ v


class OneByOne(Layer):
    def attend(self, q, k, v):
        return torch.stack(
            [torch.stack([(a @ b.T).softmax(-1) @ c for a, b, c in zip(*text, strict=True)])
             for text in zip(q, k, v, strict=True)]
        )  # fmt: skip


class Elsewhere(Layer):
    def forward(self, x):
        found = []
        worker = threading.Thread(target=lambda: found.append(Layer.forward(self, x)))
        worker.start()
        worker.join()
        return found[0]


class Unused(Layer):
    def attend(self, q, k, v):
        (q * 2 @ k.mT).softmax(-1)
        return super().attend(q, k, v)


class TwoValues(Layer):
    """One softmax that mixes values and others of the same width."""

    width = D

    def attend(self, q, k, v):
        weights = (q @ k.mT / D**0.5).softmax(-1)
        others = (weights @ q[..., : self.width]).sum(-1, keepdim=True)
        return weights @ v + others


class TwoWidths(TwoValues):
    width = D // 2


class PairValues(Layer):
    """One softmax that also mixes a value for each pair of positions."""

    def attend(self, q, k, v):
        weights = (q @ k.mT / D**0.5).softmax(-1)
        pairs = q.unsqueeze(3) - k.unsqueeze(2)  # (N, H, T, T, D)
        return weights @ v + (weights.unsqueeze(-2) @ pairs).squeeze(-2)


class Matching(Layer):
    """Scores of a match between positions: two softmaxes that mix no values."""

    def forward(self, x):
        scores = x @ x.mT
        confidence = scores.softmax(1) * scores.softmax(2)
        return torch.zeros_like(x) + confidence.amax(-1, keepdim=True)


class Weights(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Module()
        self.inner.forward = lambda x: (x @ x.mT).softmax(-1)

    def forward(self, x):
        return self.inner(x)


class MixedLater(Layer):
    """Weights that leave two modules before they are mixed with values."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Sequential(Weights())

    def forward(self, x):
        return (self.weights(x).unsqueeze(-1) * x.unsqueeze(1)).sum(2)


class Model(PreTrainedModel):
    main_input_name = "x"

    def __init__(self, kind):
        super().__init__(PretrainedConfig())
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Layer(), kind(), Layer()])

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


@pytest.fixture
def x():
    return torch.randn(N, T, H * D, generator=torch.Generator().manual_seed(1))


def attend(kind, x):
    return attnviz.load(Model(kind).eval()).attend(inputs={"x": x})


@pytest.mark.parametrize(
    ("kind", "attentions"),
    [(Layer, 3), (ByHand, 3), (TwoAtOnce, 4), (Unused, 3), (Fused, 3), (OfTorch, 3)],
)
def test_unusual_attention_code_is_recorded(kind, attentions, x):
    for n, found in enumerate(attend(kind, x)):
        assert len(found.records) == attentions
        assert found.agreement.verdict == "verified", found.agreement.summary()
        alone = attend(kind, x[n : n + 1])
        for among, single in zip(found.records, alone.records, strict=True):
            assert_close(among.weights(), single.weights(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (DividedLate, "its exponentials are not divided by their sum before they mix values"),
        (Summed, "its weights enter no product with values"),
        (Averaged, "its weights enter no product with values"),
        (MixedLater, "its weights enter no product with values"),
        (OneByOne, "the texts of the batch are not told apart"),
        (Elsewhere, "it runs in another thread"),
    ],
)
def test_unreadable_attention_is_refused(kind, reason, x):
    with pytest.raises(ModelError, match=rf"in layers\.1.*, {reason}"):
        attend(kind, x)


def test_a_softmax_that_mixes_no_values_is_listed_as_no_attention(x):
    for found in attend(Matching, x):
        assert [record.path for record in found.records] == ["layers.0", "layers.2"]
        note = "a softmax in layers.1, whose weights are multiplied by no values"
        assert found.notes[1:] == (f"not attention: {note}",)
        assert found.agreement.verdict == "verified", found.agreement.summary()


@pytest.mark.parametrize(("kind", "width"), [(TwoValues, 2 * D), (TwoWidths, 3 * D // 2)])
def test_each_product_of_the_weights_with_values_is_compared(kind, width, x):
    for found in attend(kind, x):
        assert found.records[1].value.shape == (H, T, width)
        assert found.agreement.verdict == "verified", found.agreement.summary()
        assert len(found.notes) == 1


def test_a_product_that_is_another_while_it_is_watched_is_caught(x):
    class Watched(TwoValues):
        def attend(self, q, k, v):
            weights = (q @ k.mT / D**0.5).softmax(-1)
            values = q * (1.01 if _len_torch_dispatch_stack() else 1.0)
            return weights @ v + (weights @ values).sum(-1, keepdim=True)

    for found in attend(Watched, x):
        assert found.agreement.verdict == "failed"


def test_values_of_pairs_are_not_compared_and_said_to_be_so(x):
    for found in attend(PairValues, x):
        assert found.agreement.verdict == "verified", found.agreement.summary()
        assert found.records[1].value.shape == (H, T, D)
        assert "layers.1 the weights are also multiplied by values that differ" in found.notes[1]


def test_a_second_run_with_other_keys_is_refused_in_one_line(x):
    runs = []

    class OtherKeys(Layer):
        def attend(self, q, k, v):
            runs.append(self)
            n = T - len(runs) // 2
            return super().attend(q, k[..., :n, :], v[..., :n, :])

    with pytest.raises(ModelError, match="does not execute the same attentions in every run"):
        attend(OtherKeys, x)
