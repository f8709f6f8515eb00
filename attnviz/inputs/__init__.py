"""The inputs of a model: checked, then encoded as one batch with an axis for each kind.

Inputs may also be given as the arguments of the model's forward, by name: everything that it takes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard, TypeVar

import numpy as np
import torch
from torch import Tensor

from attnviz.errors import (
    InputError,
    ModelError,
    did_you_mean,
    expect_words,
    positive_number,
    refuse_given,
)
from attnviz.formula.attention import additive_mask
from attnviz.inputs import audio as audio_inputs
from attnviz.inputs import image as image_inputs
from attnviz.inputs.text import (
    EncodedInput,
    continue_axis,
    encode_ids,
    encode_target,
    encode_texts,
    own_decoder_ids,
    translate,
)
from attnviz.inputs.tokens import (
    BOOKKEEPING,
    Chat,
    TokenIds,
    TokensSource,
    is_text,
    parse_text,
    read_labels,
)
from attnviz.io import is_file, read_arrays, read_text
from attnviz.models import pretrained
from attnviz.models.checkpoint import Checkpoint
from attnviz.results import Axis, InputCheck, Waveform
from attnviz.results.text import counted
from attnviz.runtime.compat import attention_implementation
from attnviz.runtime.libraries import copy_to, dtype_of

Axes: TypeAlias = dict[str, tuple[Axis, ...]]  # of N inputs, by kind
_Texts: TypeAlias = tuple[str | None, str | None]  # a text and its second one, if known
ArgumentSource: TypeAlias = "Mapping[str, Any] | str | os.PathLike[str]"
T = TypeVar("T")
Many: TypeAlias = list[T] | tuple[T, ...]
_NAMES = {"text": "a text", "image": "an image", "audio": "a sound", "target": "a target"}
_OPTIONS = {
    "text": "Type one",
    "image": "Give one with --image (image=…)",
    "audio": "Give one with --audio (audio=…)",
    "target": "Give the text of its decoder with --target (target=…), or let it generate one "
    "with --generate (generate=…)",
}
_MOST_BYTES = 2**26  # of a .json file
_REFUSED = {
    "past_key_values": "the model changes it while it runs. Give the whole text",
    "return_dict": "its outputs are read by name. Leave it out",
}
# Arguments that say how to run, or that are made of the others where they are not given.
_MADE = re.compile(
    r"(input_|inputs_|attention_|head_|p_|perm_)?(ids|mask|embeds)|token_type_ids|position_ids"
    r"|\w*label\w*|\w*position(s|_ids)|(past|use|output|return|encoder|decoder|cache|is|logits)_\w*"
    r"|mems|cache|lengths|target_mapping|cls_index|state|reduc\w+|(kw)?args|num_\w+|self"
)


@dataclass(frozen=True, eq=False)
class Inputs:
    """N inputs by kind; a kind that was not given is None."""

    texts: Sequence[str | TokenIds | Chat] | None = None
    pairs: Many[str] | None = None  # the second texts of pairs
    targets: Sequence[str | TokenIds] | None = None  # texts of the decoder, or ids
    pictures: list[image_inputs.Picture] | None = None  # images or videos
    sounds: list[audio_inputs.Sound] | None = None
    several: bool = False  # whether the caller gave a list
    generate: int | None = None  # the number of tokens that the model generates
    arguments: Arguments | None = None  # of the model's forward; then no other kind is given

    def one_by_one(self) -> Iterator[Inputs]:
        """Yield each input by itself."""
        kinds = {name: value for name, value in vars(self).items() if isinstance(value, list)}
        for n in range(len(self.pictures or self.sounds or self.texts or ())):
            one: dict[str, Any] = {name: [items[n]] for name, items in kinds.items()}
            yield replace(self, several=False, **one)


def parse_inputs(
    text: Any = None,
    *,
    pair: str | Many[str] | None = None,
    target: TokensSource | Many[str] | Many[TokensSource] | None = None,
    image: image_inputs.ImageSource | Many[image_inputs.ImageSource] | None = None,
    audio: audio_inputs.AudioSource | Many[audio_inputs.AudioSource] | None = None,
    sampling_rate: int | None = None,
    inputs: ArgumentSource | None = None,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    generate: int | None = None,
) -> Inputs:
    """Read and check the inputs; each kind must have one entry for each input."""
    if generate is not None:
        generate = positive_number(generate, "generate")
    if sampling_rate is not None and audio is None:
        raise InputError("sampling_rate needs a sound: give it as audio=….")
    others = {"text": text, "pair": pair, "target": target, "image": image, "audio": audio}
    if inputs is None and _are_arguments(text):
        inputs, others["text"] = text, None
    if inputs is not None:
        why = "inputs holds all that the model reads. Leave it out, or put its tensors there."
        refuse_given(why, **others)
        arguments = parse_arguments(inputs, queries, keys)
        if queries is not None or keys is not None or not is_text(arguments.values):
            return Inputs(generate=generate, arguments=arguments)
        text = arguments.values
    elif queries is not None or keys is not None:
        raise InputError("queries and keys are labels of inputs=. Leave them out.")
    if generate is not None and target is not None:
        raise InputError("A target and a number of tokens to generate exclude each other.")
    texts, several_texts = read_texts(text, prompted=generate is not None)
    targets, _ = read_texts(target, "target")
    if any(isinstance(one, Chat) for one in targets or ()):
        raise InputError("The target is a chat. Give the text of its answer.")
    parsed = Inputs(
        texts=texts,
        pairs=read_texts(pair, "pair", ids=False)[0],
        targets=targets,
        pictures=_map(image, image_inputs.read_image),
        sounds=_map(audio, lambda item: audio_inputs.read_sound(item, sampling_rate)),
        several=several_texts or any(isinstance(value, list | tuple) for value in (image, audio)),
        generate=generate,
    )
    kinds = {"text": parsed.texts, "image": parsed.pictures, "sound": parsed.sounds}
    kinds |= {"pair": parsed.pairs, "target": parsed.targets}
    counts = {name: len(items) for name, items in kinds.items() if items is not None}
    first = next((name for name in ("text", "image", "sound") if name in counts), None)
    if first is None:
        raise InputError("There is nothing to read: give a text, an image or a sound.")
    if "pair" in counts and "text" not in counts:
        raise InputError("A pair is a second text, and there is no first. Leave pair out.")
    if not (count := counts[first]):
        raise InputError(f"The list has no {first}: give at least one.")
    for name, number in counts.items():
        if number != count:
            raise InputError(
                f"There {'is' if count == 1 else 'are'} {counted(count, first)} but "
                f"{counted(number, name)}: give one for each."
            )
    if not all(isinstance(source, str) for source in texts or ()):
        for name in ("image", "sound", "pair"):
            if name in counts:
                raise InputError(
                    f"Ids and messages are read alone, without the {name}. Give a text, or leave "
                    f"the {name} out."
                )
    return parsed


def _are_arguments(value: Any) -> bool:
    """Return whether what is given as a text is more than ids, or other numbers."""
    if isinstance(value, Mapping):
        return "role" not in value and not is_text(value)
    return "float" in str(getattr(value, "dtype", ""))


def read_texts(
    value: Any, kind: str = "text", *, ids: bool = True, prompted: bool = False
) -> tuple[list[Any] | None, bool]:
    """Return the texts, as strings, ids or messages, and whether there may be several."""
    if getattr(getattr(value, "dtype", None), "kind", "-") in "OUT":  # a column of a table
        value = value.tolist()

    def parse(item: Any, subject: str) -> list[TokenIds | Chat] | None:
        return parse_text(item, subject, prompted=prompted) if ids else None

    if value is None:
        return None, False
    if (one := parse(value, f"The {kind}")) is not None or not isinstance(value, list | tuple):
        texts: list[Any] = one or [expect_words(value, f"The {kind}")]
        return texts, len(texts) > 1
    texts = []
    for number, item in enumerate(value, start=1):
        subject = f"{kind.capitalize()} {number:,} of {len(value):,}"
        texts += parse(item, subject) or [expect_words(item, subject)]
    return texts, True


def _map(value: Any, read: Callable[[Any], T]) -> list[T] | None:
    if value is None:
        return None
    return [read(item) for item in (value if isinstance(value, list | tuple) else [value])]


@dataclass(frozen=True, eq=False)
class Batch:
    """N inputs as tensors; texts are padded to one length T."""

    inputs: dict[str, Any]  # by the name of the model's argument; texts (N, T)
    axes: Axes  # of each of the N inputs, by "text", "image", "audio" or "target" (of a decoder)
    image: Tensor | None = None  # (H, W, 3) uint8, the picture as the model saw it
    sound: str | None = None  # the name of the sound
    waveform: Waveform | None = None  # the outline of the sound
    steps: audio_inputs.TimeSteps | None = None  # where the sound is in `inputs`
    details: tuple[EncodedInput, ...] = ()  # what is known of each input


def encode(
    checkpoint: Checkpoint,
    inputs: Inputs | Sequence[str | TokenIds | Chat],
    *,
    truncate: bool = False,
) -> Batch:
    """Turn inputs that run at once into the tensors of the model, and describe their positions.

    Texts are padded on the right: position tables count from the left, so every text stays as it
    would be by itself. A special token that is typed in a text is plain text, unless the checkpoint
    parses them. An image or a sound comes with at most one text and one target, so that nothing is
    padded. InputError for an input that is too long, unless it may be cut.
    """
    module = checkpoint.module
    if not isinstance(inputs, Inputs):
        inputs = Inputs(inputs)
    generating, texts, targets = inputs.generate is not None, inputs.texts, inputs.targets
    if inputs.arguments is not None:
        return _encode_arguments(checkpoint, inputs.arguments, generating=generating)
    checkpoint.expect_processors()
    image = inputs.pictures[0] if inputs.pictures else None
    sound = inputs.sounds[0] if inputs.sounds else None
    sources = {"text": texts, "image": image, "audio": sound, "target": targets}
    kinds = [kind for kind, value in sources.items() if value is not None]
    _expect_kinds(checkpoint, kinds, generating=generating)
    if sound is not None and checkpoint.processors.audio is not None:
        sound = audio_inputs.resample(sound, int(checkpoint.processors.audio.sampling_rate))
    tensors: dict[str, Tensor] = {}
    axes: Axes = {}
    details: Sequence[EncodedInput] = [EncodedInput()] * len(texts or (None,))
    more = [note for media in (image, sound) if media is not None for note in media.notes]
    pixels = steps = None
    with translate(checkpoint):
        filled = [kind for kind in kinds if kind in checkpoint.placeholders]
        if filled and texts is not None:
            tensors, axis, detail = image_inputs.encode_multimodal(
                checkpoint, str(texts[0]), image, sound
            )
            axes["text"], details = (axis,), [detail]
        elif texts is not None:
            seconds: Sequence[str | None] = inputs.pairs or [None] * len(texts)
            text_pairs = list(zip(texts, seconds, strict=True))
            tensors, axes["text"], details = encode_texts(checkpoint, text_pairs, truncate=truncate)
        if image is not None:
            if "image" not in filled:
                tensors |= image_inputs.encode_image(checkpoint, image)
            if (axis_of_image := image_inputs.image_axis(module, tensors)) is not None:
                axes["image"] = (axis_of_image,)
        if sound is not None:
            if "audio" not in filled:
                encoded, note = audio_inputs.encode_sound(checkpoint, sound, truncate=truncate)
                tensors |= encoded
                more += [note] if note else []
            if (steps := audio_inputs.time_steps(checkpoint, sound, tensors)) is not None:
                axes["audio"] = (audio_inputs.sound_axis(checkpoint, sound, steps, tensors),)
        if targets is not None:
            encoded, axes["target"], of_target = encode_target(
                checkpoint, targets, truncate=truncate
            )
            tensors |= encoded
            details = [one + other for one, other in zip(details, of_target, strict=True)]
        if image is not None:
            pixels = image_inputs.processed_image(checkpoint, image, tensors)
    if image is None and sound is None:  # their placeholders have no row in the embedding
        _expect_rows(checkpoint, tensors)
    names = pretrained.forward_parameters(module)
    tensors = placed(checkpoint, {name: t for name, t in tensors.items() if name in names})
    if image is not None:
        axes |= image_inputs.feature_map_axes(module, tensors)
    axes, own = _own_target(checkpoint, tensors, axes, generating=generating)
    more += [*own, *_unfilled_note(checkpoint, list(tensors))]
    if any("ForMultipleChoice" in cls.__name__ for cls in type(module).__mro__):  # (N, choices, T)
        tensors = {name: tensor[:, None] for name, tensor in tensors.items()}
    return Batch(
        tensors,
        axes,
        pixels,
        sound=None if sound is None else sound.name,
        waveform=None if sound is None else audio_inputs.waveform(sound),
        steps=steps,
        details=tuple(replace(detail, notes=(*more, *detail.notes)) for detail in details),
    )


def _encode_arguments(checkpoint: Checkpoint, arguments: Arguments, *, generating: bool) -> Batch:
    with translate(checkpoint):
        inputs, axes, texts = _read_arguments(checkpoint, arguments)
    inputs = placed(checkpoint, inputs)
    has_image = "image" in axes and len(axes["image"]) == 1
    axes, own = _own_target(checkpoint, inputs, axes, generating=generating)
    lost = sorted({"attention_mask", "token_type_ids"} & arguments.values.keys() - inputs.keys())
    read = f"read as arguments of the model: {Arguments(inputs).summary}"
    differs = (f"{', '.join(lost)} left out: the model takes no such argument",) if lost else ()
    if generating and len(texts) > 1:
        raise InputError(f"inputs holds {len(texts)} inputs. Give one to generate after it.")
    return Batch(
        inputs,
        axes,
        image=image_inputs.processed_image(checkpoint, None, inputs) if has_image else None,
        details=tuple(
            EncodedInput(InputCheck(True, differs), (read, *differs, *own), texts=pair)
            for pair in texts
        ),
    )


def placed(checkpoint: Checkpoint, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return inputs on the device of the model, with numbers in its precision."""
    device, dtype = checkpoint.device, dtype_of(checkpoint.module)
    is_cast = checkpoint.is_pretrained
    return {
        name: copy_to(device, value.to(dtype) if is_cast and value.is_floating_point() else value)
        if isinstance(value, Tensor)
        else value
        for name, value in inputs.items()
    }


