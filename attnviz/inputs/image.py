"""Images → pixel values: patches in rows and columns, and the picture as the model saw it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn

from attnviz.errors import InputError, ModelError
from attnviz.results import Axis
from attnviz.runtime.memory import Room

if TYPE_CHECKING:
    from attnviz.models.checkpoint import Checkpoint

Picture: TypeAlias = "str | os.PathLike[str] | Image.Image | np.ndarray[Any, Any]"
Grid = tuple[int, int]

# What stands before and after the patches in a sequence, by the name of the parameter.
_BEFORE = {
    "cls_token": "[CLS]",
    "class_embedding": "[CLS]",
    "distillation_token": "[DIST]",
    "register_tokens": "[REG]",
}
_AFTER = {"detection_tokens": "[DET]"}


@dataclass(frozen=True, eq=False)
class Photo:
    """A picture as it was given: pixels, and what it is called in captions."""

    pixels: Image.Image
    name: str


def read_image(given: Picture) -> Photo:
    """Return the RGB picture that a path, a Pillow image or an array (H, W, 3) holds.

    Raises
    ------
    InputError : there is no such file, it holds no picture, or the array has another shape.
    """
    if isinstance(given, Image.Image):
        return _photo(given, "image")
    if isinstance(given, np.ndarray):
        if given.dtype != np.uint8 or given.ndim != 3 or given.shape[2] != 3 or not given.size:
            raise InputError(
                "Expected an image as an array (height, width, 3) of uint8, got "
                f"{given.shape} of {given.dtype}. Convert it, or give a file."
            )
        return _photo(Image.fromarray(given), "image")
    if not isinstance(given, str | os.PathLike):
        raise InputError(
            "Expected an image as a file, a Pillow image or an array (height, width, 3) of uint8, "
            f"got {type(given).__name__}."
        )
    path = Path(given)
    try:
        with Image.open(path) as opened:
            return _photo(opened, path.name)
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"Expected an image, but there is no file {path}.") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        reason = getattr(error, "strerror", None) or "it holds no picture that can be read"
        raise InputError(
            f"Expected an image in {path}, but: {reason}. Give a PNG or a JPEG."
        ) from error


_EIGHT_BITS = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr",
               "HSV", "LAB")  # fmt: skip


def _photo(opened: Image.Image, name: str) -> Photo:
    if opened.mode not in _EIGHT_BITS:
        raise InputError(
            f"Expected an image of 8 bits a channel, got {name} of mode {opened.mode}. Convert it "
            "to RGB, scaled from 0 to 255."
        )
    upright = ImageOps.exif_transpose(opened)
    return Photo(upright.convert("RGB"), f"{name} ({opened.width}×{opened.height})")


_BYTES = 3 * 2 * 4  # of a pixel: three colours, before and after scaling, in float32


def encode_image(checkpoint: Checkpoint, photo: Photo) -> dict[str, Tensor]:
    """Return what the model takes of a picture, as its processor makes it."""
    reader = checkpoint.processors.image
    assert reader is not None  # no model is loaded without what reads its inputs
    _expect_room(checkpoint.name, reader)
    return dict(reader(images=[photo.pixels], return_tensors="pt"))


def _expect_room(name: str, reader: Any) -> None:
    """Refuse a processor that would make pictures for which there is no memory."""
    ways = "Check the sizes in its preprocessor_config.json, or pass another processor=."
    room = Room(f"the picture that {name} looks at", torch.device("cpu"), ways, ModelError)
    for size in (getattr(reader, part, None) for part in ("size", "crop_size", "pad_size")):
        shortest = getattr(size, "shortest_edge", None)
        sides: list[Any] = [getattr(size, side, None) or shortest for side in ("height", "width")]
        known = all(isinstance(side, int) for side in sides)
        if known and not getattr(size, "longest_edge", None):
            room.expect(_BYTES * sides[0] * sides[1])


def image_axis(module: nn.Module, inputs: dict[str, Tensor]) -> Axis | None:
    """Describe the positions of an image: special tokens, then patches row by row.

    None where the model cuts the image in a way that attnviz does not know. Whether the model has
    indeed as many positions is seen when it runs.
    """
    grid = find_grid(module, inputs)
    if grid is None:
        return None
    before, after = _specials(module)
    rows, columns = grid
    patches = [(row, column) for row in range(rows) for column in range(columns)]
    return Axis.plain(
        [*before, *map(patch_label, patches), *after],
        special=[*[True] * len(before), *[False] * len(patches), *[True] * len(after)],
        patches=[*[None] * len(before), *patches, *[None] * len(after)],
    )


def patch_label(patch: Grid) -> str:
    """Return what a patch is called: its row and column, counted from 0."""
    return f"r{patch[0]} c{patch[1]}"


def find_grid(module: nn.Module, inputs: dict[str, Tensor]) -> Grid | None:
    """Return into how many rows and columns of patches a model cuts the image, or None."""
    if (sizes := inputs.get("image_grid_thw")) is not None:  # the processor has cut it itself
        _, rows, columns = map(int, sizes[0])
        return rows, columns
    pixels = inputs["pixel_values"]
    layer = _patch_layer(module)[1]
    if layer is None or pixels.dim() < 4 or layer.in_channels != pixels.shape[-3]:
        return None
    rows, columns = (
        (pixels.shape[side] + 2 * int(pad) - size) // step + 1
        for side, pad, size, step in zip(
            (-2, -1), _both(layer.padding), layer.kernel_size, layer.stride, strict=True
        )
    )
    return rows, columns


def _patch_layer(module: nn.Module) -> tuple[str, nn.Conv2d | None]:
    """Return the first layer that turns patches into vectors, and its path."""
    for path, layer in module.named_modules():
        if isinstance(layer, nn.Conv2d) and layer.stride[0] > 1:
            return path, layer
    return "", None


def _both(padding: str | tuple[int, ...]) -> tuple[int, ...]:
    return (0, 0) if isinstance(padding, str) else padding


def _specials(module: nn.Module) -> tuple[list[str], list[str]]:
    """Return the tokens that stand before and after the patches, found beside the patch layer."""
    parents = _patch_layer(module)[0].split(".")
    for depth in range(len(parents) - 1, -1, -1):
        own = dict(module.get_submodule(".".join(parents[:depth])).named_parameters(recurse=False))
        before, after = (
            [label for name, label in names.items() if name in own for _ in range(_rows(own[name]))]
            for names in (_BEFORE, _AFTER)
        )
        if before or after:
            return before, after
    return [], []


def _rows(token: Tensor) -> int:
    return token.shape[-2] if token.dim() > 1 else 1


def as_seen(checkpoint: Checkpoint, photo: Photo, inputs: dict[str, Tensor]) -> Tensor:
    """Return the picture as the model saw it, resized and cropped: (H, W, 3) uint8.

    Where the processor's steps cannot be taken back, it is the whole picture.
    """
    reader: Any = checkpoint.processors.image
    pixels = inputs.get("pixel_values")
    if pixels is None or pixels.dim() != 4 or pixels.shape[1] != 3:
        return torch.from_numpy(np.array(photo.pixels))
    seen = pixels[0].float().permute(1, 2, 0)
    if getattr(reader, "do_normalize", False):
        mean, std = (torch.tensor(getattr(reader, f"image_{name}")) for name in ("mean", "std"))
        seen = seen * std + mean
    if getattr(reader, "do_rescale", False):
        seen = seen / float(reader.rescale_factor)
    if getattr(reader, "do_flip_channel_order", False):
        seen = seen.flip(-1)
    return seen.round().clamp(0, 255).to(torch.uint8)
