"""Check one architecture: build it, run it, count its softmaxes, compare the captured attention."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from architectures.catalogue import model_class_name
from architectures.compare import compare
from architectures.count import count_softmaxes
from architectures.tiny_models import build


def check(name: str) -> dict[str, Any]:
    """Return the results of one check as a flat dictionary that JSON can store.

    name : an architecture, or one with a class, as in "bert/BertForMaskedLM".

    Keys: architecture, class, parameters, softmaxes, sharpness (median over the softmaxes; 1 is
    uniform), flattest (the minimum), finite, the keys of `compare`, and `others`: the number of
    executed softmaxes that are not captured attentions, by the class of the module that executed
    them (routers, detector heads). Errors from building and running the model propagate.
    """
    torch.set_num_threads(1)
    architecture, _, class_name = name.partition("/")
    model, inputs = build(architecture, class_name=class_name)
    result: dict[str, Any] = {
        "architecture": name,
        "class": class_name or model_class_name(architecture),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
    result |= count_softmaxes(model, inputs) | compare(model, inputs)
    remaining = Counter(result.pop("softmax_paths")) - Counter(result.pop("paths", {}))
    others: Counter[str] = Counter()
    for path, count in remaining.items():
        others[type(model.get_submodule(path)).__name__] += count
    return result | {"others": dict(others)}