def _own_target(
    checkpoint: Checkpoint, inputs: Mapping[str, Any], axes: Axes, *, generating: bool
) -> tuple[Axes, list[str]]:
    """Return the axes with that of a target that the model makes itself, and a note on it."""
    module = checkpoint.module
    is_given = "decoder_input_ids" in inputs or "decoder_inputs_embeds" in inputs
    if is_given or generating or not pretrained.has_text_decoder(module):
        return axes, []
    ids = own_decoder_ids(module, inputs)
    if ids is None:
        raise InputError(
            f"{checkpoint.name} reads {_NAMES['target']}, but it is missing. Add decoder_input_ids "
            "to the inputs, or give a text and its target."
        )
    target = tuple(continue_axis(checkpoint.target_tokenizer, None, row) for row in ids)
    return {**axes, "target": target}, ["the model makes the text of its decoder itself"]


def _unfilled_note(checkpoint: Checkpoint, given: Sequence[str]) -> tuple[str, ...]:
    """Return a note on what else a model of texts reads, and was not given."""
    if pretrained.input_kinds(checkpoint.module) != ("text",):
        return ()
    names = [n for n in pretrained.forward_parameters(checkpoint.module) if not _MADE.fullmatch(n)]
    if not (absent := [name for name in names if name not in given]):
        return ()
    return (
        f"the model also reads {', '.join(absent)}, which was not given: its default was taken "
        "(inputs=)",
    )


