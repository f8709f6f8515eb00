"""Small models with random weights, by library: each returns a module, and what it is called with.

`_made(library, name)` adds a function that imports its library when it is called.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

Built = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """One model."""

    library: str
    name: str
    build: Callable[[], Built]


CASES: list[Case] = []


def _made(library: str, name: str, **options: Any) -> Callable[[Callable[..., Built]], Any]:
    def add(build: Callable[..., Built]) -> Callable[..., Built]:
        CASES.append(Case(library, name, partial(build, **options)))
        return build

    return add


def _pixels(side: int, count: int = 1) -> Tensor:
    return torch.randn(count, 3, side, side)


def _ids(length: int, count: int = 1, vocabulary: int = 50) -> Tensor:
    return torch.randint(0, vocabulary, (count, length))


# --- torch


@_made("torch", "MultiheadAttention with weights", need_weights=True, average_attn_weights=False)
@_made("torch", "MultiheadAttention without", need_weights=False)
def _attention(**options: Any) -> Built:
    x = torch.randn(2, 9, 32)
    return nn.MultiheadAttention(32, 4, batch_first=True), (x, x, x), options


@_made("torch", "TransformerEncoder, nested", enable_nested_tensor=True)
@_made("torch", "TransformerEncoder", enable_nested_tensor=False)
def _encoder(**options: Any) -> Built:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    padding = torch.zeros(2, 9, dtype=torch.bool)
    padding[1, 6:] = True
    encoder = nn.TransformerEncoder(layer, 2, **options)
    return encoder, (torch.randn(2, 9, 32),), {"src_key_padding_mask": padding}


@_made("torch", "Transformer, sequence first")
def _transformer() -> Built:
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    model = nn.Transformer(32, 4, 2, 2, 64)
    return model, (torch.randn(9, 2, 32), torch.randn(5, 2, 32)), {"tgt_mask": mask}


@_made("torch", "functions only")
def _functions() -> Built:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        bias = torch.linspace(-1, 1, k.shape[-2])
        return scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(q.shape[-2], -1))

    return program, tuple(torch.randn(2, 4, n, 8) for n in (5, 7, 7)), {}


# --- files of one's own


class _OwnGPT(nn.Module):
    """A model in one file, as nanoGPT: attention written out, or fused."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(50, 32), nn.Embedding(16, 32)
        self.qkv = nn.ModuleList(nn.Linear(32, 96) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))
        self.fused = fused

    def forward(self, ids: Tensor) -> Tensor:
        T = ids.shape[1]
        x = self.embedding(ids) + self.positions(torch.arange(T))
        for qkv, out in zip(self.qkv, self.out, strict=True):
            q, k, v = qkv(x).view(len(x), T, 3, 4, 8).permute(2, 0, 3, 1, 4)
            if self.fused:
                y = scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                scores = q @ k.mT / math.sqrt(8)
                hidden = torch.ones(T, T).tril() == 0
                y = scores.masked_fill(hidden, -math.inf).softmax(-1) @ v
            x = x + out(y.transpose(1, 2).flatten(2))
        return x


@_made("own file", "nanoGPT, written out", fused=False)
@_made("own file", "nanoGPT, fused", fused=True)
def _gpt(**options: Any) -> Built:
    return _OwnGPT(**options), (_ids(12, 2),), {}


class _OwnTable(nn.Module):
    """Attention between the rows and between the columns of a table, as TabPFN."""

    def __init__(self) -> None:
        super().__init__()
        self.of_columns = nn.MultiheadAttention(16, 2, batch_first=True)
        self.of_rows = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = x.flatten(0, 1)
        x = x + self.of_columns(y, y, y, need_weights=False)[0].view_as(x)
        y = x.transpose(1, 2).flatten(0, 1)
        return x.transpose(1, 2) + self.of_rows(y, y, y)[0].unflatten(0, (len(x), -1))


@_made("own file", "table of rows and columns")
def _table() -> Built:
    return _OwnTable(), (torch.randn(2, 6, 4, 16),), {}


# --- timm


def _timm(name: str, side: int, **options: Any) -> Built:
    import timm

    return timm.create_model(name, **options), (_pixels(side, 2),), {}


for _name, _side, _options in (
    ("vit_tiny_patch16_224", 64, {"img_size": 64, "depth": 2}),
    ("deit_tiny_distilled_patch16_224", 64, {"img_size": 64, "depth": 2}),
    ("deit3_small_patch16_224", 64, {"img_size": 64, "depth": 2}),
    ("vit_small_patch14_reg4_dinov2", 56, {"img_size": 56, "depth": 2}),
    ("vit_base_patch16_clip_224", 64, {"img_size": 64, "depth": 2, "embed_dim": 192}),
    ("eva02_tiny_patch14_224", 56, {"img_size": 56, "depth": 2}),
    ("beit_base_patch16_224", 64, {"img_size": 64, "depth": 2, "embed_dim": 192}),
    ("swin_tiny_patch4_window7_224", 56, {"img_size": 56, "depths": (2, 2)}),
    ("swinv2_tiny_window8_256", 64, {"img_size": 64, "depths": (2, 2)}),
    ("cait_xxs24_224", 64, {"img_size": 64, "depth": 2}),
    ("mvitv2_tiny", 64, {"img_size": 64}),
    ("pvt_v2_b0", 64, {}),
    ("xcit_nano_12_p16_224", 64, {"img_size": 64, "depth": 2}),
):
    CASES.append(Case("timm", _name, partial(_timm, _name, _side, **_options)))


