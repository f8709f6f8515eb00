"""Read settings anywhere in a configuration and its sub-configurations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transformers import PretrainedConfig


def parts(config: PretrainedConfig) -> Iterator[PretrainedConfig]:
    """Yield a configuration and all of its sub-configurations."""
    yield config
    for value in vars(config).values():
        if isinstance(value, PretrainedConfig):
            yield from parts(value)


def find(config: PretrainedConfig, *names: str, kind: type | tuple[type, ...] = int) -> Any:
    """Return the first setting found under one of these names, in this order, or None."""
    for name in names:
        for part in parts(config):
            value = vars(part).get(type(part).attribute_map.get(name, name))
            if isinstance(value, kind) and not isinstance(value, bool):
                return value
    return None


def part(config: PretrainedConfig, *names: str) -> PretrainedConfig:
    """Return the first sub-configuration with one of these names, or the configuration itself."""
    for name in names:
        for owner in parts(config):
            value = vars(owner).get(name)
            if isinstance(value, PretrainedConfig):
                return value
    return config