def _expect_rows(checkpoint: Checkpoint, inputs: Mapping[str, Any]) -> None:
    module = checkpoint.module
    for name in ("input_ids", "decoder_input_ids"):
        if (ids := inputs.get(name)) is None:
            continue
        # The decoder may have another vocabulary and embedding.
        embedder = module if name == "input_ids" else module.get_decoder()  # type: ignore[no-untyped-call]
        if outside := pretrained.outside_embedding(embedder, ids):
            raise ModelError(
                f"The ids of the tokenizer of {checkpoint.name} {outside}. Pass the tokenizer= of "
                "this model."
            )


def _expect_kinds(checkpoint: Checkpoint, kinds: Sequence[str], *, generating: bool) -> None:
    module, name = checkpoint.module, checkpoint.name
    readable = list(pretrained.input_kinds(module))
    if not readable:
        raise ModelError(
            f"{name} reads {pretrained.main_input(module)}. Give it by name: "
            f"inputs={{'{pretrained.main_input(module)}': …}}."
        )
    if pretrained.has_text_decoder(module) and not generating:
        readable.append("target")
    makes_target = "target" in readable and not module.can_generate()
    needed = f"{name} reads {' and '.join(_NAMES[kind] for kind in readable)}"
    for kind in kinds:
        if kind not in readable:
            raise InputError(
                f"{needed}, not {_NAMES[kind]}. Leave it out, or choose a model that reads it."
            )
    for kind in readable:
        is_optional = "text" in readable and kind in checkpoint.placeholders
        if kind not in kinds and not is_optional and not (kind == "target" and makes_target):
            raise InputError(f"{needed}, but {_NAMES[kind]} is missing. {_OPTIONS[kind]}.")


