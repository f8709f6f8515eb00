"""Make the configuration of an architecture tiny, based on the names of its settings.

Every width becomes the same small number everywhere, so that towers, projectors and decoders still
fit each other; lists of widths keep their ratios. One layer of each kind is kept. Settings without
a rule keep their default.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from typing import Any

from transformers import CONFIG_MAPPING, PretrainedConfig

from architectures.layers import is_layer_count, last_stages, layer_count, selected_layers
from architectures.overrides import SETTINGS, UNSHRUNK, WIDTHS
from architectures.rules import (
    HEAD_DIM,
    HEADS,
    TOKEN,
    WIDTH,
    WINDOW,
    image_size,
    map_numbers,
    rope,
    short_list,
    small,
)
from architectures.towers import is_tiny, optional_part, replacement

FIRST_SPECIAL = 100  # token ids from here on are renumbered, consistently across the whole model
SWITCHES = {"use_sliding_window": True}


class Shrinker:
    """Build one tiny configuration; hold the state that its parts share, such as new token ids."""

    def __init__(self, width: int = WIDTH) -> None:
        self.width = width
        self.tokens: dict[int, int] = {}

    def token(self, old: int) -> int:
        """Return the new id of a special token; the same old id always gets the same new id."""
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
            kwargs = {**_changed(template, fields), **switches}
            template = cls(**kwargs)
        settings: dict[str, Any] = {}
        layer_indices = selected_layers(template)
        count = layer_count(template)
        changed = _changed(template, fields) | switches
        settings |= {name: value for name, value in changed.items() if name not in fields}
        for name in fields:
            value = _stored(template, name)
            if value is None and name in ("vision_config", "audio_config"):
                value = optional_part(cls, name)
            if isinstance(value, PretrainedConfig):
                settings[name] = self.config(replacement(value, cls.model_type))
                continue
            new = self._value(name, value, layer_indices, count, template)
            if value is None:
                new = self._default_if_none(name)
            if name == "num_key_value_heads" and "kv_lora_rank" in fields:
                new = HEADS  # latent attention has equally many keys and queries
            if name in changed or (new != value and new is not None):
                settings[name] = new
        settings |= last_stages(template, layer_indices)
        settings |= SETTINGS.get(cls.model_type or cls.__name__, {})
        return cls(**{k: v for k, v in settings.items() if not k.startswith("_out_")})

    def _default_if_none(self, name: str) -> int | None:
        """Return a value for settings that models read without checking for None."""
        if re.fullmatch(r"(image|video|audio)_token_(id|index)", name):
            return self.token(sum(name.encode()) + 10**6)
        return {"head_dim": HEAD_DIM, "num_experts_per_tok": 2,
                "n_routed_experts": 4}.get(name)  # fmt: skip

    def _value(
        self, name: str, value: Any, layer_indices: list[int], count: int, template: Any
    ) -> Any:
        """Return the tiny value of one setting."""
        if isinstance(value, bool) or value is None or isinstance(value, (str, float)):
            return value
        if name in ("rope_parameters", "rope_scaling"):
            return rope(value, template)
        if TOKEN.fullmatch(name):
            return map_numbers(value, self.token)
        if isinstance(value, (list, tuple)) and count > 2 and len(value) == count:
            value = type(value)(value[i] for i in layer_indices)
            if value and all(type(v) is int and v > 4 for v in value):
                return type(value)(small(name, v, self.width) for v in value)
            return value
        if name in ("image_size", "img_size"):
            return image_size(value, template)
        if name == "window_size" and isinstance(value, int):
            return min(value, WINDOW) if value < 50 else 56  # in patches, otherwise in pixels
        if isinstance(value, int):
            if count and value == count and is_layer_count(name):
                return len(layer_indices)
            return small(name, value, self.width)
        if isinstance(value, (list, tuple)):
            return short_list(name, value, len(layer_indices))
        return value


def _stored(config: PretrainedConfig, name: str) -> Any:
    """Return the value of a setting, which may be stored under another name."""
    return config.__dict__.get(type(config).attribute_map.get(name, name))


def _changed(template: PretrainedConfig, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from the defaults of the class."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            default = type(template)()
    except Exception:
        return {}
    base = {field.name for field in dataclasses.fields(PretrainedConfig)}
    extra = {  # backbone options that are not fields of the class
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
