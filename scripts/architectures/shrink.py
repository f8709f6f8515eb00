"""Make the configuration of an architecture tiny, by the names of its settings.

Every width becomes the same small number wherever it stands, so that towers, projectors and
decoders still fit each other; lists of widths keep their ratios. Of the layers, one of each kind is
kept. Settings that no rule knows keep their default.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from typing import Any

from transformers import CONFIG_MAPPING, PretrainedConfig

from architectures.layers import is_layer_count, kept_layers, last_stages, layer_count
from architectures.overrides import SETTINGS, UNSHRUNK, WIDTHS
from architectures.rules import (
    HEAD_DIM,
    HEADS,
    TOKEN,
    WIDTH,
    WINDOW,
    each,
    image_size,
    rope,
    short_list,
    small,
)
from architectures.towers import is_tiny, optional_part, stand_in

FIRST_SPECIAL = 100  # token ids from here on are given anew, the same for all parts of a model
SWITCHES = {"use_sliding_window": True}


class Shrinker:
    """One tiny model: what all its parts share, such as the new ids of its special tokens."""

    def __init__(self, width: int = WIDTH) -> None:
        self.width = width
        self.tokens: dict[int, int] = {}

    def token(self, old: int) -> int:
        """Return the new id of a special token, the same wherever the old one stands."""
        if old < FIRST_SPECIAL:
            return old
        return self.tokens.setdefault(old, FIRST_SPECIAL + len(self.tokens))

    def config(self, template: PretrainedConfig) -> PretrainedConfig:
        """Return a tiny configuration of the same class."""
        cls = type(template)
        if cls.model_type in UNSHRUNK or is_tiny(template):
            return template
        fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
        switches = {k: v for k, v in SWITCHES.items() if k in fields}
        if switches:
            kwargs = {**_given(template, fields), **switches}
            template = cls(**kwargs)
        settings: dict[str, Any] = {}
        kept = kept_layers(template)
        count = layer_count(template)
        given = _given(template, fields) | switches
        settings |= {name: value for name, value in given.items() if name not in fields}
        for name in fields:
            value = _stored(template, name)
            if value is None and name in ("vision_config", "audio_config"):
                value = optional_part(cls, name)
            if isinstance(value, PretrainedConfig):
                settings[name] = self.config(stand_in(value, cls.model_type))
                continue
            new = self._value(name, value, kept, count, template)
            if value is None:
                new = self._where_none(name)
            if name == "num_key_value_heads" and "kv_lora_rank" in fields:
                new = HEADS  # latent attention has as many keys as queries
            if name in given or (new != value and new is not None):
                settings[name] = new
        settings |= last_stages(template, kept)
        settings |= SETTINGS.get(cls.model_type or cls.__name__, {})
        return cls(**{k: v for k, v in settings.items() if not k.startswith("_out_")})

    def _where_none(self, name: str) -> int | None:
        """Return a value for settings that models read without asking whether they are set."""
        if re.fullmatch(r"(image|video|audio)_token_(id|index)", name):
            return self.token(sum(name.encode()) + 10**6)
        return {"head_dim": HEAD_DIM, "num_experts_per_tok": 2,
                "n_routed_experts": 4}.get(name)  # fmt: skip

    def _value(self, name: str, value: Any, kept: list[int], count: int, template: Any) -> Any:
        """Return the tiny value of one setting."""
        if isinstance(value, bool) or value is None or isinstance(value, (str, float)):
            return value
        if name in ("rope_parameters", "rope_scaling"):
            return rope(value, template)
        if TOKEN.fullmatch(name):
            return each(value, self.token)
        if isinstance(value, (list, tuple)) and count > 2 and len(value) == count:
            value = type(value)(value[i] for i in kept)
            if value and all(type(v) is int and v > 4 for v in value):
                return type(value)(small(name, v, self.width) for v in value)
            return value
        if name in ("image_size", "img_size"):
            return image_size(value, template)
        if name == "window_size" and isinstance(value, int):
            return min(value, WINDOW) if value < 50 else 56  # of patches, else of pixels
        if isinstance(value, int):
            if count and value == count and is_layer_count(name):
                return len(kept)
            return small(name, value, self.width)
        if isinstance(value, (list, tuple)):
            return short_list(name, value, len(kept))
        return value


def _stored(config: PretrainedConfig, name: str) -> Any:
    """Return the value of a setting, which may be kept under another name."""
    return config.__dict__.get(type(config).attribute_map.get(name, name))


def _given(template: PretrainedConfig, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from what the class would derive by itself."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            default = type(template)()
    except Exception:
        return {}
    base = {field.name for field in dataclasses.fields(PretrainedConfig)}
    extra = {  # what a model asks of its backbone beyond the settings that the class names
        name: value
        for name, value in vars(template).items()
        if name not in vars(default) and name not in base and not name.startswith("_")
    }
    return extra | {
        name: _stored(template, name)
        for name in fields
        if name not in base | {"_out_features", "_out_indices"}
        and not isinstance(_stored(template, name), PretrainedConfig)
        and _stored(template, name) != _stored(default, name)
    }


def tiny_config(architecture: str) -> PretrainedConfig:
    """Return the tiny configuration of an architecture."""
    cls = CONFIG_MAPPING[architecture]
    settings = SETTINGS.get(architecture, {})
    try:
        template = cls()
    except Exception:
        template = cls(**settings)
    return Shrinker(WIDTHS.get(architecture, WIDTH)).config(template)
