"""Put the placeholders of images and sounds into a text, as many as the model makes vectors."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from architectures.settings import find

KINDS = [
    ("get_image_features", "pixel_values",
     ("image_token_id", "image_token_index", "image_patch_id", "im_token_id")),
    ("get_video_features", "pixel_values_videos", ("video_token_id", "video_token_index")),
    ("get_audio_features", "input_features", ("audio_token_id", "audio_token_index")),
    ("get_audio_features", "input_values", ("audio_token_id", "audio_token_index")),
]  # fmt: skip


@torch.no_grad()
def place(model: PreTrainedModel, given: dict[str, Any]) -> None:
    """Insert the placeholders at the front of each text, in place, and lengthen the mask with it."""
    if not isinstance(given.get("input_ids"), Tensor):
        return
    types = None
    for method_name, main, token_names in KINDS:
        token = find(model.config, *token_names)
        method = next(
            (getattr(m, method_name) for m in model.modules() if hasattr(m, method_name)), None
        )
        if main not in given or token is None or method is None:
            continue
        counts = _counts(method, given, model)
        if not counts:
            continue
        texts = given["input_ids"]
        longest = max(counts)
        front = torch.full((len(texts), longest), token)
        for row, count in enumerate(counts):  # a shorter image is followed by more text
            front[row, count:] = texts[row, :1]
        given["input_ids"] = torch.cat([texts[:, :2], front, texts[:, 2:]], 1)
        if isinstance(given.get("attention_mask"), Tensor):
            ones = torch.ones(len(texts), longest, dtype=torch.long)
            given["attention_mask"] = torch.cat([ones, given["attention_mask"]], 1)
        types = (given["input_ids"] == token).long()
    names = inspect.signature(model.forward).parameters
    if types is None:
        types = torch.zeros_like(given["input_ids"])
    for name in ("mm_token_type_ids", "moe_mm_token_type_ids"):
        if name in names:
            given[name] = types
    if "token_type_ids" in names and find(model.config, "type_vocab_size") is None:
        given["token_type_ids"] = types


def _counts(method: Any, given: dict[str, Any], model: PreTrainedModel) -> list[int]:
    """Return how many vectors the model makes of the images or sounds of each text."""
    wanted = inspect.signature(method).parameters
    text = {"attention_mask"} | {
        name for name, one in wanted.items() if name == "input_ids" and one.default is not one.empty
    }
    found = method(**{k: v for k, v in given.items() if k in wanted and k not in text})
    found = getattr(found, "pooler_output", found)
    found = found[0] if isinstance(found, tuple) and len(found) == 1 else found
    rows = len(given["input_ids"])
    if isinstance(found, (list, tuple)):
        sizes = [one.reshape(-1, one.shape[-1]).shape[0] for one in found]
        if len(sizes) % rows:
            return []
        each = len(sizes) // rows
        return [sum(sizes[row * each : (row + 1) * each]) for row in range(rows)]
    if not isinstance(found, Tensor) or found.dim() < 2:
        return []
    total = found.reshape(-1, found.shape[-1]).shape[0]
    return [total // rows] * rows if total % rows == 0 else []
