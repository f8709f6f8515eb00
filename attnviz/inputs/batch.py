"""The inputs of a model as one batch of tensors, and the axis of each kind of input."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attnviz.errors import InputError, ModelError
from attnviz.inputs.audio import Sound, encode_sound, resample, sound_axis
from attnviz.inputs.decoder import encode_target
from attnviz.inputs.image import Picture, encode_image, image_axis, processed_image
from attnviz.inputs.multimodal import encode_multimodal, fills_placeholders
from attnviz.inputs.text import encode_texts, translate
from attnviz.models.pretrained import embedding_rows
from attnviz.models.processors import has_text_decoder, input_kinds
from attnviz.results import Axis

if TYPE_CHECKING:
    from attnviz.models.checkpoint import Checkpoint


_NAMES = {"text": "a text", "image": "an image", "audio": "a sound", "target": "a target"}
_OPTIONS = {
    "text": "Type one",
    "image": "Give one with --image (image=…)",
    "audio": "Give one with --audio (audio=…)",
    "target": "Give the text of its decoder with --target (target=…), or let it generate one "
    "with --generate (generate=…)",
}


@dataclass(frozen=True, eq=False)
class Batch:
    """N inputs as tensors; texts are padded to one length T.

    Attributes
    ----------
    inputs : dict of str to Tensor
        By the name of the model's argument; texts (N, T).
    axes : dict of str to tuple of Axis
        The positions of each of the N inputs, by kind: "text", "image", "audio" or "target" (the
        decoder's text in an encoder–decoder).
    cut_from : tuple of int or None
        How many tokens a text had before it was cut, else None.
    image : Tensor or None
        (H, W, 3) uint8, the picture that the model was given.
    sound : str or None
        The name of the sound.
    """

    inputs: dict[str, Tensor]
    axes: dict[str, tuple[Axis, ...]]
    cut_from: tuple[int | None, ...] = (None,)
    image: Tensor | None = None
    sound: str | None = None


def encode(
    checkpoint: Checkpoint,
    texts: Sequence[str] | None = None,
    pairs: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
    *,
    image: Picture | None = None,
    sound: Sound | None = None,
    truncate: bool = False,
    generating: bool = False,
) -> Batch:
    """Turn inputs into the tensors that the model takes, and describe their positions.

    Texts are padded on the right: position tables count from the left, so every text stays as it
    would be by itself. A special token that is spelled out in a text is plain text. An image or a
    sound comes with at most one text and one target, so that nothing is padded.

    Parameters
    ----------
    targets : sequence of str or None
        The decoder's text of each input, for an encoder–decoder.
    truncate : bool
        Cut an input that is longer than the model can read; otherwise it is an error.
    generating : bool
        An encoder–decoder generates its target.

    Raises
    ------
    InputError
        An input that the model needs is missing, or it cannot read the given kind; a text is not
        valid Unicode, has no word, or is longer than the model can read.
    ModelError
        The model reads neither text nor images nor audio.
    """
    given = {"text": texts, "image": image, "audio": sound, "target": targets}
    kinds = [kind for kind, value in given.items() if value is not None]
    _expect_kinds(checkpoint, kinds, generating=generating)
    if sound is not None and checkpoint.processors.audio is not None:
        sound = resample(sound, int(checkpoint.processors.audio.sampling_rate))
    with translate(checkpoint):
        inputs, axes, cut_from = _encode_sides(checkpoint, texts, pairs, image, sound, truncate)
        if targets is not None:
            decoder_inputs, axes["target"] = encode_target(checkpoint, targets, truncate=truncate)
            inputs |= decoder_inputs
        pixels = None if image is None else processed_image(checkpoint, image, inputs)
    if image is None and sound is None:  # their placeholders have no row in the embedding
        _expect_rows(checkpoint, inputs)
    name = None if sound is None else sound.name
    return Batch(_on_model(checkpoint, inputs), axes, cut_from, pixels, name)


def _expect_rows(checkpoint: Checkpoint, inputs: dict[str, Tensor]) -> None:
    """Raise ModelError for token ids that have no row in the embedding."""
    module = checkpoint.module
    for name, ids in inputs.items():
        if name not in ("input_ids", "decoder_input_ids"):
            continue
        # The decoder may have a vocabulary and an embedding of its own.
        embedder = module if name == "input_ids" else module.get_decoder()  # type: ignore[no-untyped-call]
        rows = embedding_rows(embedder)
        if rows is not None and not bool(((ids >= 0) & (ids < rows)).all()):
            raise ModelError(
                f"Expected ids from 0 to {rows - 1}, the rows of the embedding of "
                f"{checkpoint.name}, but its tokenizer gave ids from {int(ids.min())} to "
                f"{int(ids.max())}. Pass the tokenizer= of this model."
            )


def _encode_sides(
    checkpoint: Checkpoint,
    texts: Sequence[str] | None,
    pairs: Sequence[str] | None,
    image: Picture | None,
    sound: Sound | None,
    truncate: bool,
) -> tuple[dict[str, Tensor], dict[str, tuple[Axis, ...]], tuple[int | None, ...]]:
    """Encode the inputs of the encoder, or of a model without a decoder of its own."""
    inputs: dict[str, Tensor] = {}
    axes: dict[str, tuple[Axis, ...]] = {}
    cut_from: tuple[int | None, ...] = (None,)
    filled = [
        kind
        for kind, value in (("image", image), ("audio", sound))
        if value is not None and fills_placeholders(checkpoint, kind)
    ]
    if filled and texts is not None:
        inputs, axis = encode_multimodal(checkpoint, texts[0], image, sound)
        axes["text"] = (axis,)
    elif texts is not None:
        seconds = [None] * len(texts) if pairs is None else pairs
        text_pairs = list(zip(texts, seconds, strict=True))
        inputs, axes["text"], cut_from = encode_texts(checkpoint, text_pairs, truncate=truncate)
    if image is not None:
        if "image" not in filled:
            inputs |= encode_image(checkpoint, image)
        _describe(axes, "image", image_axis(checkpoint.module, inputs))
    if sound is not None:
        if "audio" not in filled:
            inputs |= encode_sound(checkpoint, sound, truncate=truncate)
        _describe(axes, "audio", sound_axis(checkpoint, sound, inputs))
    return inputs, axes, cut_from


def _describe(axes: dict[str, tuple[Axis, ...]], kind: str, axis: Axis | None) -> None:
    if axis is not None:
        axes[kind] = (axis,)


def _expect_kinds(checkpoint: Checkpoint, given: Sequence[str], *, generating: bool) -> None:
    """Raise InputError for a kind of input that the model does not read, or one that is missing."""
    module, name = checkpoint.module, checkpoint.name
    kinds = list(input_kinds(module))
    if not kinds:
        raise ModelError(
            f"Expected a model that reads text, images or sounds, but {name} reads "
            f"{module.main_input_name}. Choose another model."
        )
    if has_text_decoder(module, module.config) and not generating:
        kinds.append("target")
    needed = " and ".join(_NAMES[kind] for kind in kinds)
    for kind in given:
        if kind not in kinds:
            raise InputError(
                f"Expected {needed}, which is what {name} reads, got {_NAMES[kind]}. Leave it out, "
                "or choose a model that reads it."
            )
    for kind in kinds:
        optional = "text" in kinds and fills_placeholders(checkpoint, kind)
        if kind not in given and not optional:
            found = " and ".join(_NAMES[kind] for kind in given) or "nothing"
            raise InputError(
                f"Expected {needed}, which is what {name} reads, got {found}. {_OPTIONS[kind]}."
            )


def _on_model(checkpoint: Checkpoint, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that the model's forward takes, on its device, floats in its dtype."""
    module = checkpoint.module
    parameters = inspect.signature(module.forward).parameters
    return {
        name: value.to(checkpoint.device, module.dtype if value.is_floating_point() else None)
        for name, value in inputs.items()
        if isinstance(value, torch.Tensor) and name in parameters
    }


def expect_one_text(checkpoint: Checkpoint) -> None:
    """Raise ModelError unless a model reads one text and nothing else."""
    module = checkpoint.module
    if tuple(input_kinds(module)) != ("text",) or has_text_decoder(module, module.config):
        raise ModelError(
            f"Expected a model that reads one text and nothing else, but {checkpoint.name} does "
            "not. Choose an encoder (BERT) or a decoder (GPT-2, Llama)."
        )
