"""Images: reading, pixel values, the grid of patches, and the picture that the model was given."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor, nn

from attnviz.errors import InputError, ModelError
from attnviz.inputs.audio import Sound
from attnviz.inputs.text import Encoded, EncodedInput, max_tokens
from attnviz.io import is_file
from attnviz.models.checkpoint import Checkpoint
from attnviz.results import Axis, InputCheck
from attnviz.runtime.libraries import MemoryBudget

ImageSource: TypeAlias = "str | os.PathLike[str] | Image.Image | np.ndarray[Any, Any] | Tensor"
Grid = tuple[int, int]
_BYTES_PER_PIXEL = 3 * 2 * 4  # three colors, before and after scaling, in float32

# The tokens before and after the patches in a sequence, by the name of the parameter.
_BEFORE = {
    "cls_token": "[CLS]",
    "class_token": "[CLS]",
    "class_embedding": "[CLS]",
    "distillation_token": "[DIST]",
    "dist_token": "[DIST]",
    "register_tokens": "[REG]",
    "reg_token": "[REG]",
}
_AFTER = {"detection_tokens": "[DET]"}


@dataclass(frozen=True, eq=False)
class Picture:
    """An image or a video."""

    pixels: Image.Image  # RGB; of a video, its first frame
    name: str  # in captions
    notes: tuple[str, ...] = ()  # how an array was read, if it leaves a choice
    frames: tuple[Image.Image, ...] = ()  # those of a video


def read_image(source: ImageSource) -> Picture:
    """Return the RGB picture in a file, a Pillow image, an array or a tensor.

    An array is (height, width, 3), (3, height, width) or (height, width), of uint8 or of floats
    between 0 and 1. With one more dimension before these, it is a video.
    """
    if isinstance(source, Image.Image):
        return _picture(source, "image")
    if isinstance(source, Tensor):
        source = source.detach().cpu().numpy()
    if isinstance(source, np.ndarray) and source.ndim == 4 and len(source) > 1:
        first, *others = map(read_image, source)
        frames = tuple(frame.pixels for frame in (first, *others))
        name = f"video ({len(frames)} frames, {first.pixels.width}×{first.pixels.height})"
        return Picture(first.pixels, name, first.notes, frames)
    if isinstance(source, np.ndarray):
        pixels, notes = _pixels_of(source)
        return replace(_picture(Image.fromarray(pixels), "image"), notes=notes)
    if not isinstance(source, str | os.PathLike):
        raise InputError(
            f"{type(source).__name__} is not an image: give a file, a Pillow image or an array "
            "(height, width, 3) of uint8."
        )
    path = Path(source)
    if not is_file(path):  # a pipe would be waited for
        raise InputError(f"There is no image file {path}: check the path.")
    try:
        with Image.open(path) as image:
            return _picture(image, path.name)
    except InputError:
        raise
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        reason = getattr(error, "strerror", None) or "it holds no picture that can be read"
        raise InputError(
            f"{path} cannot be read as an image: {reason}. Give a PNG or a JPEG."
        ) from error


def _pixels_of(array: NDArray[Any]) -> tuple[NDArray[np.uint8], tuple[str, ...]]:
    """Return an array as (H, W[, 3]) of uint8, and how it was read; InputError if unclear."""
    pixels, read = array, list[str]()
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3):
        pixels = array.transpose(1, 2, 0)
        read.append("(channels, height, width)")
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim == 2:
        read.append("gray")
    is_scaled = array.dtype.kind == "f" and array.size and 0 <= array.min() <= array.max() <= 1
    if is_scaled:
        pixels = (pixels * 255).round().astype(np.uint8)
        read.append("floats from 0 to 1")
    is_image = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)
    is_clear = array.ndim == 2 or (array.shape[0], array.shape[-1]) not in {(3, 3), (1, 3), (1, 1)}
    if not (is_image and is_clear and pixels.size and pixels.dtype == np.uint8):
        raise InputError(
            f"An array {array.shape} of {array.dtype} is not an image: convert it to "
            "(height, width, 3) of uint8, or give a file."
        )
    notes = (f"the array {array.shape} was read as {', '.join(read)}",) if read else ()
    return np.ascontiguousarray(pixels), notes


def _picture(image: Image.Image, name: str) -> Picture:
    if image.mode.startswith(("I", "F")):
        raise InputError(
            f"{name} of mode {image.mode} does not have 8 bits a channel. Convert it to RGB, "
            "scaled from 0 to 255."
        )
    upright = ImageOps.exif_transpose(image)
    return Picture(upright.convert("RGB"), f"{name} ({image.width}×{image.height})")


def encode_image(checkpoint: Checkpoint, picture: Picture) -> dict[str, Tensor]:
    """Return the model's input tensors for a picture."""
    processor: Any = checkpoint.processors.image  # no model is loaded without its processors
    what = f"the picture that {checkpoint.name} reads"
    ways = "Check the sizes in its preprocessor_config.json, or pass another processor=."
    memory = MemoryBudget(what, torch.device("cpu"), ways, ModelError)
    for size in (getattr(processor, key, None) for key in ("size", "crop_size", "pad_size")):
        shortest = getattr(size, "shortest_edge", None)
        sides: list[Any] = [getattr(size, side, None) or shortest for side in ("height", "width")]
        is_known = all(isinstance(side, int) for side in sides)
        if is_known and not getattr(size, "longest_edge", None):
            memory.expect(_BYTES_PER_PIXEL * sides[0] * sides[1])
    pixels: Any = list(picture.frames) or picture.pixels
    return dict(processor(images=[pixels], return_tensors="pt"))


