"""BERT in numpy and float64 from the weights of a package, to check conversions against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf
from torch import Tensor

_EPSILON = 1e-12  # of the norms


class Bert:
    """The weights of a BERT by the names of its first releases, and what they compute."""

    def __init__(self, state: Mapping[str, Tensor], heads: int) -> None:
        self.state = {name: tensor.double().numpy() for name, tensor in state.items()}
        self.heads = heads
        self.layers = 1 + max(int(name.split(".")[3]) for name in state if ".layer." in name)

    def hidden(self, ids: Sequence[int]) -> NDArray[np.float64]:
        """Return the last hidden states of a text, (T, d)."""
        x = self._of("bert.embeddings.word_embeddings")[list(ids)]
        x = x + self._of("bert.embeddings.position_embeddings")[: len(x)]
        x = self.norm(x + self._of("bert.embeddings.token_type_embeddings")[0], "bert.embeddings")
        for layer in range(self.layers):
            block = f"bert.encoder.layer.{layer}"
            mixed = self.linear(self._mixed(x, block), f"{block}.attention.output.dense")
            x = self.norm(x + mixed, f"{block}.attention.output")
            y = gelu(self.linear(x, f"{block}.intermediate.dense"))
            x = self.norm(x + self.linear(y, f"{block}.output.dense"), f"{block}.output")
        return x

    def classes(self, ids: Sequence[int]) -> NDArray[np.float64]:
        """Return the logits of the classes of a text."""
        first = self.linear(self.hidden(ids)[0], "bert.pooler.dense")
        return self.linear(np.tanh(first), "classifier")

    def tokens(self, ids: Sequence[int]) -> NDArray[np.float64]:
        """Return the logits of the masked language model, (T, V)."""
        y = gelu(self.linear(self.hidden(ids), "cls.predictions.transform.dense"))
        return self.linear(self.norm(y, "cls.predictions.transform"), "cls.predictions.decoder")

    def _mixed(self, x: NDArray[Any], block: str) -> NDArray[Any]:
        Q, K, V = (
            self.linear(x, f"{block}.attention.self.{name}")
            .reshape(len(x), self.heads, -1)
            .swapaxes(0, 1)
            for name in ("query", "key", "value")
        )
        scores = Q @ K.swapaxes(1, 2) / np.sqrt(Q.shape[-1])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return (weights @ V).swapaxes(0, 1).reshape(len(x), -1)

    def linear(self, x: NDArray[Any], name: str) -> NDArray[Any]:
        """Return W x + b of a linear layer."""
        return x @ self._of(name).T + self.state[f"{name}.bias"]

    def norm(self, x: NDArray[Any], name: str) -> NDArray[Any]:
        """Return the layer norm inside a module."""
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + _EPSILON)
        return x * self._of(f"{name}.LayerNorm") + self.state[f"{name}.LayerNorm.bias"]

    def _of(self, name: str) -> NDArray[np.float64]:
        return self.state[f"{name}.weight"]


def gelu(x: NDArray[Any]) -> NDArray[Any]:
    """Return x Φ(x)."""
    return x * (1 + erf(x / np.sqrt(2))) / 2
