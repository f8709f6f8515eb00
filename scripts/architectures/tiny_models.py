"""A tiny random model of any architecture, with inputs that it runs on."""

from __future__ import annotations

import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from architectures.catalogue import model_class
from architectures.count import tensors
from architectures.inputs import complete, offers
from architectures.sharpen import sharpen
from architectures.shrink import tiny_config


class CannotRunError(RuntimeError):
    """No inputs were found that the model runs on; says what each attempt raised."""


def build(architecture: str, seed: int = 0) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Return a tiny random model with sharp attention, and keyword inputs for its forward.

    The model is in eval mode, in float32, with eager attention. The inputs are the first of
    those offered for its signature that it runs on.
    """
    model = tiny_model(architecture, seed)
    failures: list[str] = []
    runs = None
    for offer in offers(model, seed):
        try:
            with torch.no_grad():
                inputs = complete(model, architecture, offer, seed)
                clean = not any(one.isnan().any() for one in tensors(model(**inputs)))
        except Exception as error:
            failures.append(_told(error))
            continue
        runs = runs or inputs
        if clean:
            return model, inputs
    if runs:  # only so that some rows see nothing, and are nan
        return model, runs
    raise CannotRunError(" | ".join(dict.fromkeys(failures)))


def _told(error: Exception) -> str:
    """Return an error's message with the place that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"


def tiny_model(architecture: str, seed: int = 0) -> PreTrainedModel:
    """Return a tiny random model with sharp attention, in eval mode."""
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = model_class(architecture)._from_config(
            tiny_config(architecture), attn_implementation="eager", dtype=torch.float32
        )
    sharpen(model, seed)
    return model.eval()