def image_axis(module: nn.Module, inputs: dict[str, Tensor]) -> Axis | None:
    """Return the axis of an image: special tokens, then patches row by row; None if not known."""
    grid = find_grid(module, inputs)
    return None if grid is None else _grid_axis(grid, *_specials(module))


def grid_axes(grid: Grid) -> dict[str, Axis]:
    """Return the axes of a grid of patches, and of those that it becomes when it is halved."""
    axes = dict[str, Axis]()
    while min(grid) > 0:
        axes[f"image {grid[0]}×{grid[1]}"] = _grid_axis(grid)
        grid = grid[0] // 2, grid[1] // 2
    return axes


def pixels_among(inputs: Iterable[Any]) -> Tensor | None:
    """Return the images (N, C, H, W), or a video, among inputs; None if there are none."""
    tensors = (one for one in inputs if isinstance(one, Tensor) and one.is_floating_point())
    return next((one for one in tensors if one.dim() > 3), None)


def shown_pixels(pixels: Tensor) -> Tensor | None:
    """Return a picture (H, W, 3), uint8, of numbers (3, H, W), from the least to the largest."""
    if pixels.dim() != 3 or len(pixels) != 3:
        return None
    least, most = pixels.detach().double().aminmax()
    scaled = (pixels.detach().double() - least) / (most - least).clamp(min=1e-12)
    return (scaled * 255).round().to(torch.uint8).permute(1, 2, 0).cpu()