def expect_one_text(checkpoint: Checkpoint) -> None:
    """Raise ModelError unless a model reads one text and nothing else."""
    module = checkpoint.module
    if tuple(pretrained.input_kinds(module)) != ("text",) or pretrained.has_text_decoder(module):
        raise ModelError(
            f"{checkpoint.name} does not read one text and nothing else: choose an encoder (BERT) "
            "or a decoder (GPT-2, Llama)."
        )


@dataclass(frozen=True, eq=False)
class Arguments:
    """Arguments of a model's forward."""

    values: dict[str, Any]  # by name, or by place; "" stands for the main input
    queries: tuple[str, ...] | None = None  # labels of the rows of the maps
    keys: tuple[str, ...] | None = None  # labels of the columns

    @property
    def summary(self) -> str:
        """The names and shapes: "past_values (1 × 32 × 1)"."""
        shapes = {
            name: " × ".join(map(str, value.shape)) if isinstance(value, Tensor) else ""
            for name, value in self.values.items()
        }
        return ", ".join(f"{name} ({shape})" if shape else name for name, shape in shapes.items())


def parse_arguments(
    source: Any, queries: Sequence[str] | None = None, keys: Sequence[str] | None = None
) -> Arguments:
    """Return the arguments in a mapping or a file; or a tuple of them, or the main one alone."""
    if isinstance(source, str | os.PathLike):
        source = _read_file(Path(source))
    if isinstance(source, tuple):
        source = {str(place): value for place, value in enumerate(source)}
    values = source if isinstance(source, Mapping) else {"": source}
    if not values or not all(isinstance(name, str) for name in values):
        raise InputError(
            "inputs is a mapping from the names of the model's arguments to their values, such as "
            "{'input_ids': …, 'position_ids': …}."
        )
    return Arguments(
        {name: _tensor(value, name) for name, value in values.items()},
        parse_labels(queries, "queries"),
        parse_labels(keys, "keys"),
    )


