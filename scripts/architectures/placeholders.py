"""Put the placeholders of images and sounds into a text, as many as the model makes vectors."""

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
def place(model: PreTrainedModel, given: dict[str, Any]) -> None:
    """Insert the placeholders near the front of each text, in place, and lengthen its mask."""
    if not isinstance(given.get("input_ids"), Tensor):
        return
    types = None
    told = given.pop("placeholders", None)
    for method_name, main, token_names in KINDS:
        token = find(model.config, *token_names)
        method = next(
            (getattr(m, method_name) for m in model.modules() if hasattr(m, method_name)), None
        )
        if main not in given or token is None or not (method or told):
            continue
        counts = told or _counts(method, given, len(given["input_ids"]))
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
            given.setdefault(name, types)
    if (
        "token_type_ids" in names
        and "token_type_ids" not in given
        and find(model.config, "type_vocab_size") is None
    ):
        given["token_type_ids"] = types


def _counts(method: Any, given: dict[str, Any], rows: int) -> list[int]:
    """Return how many vectors the model makes of the images or sounds of each text."""
    wanted = inspect.signature(method).parameters
    text = {"attention_mask"} | {
        name for name, one in wanted.items() if name == "input_ids" and one.default is not one.empty
    }
    media = {name: value for name, value in given.items() if name in wanted and name not in text}
    if all(isinstance(one, Tensor) and len(one) == rows for one in media.values()):
        per_row = [{name: one[i : i + 1] for name, one in media.items()} for i in range(rows)]
        if "image_grid_thw" not in media:
            with suppress(Exception):  # some need the whole batch
                return [sum(_sizes(method(**one))) for one in per_row]
    sizes = _sizes(method(**media))
    if len(sizes) == 1 and sizes[0] % rows == 0:
        return [sizes[0] // rows] * rows
    if len(sizes) % rows:
        return []
    each = len(sizes) // rows
    return [sum(sizes[row * each : (row + 1) * each]) for row in range(rows)]


def _sizes(found: Any) -> list[int]:
    """Return the number of vectors in each of the tensors that a tower returned."""
    valid = getattr(found, "attention_mask", None)
    if isinstance(valid, Tensor) and valid.dim() == 2:  # which of them are no padding
        return valid.sum(-1).tolist()
    for name in ("pooler_output", "last_hidden_state"):
        if getattr(found, name, None) is not None:
            found = getattr(found, name)
    if isinstance(found, Tensor):
        found = [found]
    return [one.reshape(-1, one.shape[-1]).shape[0] for one in found if isinstance(one, Tensor)]