def feature_map_axes(module: nn.Module, inputs: Mapping[str, Any]) -> dict[str, tuple[Axis]]:
    """Return the axes of the feature maps that convolutions make of an image, by their sizes.

    Empty for a model that cuts the image into patches at once. Any other model runs once.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    if sum(max(layer.stride) > 1 for layer in layers) < 2:
        return {}
    grids: dict[Grid, None] = {}

    def keep(_: nn.Module, __: Any, output: Tensor) -> None:
        grids[output.shape[-2], output.shape[-1]] = None

    with ExitStack() as hooks, torch.no_grad():
        for layer in layers:
            hooks.enter_context(layer.register_forward_hook(keep))
        with suppress(Exception):  # which the capture tells of
            module(**inputs)
    return {f"image {rows}×{columns}": (_grid_axis((rows, columns)),) for rows, columns in grids}


def _grid_axis(grid: Grid, before: Sequence[str] = (), after: Sequence[str] = ()) -> Axis:
    """Return the axis of patches row by row, between special tokens."""
    patches = [divmod(n, grid[1]) for n in range(grid[0] * grid[1])]
    return Axis.plain(
        [*before, *map(patch_label, patches), *after],
        special=[*[True] * len(before), *[False] * len(patches), *[True] * len(after)],
        patches=[*[None] * len(before), *patches, *[None] * len(after)],
    )


def patch_label(patch: Grid) -> str:
    """Return the label of a patch: its row and column, counted from 0."""
    return f"r{patch[0]} c{patch[1]}"


def find_grid(module: nn.Module, inputs: dict[str, Tensor]) -> Grid | None:
    """Return the rows and columns of patches into which a model cuts the image, or None."""
    if (sizes := inputs.get("image_grid_thw")) is not None:  # the processor cut it
        _, rows, columns = map(int, sizes[0])
        return rows, columns
    pixels, layer = pixels_among(inputs.values()), _patch_layer(module)[1]
    if layer is None or pixels is None or pixels.dim() < 4 or layer.in_channels != pixels.shape[-3]:
        return None
    padding = (0, 0) if isinstance(layer.padding, str) else layer.padding
    rows, columns = (
        (length + 2 * int(pad) - size) // step + 1
        for length, pad, size, step in zip(
            pixels.shape[-2:], padding, layer.kernel_size, layer.stride, strict=True
        )
    )
    return rows, columns


def _patch_layer(module: nn.Module) -> tuple[str, nn.Conv2d | None]:
    """Return the first layer that turns patches into vectors, and its path."""
    for path, layer in module.named_modules():
        if isinstance(layer, nn.Conv2d) and layer.stride[0] > 1:
            return path, layer
    return "", None


def _specials(module: nn.Module) -> tuple[list[str], list[str]]:
    """Return the labels of special tokens, which are parameters, before and after the patches."""
    parents = _patch_layer(module)[0].split(".")
    for depth in range(len(parents) - 1, -1, -1):
        owner = module.get_submodule(".".join(parents[:depth]))
        counts = {
            name: token.shape[-2] if token.dim() > 1 else 1
            for name, token in owner.named_parameters(recurse=False)
        }
        before, after = (
            [label for name, label in names.items() for _ in range(counts.get(name, 0))]
            for names in (_BEFORE, _AFTER)
        )
        if before or after:
            return before, after
    return [], []


def processed_image(
    checkpoint: Checkpoint, picture: Picture | None, inputs: dict[str, Tensor]
) -> Tensor | None:
    """Return the picture (H, W, 3), uint8, that the model was given; the whole one if not known."""
    processor: Any = checkpoint.processors.image
    pixel_values = inputs.get("pixel_values")
    if pixel_values is None or pixel_values.dim() != 4 or pixel_values.shape[1] != 3:
        return None if picture is None else torch.from_numpy(np.array(picture.pixels))
    pixels = pixel_values[0].float().permute(1, 2, 0)
    if getattr(processor, "do_normalize", False):
        mean, std = (
            torch.tensor(getattr(processor, f"image_{name}"), device=pixels.device)
            for name in ("mean", "std")
        )
        pixels = pixels * std + mean
    if getattr(processor, "do_rescale", False):
        pixels = pixels / float(processor.rescale_factor)
    if getattr(processor, "do_flip_channel_order", False):
        pixels = pixels.flip(-1)
    return pixels.round().clamp(0, 255).to(torch.uint8)


def encode_multimodal(
    checkpoint: Checkpoint, text: str, picture: Picture | None, sound: Sound | None
) -> tuple[dict[str, Tensor], Axis, EncodedInput]:
    """Tokenize a prompt with an image or a sound in it; special tokens typed there are special."""
    processor: Any = checkpoint.processors.multimodal
    sources = {"image": picture, "audio": sound}
    kinds = [kind for kind, source in sources.items() if source is not None]
    prompt, notes = text, list[str]()
    for kind in kinds:
        token, _ = checkpoint.placeholders[kind]
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
    tokenizer: Any = checkpoint.tokenizer
    expanded = prompt
    for replacement in reversed((details["text_replacement_offsets"] or [[]])[0]):
        start, end = replacement["span"]
        expanded = expanded[:start] + replacement["replacement"] + expanded[end:]
    special, offsets = details["special_tokens_mask"], details["offset_mapping"]
    # Some processors expand their placeholders in another way and do not report it.
    has_offsets = offsets is not None and int(offsets.max()) == len(expanded.rstrip())
    filled = {token_id for _, token_id in checkpoint.placeholders.values()}
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
    _, token_id = checkpoint.placeholders[kind]
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