def parse_labels(labels: Any, what: str) -> tuple[str, ...] | None:
    """Return a list of labels; None if there is none."""
    if labels is None:
        return None
    if isinstance(labels, str) or not isinstance(labels, Sequence | np.ndarray):
        raise InputError(f"{what} must be a list of labels, not {labels!r:.40}. Split the text.")
    for label in labels:
        if not isinstance(label, str):
            raise InputError(f"{what} must be strings, not {label!r:.40}.")
    return tuple(map(str, labels))


def _tensor(value: Any, name: str) -> Any:
    """Return an array of numbers, or a list of them, as a tensor; anything else as it is."""
    if isinstance(value, np.ndarray | list | tuple):
        try:
            array = np.array(value)
            return torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"{name or 'inputs'} is not an array of numbers. Give one, or a tensor."
            ) from error
    return value


def _read_file(path: Path) -> dict[str, Any]:
    if not is_file(path):
        raise InputError(f"There is no file of inputs {path}: check the path.")
    if path.suffix.lower() in (".safetensors", ".npz"):
        return read_arrays(path)
    if path.suffix.lower() != ".json":
        raise InputError(f"{path} is not an input file. Give a .safetensors, .npz or .json file.")
    text = read_text(path, most=_MOST_BYTES)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error}. Save the inputs again.") from error
    return content if isinstance(content, dict) else {"": content}


