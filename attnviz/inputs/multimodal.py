"""Text with an image or a sound in it: placeholders that the model fills with patches or frames."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from attnviz.errors import InputError
from attnviz.inputs.audio import Sound
from attnviz.inputs.image import (
    Grid,
    Photo,
    find_grid,
    patch_label,
)
from attnviz.inputs.text import max_tokens, text_axis
from attnviz.results import Axis

if TYPE_CHECKING:
    from attnviz.models.checkpoint import Checkpoint

_KINDS = ("image", "audio")


def fills_placeholders(checkpoint: Checkpoint, kind: str) -> bool:
    """Tell whether the model reads this kind of input in the midst of its text."""
    return _token(checkpoint, kind) is not None


def _token(checkpoint: Checkpoint, kind: str) -> tuple[str, int] | None:
    """Return the placeholder that stands for an input of this kind, and its id."""
    together = checkpoint.processors.multimodal
    token = getattr(together, f"{kind}_token", None)
    number = getattr(together, f"{kind}_token_id", None)
    for name in ("id", "index"):
        number = getattr(checkpoint.module.config, f"{kind}_token_{name}", None) or number
    token = getattr(token, "content", token)
    return (token, number) if isinstance(token, str) and isinstance(number, int) else None


def encode_together(
    checkpoint: Checkpoint, text: str, photo: Photo | None, sound: Sound | None
) -> tuple[dict[str, Tensor], Axis]:
    """Tokenize a text with an image or a sound in it.

    Where the text holds no placeholder, it goes in front. Such a text is a prompt, in which special
    tokens that are spelled out count as such.

    Raises
    ------
    InputError : several placeholders, or more tokens than the model can read.
    """
    together: Any = checkpoint.processors.multimodal
    given = {"image": photo, "audio": sound}
    prompt = text
    for kind in _KINDS:
        if given[kind] is not None:
            prompt = _with_placeholder(checkpoint, prompt, kind)
    how: dict[str, Any] = {"return_offsets_mapping": together.tokenizer.is_fast}
    if sound is not None:
        how |= {"audio": [sound.samples], "sampling_rate": sound.rate}
    if photo is not None:
        how["images"] = [photo.pixels]
    inputs = dict(
        together(
            text=[prompt],
            return_tensors="pt",
            return_special_tokens_mask=True,
            return_text_replacement_offsets=True,
            **how,
        )
    )
    about = {
        name: inputs.pop(name, None)
        for name in ("offset_mapping", "special_tokens_mask", "text_replacement_offsets")
    }
    ids = inputs["input_ids"][0]
    longest = max_tokens(checkpoint.module, together.tokenizer)
    if longest is not None and len(ids) > longest:
        raise InputError(
            f"Expected at most {longest} tokens, the most that {checkpoint.name} can read, got "
            f"{len(ids)} with the placeholders. Shorten the text."
        )
    axis = _text_axis(checkpoint, prompt, ids, about)
    for kind in _KINDS:
        if given[kind] is not None:
            axis = _filled(checkpoint, axis, kind, inputs, sound)
    return inputs, axis


def _with_placeholder(checkpoint: Checkpoint, text: str, kind: str) -> str:
    found = _token(checkpoint, kind)
    assert found is not None
    count = text.count(found[0])
    if count > 1:
        raise InputError(
            f"Expected one {found[0]} in the text, for the one {kind} given, got {count}."
        )
    return text if count else f"{found[0]}\n{text}"


def _text_axis(checkpoint: Checkpoint, prompt: str, ids: Tensor, about: dict[str, Any]) -> Axis:
    """Describe the positions of the text with its placeholders unfolded."""
    tokenizer: Any = checkpoint.tokenizer
    unfolded = prompt
    for place in reversed((about["text_replacement_offsets"] or [[]])[0]):
        start, end = place["span"]
        unfolded = unfolded[:start] + place["replacement"] + unfolded[end:]
    special = about["special_tokens_mask"]
    offsets = about["offset_mapping"]
    # Processors that unfold their placeholders in another way say nothing of it.
    known = offsets is not None and int(offsets.max()) == len(unfolded.rstrip())
    filled = {found[1] for kind in _KINDS if (found := _token(checkpoint, kind))}
    return text_axis(
        tokenizer,
        ids.tolist(),
        special=[
            int(number in filled or (special is not None and bool(special[0, at])))
            for at, number in enumerate(ids.tolist())
        ],
        offsets=[(start, end) for start, end in offsets[0].tolist()] if known else None,
        segments=[0] * len(ids),
        texts=(unfolded, ""),
        length=len(ids),
    )


def _filled(
    checkpoint: Checkpoint,
    axis: Axis,
    kind: str,
    inputs: dict[str, Tensor],
    sound: Sound | None,
) -> Axis:
    """Name the placeholders by the patches or the frames that fill them."""
    found = _token(checkpoint, kind)
    assert found is not None
    here = (inputs["input_ids"][0] == found[1]).nonzero().flatten().tolist()
    labels = {at: f"{kind} {number}" for number, at in enumerate(here)}
    patches = dict[int, Grid]()
    seconds = dict[int, float]()
    if kind == "image" and (grid := _merged(find_grid(checkpoint.module, inputs), len(here))):
        patches = {at: divmod(number, grid[1]) for number, at in enumerate(here)}
        labels = {at: patch_label(patch) for at, patch in patches.items()}
    elif kind == "audio" and sound is not None:
        seconds = {at: n * sound.seconds / len(here) for n, at in enumerate(here)}
        labels = {at: f"{second:.2f} s" for at, second in seconds.items()}
    positions = range(len(axis))
    return replace(
        axis,
        labels=tuple(labels.get(at, axis.labels[at]) for at in positions),
        words=tuple(None if at in labels else axis.words[at] for at in positions),
        special=tuple(at not in labels and axis.special[at] for at in positions),
        patches=tuple(map(patches.get, positions)) if patches else axis.patches,
        seconds=tuple(map(seconds.get, positions)) if seconds else axis.seconds,
    )


def _merged(grid: Grid | None, count: int) -> Grid | None:
    """Return the grid of `count` placeholders, each for one patch or for a square of some."""
    if grid is None:
        return None
    rows, columns = grid
    for side in range(1, min(grid) + 1):
        fits = rows % side == columns % side == 0
        if fits and (rows // side) * (columns // side) == count:
            return rows // side, columns // side
    return None
