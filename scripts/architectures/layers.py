"""Which layers of a model are kept, so that every kind of layer is among them."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from architectures.rules import TOKEN


def is_layer_count(name: str) -> bool:
    """Return whether a setting says how many layers a model has."""
    return name in ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "depth", "layers")


def layer_count(template: PretrainedConfig) -> int:
    """Return the number of layers of the default model, 0 where that is not one number."""
    if isinstance(template.__dict__.get("depths"), (list, tuple)):
        return 0
    for name in ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth", "layers"):
        name = type(template).attribute_map.get(name, name)
        value = template.__dict__.get(name)
        if type(value) is int:
            return value
    return 0


def kept_layers(template: PretrainedConfig) -> list[int]:
    """Return which layers of the default model stay: one of each kind, and at least two."""
    count = layer_count(template)
    lists = [
        [_hashable(v) for v in value]
        for name, value in template.__dict__.items()
        if isinstance(value, (list, tuple)) and len(value) == count > 2
        and not TOKEN.fullmatch(name) and not all(isinstance(v, float) for v in value)
    ]  # fmt: skip
    kinds = list(zip(*lists, strict=True)) if lists else [()] * count
    kept = [i for i, kind in enumerate(kinds) if kind not in kinds[:i]]
    if len(kept) > 8:  # something differs in every layer: no kinds
        kept = [0, count - 1]
    outputs = len(template.__dict__.get("_out_indices") or [])
    least = max(2, outputs if "depths" not in template.__dict__ else 0)
    for i in range(count):
        if len(kept) < least and i not in kept:
            kept.append(i)
    return sorted(kept)


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def last_stages(template: PretrainedConfig, kept: list[int]) -> dict[str, Any]:
    """Return the outputs of a backbone: as many as before, the last stages."""
    outputs = template.__dict__.get("_out_indices")
    if not outputs:
        return {}
    names = template.__dict__.get("stage_names") or []
    if len(names) == layer_count(template) + 1 and "depths" not in template.__dict__:
        last = len(kept)
        return {"out_indices": list(range(last - len(outputs) + 1, last + 1))}
    return {"out_indices": list(outputs)}
