"""Build a tiny random model of any architecture, with inputs that it accepts."""

from __future__ import annotations

import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from architectures.catalogue import model_class
from architectures.count import tensors
from architectures.inputs import candidates, complete
from architectures.overrides import HEAD_SETTINGS
from architectures.sharpen import sharpen
from architectures.shrink import tiny_config


class CannotRunError(RuntimeError):
    """The model accepts no candidate inputs; the message lists what each attempt raised."""


def build(
    architecture: str,
    seed: int = 0,
    class_name: str = "",
    settings: dict[str, Any] | None = None,
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Return a tiny random model with sharp attention, and keyword inputs for its forward method.

    The model is in eval mode, in float32, with eager attention. The inputs are the first candidates
    that the model accepts.

    class_name : by default the bare model. settings : of its config, beside those of a tiny model.
    """
    model = tiny_model(architecture, seed, class_name, settings)
    failures: list[str] = []
    runs = None
    for candidate in candidates(model, seed):
        try:
            with torch.no_grad():
                inputs = complete(model, architecture, candidate, seed)
                clean = not any(tensor.isnan().any() for tensor in tensors(model(**inputs)))
        except Exception as error:
            failures.append(_describe(error))
            continue
        runs = runs or inputs
        if clean:
            return model, inputs
    if runs:  # runs only with fully masked rows, which are nan
        return model, runs
    raise CannotRunError(" | ".join(dict.fromkeys(failures)))


def _describe(error: Exception) -> str:
    """Return the message of an error and the line that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"


def tiny_model(
    architecture: str, seed: int = 0, class_name: str = "", settings: dict[str, Any] | None = None
) -> PreTrainedModel:
    """Return a tiny random model with sharp attention, in eval mode."""
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = tiny_config(architecture)
        if settings := HEAD_SETTINGS.get(class_name, {}) | (settings or {}):
            config = type(config)(**config.to_dict() | settings)
        if class_name and getattr(config, "pad_token_id", 0) is None:
            config.pad_token_id = 0  # by which a class with a head finds the end of a text
        if class_name.endswith("ForCausalLM") and getattr(config, "is_decoder", True) is False:
            config.is_decoder = not config.is_encoder_decoder  # as its documentation asks for
        if config.is_encoder_decoder and not hasattr(config, "decoder_start_token_id"):
            config.decoder_start_token_id = 0  # which a checkpoint of T5 names
        model = model_class(architecture, class_name)._from_config(
            config, attn_implementation="eager", dtype=torch.float32
        )
    sharpen(model, seed)
    return model.eval()
