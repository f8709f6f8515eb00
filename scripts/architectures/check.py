"""Check one architecture: build it, run it, count its attentions, compare what attnviz captures."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from architectures.catalogue import model_class_name
from architectures.count import count_softmaxes
from architectures.tiny_models import build


def check(architecture: str) -> dict[str, Any]:
    """Return what was found, as one flat dictionary that JSON can hold.

    Keys: architecture, class, parameters, softmaxes, sharpness and flattest (of the median and of
    the flattest of them; 1 is uniform), finite, and those of `compare`. Raises what building or
    running raises.
    """
    torch.set_num_threads(1)
    model, inputs = build(architecture)
    found: dict[str, Any] = {
        "architecture": architecture,
        "class": model_class_name(architecture),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
    return found | count_softmaxes(model, inputs) | compare(model, inputs)


def compare(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """Compare every attention that attnviz captures with the one that the model executed.

    PLUG IN HERE: `attnviz.capture.capture(model, inputs)` returns records and references per text;
    return `reached` (how: "A", "C" or "A+C"), `attentions` (how many were captured) and
    `difference` (the largest |record.weights() - reference.weights| of all).
    """
    return {}
