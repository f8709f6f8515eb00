"""Which architectures the installed transformers has, and which class runs each."""

from __future__ import annotations

import warnings
from functools import cache

import transformers
from torch import nn
from transformers import CONFIG_MAPPING, PretrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from architectures.overrides import IN_PARTS, MODEL_CLASSES

# Where an architecture has no bare model, the first of these tasks that names a class for it.
TASKS = [
    name
    for name in vars(modeling_auto)
    if name.startswith("MODEL_") and name.endswith("_MAPPING_NAMES")
]


def config_class(architecture: str) -> type[PretrainedConfig]:
    """Return the configuration class of an architecture."""
    return CONFIG_MAPPING[architecture]


def family(cls: type) -> str:
    """Return the folder of transformers that a class lives in: one family of models."""
    return cls.__module__.split(".")[2] if cls.__module__.startswith("transformers.models.") else ""


def _parts(architecture: str) -> set[str]:
    """Return the model types of which an architecture is composed, of its own family.

    A text or vision tower is not an architecture beside the model that it is a part of.
    """
    cls = config_class(architecture)
    found = list((getattr(cls, "sub_configs", None) or {}).values())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            values = vars(cls()).values()
        found += [type(value) for value in values if isinstance(value, PretrainedConfig)]
    except Exception:  # a few need arguments; what they declare is enough then
        pass
    return {part.model_type for part in found if family(part) == family(cls)} - {architecture}


@cache
def architectures() -> list[str]:
    """Return every architecture: the model types that are not a part of another of their family.

    Model types that are another name for the same configuration and model count once.
    """
    named = [name for name in CONFIG_MAPPING if model_class_name(name)]
    hollow = {name for name in named if not _has_forward(name)}
    parts = set().union(*(_parts(name) for name in named if name not in hollow | IN_PARTS))
    chosen: dict[tuple[type, str], str] = {}
    for name in sorted(named, key=lambda name: (config_class(name).model_type != name, name)):
        if name not in parts | hollow and not _is_piece(name, named, hollow):
            chosen.setdefault((config_class(name), model_class_name(name)), name)
    return sorted(chosen.values())


def belongs() -> dict[str, str]:
    """Return what is not an architecture by itself, and of which one it is a part or other name."""
    checked = architectures()
    found: dict[str, str] = {}
    for whole in checked:
        for part in _parts(whole) | {config_class(whole).model_type}:
            found.setdefault(part, whole)
    folder = {whole: family(config_class(whole)) for whole in checked}
    for name in CONFIG_MAPPING:
        same = [whole for whole in checked if folder[whole] == family(config_class(name))]
        near = [whole for whole in same if name.startswith(whole)]
        if same:
            found.setdefault(name, max(near, key=len, default=min(same, key=len)))
    known = set(checked)
    return {name: found[name] for name in sorted(CONFIG_MAPPING) if name in found.keys() - known}


def _is_piece(name: str, named: list[str], hollow: set[str]) -> bool:
    """Return whether it is named as a part of another of its family: mimi_decoder of mimi."""
    return any(
        name.startswith(whole + "_") and family(config_class(name)) == family(config_class(whole))
        for whole in set(named) - hollow - IN_PARTS
    )


def _has_forward(architecture: str) -> bool:
    """Return whether the class runs as a whole; some only hold parts that are run one by one."""
    try:
        return model_class(architecture).forward is not nn.Module.forward
    except ImportError:  # of a package that is not installed: the check will say so
        return True


def model_class_name(architecture: str) -> str:
    """Return the name of the class that is run for an architecture, empty where there is none."""
    if architecture in MODEL_CLASSES:
        return MODEL_CLASSES[architecture]
    for task in TASKS:
        name = getattr(modeling_auto, task).get(architecture)
        if name:
            return name if isinstance(name, str) else name[0]
    return ""


def model_class(architecture: str) -> type[PreTrainedModel]:
    """Return the class that is run for an architecture, the bare model where there is one."""
    name = model_class_name(architecture)
    found = getattr(transformers, name, None)
    if found is None:  # not public: look in the modules of the family
        family_name = family(config_class(architecture))
        module = __import__(
            f"transformers.models.{family_name}.modeling_{family_name}", fromlist=[name]
        )
        found = getattr(module, name)
    return found
