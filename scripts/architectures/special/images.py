"""Inputs of image models that cannot be inferred from a signature."""

from __future__ import annotations

import torch

from architectures.media import BATCH, LENGTH, Inputs, Request


def high_resolution(request: Request, inputs: Inputs) -> Inputs:
    """The images again, for the high-resolution tower."""
    size = request.config.high_res_vision_config.image_size
    return {"high_res_pixel_values": request.normal(BATCH, 3, size, size)}


def qformer(request: Request, inputs: Inputs) -> Inputs:
    """The text again, for the querying transformer."""
    return {
        "qformer_input_ids": request.tokens(BATCH, 6),
        "qformer_attention_mask": torch.tensor([[1] * 6, [1] * 4 + [0] * 2]),
    }


def lxmert(request: Request, inputs: Inputs) -> Inputs:
    """Features and boxes of objects, as from a detector."""
    config = request.config
    return {
        "visual_feats": request.normal(BATCH, 9, config.visual_feat_dim),
        "visual_pos": request.normal(BATCH, 9, config.visual_pos_dim),
        "visual_attention_mask": torch.tensor([[1] * 9, [1] * 6 + [0] * 3]),
    }


def mllama(request: Request, inputs: Inputs) -> Inputs:
    """Tiled images: one with four tiles, one with a single tile."""
    size = request.config.vision_config.image_size
    length = inputs["input_ids"].shape[1]
    tiles = request.config.vision_config.max_num_tiles
    return {
        "pixel_values": request.normal(BATCH, 1, tiles, 3, size, size),
        "aspect_ratio_ids": torch.tensor([[6], [1]]),
        "aspect_ratio_mask": torch.tensor([[[1] * tiles], [[1] + [0] * (tiles - 1)]]),
        "cross_attention_mask": torch.ones(BATCH, length, 1, tiles, dtype=torch.long),
    }


def idefics(request: Request, inputs: Inputs) -> Inputs:
    """Two images per text; the first half of the text does not attend to the second image."""
    size = request.config.vision_config.image_size
    mask = torch.ones(BATCH, LENGTH, 2, dtype=torch.long)
    mask[:, :8, 1] = 0
    return {
        "pixel_values": request.normal(BATCH, 2, 3, size, size),
        "image_attention_mask": mask,
    }


def seggpt(request: Request, inputs: Inputs) -> Inputs:
    """An example image with its mask."""
    pixels = inputs["pixel_values"]
    return {
        "prompt_pixel_values": request.normal(*pixels.shape),
        "prompt_masks": request.normal(*pixels.shape),
    }


def oneformer(request: Request, inputs: Inputs) -> Inputs:
    """The task, as text."""
    return {"task_inputs": request.tokens(BATCH, request.config.task_seq_len)}


def omdet(request: Request, inputs: Inputs) -> Inputs:
    """Class names and the task."""
    return {
        "classes_input_ids": request.tokens(5, 6),
        "classes_attention_mask": torch.ones(5, 6, dtype=torch.long),
        "tasks_input_ids": request.tokens(BATCH, 8),
        "tasks_attention_mask": torch.ones(BATCH, 8, dtype=torch.long),
        "classes_structure": torch.tensor([3, 2]),
    }


def merge_sizes(request: Request, inputs: Inputs) -> Inputs:
    """Disable the merging of patches."""
    return {"image_merge_sizes": torch.ones(len(inputs["image_grid_thw"]), dtype=torch.long)}


def fuyu(request: Request, inputs: Inputs) -> Inputs:
    """Patches of two images."""
    return {"pixel_values": None, "image_patches": None} | {
        "pixel_values": request.normal(BATCH, 4, 3 * request.config.patch_size**2)
    }


def kosmos(request: Request, inputs: Inputs) -> Inputs:
    """The positions of the image in the text."""
    mask = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    mask[:, 1 : 1 + request.config.latent_query_num] = True
    return {"image_embeds_position_mask": mask}


