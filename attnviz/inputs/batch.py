"""What a model takes, and what each position is: text, images and sounds, whichever it reads."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attnviz.errors import InputError, ModelError
from attnviz.inputs.audio import (
    Sound,
    encode_sound,
    resample,
    sound_axis,
)
from attnviz.inputs.decoder import encode_target
from attnviz.inputs.image import (
    Photo,
    as_seen,
    encode_image,
    image_axis,
)
from attnviz.inputs.multimodal import encode_together, fills_placeholders
from attnviz.inputs.readers import reading
from attnviz.inputs.text import (
    encode_texts,
)
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
    "target": "Give the text that its decoder is to say with --target (target=…), or let it speak "
    "with --generate (generate=…)",
}


@dataclass(frozen=True, eq=False)
class Batch:
    """N inputs, texts among them padded to one length T.

    inputs : tensors by the name under which the model takes them, texts (N, T). axes : for each
    kind of input, "text", "image", "audio" or "target" (what the decoder of an encoder–decoder
    reads), the positions of the N of them. cut_from : how many tokens a text had that was cut,
    else None. image : (H, W, 3) uint8, the picture as the model saw it, or None. sound : what a
    sound is called, or None.
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
    image: Photo | None = None,
    sound: Sound | None = None,
    truncate: bool = False,
    generating: bool = False,
) -> Batch:
    """Turn what was given into what the model takes.

    Texts are padded on the right: position tables count from the left, so every text stays as it
    would be by itself. What is typed is text, also where it spells a special token. An image or a
    sound stands alone, with one text and one target at most, so that nothing is padded.

    Parameters
    ----------
    targets : for an encoder–decoder, what its decoder is to say of each input.
    truncate : cut what is longer than the model can read, instead of refusing it.
    generating : an encoder–decoder says its target by itself.

    Raises
    ------
    InputError : something that the model needs is missing, or it cannot read what was given; text
        that is no Unicode, holds no word, or is longer than the model can read.
    ModelError : the model reads neither text nor image nor sound.
    """
    given = {"text": texts, "image": image, "audio": sound, "target": targets}
    there = [kind for kind, what in given.items() if what is not None]
    _expect_what_is_read(checkpoint, there, generating=generating)
    if sound is not None and checkpoint.processors.audio is not None:
        sound = resample(sound, int(checkpoint.processors.audio.sampling_rate))
    with reading(checkpoint):
        inputs, axes, cut_from = _encode_sides(checkpoint, texts, pairs, image, sound, truncate)
        if targets is not None:
            read, axes["target"] = encode_target(checkpoint, targets, truncate=truncate)
            inputs |= read
        seen = None if image is None else as_seen(checkpoint, image, inputs)
    if image is None and sound is None:  # whose placeholders stand beside the words
        _expect_rows(checkpoint, inputs)
    named = None if sound is None else sound.name
    return Batch(_on_model(checkpoint, inputs), axes, cut_from, seen, named)


def _expect_rows(checkpoint: Checkpoint, inputs: dict[str, Tensor]) -> None:
    """Refuse ids of which the embedding has no row."""
    module = checkpoint.module
    for name, ids in inputs.items():
        if name not in ("input_ids", "decoder_input_ids"):
            continue
        # A decoder may have a vocabulary, and so an embedding, of its own.
        reader = module if name == "input_ids" else module.get_decoder()  # type: ignore[no-untyped-call]
        rows = embedding_rows(reader)
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
    image: Photo | None,
    sound: Sound | None,
    truncate: bool,
) -> tuple[dict[str, Tensor], dict[str, tuple[Axis, ...]], tuple[int | None, ...]]:
    """Encode what stands on the encoder's side, or all there is."""
    inputs: dict[str, Tensor] = {}
    axes: dict[str, tuple[Axis, ...]] = {}
    cut_from: tuple[int | None, ...] = (None,)
    filled = [
        kind
        for kind, what in (("image", image), ("audio", sound))
        if what is not None and fills_placeholders(checkpoint, kind)
    ]
    if filled and texts is not None:
        inputs, axis = encode_together(checkpoint, texts[0], image, sound)
        axes["text"] = (axis,)
    elif texts is not None:
        couples = [(text, None if pairs is None else pairs[n]) for n, text in enumerate(texts)]
        inputs, axes["text"], cut_from = encode_texts(checkpoint, couples, truncate=truncate)
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


def _expect_what_is_read(checkpoint: Checkpoint, given: Sequence[str], *, generating: bool) -> None:
    """Refuse a kind of input that the model does not read, and the lack of one that it needs."""
    module, name = checkpoint.module, checkpoint.name
    kinds = list(input_kinds(module))
    if not kinds:
        raise ModelError(
            f"Expected a model that reads text, images or sounds, but {name} reads "
            f"{module.main_input_name}. Choose another model."
        )
    if has_text_decoder(module, module.config) and not generating:
        kinds.append("target")
    read = " and ".join(_NAMES[kind] for kind in kinds)
    for kind in given:
        if kind not in kinds:
            raise InputError(
                f"Expected {read}, which is what {name} reads, got {_NAMES[kind]}. Leave it out, "
                "or choose a model that reads it."
            )
    for kind in kinds:
        optional = "text" in kinds and fills_placeholders(checkpoint, kind)
        if kind not in given and not optional:
            came = " and ".join(_NAMES[kind] for kind in given) or "nothing"
            raise InputError(
                f"Expected {read}, which is what {name} reads, got {came}. {_OPTIONS[kind]}."
            )


def _on_model(checkpoint: Checkpoint, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that the model's forward names, on its device, floats in its dtype."""
    module = checkpoint.module
    known = inspect.signature(module.forward).parameters
    return {
        name: value.to(checkpoint.device, module.dtype if value.is_floating_point() else None)
        for name, value in inputs.items()
        if isinstance(value, torch.Tensor) and name in known
    }


def expect_one_text(checkpoint: Checkpoint) -> None:
    """Raise ModelError unless a model reads one text and nothing else."""
    module = checkpoint.module
    if tuple(input_kinds(module)) != ("text",) or has_text_decoder(module, module.config):
        raise ModelError(
            f"Expected a model that reads one text and nothing else, but {checkpoint.name} does "
            "not. Choose an encoder (BERT) or a decoder (GPT-2, Llama)."
        )
