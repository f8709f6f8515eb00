"""Check the weights of BertViz and TransformerLens with `attnviz.check`, as their users get them.

The weights of BertViz are read from the page that it draws, those of TransformerLens from its
cache. Needs the extra `bench`. Nothing is downloaded: the models are the bundled one and random
ones. Each is also checked with two heads swapped, which must be found.
"""

from __future__ import annotations

import copy
import json
import os
import re
import sys

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}

import torch
from benchmarks import peers
from rich.console import Console
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

import attnviz

TEXT = "the train left the station on time"
console = Console()


def bertviz_weights(model: PreTrainedModel, ids: Tensor) -> dict[int, Tensor]:
    """Return the weights in the page that BertViz draws, by layer."""
    words = [f"w{number}" for number in range(ids.shape[1])]
    page = peers.bertviz_page("head_view", peers.eager(model, ids), words)
    found = re.search(r"PYTHON_PARAMS = (\{.*?\});?\s*\n|const params = (\{.*?\});", page)
    assert found is not None, "the page holds no weights where they used to be"
    (shown,) = json.loads(found.group(1) or found.group(2))["attention"]
    return {layer: torch.tensor(weights) for layer, weights in enumerate(shown["attn"])}


def lens_weights(model: PreTrainedModel, ids: Tensor) -> object:
    """Return the cache of TransformerLens."""
    return peers.transformer_lens(copy.deepcopy(model))(ids)


def swapped(weights: object) -> dict[str, Tensor]:
    """Return weights with the first two heads of the last layer swapped."""
    layers = {str(name): array.clone() for name, array in weights.items()}  # type: ignore[attr-defined]
    last = list(layers)[-1]
    heads = layers[last].shape[-3]
    layers[last] = layers[last][..., [1, 0, *range(2, heads)], :, :]
    return layers


def main() -> int:
    """Print what `check` says of each tool and model; return 1 if one does not hold."""
    bundled = attnviz.load(device="cpu")
    size = len(bundled.tokenizer)
    torch.manual_seed(0)
    sizes = {"vocab_size": size, "bos_token_id": 101, "eos_token_id": 102}
    gpt2 = GPT2LMHeadModel(GPT2Config(**sizes, n_embd=64, n_layer=3, n_head=4)).eval()
    llama = LlamaForCausalLM(
        LlamaConfig(
            **sizes,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    ).eval()
    with torch.no_grad():
        for model in (gpt2, llama):
            for name, weights in model.named_parameters():
                if "attn" in name and weights.dim() == 2:
                    weights.mul_(8)  # sharp attention
    models = {"bundled": bundled.module, "GPT-2": gpt2, "Llama": llama}
    tools = {"bertviz": bertviz_weights, "transformer_lens": lens_weights}
    failed = 0
    ids = torch.tensor([bundled.tokenizer(TEXT)["input_ids"]])
    for tool, read in tools.items():
        if not peers.installed(tool):
            console.print(f"{tool} is not installed")
            failed += 1
            continue
        for name, model in models.items():
            try:
                weights = read(model, ids)
            except Exception as error:
                console.print(f"{tool}, {name}: not read ({type(error).__name__}: {error!s:.160})")
                continue
            loaded = attnviz.load(model, tokenizer=bundled.tokenizer)
            report = attnviz.check(weights, ids, loaded)
            console.print(f"{tool}, {name}: {report.summary()}")
            planted = attnviz.check(swapped(weights), ids, loaded)
            console.print(f"  planted: {', '.join(planted.hints) or 'NOT FOUND'}")
            failed += not report.agrees or planted.agrees
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
