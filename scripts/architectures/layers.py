"""Select layers of a model so that every kind of layer is included."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from architectures.rules import TOKEN


def is_layer_count(name: str) -> bool:
    """Return whether a setting holds the number of layers of a model."""
    return name in ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "depth", "layers")


def layer_count(template: PretrainedConfig) -> int:
    """Return the number of layers of the default model, or 0 if it is not a single number."""
    if isinstance(template.__dict__.get("depths"), (list, tuple)):
        return 0
    for name in ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth", "layers"):
        name = type(template).attribute_map.get(name, name)
        value = template.__dict__.get(name)
        if type(value) is int:
            return value
    return 0


def selected_layers(template: PretrainedConfig) -> list[int]:
    """Return the indices of the layers to keep: one of each kind, and at least two."""
    count = layer_count(template)
    lists = [
        [_hashable(v) for v in value]
        for name, value in template.__dict__.items()
        if isinstance(value, (list, tuple)) and len(value) == count > 2
        and not TOKEN.fullmatch(name) and not all(isinstance(v, float) for v in value)
    ]  # fmt: skip
    kinds = list(zip(*lists, strict=True)) if lists else [()] * count
    indices = [i for i, kind in enumerate(kinds) if kind not in kinds[:i]]
    if len(indices) > 8:  # something differs in every layer, so there are no kinds
        indices = [0, count - 1]
    outputs = len(template.__dict__.get("_out_indices") or [])
    minimum = max(2, outputs if "depths" not in template.__dict__ else 0)
    for i in range(count):
        if len(indices) < minimum and i not in indices:
            indices.append(i)
    return sorted(indices)


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def last_stages(template: PretrainedConfig, layers: list[int]) -> dict[str, Any]:
    """Return the output indices of a backbone: the same number of outputs, from the last stages."""
    outputs = template.__dict__.get("_out_indices")
    if not outputs:
        return {}
    names = template.__dict__.get("stage_names") or []
    if len(names) == layer_count(template) + 1 and "depths" not in template.__dict__:
        last = len(layers)
        return {"out_indices": list(range(last - len(outputs) + 1, last + 1))}
    return {"out_indices": list(outputs)}