def _read_arguments(
    checkpoint: Checkpoint, given: Arguments
) -> tuple[dict[str, Any], Axes, tuple[_Texts, ...]]:
    """Return arguments as the model takes them, the axes of N inputs by kind, and their N texts."""
    module = checkpoint.module
    names = pretrained.forward_parameters(module)
    main_name = pretrained.main_input(module)
    named = {"": main_name, **{str(place): name for place, name in enumerate(names)}}
    values = {named.get(name, name): value for name, value in given.values.items()}
    for name in values:
        if reason := _REFUSED.get(name):
            raise InputError(f"{name} is not read: {reason}.")
        if name not in names and name not in BOOKKEEPING:
            hint = did_you_mean(name, names) or f"It takes {', '.join(names)}."
            raise InputError(f"{type(module).__name__} takes no argument {name!r:.60}. {hint}")
    values = {name: value for name, value in values.items() if name in names}
    mask = values.get("attention_mask")
    is_fused = checkpoint.is_pretrained and attention_implementation(module.config) != "eager"
    if isinstance(mask, Tensor) and mask.dim() == 4 and is_fused:
        # The fused attention hides by a boolean one; the eager one, which is recorded, adds it.
        values["attention_mask"] = additive_mask(mask, module.dtype)
    main = values.get(main_name)
    if main is not None and (not isinstance(main, Tensor) or not main.dim() or not main.numel()):
        raise InputError(f"{main_name} holds no numbers. Give an array of them.")
    for name in ("input_ids", "decoder_input_ids"):
        if isinstance(ids := values.get(name), Tensor):
            _expect_ids(checkpoint, name, ids)
    axes: Axes = {}
    texts: tuple[_Texts, ...] = ((None, None),)
    if _are_ids(values.get("input_ids"), mask):
        read = _text_axes(checkpoint, values)
        axes["text"], texts = tuple(axis for axis, _ in read), tuple(text for _, text in read)
    if "pixel_values" in values and not (axes and "image" in checkpoint.placeholders):
        pixels, grids = values["pixel_values"], values.get("image_grid_thw", ())
        # The patches of several images may lie in one row, where each image has its own grid.
        images = len(pixels) if pixels.dim() > 3 else int(len(grids) == 1)
        axis = image_inputs.image_axis(module, values) if images else None
        axes |= {"image": (axis,) * images} if axis is not None else {}
    elif "pixel_values" in values and len(axes["text"]) == 1:
        axes["text"] = (
            image_inputs.fill_placeholders(checkpoint, axes["text"][0], "image", values, None),
        )
    tokenizer = checkpoint.target_tokenizer
    decoded = values.get("decoder_input_ids")
    count = pretrained.count_inputs(module, values)
    if _are_ids(decoded):
        # Of a sound, each token is several codes, or each codebook has a row.
        of_codebooks = len(decoded) > count and len(decoded) % count == 0
        if decoded.dim() == 2 and not of_codebooks:
            axes["target"] = tuple(continue_axis(tokenizer, None, row) for row in decoded)
    count = max([count, *map(len, axes.values())])
    for kind, of in axes.items():
        if len(of) not in (1, count):
            raise InputError(
                f"inputs holds {counted(len(of), kind)} among {count} inputs. Give one for each, "
                "or one for all."
            )
        axes[kind] = of * (count // len(of))
    return values, _labeled(axes, given, count), texts * (count // len(texts))


def _expect_ids(checkpoint: Checkpoint, name: str, ids: Tensor) -> None:
    module = checkpoint.module
    if ids.is_floating_point():
        raise InputError(f"{name} are whole numbers, one for each token. Give those.")
    if ids.dim() < 2:
        raise InputError(f"{name} are rows, one for each input: (N, T). Give {name}[None].")
    # Placeholders of images and sounds may have no row; a decoder may have another embedding.
    is_text = pretrained.input_kinds(module) == ("text",) and name == "input_ids"
    if is_text and (outside := pretrained.outside_embedding(module, ids)):
        raise InputError(f"{name} {outside}. Give ids of {checkpoint.name}.")


def _are_ids(value: Any, mask: Any = None) -> TypeGuard[Tensor]:
    """Whether a value is one id for each token; of several, the mask has no last dimension."""
    is_code = isinstance(mask, Tensor) and mask.shape == getattr(value, "shape", ())[:-1]
    is_whole = isinstance(value, Tensor) and value.dim() >= 2 and not value.is_floating_point()
    return is_whole and not is_code


def _text_axes(checkpoint: Checkpoint, values: Mapping[str, Any]) -> list[tuple[Axis, _Texts]]:
    """Return the axis and the text of each row of ids; padding at both ends is marked."""
    tokenizer, rows = checkpoint.tokenizer, values["input_ids"].flatten(0, -2)
    mask, types = (values.get(name) for name in ("attention_mask", "token_type_ids"))
    mask, types = (
        value.reshape(rows.shape).tolist()
        if isinstance(value, Tensor) and value.numel() == rows.numel()
        else [None] * len(rows)
        for value in (mask, types)
    )
    read: list[tuple[Axis, _Texts]] = []
    for ids, shown, segments in zip(rows.tolist(), mask, types, strict=True):
        axis = Axis.plain(read_labels(ids, None), special=[False] * len(ids))
        texts: _Texts = (None, None)
        if tokenizer is not None:
            source = TokenIds(tuple(ids), None if segments is None else tuple(segments))
            encoded = encode_ids(tokenizer, source)
            axis, texts = encoded.axis(tokenizer, len(ids)), encoded.texts
        if kept := [n for n, number in enumerate(shown or ()) if number > 0]:
            padding = tuple(not kept[0] <= n <= kept[-1] for n in range(len(ids)))
            special = tuple(map(max, padding, axis.special))
            axis = replace(axis, padding=padding, special=special)
        read.append((axis, texts))
    return read


def _labeled(axes: Axes, given: Arguments, count: int) -> Axes:
    """Return axes in which given labels come first, and take the place of any of their length."""
    own = {
        name: (Axis.of_labels(labels),) * count
        for name, labels in (("queries", given.queries), ("keys", given.keys))
        if labels is not None
    }
    lengths = {len(of[0]) for of in own.values()}
    return own | {kind: of for kind, of in axes.items() if len(of[0]) not in lengths}


def expect_labels_fit(given: Arguments, lengths: set[tuple[int, int]]) -> None:
    """Raise InputError for labels that fit no map; lengths : of the queries and keys of each."""
    for side, (what, labels) in enumerate((("queries", given.queries), ("keys", given.keys))):
        counts = sorted({shape[side] for shape in lengths})
        if labels is not None and len(labels) not in counts:
            raise InputError(
                f"There are {len(labels)} {what}, but the maps have "
                f"{' or '.join(map(str, counts))}. Give one label for each."
            )