# --- open_clip, torchvision


@_made("open_clip", "CLIP, both towers")
def _clip() -> Built:
    from open_clip.model import CLIP

    vision = {"layers": 2, "width": 64, "head_width": 16, "patch_size": 16, "image_size": 64}
    text = {"context_length": 12, "vocab_size": 50, "width": 64, "heads": 4, "layers": 2}
    return CLIP(32, vision, text), (_pixels(64, 2), _ids(12, 2)), {}


@_made("torchvision", "vit")
def _torchvision_vit() -> Built:
    from torchvision.models import VisionTransformer

    return VisionTransformer(64, 16, 2, 4, 64, 128), (_pixels(64, 2),), {}


@_made("torchvision", "swin")
def _torchvision_swin() -> Built:
    from torchvision.models import SwinTransformer

    return SwinTransformer([4, 4], 32, [2, 2], [2, 4], [4, 4]), (_pixels(32),), {}


@_made("torchvision", "maxvit")
def _torchvision_maxvit() -> Built:
    from torchvision.models import MaxVit

    model = MaxVit((64, 64), 32, 4, [32, 64], [1, 1], 16, 0.0)
    return model, (_pixels(64),), {}


# --- diffusers


@_made("diffusers", "UNet2DConditionModel")
def _unet() -> Built:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=16, block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=32,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), attention_head_dim=8,
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), norm_num_groups=8,
    )  # fmt: skip
    args = torch.randn(2, 4, 16, 16), torch.tensor(5), torch.randn(2, 7, 32)
    return model, args, {}


@_made("diffusers", "SD3Transformer2DModel")
def _sd3() -> Built:
    from diffusers import SD3Transformer2DModel

    model = SD3Transformer2DModel(
        sample_size=16, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8,
        num_attention_heads=4, joint_attention_dim=32, caption_projection_dim=32,
        pooled_projection_dim=16, out_channels=4,
    )  # fmt: skip
    inputs = {"encoder_hidden_states": torch.randn(1, 7, 32), "timestep": torch.tensor([3])}
    inputs["pooled_projections"] = torch.randn(1, 16)
    return model, (torch.randn(1, 4, 16, 16),), inputs