def glm_image(request: Request, inputs: Inputs) -> Inputs:
    """One input image and one image to generate, per text."""
    grids = inputs["image_grid_thw"]
    target = torch.tensor([[1, 4, 4]])
    return {
        "image_grid_thw": torch.cat([grids[:1], target, grids[1:], target]),
        "images_per_sample": torch.tensor([2, 2]),
        "placeholders": grids.prod(-1).tolist(),
    }


def pi0(request: Request, inputs: Inputs) -> Inputs:
    """Noisy actions, which the model refines."""
    width = request.config.dit_config.hidden_size
    return {"action_embeds": request.normal(BATCH, 5, width)}


def two_cameras(request: Request, inputs: Inputs) -> Inputs:
    """Images from two cameras, and actions."""
    size = request.config.vlm_config.vision_config.image_size
    mask = torch.ones(BATCH, 2, dtype=torch.bool)
    return {
        "pixel_values": request.normal(BATCH, 2, 3, size, size),
        "pixel_attention_mask": mask,
        "placeholders": [32, 32],
    } | pi0(request, inputs)


def colqwen2(request: Request, inputs: Inputs) -> Inputs:
    """Patches of each image, padded to the longer one."""
    counts = inputs["image_grid_thw"].prod(-1).tolist()
    rows = inputs["pixel_values"].split(counts)
    return {"pixel_values": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)}


def granite_deep(request: Request, inputs: Inputs) -> Inputs:
    """The number of vectors per image, which only forward knows."""
    return {"placeholders": [15, 15]}


def inkling2(request: Request, inputs: Inputs) -> Inputs:
    """Two images of different shapes, cut into cells."""
    config = request.config.vision_config
    side = config.patch_size * config.spatial_merge_size
    return {
        "pixel_values": request.normal(10, side, side, 3),
        "image_grid_thw": torch.tensor([[1, 2, 2], [1, 2, 3]]),
    }


def inkling(request: Request, inputs: Inputs) -> Inputs:
    """Pairs of frames, cut into patches."""
    config = request.config.vision_config
    shape = (config.temporal_patch_size, config.patch_size, config.patch_size)
    return {"pixel_values": request.normal(8, *shape, 3), "placeholders": [4, 4]}


def molmo2(request: Request, inputs: Inputs) -> Inputs:
    """Patches, and the groups in which they are pooled."""
    config = request.config.vision_config
    patches = (config.image_size[0] // config.patch_size) ** 2
    pooling = torch.arange(patches).reshape(-1, 4)  # 4 patches become one vector
    rows = len(pooling)
    return {
        "pixel_values": request.normal(BATCH, patches, 3 * config.patch_size**2),
        "image_token_pooling": torch.cat([pooling, pooling + patches]),
        "image_grids": torch.tensor([[0, 0, 1, rows]] * BATCH),
        "image_num_crops": torch.tensor([1, 1]),
    }


def grid_hw(request: Request, inputs: Inputs) -> Inputs:
    """Two images of different shapes, cut into patches."""
    patch = request.config.vision_config.patch_size
    return {
        "pixel_values": request.normal(40, 3 * patch**2),
        "image_grid_hw": torch.tensor([[4, 4], [4, 6]]),
    }


def without_sound(request: Request, inputs: Inputs) -> Inputs:
    """Two images; the audio tower is not built."""
    return grid_hw(request, inputs) | dict.fromkeys(
        name for name in inputs if name.startswith("input_features")
    )


def neomme(request: Request, inputs: Inputs) -> Inputs:
    """Patches of two documents."""
    return {"pixel_values": request.normal(8, request.config.patch_dim), "placeholders": [4, 4]}


def row_of_patches(request: Request, inputs: Inputs) -> Inputs:
    """Patches of two images of different shapes, concatenated in one row."""
    patch = request.config.vision_config.patch_size
    return {
        "pixel_values": request.normal(1, 3, patch, 48 * patch),
        "target_sizes": torch.tensor([[4, 4], [4, 8]]),
    }


def one_alone(request: Request, inputs: Inputs) -> Inputs:
    """The first item of the batch: the positions do not support a second one."""
    return {name: value[:1] for name, value in inputs.items()}
