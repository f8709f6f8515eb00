"""What a model reads, and what turns it into the model's numbers: tokenizer and processors.

Which kinds of input a model reads is told by its forward, not by its family. Images go through the
processors that compute with Pillow and NumPy, the same wherever torchvision is installed or not.
"""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedTokenizerBase, ProcessorMixin, SequenceFeatureExtractor
from transformers.image_processing_utils import BaseImageProcessor

from attnviz.errors import InputError, ModelError
from attnviz.models.pretrained import refuse_remote_code, translated
from attnviz.models.weight_files import (
    MODEL_FILES,
    Location,
    locate,
    read_json,
)

_ARGUMENTS = {
    "text": ("input_ids",),
    "image": ("pixel_values",),
    "audio": ("input_features", "input_values"),
}
_FILES = ("processor_config.json", "preprocessor_config.json")
_AUTO = {"image": "AutoImageProcessor", "audio": "AutoFeatureExtractor"}


@dataclass(frozen=True, eq=False)
class Readers:
    """What turns each kind of input into numbers; None where a model reads no such thing.

    together : puts placeholders for an image or a sound into the text, for models that read them
    there.
    """

    tokenizer: PreTrainedTokenizerBase | None = None
    image: BaseImageProcessor | None = None
    audio: SequenceFeatureExtractor | None = None
    together: ProcessorMixin | None = None


def kinds_read(model: Any) -> tuple[str, ...]:
    """Return which of "text", "image" and "audio" a model, or a class of models, reads."""
    known = inspect.signature(model.forward).parameters
    return tuple(kind for kind, names in _ARGUMENTS.items() if any(name in known for name in names))


def is_two_sided(model: Any, config: Any) -> bool:
    """Tell whether a decoder reads a text of its own beside what the encoder reads."""
    known = inspect.signature(model.forward).parameters
    return bool(getattr(config, "is_encoder_decoder", False)) and "decoder_input_ids" in known


def has_processor(folder: Path) -> bool:
    """Tell whether a processor's settings lie in `folder`."""
    return any((folder / file).is_file() for file in _FILES)


def load_readers(
    name: str, folder: Path | None, given: Location | Any | None, kinds: tuple[str, ...]
) -> Readers:
    """Return the processors for images and sounds, as they were given or lie in `folder`.

    Raises
    ------
    ModelError : none is found, or it wants remote code.
    InputError : the object given is no processor.
    """
    if given is not None and not isinstance(given, str | os.PathLike):
        found = _taken(given)
    else:
        if given is not None:
            name, folder = locate(given, MODEL_FILES)
        found = Readers() if folder is None else _from_folder(name, folder, kinds)
    for kind in kinds:
        if kind in _AUTO and getattr(found, kind) is None:
            raise (InputError if folder is None else ModelError)(
                f"{name}: expected a processor that reads {kind}, found none; pass processor= "
                "(a processor, image processor or feature extractor, its folder or its hub name)"
            )
    return found


def _taken(given: Any) -> Readers:
    """Return what an object reads."""
    if isinstance(given, BaseImageProcessor):
        return Readers(image=given)
    if isinstance(given, SequenceFeatureExtractor):
        return Readers(audio=given)
    if not isinstance(given, ProcessorMixin):
        raise InputError(
            "expected a processor, an image processor or a feature extractor, "
            f"got {type(given).__name__}; pass one of these"
        )
    audio = getattr(given, "feature_extractor", None) or getattr(given, "audio_processor", None)
    return Readers(
        tokenizer=getattr(given, "tokenizer", None),
        image=getattr(given, "image_processor", None),
        audio=audio if isinstance(audio, SequenceFeatureExtractor) else None,
        together=given,
    )


def _from_folder(name: str, folder: Path, kinds: tuple[str, ...]) -> Readers:
    """Load what reads images and sounds, and what joins them with a text where there is such."""
    if not any(kind in _AUTO for kind in kinds) or not has_processor(folder):
        return Readers()
    for file in _FILES:
        if (folder / file).is_file():
            settings = read_json(name, folder / file)
            keys = ("processor_class", "image_processor_type", "feature_extractor_type")
            stated = next((settings[key] for key in keys if key in settings), None)
            refuse_remote_code(name, "the processor", "processor=", settings, stated)
    safely: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    found = Readers()
    if "text" in kinds:
        with translated(name, "the processor"):
            auto: Any = transformers.AutoProcessor
            together = auto.from_pretrained(str(folder), **safely)
        if isinstance(together, ProcessorMixin):
            found = _taken(together)
    for kind in kinds:
        if kind in _AUTO and (kind == "image" or found.audio is None):
            how = {"backend": "pil"} if kind == "image" else {}
            with translated(name, "the processor"):
                auto = getattr(transformers, _AUTO[kind])
                reader = auto.from_pretrained(str(folder), **safely, **how)
            found = replace(found, **{kind: reader})
    return found
