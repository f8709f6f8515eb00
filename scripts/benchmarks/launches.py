"""Count how attnviz uses a CUDA device: kernel launches, synchronizations and copies.

The device is simulated on the CPU (`tests/simulated_cuda.py`), so counts need no GPU. A count says
nothing about time: it finds loops of small launches, and places that wait.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from rich.table import Table
from transformers import BertConfig, BertModel, PreTrainedModel

from benchmarks.measuring import console

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from families import TEXTS, tiny
from simulated_cuda import SimulatedCuda

import attnviz
from attnviz.inputs import encode


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
