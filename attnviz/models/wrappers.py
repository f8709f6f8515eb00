"""Objects around a model of transformers: compiled, with adapters, parallel, in a pipeline.

They are recognized by the names of their classes, so none of their libraries is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
    SequenceFeatureExtractor,
)
from transformers.image_processing_utils import BaseImageProcessor

from attnviz.errors import InputError
from attnviz.runtime.compat import uncompiled

# The name of a class, the way to the model inside, and the same in Python.
_WRAPPERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "OptimizedModule": ("._orig_mod", uncompiled),  # torch.compile(model)
    "PeftModel": (".base_model.model", lambda wrapper: wrapper.base_model.model),
    "PeftMixedModel": (".base_model.model", lambda wrapper: wrapper.base_model.model),
    "SentenceTransformer": ("[0].auto_model", lambda wrapper: wrapper[0].auto_model),
    "DataParallel": (".module", lambda wrapper: wrapper.module),
    "DistributedDataParallel": (".module", lambda wrapper: wrapper.module),
    "Pipeline": (".model", lambda wrapper: wrapper.model),
    "Trainer": (".model", lambda wrapper: wrapper.model),
}
_PROCESSORS = (
    "tokenizer", "processing_class", "processor", "image_processor", "feature_extractor",
)  # fmt: skip
_PROCESSOR_TYPES = (ProcessorMixin, BaseImageProcessor, SequenceFeatureExtractor)


@dataclass(frozen=True, eq=False)
class Unwrapped:
    """What an object holds: a model, its tokenizer and processor where it has them.

    note : which model was taken; None where the object was no wrapper.
    """

    source: Any
    tokenizer: PreTrainedTokenizerBase | None = None
    processor: Any = None
    note: str | None = None


def unwrap(source: Any) -> Unwrapped:
    """Return the model inside a wrapper, however deep; any other object as it is.

    Raises
    ------
    InputError
        The wrapper adds something to the model that its own attention does not show.
    """
    tokenizer = processor = None
    steps: list[str] = []
    while not isinstance(source, PreTrainedModel) and (name := _wrapper(source)) is not None:
        members = [getattr(source, member, None) for member in _PROCESSORS]
        tokenizer = tokenizer or _first(members, PreTrainedTokenizerBase)
        processor = processor or _first(members, _PROCESSOR_TYPES)
        path, inner = _WRAPPERS[name]
        if getattr(getattr(source, "active_peft_config", None), "is_prompt_learning", False):
            raise InputError(
                f"This {type(source).__name__} puts trained vectors before every text, which the "
                "model inside does not read. Pass the model without them: .get_base_model()."
            )
        try:
            model = inner(source)
        except (AttributeError, IndexError, TypeError, KeyError):
            model = None
        if not isinstance(model, nn.Module):
            raise InputError(
                f"This {type(source).__name__} holds no model of transformers ({path}). "
                "Pass the model itself."
            )
        steps.append(f"{type(source).__name__} ({path})")
        source = model
    if not steps:
        return Unwrapped(source)
    note = f"the model is the one inside {', inside '.join(reversed(steps))}"
    return Unwrapped(source, tokenizer, processor, note)


def adapters(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the adapters of PEFT that a model runs with, of any kind."""
    names: set[str] = set()
    for module in model.modules():
        is_adapter = hasattr(module, "base_layer") and hasattr(module, "adapter_layer_names")
        if not is_adapter or getattr(module, "disable_adapters", True):
            continue
        layer: Any = module
        weights = [getattr(layer, kind) for kind in layer.adapter_layer_names]
        names |= {name for name in layer.active_adapters if any(name in one for one in weights)}
        names |= {*layer.merged_adapters}
    return tuple(sorted(names))


def is_adapted(module: Any) -> bool:
    """Return whether a module is a layer of PEFT: a base layer with LoRA adapters."""
    return all(hasattr(module, name) for name in ("base_layer", "lora_A", "lora_B", "scaling"))


def _wrapper(source: Any) -> str | None:
    """Return the name in `_WRAPPERS` of an object's class or of one that it extends."""
    return next((cls.__name__ for cls in type(source).__mro__ if cls.__name__ in _WRAPPERS), None)


def _first(members: list[Any], kind: Any) -> Any:
    return next((member for member in members if isinstance(member, kind)), None)
