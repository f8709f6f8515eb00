"""Tiny random models for images and audio, with real processors; an image and an audio clip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from transformers import (
    BertConfig,
    BertLMHeadModel,
    BlipConfig,
    BlipForConditionalGeneration,
    CLIPConfig,
    CLIPModel,
    CLIPProcessor,
    CLIPVisionConfig,
    Dinov2Config,
    Dinov2Model,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    SwinConfig,
    SwinModel,
    VisionEncoderDecoderModel,
    ViTConfig,
    ViTModel,
    Wav2Vec2Config,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2Model,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

import attnviz

SIDE, PATCH = 32, 8  # pixels; 4 × 4 patches
RATE = 16_000
_small = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
}  # fmt: skip
_vision = {**_small, "image_size": SIDE, "patch_size": PATCH, "initializer_range": 0.1}
_text = {**_small, "vocab_size": 30522, "bos_token_id": 101, "eos_token_id": 102}


def picture(width: int = 80, height: int = 60) -> Image.Image:
    """Draw a circle, a square and a triangle on a background with a gradient."""
    y, x = np.mgrid[0:height, 0:width]
    ground = np.stack([255 * x / width, 255 * y / height, 180 - 80 * x / width], axis=-1)
    image = Image.fromarray(ground.astype(np.uint8))
    draw = ImageDraw.Draw(image)
    size = np.array([width, height, width, height])
    draw.ellipse(tuple(size * [0.1, 0.15, 0.45, 0.7]), fill=(220, 60, 50))
    draw.rectangle(tuple(size * [0.55, 0.45, 0.9, 0.85]), fill=(40, 90, 160))
    corners = [(0.6, 0.35), (0.75, 0.05), (0.9, 0.35)]
    draw.polygon([(width * a, height * b) for a, b in corners], fill=(240, 200, 60))
    return image


def chirp(seconds: float = 1.0, rate: int = RATE) -> np.ndarray:
    """Return a tone that rises from 200 Hz."""
    time = np.arange(int(seconds * rate)) / rate
    return (0.5 * np.sin(2 * np.pi * (200 * time + 400 * time**2))).astype(np.float32)


def image_processor() -> ViTImageProcessorPil:
    return ViTImageProcessorPil(size={"height": SIDE, "width": SIDE})


def cropping_processor() -> CLIPImageProcessorPil:
    return CLIPImageProcessorPil(
        size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}
    )


def _whisper() -> Any:
    return WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=30522, d_model=32, encoder_layers=2, decoder_layers=2,
            encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
            decoder_ffn_dim=48, max_source_positions=100, init_std=0.1, pad_token_id=0,
            bos_token_id=101, eos_token_id=102, decoder_start_token_id=101, suppress_tokens=None,
            begin_suppress_tokens=None,
        )
    )  # fmt: skip


def _two_sided() -> Any:
    decoder = BertLMHeadModel(BertConfig(**_small, is_decoder=True, add_cross_attention=True))
    model = VisionEncoderDecoderModel(encoder=ViTModel(ViTConfig(**_vision)), decoder=decoder)
    model.config.decoder_start_token_id, model.config.pad_token_id = 102, 0
    return model


def words_with_image(tokenizer: Any) -> PreTrainedTokenizerFast:
    """Return the bundled tokenizer with an image placeholder."""
    specials = {
        "unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]",
    }  # fmt: skip
    extended = PreTrainedTokenizerFast.from_pretrained(tokenizer.name_or_path, **specials)
    extended.add_tokens(["<image>"], special_tokens=True)
    return extended


def llava(tokenizer: Any) -> tuple[Any, LlavaProcessor]:
    words = words_with_image(tokenizer)
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**_vision),
        text_config=LlamaConfig(**{**_text, "vocab_size": len(words)}, num_key_value_heads=2),
        image_token_id=words.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
    )
    processor = LlavaProcessor(
        image_processor=cropping_processor(),
        tokenizer=words,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )
    return LlavaForConditionalGeneration(config), processor


def _clip() -> Any:
    return CLIPModel(CLIPConfig(text_config=_text, vision_config=_vision, projection_dim=16))


MODELS: dict[str, Callable[[], Any]] = {
    "vit": lambda: ViTModel(ViTConfig(**_vision)),
    "dinov2": lambda: Dinov2Model(Dinov2Config(**_vision)),
    "registers": lambda: Dinov2WithRegistersModel(Dinov2WithRegistersConfig(**_vision)),
    "swin": lambda: SwinModel(
        SwinConfig(image_size=SIDE, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4],
                   window_size=3, initializer_range=0.1)
    ),
    "clip": _clip,
    "blip": lambda: BlipForConditionalGeneration(
        BlipConfig(text_config=_text, vision_config=_vision)
    ),
    "vit-bert": _two_sided,
    "whisper": _whisper,
    "wav2vec2": lambda: Wav2Vec2Model(
        Wav2Vec2Config(**_small, conv_dim=(16,) * 7, num_conv_pos_embeddings=16,
                       num_conv_pos_embedding_groups=4, initializer_range=0.1)
    ),
}  # fmt: skip


def processor_of(family: str, tokenizer: Any) -> Any:
    """Return the image or audio processor of a family."""
    if family == "clip":
        return CLIPProcessor(cropping_processor(), tokenizer)
    if family == "whisper":
        return WhisperFeatureExtractor(chunk_length=2)
    return Wav2Vec2FeatureExtractor() if family == "wav2vec2" else image_processor()


def seeing(family: str, tokenizer: Any, seed: int = 0) -> attnviz.Model:
    """Return a tiny random model with sharp attention, and its processor."""
    torch.manual_seed(seed)
    if family == "llava":
        module, processor = llava(tokenizer)
        return attnviz.load(_sharp(module), processor=processor)
    processor = processor_of(family, tokenizer)
    return attnviz.load(_sharp(MODELS[family]()), processor=processor, tokenizer=tokenizer)


def _sharp(module: Any) -> Any:
    for name, parameter in module.named_parameters():
        if parameter.dim() > 1 and any(
            part in name for part in ("q_proj", "k_proj", "query", "key")
        ):
            torch.nn.init.normal_(parameter, 0.0, 0.5)
    return module.eval()
