"""Objects around a model of transformers: compiled, with adapters, parallel, in a pipeline.

Whatever holds exactly one model is taken apart; none of its libraries is imported. A folder of
PEFT, a LoRA adapter without its base model, is loaded with it: from safetensors only, and all of
its weights must fit.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin
from transformers.feature_extraction_sequence_utils import SequenceFeatureExtractor
from transformers.image_processing_utils import BaseImageProcessor

from attnviz.errors import InputError, ModelError
from attnviz.models.pretrained import expect_finite, read_json, translate

_CONFIG, ADAPTER = "adapter_config.json", "adapter_model.safetensors"
_PROCESSORS = (
    "tokenizer", "processing_class", "processor", "image_processor", "feature_extractor",
)  # fmt: skip
_PROCESSOR_TYPES = (ProcessorMixin, BaseImageProcessor, SequenceFeatureExtractor)
_NOT_SEARCHED = (type, ModuleType, FunctionType, MethodType, Tensor, PreTrainedTokenizerBase)
_CONTAINERS = (list, tuple, dict)
_HOPS = 2  # objects that are no modules, one inside the other: an object with a pipeline
_MOST = 64  # items of a list or a dict; larger ones are data


def unwrap(source: Any) -> tuple[Any, PreTrainedTokenizerBase | None, Any, tuple[str, ...]]:
    """Return the only model of transformers inside an object; a model or a name as it is.

    Its tokenizer and its processor follow, if the object holds them, and notes: which model was
    taken, and what is left out.

    InputError: the object holds no model of transformers or several, or it adds something to the
    model that its own attention does not show.
    """
    if source is None or isinstance(source, PreTrainedModel | str | os.PathLike):
        return source, None, None, ()
    name, found = type(source).__name__, _models_in(source)
    if not found:
        raise InputError(
            f"{name} is not a checkpoint: give a folder, a hub name, a model of transformers, or "
            "an object that holds one. Of its weights alone, call model.load_state_dict(weights). "
            "What another module computes can be given to attnviz.from_weights."
        )
    if len(found) > 1:
        paths = ", ".join(f"{one.path} ({type(one.value).__name__})" for one in found)
        raise InputError(
            f"This {name} holds {len(found)} models of transformers: {paths}. Pass one of them, "
            "with its tokenizer= or processor=."
        )
    (place,) = found
    for owner in place.owners:
        config = getattr(owner.value, "active_peft_config", None)
        if getattr(config, "is_prompt_learning", False):
            raise InputError(
                f"This {type(owner.value).__name__} puts trained vectors before every text, which "
                "the model inside does not read. Pass the model without them: .get_base_model()."
            )
    note = f"the model is {name}{place.path}"
    if left_out := place.beside():
        note += f"; not shown: {', '.join(left_out)}"
    members = [member for owner in place.owners for member in owner.members()]
    tokenizers = (member for member in members if isinstance(member, PreTrainedTokenizerBase))
    processors = (member for member in members if isinstance(member, _PROCESSOR_TYPES))
    return place.value, next(tokenizers, None), next(processors, None), (note,)


@dataclass(frozen=True, eq=False)
class _Place:
    """An object, the path to it, and the objects that it lies in, the innermost first."""

    value: Any
    path: str = ""
    owners: tuple[_Place, ...] = ()

    def children(self) -> Iterator[_Place]:
        """Return what it holds, short and public names first."""
        value, members = self.value, dict(getattr(self.value, "__dict__", {}))
        is_indexed = isinstance(value, (*_CONTAINERS, nn.Sequential, nn.ModuleList, nn.ModuleDict))
        if isinstance(value, nn.Module):
            members |= dict(value.named_children())
        elif is_indexed:
            members = dict(value.items() if isinstance(value, dict) else enumerate(value))
        for name in sorted(members, key=lambda name: (str(name).startswith("_"), len(str(name)))):
            index = name if str(name).isdigit() else repr(name)
            path = f"{self.path}[{index}]" if is_indexed else f"{self.path}.{name}"
            yield _Place(members[name], path, (self, *self.owners))

    def members(self) -> Iterator[Any]:
        """Return what may be its tokenizer or processor: properties by their names come first."""
        for name in _PROCESSORS:
            with suppress(Exception):  # a property of another library
                yield getattr(self.value, name, None)
        yield from (child.value for child in self.children())

    def may_hold_a_model(self) -> bool:
        """Return whether the object is searched: it is no data, and not too deep inside others."""
        if isinstance(self.value, nn.Module):
            return True
        if isinstance(self.value, _CONTAINERS):
            return len(self.value) <= _MOST
        is_hop = (not isinstance(owner.value, (nn.Module, *_CONTAINERS)) for owner in self.owners)
        return sum(is_hop) < _HOPS and not isinstance(self.value, _NOT_SEARCHED)

    def beside(self) -> list[str]:
        """Return the modules that the objects around a model hold beside it."""
        own = set(self.value.modules())
        return [
            f"{child.path} ({type(child.value).__name__})"
            for owner in self.owners
            for child in owner.children()
            if isinstance(child.value, nn.Module) and own.isdisjoint(child.value.modules())
        ]


def _models_in(source: Any) -> list[_Place]:
    """Return the outermost models of transformers in an object, the nearest first."""
    found, seen, places = [], {id(source)}, deque([_Place(source)])
    while places:
        for child in places.popleft().children():
            if id(child.value) in seen:
                continue
            seen.add(id(child.value))
            if isinstance(child.value, PreTrainedModel):
                seen |= {id(module) for module in child.value.modules()}
                found.append(child)
            elif child.may_hold_a_model():
                places.append(child)
    return found


def base_of_adapter(name: str, folder: Path) -> str | None:
    """Return the base of a folder of LoRA, else None; ModelError for another kind of adapter."""
    if not (folder / _CONFIG).is_file() or any(folder.glob("model*.safetensors*")):
        return None
    settings = read_json(name, folder / _CONFIG)
    kind, base = settings.get("peft_type"), settings.get("base_model_name_or_path")
    if kind != "LORA":
        raise ModelError(
            f"{name}: {_CONFIG} is of kind {kind!r:.40}, and folders of LORA are read. Merge it: "
            "peft_model.merge_and_unload().save_pretrained(new). Vectors before every text cannot "
            f"be merged; give the model without them: {base!r:.200}."
        )
    if not isinstance(base, str) or not base:
        raise ModelError(f"{name}: {_CONFIG} names no base model. Add base_model_name_or_path.")
    if not (folder / ADAPTER).is_file():
        raise ModelError(
            f"{name}: there is no {ADAPTER}, and attnviz reads no pickles. Convert an adapter that "
            "you trust: peft.PeftModel.from_pretrained(base_model, old).save_pretrained(new)."
        )
    return base


def add_adapter(name: str, folder: Path, base: PreTrainedModel) -> PreTrainedModel:
    """Return a model with the adapter in a folder; its layers are replaced in place."""
    try:
        import peft
    except ImportError:
        raise ModelError(
            f"{name} is a LoRA adapter, which needs peft. Install it: pip install peft."
        ) from None
    with translate(name, "the adapter"):
        config = peft.PeftConfig.from_pretrained(str(folder))
        config.inference_mode = True
        config.megatron_config = None  # would import a module that the file names
        adapted = peft.PeftModel(base, config)
        report = adapted.load_adapter(str(folder), "default", torch_device=str(base.device))
    if lost := [*report.missing_keys, *report.unexpected_keys]:
        raise ModelError(
            f"{name}: the adapter does not fit {base.config.name_or_path}: {lost[0]:.100} is in "
            "one of them only. Use the base model that it was trained on."
        )
    module: Any = adapted.get_base_model()
    expect_finite(name, module)
    return module.eval().requires_grad_(False)  # type: ignore[no-any-return]


def adapters(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the adapters of PEFT that a model runs with, of any kind."""
    names: set[str] = set()
    for module in model.modules():
        is_adapter = hasattr(type(module), "adapter_layer_names") and hasattr(module, "base_layer")
        if not is_adapter or getattr(module, "disable_adapters", True):
            continue
        layer: Any = module
        weights = [getattr(layer, kind) for kind in layer.adapter_layer_names]
        names |= {name for name in layer.active_adapters if any(name in one for one in weights)}
        names |= {*layer.merged_adapters}
    return tuple(sorted(names))
