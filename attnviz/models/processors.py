"""The tokenizer and the processors of a model, which turn its inputs into numbers.

Which kinds of input a model takes follows from the signature of its forward, not from its family.
Image processors are those that compute with Pillow and NumPy, so that results do not depend on
whether torchvision is installed.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedTokenizerBase, ProcessorMixin, SequenceFeatureExtractor
from transformers.image_processing_utils import BaseImageProcessor

from attnviz.errors import InputError, ModelError
from attnviz.models.pretrained import read_json, refuse_remote_code, translate

_ARGUMENTS = {
    "text": ("input_ids",),
    "image": ("pixel_values",),
    "audio": ("input_features", "input_values"),
}
_FILES = ("processor_config.json", "preprocessor_config.json")
_AUTO_CLASSES = {"image": "AutoImageProcessor", "audio": "AutoFeatureExtractor"}


@dataclass(frozen=True, eq=False)
class Processors:
    """The processor of each kind of input; None where the model takes no such input.

    Attributes
    ----------
    multimodal : ProcessorMixin or None
        Puts placeholders for an image or a sound into the text, for models that read them there.
    """

    tokenizer: PreTrainedTokenizerBase | None = None
    image: BaseImageProcessor | None = None
    audio: SequenceFeatureExtractor | None = None
    multimodal: ProcessorMixin | None = None


def input_kinds(model: Any) -> tuple[str, ...]:
    """Return which of "text", "image" and "audio" a model, or a class of models, takes."""
    parameters = inspect.signature(model.forward).parameters
    return tuple(
        kind for kind, names in _ARGUMENTS.items() if any(name in parameters for name in names)
    )


def has_text_decoder(model: Any, config: Any) -> bool:
    """Tell whether the model is an encoder–decoder whose decoder takes a text of its own."""
    parameters = inspect.signature(model.forward).parameters
    return bool(getattr(config, "is_encoder_decoder", False)) and "decoder_input_ids" in parameters


def from_folder(name: str, folder: Path, kinds: tuple[str, ...]) -> Processors:
    """Load the processors for images and sounds that `folder` holds.

    Raises
    ------
    ModelError
        A processor is damaged or needs remote code.
    """
    files = [folder / file for file in _FILES if (folder / file).is_file()]
    if not files or not any(kind in _AUTO_CLASSES for kind in kinds):
        return Processors()
    for file in files:
        settings = read_json(name, file)
        keys = ("processor_class", "image_processor_type", "feature_extractor_type")
        class_name = next((settings[key] for key in keys if key in settings), None)
        refuse_remote_code(name, "the processor", "processor=", settings, class_name)
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    processors = Processors()
    if "text" in kinds:
        with translate(name, "the processor"):
            auto_class: Any = transformers.AutoProcessor
            multimodal = auto_class.from_pretrained(str(folder), **options)
        if isinstance(multimodal, ProcessorMixin):
            processors = from_object(multimodal)
    for kind in kinds:
        if kind in _AUTO_CLASSES and (kind == "image" or processors.audio is None):
            backend = {"backend": "pil"} if kind == "image" else {}
            with translate(name, "the processor"):
                auto_class = getattr(transformers, _AUTO_CLASSES[kind])
                processor = auto_class.from_pretrained(str(folder), **options, **backend)
            processors = replace(processors, **{kind: processor})
    return processors


def from_object(processor: Any) -> Processors:
    """Return the processors that a processor object of transformers holds."""
    if isinstance(processor, BaseImageProcessor):
        return Processors(image=processor)
    if isinstance(processor, SequenceFeatureExtractor):
        return Processors(audio=processor)
    if not isinstance(processor, ProcessorMixin):
        raise InputError(
            "expected a processor, an image processor or a feature extractor, "
            f"got {type(processor).__name__}; pass one of these"
        )
    audio = getattr(processor, "feature_extractor", None)
    audio = audio or getattr(processor, "audio_processor", None)
    return Processors(
        tokenizer=getattr(processor, "tokenizer", None),
        image=getattr(processor, "image_processor", None),
        audio=audio if isinstance(audio, SequenceFeatureExtractor) else None,
        multimodal=processor,
    )


def expect_processors(
    name: str, processors: Processors, kinds: tuple[str, ...], *, is_object: bool
) -> None:
    """Raise an error if an image or a sound that the model takes has no processor."""
    for kind in kinds:
        if kind in _AUTO_CLASSES and getattr(processors, kind) is None:
            raise (InputError if is_object else ModelError)(
                f"{name}: expected a processor that reads {kind}, found none; pass processor= "
                "(a processor, image processor or feature extractor, its folder or its hub name)"
            )
