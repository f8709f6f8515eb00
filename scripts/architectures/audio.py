"""Audio and time series in the shapes that models accept."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch

from architectures.media import BATCH, Request
from architectures.settings import find, part

MASKS = ("input_features_mask", "feature_attention_mask", "attention_mask", "padding_mask")
FEATURES = (
    "num_mel_bins", "n_mels", "input_feat_size", "input_feat_per_channel",
    "feature_projection_input_dim", "n_mel_bins", "num_chroma", "audio_embed_dim", "input_size",
    "input_dim", "feature_size", "mel_dim",
)  # fmt: skip
AUDIO = ("audio_config", "audio_encoder_config", "sound_config", "speech_config", "encoder_config")


def candidates(request: Request) -> Iterator[dict[str, Any]]:
    """Yield candidate audio inputs for the model; one empty dictionary if it takes no audio."""
    names = request.names
    if names.get("input_features") and names.get("input_values"):
        for features, values in product(_features(request), _values(request)):
            yield features | values
        return
    if "input_features" in names:
        yield from _features(request)
    if "input_values" in names:
        yield from _values(request)
    if "past_values" in names:
        yield _series(request)
    if not {"input_features", "input_values", "past_values"} & set(names):
        yield {}


def _features(request: Request) -> Iterator[dict[str, Any]]:
    config = part(request.config, *AUDIO)
    width = find(config, *FEATURES) or 80
    source_positions = find(config, "max_source_positions")
    lengths = ([2 * source_positions] if source_positions else []) + [64, 128, 200, 256]
    for length in lengths:
        for shape in ((BATCH, width, length), (BATCH, length, width), (BATCH, length, 128)):
            yield from _masked(request, {"input_features": request.normal(*shape)}, length)
        if "is_longer" in request.names:
            yield {"input_features": request.normal(BATCH, 1, length, width)}


def _masked(request: Request, sound: dict[str, Any], length: int) -> Iterator[dict[str, Any]]:
    """Yield the audio with the second clip padded, then with a mask of ones, then without mask."""
    names = [
        name
        for name in MASKS
        if name in request.names and (name != "attention_mask" or "input_ids" not in request.names)
    ]
    if names:
        padded = torch.ones(BATCH, length, dtype=torch.long)
        padded[1, -length // 4 :] = 0
        for mask in (padded, torch.ones_like(padded)):
            yield sound | {
                name: mask.bool() if name == "input_features_mask" else mask for name in names
            }
    yield sound


def _values(request: Request) -> Iterator[dict[str, Any]]:
    for shape in ((BATCH, 3840), (BATCH, 1, 3840), (BATCH, 1, 23040)):
        yield from _masked(request, {"input_values": request.normal(*shape)}, shape[-1])
    width = find(request.config, "num_mel_bins") or 80
    length = find(request.config, "max_length") or 64
    yield {"input_values": request.normal(BATCH, length, width)}


def _series(request: Request) -> dict[str, Any]:
    config = request.config
    length = find(config, "context_length") or 32
    lags = find(config, "lags_sequence", kind=(list, tuple))
    past = length + (max(lags) if lags else 0)
    channels = find(config, "num_input_channels")
    values = request.normal(BATCH, past, channels) if channels else request.normal(BATCH, past)
    inputs: dict[str, Any] = {"past_values": values}
    if "past_observed_mask" in request.names:
        inputs["past_observed_mask"] = torch.ones_like(values, dtype=torch.bool)
    for name, steps in (("past_time_features", past), ("future_time_features", 6)):
        if name in request.names:
            inputs[name] = request.normal(BATCH, steps, config.num_time_features)
    if "future_values" in request.names and not channels:
        inputs["future_values"] = request.normal(BATCH, 6)
    return inputs
