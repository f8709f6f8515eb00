"""What other tools do to show the attention of a model, as their users call them.

Each takes a transformers model and token ids, (1, T), and returns what it would show.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase


def eager(model: PreTrainedModel, ids: Tensor) -> tuple[Tensor, ...]:
    """Return the weights of every layer, (1, H, T, T) each: what transformers gives."""
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            attentions: tuple[Tensor, ...] = model(ids, output_attentions=True).attentions
    finally:
        model.set_attn_implementation("sdpa")
    return attentions


def bertviz(model: PreTrainedModel, ids: Tensor) -> list[str]:
    """Return the HTML of BertViz' view of the heads and of its view of the model."""
    attentions = eager(model, ids)
    words = [f"w{number}" for number in range(ids.shape[1])]
    return [bertviz_page(view, attentions, words) for view in ("head_view", "model_view")]


def bertviz_page(view: str, attentions: tuple[Tensor, ...], words: list[str]) -> str:
    """Return the HTML of one of BertViz' views. attentions : of every layer, (1, H, T, T)."""
    shown = getattr(import_module("bertviz"), view)
    html: str = shown(attention=attentions, tokens=words, html_action="return").data
    return html


def transformer_lens(model: PreTrainedModel) -> Callable[[Tensor], object]:
    """Return what gives TransformerLens' cache of the patterns of every layer.

    Since its version 4 it takes the model of transformers itself; it runs it eagerly.
    """
    from transformer_lens.model_bridge import TransformerBridge

    with tempfile.TemporaryDirectory() as folder:
        tokenizer = _tokenizer(folder)  # which it loads once more, its own way
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
    """Whether a peer is there (pip install 'attnviz[bench]')."""
    return find_spec(package) is not None


def _tokenizer(folder: str) -> PreTrainedTokenizerBase:
    """Return a tokenizer of nothing: TransformerLens wants one that was loaded from a folder."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1}, unk_token="<s>"))
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)
