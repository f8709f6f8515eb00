"""Check one architecture: build it, run it, count its softmaxes, compare what attnviz captures."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from architectures.catalogue import model_class_name
from architectures.compare import compare
from architectures.count import count_softmaxes
from architectures.tiny_models import build


def check(architecture: str) -> dict[str, Any]:
    """Return what was found, as one flat dictionary that JSON can hold.

    Keys: architecture, class, parameters, softmaxes, sharpness and flattest (of the median and of
    the flattest of them; 1 is uniform), finite, those of `compare`, and `others`: how many
    softmaxes beyond the attentions were executed, by the class of the module that executed them
    (routers, heads of detectors). Raises what building or running raises.
    """
    torch.set_num_threads(1)
    model, inputs = build(architecture)
    found: dict[str, Any] = {
        "architecture": architecture,
        "class": model_class_name(architecture),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
    found |= count_softmaxes(model, inputs) | compare(model, inputs)
    left = Counter(found.pop("softmax_paths")) - Counter(found.pop("paths", {}))
    others: Counter[str] = Counter()
    for path, count in left.items():
        others[type(model.get_submodule(path)).__name__] += count
    return found | {"others": dict(others)}
