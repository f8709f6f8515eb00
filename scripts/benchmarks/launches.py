"""Count how attnviz uses a CUDA device: kernel launches, synchronizations and copies.

The device is simulated on the CPU (`tests/simulated_cuda.py`), so counts need no GPU. A count says
nothing about time: it finds loops of small launches, and places that wait.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from random import Random

import torch
from rich.table import Table
from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel, PreTrainedModel

from benchmarks.measuring import console

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from families import TEXTS, tiny
from simulated_cuda import SimulatedCuda

import attnviz
from attnviz.analyses.survey.corpus import PART
from attnviz.inputs import encode

_WIDE, _NARROW = 14336, 64  # of the MLP of Llama 3 8B, and of the model that is counted
_LAYERS, _WIDTH = 32, 4096
_MAPS = "streaming", "runtime/compat"  # the files that reduce maps


def measure(tokens: int, places: int) -> None:
    """Print the counts of BERT-base with random weights and of a tiny Llama.

    tokens : the length of BERT's text. places : how many lines of attnviz to list for each count.
    """
    torch.manual_seed(0)
    tokenizer = attnviz.load().tokenizer
    words = " ".join(["the train left the station on time ,"] * tokens).split()[: tokens - 2]
    models: dict[str, tuple[PreTrainedModel, str]] = {
        f"BERT-base, {tokens} tokens": (BertModel(BertConfig()).eval(), " ".join(words)),
        "tiny Llama, 3 layers": (tiny("llama"), TEXTS[0]),
    }
    columns = "launches", "waits", "to the host", "to the device"
    table = Table("model", "run", *columns, title="one text on a simulated CUDA device")
    lines = []
    for name, (module, text) in models.items():
        with SimulatedCuda() as gpu:
            model = attnviz.load(module.to("cuda"), tokenizer=tokenizer)
            inputs = encode(model.checkpoint, [text]).inputs
            variants: dict[str, Callable[[], object]] = {
                "plain forward": torch.no_grad()(lambda: module(**inputs)),  # noqa: B023
                "attend, whole maps": lambda: model.attend(text, mode="full"),  # noqa: B023
                "again": lambda: model.attend(text, mode="full"),  # noqa: B023
                "attend, streamed": lambda: model.attend(text, mode="streamed"),  # noqa: B023
            }
            for variant, run in variants.items():
                gpu.clear()
                run()
                table.add_row(name, variant, *(f"{count:,}" for count in gpu.counts))
                for kind in gpu.counts._fields if places else ():
                    lines.append(f"{name}, {variant}: {kind.replace('_', ' ')}")
                    lines += [f"{n:8,} {place}" for place, n in gpu.top(kind, places)]
    console.print(table)
    console.print("\n".join(lines), highlight=False, markup=False)


def measure_many() -> None:
    """Print the counts of many short texts, in a narrow model with BERT-base's heads.

    Those of `attend` are of 64 texts together. Those of a survey are of each further text: one part
    of the corpus is left out, because it holds what a survey does once.
    """
    torch.manual_seed(0)
    config = BertConfig(hidden_size=48, intermediate_size=64, num_hidden_layers=12)
    random = Random(0)
    vocabulary = sorted(word for word in attnviz.load().tokenizer.get_vocab() if word.isalpha())
    texts = [" ".join(random.choices(vocabulary, k=random.randint(6, 24))) for _ in range(3 * PART)]
    counts = []
    with SimulatedCuda() as gpu:
        module = BertModel(config).eval().to("cuda")
        model = attnviz.load(module, tokenizer=attnviz.load().tokenizer)
        for _ in range(2):  # the first is traced
            gpu.clear()
            model.attend(texts[:64], mode="full")
        of_list = gpu.counts
        attnviz.survey(texts[:20], model=model)
        for several in (texts[:PART], texts):
            gpu.clear()
            attnviz.survey(several, model=model)
            counts.append(gpu.counts)
    one, three = counts
    for name, first, last in zip(one._fields, one, three, strict=True):
        kind, of_text = name.replace("_", " "), (last - first) / 2 / PART
        console.print(
            f"{kind}: attend, 64 texts {getattr(of_list, name):,}; survey, each {of_text:.2f}"
        )


def measure_long(lengths: Sequence[int]) -> None:
    """Print the counts of a streamed text of each length in a model of the shape of Llama 3 8B.

    They are those of every text but the first of a model. Nothing is computed. The numbers are
    zeros, and kernels are launched and do not run. The MLP is narrow, and what a wide one
    multiplies is added.
    """
    config = LlamaConfig(
        vocab_size=30522, hidden_size=_WIDTH, intermediate_size=_NARROW, num_hidden_layers=_LAYERS,
        num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=max(lengths),
    )  # fmt: skip
    module = _without_numbers(config)
    tokenizer = deepcopy(attnviz.load().tokenizer)
    tokenizer.model_max_length = max(lengths)
    columns = "launches", "of plain", "multiply-adds", "of plain"
    table = Table("tokens", "part", *columns, title=f"shape of Llama 3 8B, {_LAYERS} layers")
    with SimulatedCuda(computes=False) as gpu:
        model = attnviz.load(module.to("cuda"), tokenizer=tokenizer)
        model.attend("the train left the station " * 20, mode="streamed")
        for length in lengths:
            words = ["the train left the station on time ,"] * (length // 8 + 1)
            text = " ".join(" ".join(words).split()[: length - 2])
            inputs = encode(model.checkpoint, [text]).inputs
            kinds, rows = ("launches", "multiply_adds"), {}
            gpu.clear()
            with torch.no_grad():
                module(**inputs, use_cache=False)
            plain = [gpu.within(kind) for kind in kinds]
            gpu.clear()
            model.attend(text, mode="streamed")
            maps = [gpu.within(kind, *_MAPS) for kind in kinds]
            whole = [gpu.within(kind) for kind in kinds]
            rows["maps"] = maps
            rows["proof"] = [w - m - p for w, m, p in zip(whole, maps, plain, strict=True)]
            plain[1] += _LAYERS * length * 3 * _WIDTH * (_WIDE - _NARROW)
            for part, (launches, products) in {"plain forward": plain, **rows}.items():
                cells = f"{launches:,}", f"{launches / plain[0]:.2f}"
                table.add_row(
                    f"{length:,}", part, *cells, f"{products:.2e}", f"{products / plain[1]:.3f}"
                )
    console.print(table)


def _without_numbers(config: LlamaConfig) -> PreTrainedModel:
    """Return a model in bfloat16 whose parameters are zeros, in memory that is not used."""
    with torch.device("meta"):
        module = LlamaModel(config).to(torch.bfloat16).eval()
    module.to_empty(device="cpu")
    for parameter in module.parameters():
        parameter.data.zero_()
    module.rotary_emb = type(module.rotary_emb)(config).to(torch.bfloat16)
    return module