@_made("diffusers", "FluxTransformer2DModel")
def _flux() -> Built:
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel(
        in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=16,
        axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    return model, (), {
        "hidden_states": torch.randn(1, 16, 4), "encoder_hidden_states": torch.randn(1, 7, 32),
        "pooled_projections": torch.randn(1, 16), "timestep": torch.tensor([0.5]),
        "img_ids": torch.zeros(16, 3), "txt_ids": torch.zeros(7, 3),
    }  # fmt: skip


@_made("diffusers", "PixArtTransformer2DModel")
def _pixart() -> Built:
    from diffusers import PixArtTransformer2DModel

    model = PixArtTransformer2DModel(
        sample_size=8, num_layers=2, patch_size=2, attention_head_dim=8, num_attention_heads=4,
        in_channels=4, cross_attention_dim=32, caption_channels=32, out_channels=4,
        use_additional_conditions=False,
    )  # fmt: skip
    return model, (torch.randn(1, 4, 8, 8),), {
        "encoder_hidden_states": torch.randn(1, 7, 32), "timestep": torch.tensor([3]),
        "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
    }  # fmt: skip


@_made("diffusers", "AutoencoderKL")
def _autoencoder() -> Built:
    from diffusers import AutoencoderKL

    model = AutoencoderKL(block_out_channels=(16,), norm_num_groups=4, layers_per_block=1)
    return model, (_pixels(8),), {}


@_made("diffusers", "DiTTransformer2DModel")
def _dit() -> Built:
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(4, 8, 4, num_layers=2, sample_size=8, norm_num_groups=4)
    inputs = {"timestep": torch.tensor([3]), "class_labels": torch.tensor([1])}
    return model, (torch.randn(1, 4, 8, 8),), inputs


# --- segment_anything


@_made("segment_anything", "image encoder with windows")
def _sam() -> Built:
    from segment_anything.modeling import ImageEncoderViT

    model = ImageEncoderViT(
        img_size=64, patch_size=8, embed_dim=32, depth=2, num_heads=4, window_size=4,
        global_attn_indexes=(1,), use_rel_pos=True, rel_pos_zero_init=False, out_chans=16,
    )  # fmt: skip
    return model, (_pixels(64),), {}


@_made("segment_anything", "two-way decoder")
def _two_way() -> Built:
    from segment_anything.modeling import TwoWayTransformer

    model = TwoWayTransformer(2, 32, 4, 64)
    return model, (torch.randn(1, 32, 6, 6), torch.randn(1, 32, 6, 6), torch.randn(1, 5, 32)), {}


# --- x_transformers


@_made("x_transformers", "decoder, written out", attn_flash=False)
@_made("x_transformers", "decoder, fused", attn_flash=True)
@_made("x_transformers", "rotary, grouped queries", rotary_pos_emb=True, attn_kv_heads=2)
@_made("x_transformers", "alibi", alibi_pos_bias=True)
@_made("x_transformers", "relative bias, qk norm", rel_pos_bias=True, attn_qk_norm=True)
def _x_transformer(**options: Any) -> Built:
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(dim=32, depth=2, heads=4, attn_dim_head=8, **options)
    return TransformerWrapper(num_tokens=50, max_seq_len=16, attn_layers=layers), (_ids(12, 2),), {}


@_made("x_transformers", "encoder and decoder")
def _x_encoder_decoder() -> Built:
    from x_transformers import XTransformer

    sides = {
        f"{side}_{name}": value
        for side in ("enc", "dec")
        for name, value in {"num_tokens": 50, "depth": 1, "heads": 4, "max_seq_len": 16}.items()
    }
    return XTransformer(dim=32, **sides), (_ids(12), _ids(9)), {}


# --- vit_pytorch


def _vit_pytorch(path: str, **options: Any) -> Built:
    from importlib import import_module

    module, _, name = path.rpartition(".")
    sizes = {"image_size": 32, "patch_size": 8, "num_classes": 5, "dim": 32, "depth": 2}
    sizes |= {"heads": 4, "mlp_dim": 64, **options}
    return getattr(import_module(f"vit_pytorch.{module}"), name)(**sizes), (_pixels(32, 2),), {}


for _name, _options in (
    ("vit.ViT", {}),
    ("simple_vit.SimpleViT", {}),
    ("parallel_vit.ViT", {}),
    ("simple_vit_with_register_tokens.SimpleViT", {}),
    ("simple_vit_with_qk_norm.SimpleViT", {}),
    ("simple_flash_attn_vit.SimpleViT", {"use_flash": True}),
):
    CASES.append(Case("vit_pytorch", _name, partial(_vit_pytorch, _name, **_options)))


# --- monai


@_made("monai", "ViT")
def _monai_vit() -> Built:
    from monai.networks.nets import ViT

    sizes = {"hidden_size": 32, "mlp_dim": 64, "num_layers": 2, "num_heads": 4}
    return ViT(1, (16, 16, 16), (8, 8, 8), **sizes), (torch.randn(1, 1, 16, 16, 16),), {}


@_made("monai", "UNETR")
def _monai_unetr() -> Built:
    from monai.networks.nets import UNETR

    sizes = {"hidden_size": 24, "mlp_dim": 32, "num_heads": 4, "feature_size": 4}
    return UNETR(1, 2, (32, 32), spatial_dims=2, **sizes), (torch.randn(1, 1, 32, 32),), {}


@_made("monai", "SwinUNETR")
def _monai_swin() -> Built:
    from monai.networks.nets import SwinUNETR

    model = SwinUNETR(1, 2, feature_size=12, spatial_dims=2, depths=(1, 1, 1, 1))
    return model, (torch.randn(1, 1, 64, 64),), {}


# --- others


@_made("perceiver_pytorch", "Perceiver IO")
def _perceiver() -> Built:
    from perceiver_pytorch import PerceiverIO

    model = PerceiverIO(
        dim=16, queries_dim=16, logits_dim=4, depth=2, num_latents=6, latent_dim=32,
        cross_heads=1, latent_heads=4, cross_dim_head=8, latent_dim_head=8,
    )  # fmt: skip
    return model, (torch.randn(1, 20, 16),), {"queries": torch.randn(1, 5, 16)}


@_made("iTransformer", "series of time")
def _itransformer() -> Built:
    from iTransformer import iTransformer

    model = iTransformer(
        num_variates=5, lookback_len=24, dim=32, depth=2, heads=4, dim_head=8, pred_length=6,
        flash_attn=False,
    )  # fmt: skip
    return model, (torch.randn(1, 24, 5),), {}


@_made("conformer", "Conformer")
def _conformer() -> Built:
    from conformer import Conformer

    return Conformer(dim=32, depth=2, dim_head=8, heads=4), (torch.randn(1, 20, 32),), {}


@_made("local_attention", "windows over time")
def _local() -> Built:
    from local_attention.transformer import LocalTransformer

    model = LocalTransformer(
        num_tokens=50, dim=32, depth=2, max_seq_len=32, causal=True, local_attn_window_size=8,
        heads=4, dim_head=8,
    )  # fmt: skip
    return model, (_ids(32),), {}


@_made("axial_attention", "rows and columns")
def _axial() -> Built:
    from axial_attention import AxialAttention

    return AxialAttention(dim=32, dim_index=1, heads=4), (torch.randn(1, 32, 6, 5),), {}


@_made("memory_efficient_attention_pytorch", "attention", memory_efficient=False)
def _memory_efficient(**options: Any) -> Built:
    from memory_efficient_attention_pytorch import Attention

    model = Attention(dim=32, dim_head=8, heads=4, q_bucket_size=8, k_bucket_size=8, **options)
    return model, (torch.randn(1, 16, 32),), {}
