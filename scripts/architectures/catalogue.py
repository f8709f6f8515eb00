"""List the architectures of the installed transformers and the class that runs each."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterable
from functools import cache

import transformers
from torch import nn
from transformers import CONFIG_MAPPING, PretrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from architectures.overrides import FAMILIES, IN_PARTS, MODEL_CLASSES, VARIANTS

# Tasks to search for a class when an architecture has no bare model; the first match is used.
TASKS = [
    name
    for name in vars(modeling_auto)
    if name.startswith("MODEL_") and name.endswith("_MAPPING_NAMES")
]


def config_class(architecture: str) -> type[PretrainedConfig]:
    """Return the configuration class of an architecture."""
    return CONFIG_MAPPING[architecture]


def family(cls: type) -> str:
    """Return the transformers folder that defines a class: one family of models."""
    return cls.__module__.split(".")[2] if cls.__module__.startswith("transformers.models.") else ""


def _components(architecture: str) -> set[str]:
    """Return the model types of the components of an architecture, within its own family.

    A text or vision tower is not listed separately from the model that contains it.
    """
    cls = config_class(architecture)
    components = list((getattr(cls, "sub_configs", None) or {}).values())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            values = vars(cls()).values()
        components += [type(value) for value in values if isinstance(value, PretrainedConfig)]
    except Exception:  # a few need arguments; the declared parts are enough then
        pass
    return {part.model_type for part in components if family(part) == family(cls)} - {architecture}


@cache
def architectures() -> list[str]:
    """Return every architecture: model types that are not a component of another in their family.

    Model types that are aliases for the same configuration and model are counted once.
    """
    named = [name for name in CONFIG_MAPPING if model_class_name(name)]
    hollow = {name for name in named if not _has_forward(name)}
    parts = set().union(*(_components(name) for name in named if name not in hollow | IN_PARTS))
    chosen: dict[tuple[type, str], str] = {}
    for name in sorted(named, key=lambda name: (config_class(name).model_type != name, name)):
        if name not in parts | hollow and not _is_component(name, named, hollow):
            chosen.setdefault((config_class(name), model_class_name(name)), name)
    return sorted(chosen.values())


def owners() -> dict[str, str]:
    """Map each component or alias to the architecture that it belongs to."""
    checked = architectures()
    owner_of: dict[str, str] = {}
    for whole in checked:
        for part in _components(whole) | {config_class(whole).model_type}:
            owner_of.setdefault(part, whole)
    folder = {whole: family(config_class(whole)) for whole in checked}
    for name in CONFIG_MAPPING:
        same = [whole for whole in checked if folder[whole] == family(config_class(name))]
        near = [whole for whole in same if name.startswith(whole)]
        if same:
            owner_of.setdefault(name, max(near, key=len, default=min(same, key=len)))
    known = owner_of.keys() - set(checked)
    return {name: owner_of[name] for name in sorted(CONFIG_MAPPING) if name in known}


def _is_component(name: str, named: list[str], hollow: set[str]) -> bool:
    """Return whether the name marks a component of another model in its family: mimi_decoder."""
    return any(
        name.startswith(whole + "_") and family(config_class(name)) == family(config_class(whole))
        for whole in set(named) - hollow - IN_PARTS
    )


def _has_forward(architecture: str) -> bool:
    """Return whether the class has a forward; some only hold components that run separately."""
    try:
        return model_class(architecture).forward is not nn.Module.forward
    except ImportError:  # from a package that is not installed: the check reports it
        return True


def model_class_name(architecture: str) -> str:
    """Return the name of the class that runs an architecture, or "" if there is none."""
    if architecture in MODEL_CLASSES:
        return MODEL_CLASSES[architecture]
    for task in TASKS:
        name = getattr(modeling_auto, task).get(architecture)
        if name:
            return name if isinstance(name, str) else name[0]
    return ""


def used(names: Iterable[str]) -> list[str]:
    """Return architectures, with settings that are not the default and with a head, for `use`."""
    variants = [f"{name}?{json.dumps(one)}" for name in names for one in VARIANTS.get(name, [])]
    families = [name for name in names if name in FAMILIES]
    heads = [f"{name}/{head}" for name in families for head in head_classes(name)]
    return [*names, *variants, *heads]


def head_classes(architecture: str) -> list[str]:
    """Return the classes of an architecture with a head, as BertForMaskedLM."""
    base = model_class(architecture)
    folder = sys.modules[base.__module__.rpartition(".")[0]]
    named = [(name, getattr(folder, name)) for name in dir(folder) if "For" in name]
    return [
        name
        for name, cls in named
        if isinstance(cls, type)
        and issubclass(cls, PreTrainedModel)
        and cls.config_class is config_class(architecture)
        and cls is not base
        and cls.forward is not nn.Module.forward
    ]


def model_class(architecture: str, name: str = "") -> type[PreTrainedModel]:
    """Return the class of this name, or the one that runs an architecture: the bare model."""
    name = name or model_class_name(architecture)
    cls = getattr(transformers, name, None)
    if cls is None:  # not public: search the modules of the family
        family_name = family(config_class(architecture))
        module = __import__(
            f"transformers.models.{family_name}.modeling_{family_name}", fromlist=[name]
        )
        cls = getattr(module, name)
    return cls
