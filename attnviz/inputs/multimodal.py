"""Text with an image or a sound in it: the model fills placeholders with patches or frames."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from attnviz.errors import InputError
from attnviz.inputs.audio import Sound
from attnviz.inputs.image import Grid, Picture, find_grid, patch_label
from attnviz.inputs.text import Encoded, EncodedInput, max_tokens
from attnviz.results import Axis, InputCheck

if TYPE_CHECKING:
    from attnviz.models.checkpoint import Checkpoint

_KINDS = ("image", "audio")


def placeholders(checkpoint: Checkpoint) -> dict[str, tuple[str, int]]:
    """Return the token, and its id, that stands in a text for each kind of input read within it."""
    processor, found = checkpoint.processors.multimodal, dict[str, tuple[str, int]]()
    for kind in _KINDS:
        token = getattr(processor, f"{kind}_token", None)
        token_id = getattr(processor, f"{kind}_token_id", None)
        for name in ("id", "index"):
            token_id = getattr(checkpoint.module.config, f"{kind}_token_{name}", None) or token_id
        token = getattr(token, "content", token)
        if isinstance(token, str) and isinstance(token_id, int):
            found[kind] = token, token_id
    return found


def encode_multimodal(
    checkpoint: Checkpoint, text: str, picture: Picture | None, sound: Sound | None
) -> tuple[dict[str, Tensor], Axis, EncodedInput]:
    """Tokenize a text with an image or a sound in it.

    A placeholder that the text lacks is put in front of it. Such a text is a prompt: special tokens
    that are spelled out count as such.
    """
    processor: Any = checkpoint.processors.multimodal
    sources = {"image": picture, "audio": sound}
    kinds = [kind for kind in _KINDS if sources[kind] is not None]
    prompt, notes = text, list[str]()
    for kind in kinds:
        token, _ = placeholders(checkpoint)[kind]
        if (count := prompt.count(token)) > 1:
            raise InputError(f"The text has {count} {token}, but there is one {kind}: leave one.")
        if not count:
            prompt = f"{token}\n{prompt}"
            notes.append(f"{token} was put before the text")
    options: dict[str, Any] = {"return_offsets_mapping": processor.tokenizer.is_fast}
    if sound is not None:
        options |= {"audio": [sound.samples], "sampling_rate": sound.rate}
    if picture is not None:
        options["images"] = [picture.pixels]
    inputs = dict(
        processor(
            text=[prompt],
            return_tensors="pt",
            return_special_tokens_mask=True,
            return_text_replacement_offsets=True,
            **options,
        )
    )
    details = {
        name: inputs.pop(name, None)
        for name in ("offset_mapping", "special_tokens_mask", "text_replacement_offsets")
    }
    ids = inputs["input_ids"][0]
    longest = max_tokens(checkpoint.module, processor.tokenizer)
    if longest is not None and len(ids) > longest:
        raise InputError(
            f"The text has {len(ids)} tokens with the placeholders, and {checkpoint.name} can read "
            f"at most {longest}. Shorten the text."
        )
    axis = _text_axis(checkpoint, prompt, ids, details)
    for kind in kinds:
        axis = fill_placeholders(checkpoint, axis, kind, inputs, sound)
    check = InputCheck(not notes, tuple(notes))
    return inputs, axis, EncodedInput(check, tuple(notes), texts=(text, None))


def _text_axis(checkpoint: Checkpoint, prompt: str, ids: Tensor, details: dict[str, Any]) -> Axis:
    """Return the axis of the text with its placeholders expanded."""
    tokenizer: Any = checkpoint.tokenizer
    expanded = prompt
    for replacement in reversed((details["text_replacement_offsets"] or [[]])[0]):
        start, end = replacement["span"]
        expanded = expanded[:start] + replacement["replacement"] + expanded[end:]
    special, offsets = details["special_tokens_mask"], details["offset_mapping"]
    # Some processors expand their placeholders in another way and do not report it.
    has_offsets = offsets is not None and int(offsets.max()) == len(expanded.rstrip())
    filled = {token_id for _, token_id in placeholders(checkpoint).values()}
    token_ids = ids.tolist()
    is_special = [
        int(token_id in filled or (special is not None and bool(special[0, n])))
        for n, token_id in enumerate(token_ids)
    ]
    fields = {"input_ids": token_ids, "special_tokens_mask": is_special}
    spans = [(start, end) for start, end in offsets[0].tolist()] if has_offsets else []
    return Encoded(fields, [0] * len(ids), spans, (expanded, None)).axis(tokenizer, len(ids))


def fill_placeholders(
    checkpoint: Checkpoint, axis: Axis, kind: str, inputs: dict[str, Tensor], sound: Sound | None
) -> Axis:
    """Label the placeholders by the patches or the frames that fill them."""
    _, token_id = placeholders(checkpoint)[kind]
    positions = (inputs["input_ids"][0] == token_id).nonzero().flatten().tolist()
    labels = {position: f"{kind} {n}" for n, position in enumerate(positions)}
    patches = dict[int, Grid]()
    seconds = dict[int, float]()
    if kind == "image" and (grid := _merged(find_grid(checkpoint.module, inputs), len(positions))):
        patches = {position: divmod(n, grid[1]) for n, position in enumerate(positions)}
        labels = {position: patch_label(patch) for position, patch in patches.items()}
    elif kind == "audio" and sound is not None:
        duration = sound.seconds
        seconds = {position: n * duration / len(positions) for n, position in enumerate(positions)}
        labels = {position: f"{second:.2f} s" for position, second in seconds.items()}
    everywhere = range(len(axis))
    return replace(
        axis,
        labels=tuple(labels.get(n, axis.labels[n]) for n in everywhere),
        words=tuple(None if n in labels else axis.words[n] for n in everywhere),
        special=tuple(n not in labels and axis.special[n] for n in everywhere),
        patches=tuple(map(patches.get, everywhere)) if patches else axis.patches,
        seconds=tuple(map(seconds.get, everywhere)) if seconds else axis.seconds,
    )


def _merged(grid: Grid | None, count: int) -> Grid | None:
    """Return the grid of `count` placeholders, each for one patch or for a square of patches."""
    if grid is None:
        return None
    rows, columns = grid
    for side in range(1, min(grid) + 1):
        fits = rows % side == columns % side == 0
        if fits and (rows // side) * (columns // side) == count:
            return rows // side, columns // side
    return None
