"""A whole diffusion pipeline with random weights: text encoder, denoiser, decoder of the image."""

from __future__ import annotations

import gc
import json
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import attnviz

PROMPT, STEPS, SIDE = "a red cat on the mat", 50, 16


def check() -> str:
    """Return in one line whether a recorded pipeline is unchanged, verified, and of flat memory."""
    pipeline, words = build()
    expected, sizes = run(pipeline), []

    def after_step(*arguments: Any) -> dict[str, Any]:
        gc.collect()
        sizes.append(sum(x.nbytes for x in gc.get_objects() if isinstance(x, Tensor)))
        return arguments[-1]

    options = {"modules": "*attn2", "keys": words, "grid": (SIDE, SIDE)}
    with attnviz.record(**options, mean=True) as recording:
        image = run(pipeline, callback_on_step_end=after_step)
    with attnviz.record(**options) as every:
        run(pipeline)
    mean, calls = recording.result(1), every.result(1)  # 0 is the part without the prompt
    off = 0.0
    for record in mean:
        maps = [one.weights(dtype=torch.float64) for one in calls if one.path == record.path]
        off = max(off, (torch.stack(maps).mean(0) - record.weights()).abs().max().item())
    drawn = attnviz.attention_map(mean, layer=0, head=[0, 1, 2, 3])
    over_image = drawn.weights[:, drawn.columns.index("cat</w>")].reshape(SIDE, SIDE)
    assert torch.equal(image, expected), "the recorded pipeline made another image"
    assert max(sizes[1:]) <= sizes[1], "the memory grew from step to step"
    assert off < 1e-6, "mean maps are not the mean of the maps of all calls"
    assert mean.agreement.verdict == calls.agreement.verdict == "verified"
    return (
        f"a pipeline of {STEPS} steps: {recording.calls} calls verified, the same image, "
        f"{sizes[1] / 1e6:.1f} MB of tensors after step 2 and {sizes[-1] / 1e6:.1f} MB after "
        f"step {STEPS}; the map of “cat” over the image has {over_image.numel()} places, and mean "
        f"maps are those of all calls to {off:.0e}"
    )


def run(pipeline: Any, **options: Any) -> Tensor:
    """Return the image of the prompt."""
    generator = torch.Generator().manual_seed(0)
    made = pipeline(
        PROMPT, num_inference_steps=STEPS, generator=generator, output_type="pt", **options
    )
    return made.images


def build() -> tuple[Any, list[str]]:
    """Return a small pipeline of Stable Diffusion's kind, and the tokens of the prompt."""
    from diffusers import (
        AutoencoderKL,
        DDIMScheduler,
        StableDiffusionPipeline,
        UNet2DConditionModel,
    )
    from transformers import CLIPTextConfig, CLIPTextModel

    torch.manual_seed(0)
    tokenizer = make_tokenizer(PROMPT.split())
    config = CLIPTextConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=16, bos_token_id=0, eos_token_id=1,
        pad_token_id=1,
    )  # fmt: skip
    denoiser = UNet2DConditionModel(
        sample_size=SIDE, layers_per_block=1, block_out_channels=(32, 64), norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), attention_head_dim=8,
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), cross_attention_dim=32,
    )  # fmt: skip
    decoder = AutoencoderKL(
        block_out_channels=(16, 32), norm_num_groups=8, latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip
    scheduler = DDIMScheduler(beta_schedule="scaled_linear", clip_sample=False, steps_offset=1)
    pipeline = StableDiffusionPipeline(
        decoder.eval(), CLIPTextModel(config).eval(), tokenizer, denoiser.eval(), scheduler,
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip
    pipeline.set_progress_bar_config(disable=True)
    ids = tokenizer(PROMPT, padding="max_length").input_ids
    return pipeline, tokenizer.convert_ids_to_tokens(ids)


def make_tokenizer(words: list[str]) -> Any:
    """Return a tokenizer of CLIP's kind that knows these words."""
    from transformers import CLIPTokenizer

    letters, merges = sorted({letter for word in words for letter in word}), ["#version: 0.2"]
    known = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{one}</w>" for one in letters)]
    for word in words:
        starts = [word[:end] for end in range(1, len(word))] + [f"{word}</w>"]
        ends = [*word[1:-1], f"{word[-1]}</w>"]
        for (start, whole), end in zip(pairwise(starts), ends, strict=len(word) > 1):
            merges.append(f"{start} {end}")
            known.append(whole)
    folder = Path(tempfile.mkdtemp())
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(known))}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
    (folder / "merges.txt").write_text("\n".join(dict.fromkeys(merges)) + "\n", "utf-8")
    return CLIPTokenizer(
        str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=16
    )
