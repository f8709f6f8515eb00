"""Explanations of a sound and of a picture, with effects written by hand."""

from dataclasses import replace

import numpy as np
import torch
from transformers import ViTConfig, ViTForImageClassification
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

import attnviz
from attnviz.results import Waveform


def of_tiles():
    """Return an explanation of a picture by 4 × 4 tiles, two of which have like effects."""
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=32, patch_size=8, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, num_labels=2, id2label={0: "bright", 1: "dark"},
    )  # fmt: skip
    processor = ViTImageProcessorPil(size={"height": 32, "width": 32})
    model = attnviz.load(ViTForImageClassification(config).eval(), processor=processor)
    pixels = np.full((32, 32, 3), 128, np.uint8)
    pixels[16:24, 8:24] = 255
    why = attnviz.explain(image=pixels, target="bright", against="dark", model=model)
    effects = torch.zeros(16, dtype=torch.float64)
    effects[[9, 10, 6]] = torch.tensor([2.0, 1.5, -0.5], dtype=torch.float64)
    return replace(why, causal={"cover": effects}, value=3.0)


def of_words():
    """Return an explanation of two words by three windows of a sound."""
    waves = torch.linspace(0, 40, 400).sin() * torch.linspace(0.2, 1, 400)
    by_answer = torch.tensor([[2.0, 0.5, -0.3], [0.0, 0.2, 4.0]], dtype=torch.float64)
    return replace(
        of_tiles(), parts="window", edges=((0.0, 0.2, 0.4, 0.65),), positions=((0,), (1,), (2,)),
        words=("0–0.2 s", "0.2–0.4 s", "0.4–0.65 s"), special=(False,) * 3, tokens=("",) * 3,
        causal={"silence": by_answer.sum(0)}, by_answer=by_answer, answer=("hello", "there"),
        replacements=torch.empty(0, 3), image=None, target="hello there", against=None,
        waveform=Waveform(0.65, torch.stack([-waves.abs(), waves.abs()], 1)),
    )  # fmt: skip
