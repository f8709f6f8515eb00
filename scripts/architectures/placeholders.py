"""Insert image and audio placeholders into a text, one for each vector that the model makes."""

from __future__ import annotations

import inspect
from contextlib import suppress
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
def place(model: PreTrainedModel, inputs: dict[str, Any]) -> None:
    """Insert the placeholders near the front of each text, in place, and extend its mask."""
    if not isinstance(inputs.get("input_ids"), Tensor):
        return
    types = None
    preset_counts = inputs.pop("placeholders", None)
    for method_name, main, token_names in KINDS:
        token = find(model.config, *token_names)
        method = next(
            (getattr(m, method_name) for m in model.modules() if hasattr(m, method_name)), None
        )
        if main not in inputs or token is None or not (method or preset_counts):
            continue
        counts = preset_counts or _counts(method, inputs, len(inputs["input_ids"]))
        if not counts:
            continue
        texts = inputs["input_ids"]
        longest = max(counts)
        front = torch.full((len(texts), longest), token)
        for row, count in enumerate(counts):  # pad a shorter image with text tokens
            front[row, count:] = texts[row, :1]
        inputs["input_ids"] = torch.cat([texts[:, :2], front, texts[:, 2:]], 1)
        if isinstance(inputs.get("attention_mask"), Tensor):
            ones = torch.ones(len(texts), longest, dtype=torch.long)
            inputs["attention_mask"] = torch.cat([ones, inputs["attention_mask"]], 1)
        types = (inputs["input_ids"] == token).long()
    names = inspect.signature(model.forward).parameters
    if types is None:
        types = torch.zeros_like(inputs["input_ids"])
    for name in ("mm_token_type_ids", "moe_mm_token_type_ids"):
        if name in names:
            inputs.setdefault(name, types)
    if (
        "token_type_ids" in names
        and "token_type_ids" not in inputs
        and find(model.config, "type_vocab_size") is None
    ):
        inputs["token_type_ids"] = types


def _counts(method: Any, inputs: dict[str, Any], rows: int) -> list[int]:
    """Return the number of vectors that the model makes from the images or audio of each text."""
    parameters = inspect.signature(method).parameters
    text = {"attention_mask"} | {
        name
        for name, item in parameters.items()
        if name == "input_ids" and item.default is not item.empty
    }
    media = {
        name: value for name, value in inputs.items() if name in parameters and name not in text
    }
    if all(isinstance(item, Tensor) and len(item) == rows for item in media.values()):
        per_row = [{name: item[i : i + 1] for name, item in media.items()} for i in range(rows)]
        if "image_grid_thw" not in media:
            with suppress(Exception):  # some need the whole batch
                return [sum(_sizes(method(**item))) for item in per_row]
    sizes = _sizes(method(**media))
    if len(sizes) == 1 and sizes[0] % rows == 0:
        return [sizes[0] // rows] * rows
    if len(sizes) % rows:
        return []
    images_per_row = len(sizes) // rows
    return [sum(sizes[row * images_per_row : (row + 1) * images_per_row]) for row in range(rows)]


def _sizes(output: Any) -> list[int]:
    """Return the number of vectors in each tensor that a tower returned."""
    valid = getattr(output, "attention_mask", None)
    if isinstance(valid, Tensor) and valid.dim() == 2:  # mask of the positions that are not padding
        return valid.sum(-1).tolist()
    for name in ("pooler_output", "last_hidden_state"):
        if getattr(output, name, None) is not None:
            output = getattr(output, name)
    if isinstance(output, Tensor):
        output = [output]
    return [
        tensor.reshape(-1, tensor.shape[-1]).shape[0]
        for tensor in output
        if isinstance(tensor, Tensor)
    ]
