"""Images and videos in the shapes that models accept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from architectures.media import BATCH, Request
from architectures.settings import find, part

FRAMES = 4
VISION = ("vision_config", "vision_tower_config", "image_config", "backbone_config",
          "encoder_config", "vision_model_config")  # fmt: skip


def candidates(request: Request) -> Iterator[dict[str, Any]]:
    """Yield candidate image inputs for the model; one empty dictionary if it takes no images."""
    names = request.names
    if "image_grid_thw" in names and "pixel_values" in names:
        yield from _patches_of_grids(request)
    elif "spatial_shapes" in names:
        yield _padded_patches(request)
    elif "image_position_ids" in names:
        yield _positioned_patches(request)
    elif "flattened_patches" in names:
        yield _flattened_patches(request)
    elif "pixel_values" in names:
        yield from _pixels(request)
    elif names.get("pixel_values_videos"):
        for size in _sizes(request):
            pixels = request.normal(BATCH, _frames(request), 3, *size)
            yield {"pixel_values_videos": pixels}
    else:
        yield {}


def _square(value: Any) -> int:
    return value if isinstance(value, int) else value[0]


def _sizes(request: Request) -> list[tuple[int, int]]:
    """Return candidate heights and widths, starting with the model's own."""
    config = part(request.config, *VISION)
    default = find(
        config, "image_size", "img_size", "input_size", "spec_size", kind=(int, list, tuple)
    )
    default = default or find(request.config, "image_size", kind=(int, list, tuple))
    sizes = []
    if default:
        sizes.append((default, default) if isinstance(default, int) else tuple(default))
    return [size for size in sizes if len(size) == 2] + [(64, 64), (96, 96), (128, 128), (224, 224)]


def _channels(request: Request) -> int:
    config = part(request.config, *VISION)
    return find(config, "num_channels", "in_channels", "in_chans") or 3


def _frames(request: Request) -> int:
    return find(request.config, "num_frames", "frames_per_clip") or FRAMES


def _pixels(request: Request) -> Iterator[dict[str, Any]]:
    names, channels = request.names, _channels(request)
    pinpoints = find(request.config, "image_grid_pinpoints", kind=(list, tuple))
    if pinpoints and "image_sizes" in names:  # an image and its two halves, for each text
        side = min(pinpoints[0])
        pixels = request.normal(BATCH, 3, channels, side, side)
        yield {"pixel_values": pixels, "image_sizes": torch.tensor(pinpoints)}
    several = "pixel_attention_mask" in names or "image_sizes" in names
    for size in _sizes(request):
        shapes = [(BATCH, channels, *size), (BATCH, 2, channels, *size),
                  (BATCH, _frames(request), channels, *size)]  # fmt: skip
        if several:
            shapes = [shapes[1], shapes[0]]
        elif find(request.config, "num_frames", "tubelet_size", kind=(int, tuple, list)):
            shapes = [shapes[2], shapes[0]]
        for shape in shapes:
            inputs: dict[str, Any] = {"pixel_values": request.normal(*shape)}
            if "pixel_attention_mask" in names:
                mask_shape = (*shape[:-3], *size)
                inputs["pixel_attention_mask"] = torch.ones(mask_shape, dtype=torch.bool)
                yield inputs | {"pixel_attention_mask": torch.ones(shape[:-3], dtype=torch.bool)}
            if "pixel_mask" in names:
                mask = torch.ones(BATCH, *size, dtype=torch.long)
                mask[1, :, -size[1] // 4 :] = 0
                if "input_ids" not in names:
                    inputs["pixel_mask"] = mask
            yield inputs
            if "image_sizes" in names:
                yield inputs | {"image_sizes": torch.tensor([size] * BATCH)}


def _patches_of_grids(request: Request) -> Iterator[dict[str, Any]]:
    """Two images of different shapes, cut into patches and concatenated."""
    config = part(request.config, *VISION)
    patch = _square(find(config, "patch_size", kind=(int, list, tuple)) or 14)
    temporal = _square(
        find(config, "temporal_patch_size", "patch_temporal", kind=(int, list, tuple)) or 1
    )
    merge = _square(find(config, "spatial_merge_size", "merge_size",
                         "merge_kernel_size", kind=(int, list, tuple)) or 1)  # fmt: skip
    grids = torch.tensor([[1, 2 * merge, 2 * merge], [1, 2 * merge, 3 * merge]])
    total = int(grids.prod(-1).sum())
    channels = _channels(request)
    flat = request.normal(total, channels * temporal * patch * patch)
    square = request.normal(total, channels, patch, patch)
    for pixels in (flat, square, square[None]):
        yield {"pixel_values": pixels, "image_grid_thw": grids}


def _padded_patches(request: Request) -> dict[str, Any]:
    """Patches of two images of different shapes, padded to the longer one."""
    config = part(request.config, *VISION)
    patch = find(config, "patch_size") or 16
    shapes = torch.tensor([[4, 4], [2, 4]])
    mask = torch.zeros(BATCH, 16, dtype=torch.long)
    for row, shape in enumerate(shapes):
        mask[row, : int(shape.prod())] = 1
    pixels = request.normal(BATCH, 16, _channels(request) * patch * patch)
    return {"pixel_values": pixels, "spatial_shapes": shapes, "pixel_attention_mask": mask}


def _positioned_patches(request: Request) -> dict[str, Any]:
    """Patches of two images, with the row and column of each patch."""
    config = part(request.config, *VISION)
    patch = getattr(config, "model_patch_size", None) or find(config, "patch_size") or 16
    side = 2 * (find(config, "pooling_kernel_size") or 2)
    row, column = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    positions = torch.stack([column.flatten(), row.flatten()], -1).expand(BATCH, -1, -1)
    pixels = request.normal(BATCH, side * side, 3 * patch * patch).sigmoid()
    return {"pixel_values": pixels, "image_position_ids": positions.clone()}


def _flattened_patches(request: Request) -> dict[str, Any]:
    """Patches whose first two numbers are their row and column."""
    patch = find(part(request.config, *VISION), "patch_size") or 16
    row, column = torch.meshgrid(torch.arange(1, 5), torch.arange(1, 5), indexing="ij")
    places = torch.stack([row.flatten(), column.flatten()], -1).float().expand(BATCH, -1, -1)
    patches = torch.cat([places, request.normal(BATCH, 16, 3 * patch * patch)], -1)
    inputs: dict[str, Any] = {"flattened_patches": patches}
    if "input_ids" not in request.names or request.config.is_encoder_decoder:
        mask = torch.ones(BATCH, 16, dtype=torch.long)
        mask[1, -4:] = 0
        inputs["attention_mask"] = mask
    return inputs
