"""How other tools show the attention of a model, called as their users call them.

Each function takes a transformers model and token ids, (1, T), and returns the tool's output.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase


def eager(model: PreTrainedModel, ids: Tensor) -> tuple[Tensor, ...]:
    """Return the weights of every layer, (1, H, T, T) each, as transformers returns them."""
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            attentions: tuple[Tensor, ...] = model(ids, output_attentions=True).attentions
    finally:
        model.set_attn_implementation("sdpa")
    return attentions


def bertviz(model: PreTrainedModel, ids: Tensor) -> list[str]:
    """Return the HTML of BertViz's head view and model view."""
    attentions = eager(model, ids)
    words = [f"w{number}" for number in range(ids.shape[1])]
    return [bertviz_page(view, attentions, words) for view in ("head_view", "model_view")]


def bertviz_page(
    view: str, attentions: tuple[Tensor, ...], words: list[str], **options: object
) -> str:
    """Return the HTML of one BertViz view. attentions : of every layer, (1, H, T, T)."""
    draw = getattr(import_module("bertviz"), view)
    html: str = draw(attention=attentions, tokens=words, html_action="return", **options).data
    return html


def inspectus_page(weights: NDArray[np.float32], words: list[str]) -> str:
    """Return the HTML that Inspectus displays. weights : (T, T) or (layers, H, T, T)."""
    shown: list[str] = []
    with patch("IPython.display.display", lambda part: shown.append(part.data)):
        import_module("inspectus").attention(weights, words)
    return "".join(shown)


def transformer_lens(model: PreTrainedModel) -> Callable[[Tensor], object]:
    """Return a function that computes TransformerLens's cache of all attention patterns.

    Since version 4, TransformerLens accepts a transformers model and runs it eagerly.
    """
    from transformer_lens.model_bridge import TransformerBridge

    with tempfile.TemporaryDirectory() as folder:
        tokenizer = _tokenizer(folder)  # TransformerLens loads it again from the folder
        bridge = TransformerBridge.boot_transformers(
            "random weights", hf_model=model, tokenizer=tokenizer, device="cpu"
        )

    def patterns(ids: Tensor) -> object:
        with torch.no_grad():
            _, cache = bridge.run_with_cache(
                ids, names_filter=lambda name: name.endswith("hook_pattern")
            )
        assert len(cache) == model.config.num_hidden_layers
        return cache

    return patterns


def installed(package: str) -> bool:
    """Return whether a package is installed (pip install 'attnviz[bench]')."""
    return find_spec(package) is not None


def _tokenizer(folder: str) -> PreTrainedTokenizerBase:
    """Return a dummy tokenizer: TransformerLens requires one that was loaded from a folder."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1}, unk_token="<s>"))
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)
