"""General rules that make a model tiny: new values for settings, by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from transformers import PretrainedConfig

WIDTH, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCABULARY, WINDOW = 64, 4, 2, 16, 256, 128, 4

# The first pattern that matches the whole name of an integer setting gives its value. A rule only
# makes a value smaller.
RULES: list[tuple[str, int]] = [
    (r"(patch_embed_hidden_size|keypoint_decoder_dim|.*num_encoder_blocks)", 10**9),  # kept
    (r"(output_channels|bottleneck_features|adapter_(in|out)_dim|adapter_input_size)", WIDTH),
    (r"(projector_(input|output)_dim|post_conv_in_channels)", WIDTH),
    (r"num_pos_feats", WIDTH // 2),
    (r"text_projection_(in|out)_dim", WIDTH),
    (r"(conv_dim|vit_dim|mm_embed_dim)", WIDTH),
    (r"(upsample_initial_channel|x4_feat_dim)", 32),
    (r"(num|n)_filters", 4),
    (r".*_group_vocab", 1000),
    (r"(sliding_window(_size)?|attention_window(_size)?|local_attention_window_len)", WINDOW),
    (r"(local_attention|attention_chunk_size|keep_window_size)", WINDOW),
    (r"(local_radius|global_block_size|local_transformer_stride)", WINDOW),
    (r"(local|lsh)_attn_chunk_length", WINDOW),
    (r"max_window_layers", 1),
    (r"(first_k_dense_replace|num_dense_layers|moe_layer_start_index)", 1),
    (r".*(_period|_interval|_pattern|_sparse_step|_every_n_layers|_frequency|group_size)", 2),
    (r".*(kv|kv_n|key_value)(_attention)?_heads", KV_HEADS),
    (r"(attn|expert)_layer_offset", 1),
    (r"linear_num_key_heads", KV_HEADS),
    (r"mamba_(n|num)_heads", 8),
    (r"(.*_)?(n|num)_(.*_)?heads?|n_head|(.*_)?heads|num_(.*_)?heads_per_layer", HEADS),
    (r"(.*_)?(num|n)_(.*_)?experts|n_routed_experts|num_local_experts|zero_expert_num", 4),
    (r"(num_experts_per_tok|moe_topk|moe_k|moe_top_k|num_experts_per_token)", 2),
    (r"n_group", 2),
    (r"topk_group", 1),
    (r"kv_lora_rank", 16),
    (r"(q_lora_rank|o_lora_rank)", 24),
    (r"qk_rope_head_dim", 8),
    (r"v_head_dim", 12),
    (r"(d_kv|d_head|dim_head|kv_channels|attention_head_size|attention_head_dim)", HEAD_DIM),
    (r"(.*_)?(head_dim|head_size|d_head|dim_head|key_dim)", HEAD_DIM),
    (r"(.*_)?index_topk", WINDOW),
    (r".*(num_hidden_layers|num_layers|n_layers?|_layers|_depth|num_.*_layers)", 2),
    (r"(depth|num_blocks|layers|[lrx]_layers|num_layers_per_stack)", 2),
    (r"(.*_)?(intermediate|ffn|mlp|feedforward|feed_forward|inner|dff|d_ff|linear_units|dim_ff).*"
     r"(?<!ratio)(?<!_mult)(?<!bias)(?<!ratios)", FFN),
    (r"(.*_)?(hidden|embed|emb|embedding|embeds|proj|projection|projector|model|out|output|text|"
     r"vision|encoder|decoder|class|pooler|retrieval_vector|adapter|codevector|fpn|mask|fusion)_"
     r"(size|dim|width|dims|hidden_dim|feature_size)", WIDTH),
    (r"(d_model|dim|n_embd|width|hidden_dim|latent_dim|embed_dim|d_latents|emb_dim)", WIDTH),
    (r"(.*_)?hidden_(size|dim)(_.*)?|(.*_)?(lru_width|attention_hidden_size)", WIDTH),
    (r"(.*_)?vocab(ulary)?_size(_.*)?|unpadded_vocab_size", VOCABULARY),
    (r"(.*_)?(num_queries|num_query_tokens|num_latents|n_latents|latent_query_num)", 6),
    (r"(max_position_embeddings|n_positions|n_ctx|max_seq_len|max_sequence_length)", 512),
    (r"max_source_positions", 20),
    (r"rotary_dim", 8),
    (r"mm_tokens_per_image", 4),
    (r"(.*_)?max_(source|target)_positions", 512),
    (r"(num_frames|frames_per_clip)", 4),
    (r"(upsample_groups|condition_dim)", WIDTH),
    (r"relative_attention_num_buckets", 8),
    (r"(relative_attention|.*relative)_max_distance", 12),
    (r"num_conv_pos_embeddings", 8),
    (r"num_conv_pos_embedding_groups", 4),
    (r"(ngram_vocab_size_base|num_embeddings|codebook_size|num_hash_buckets)", 128),
]  # fmt: skip
TOKEN = re.compile(
    r"(.*_)?(token_ids?|token_index|tokens_ids|pad_id|eos_id|bos_id|start_id|end_id|newline_id)"
    r"|.*(boi|eoi|boa|eoa|image|video|audio)_(token|patch|stream_.os)_?(id|index)?"
)
INDEX_LIST = re.compile(r".*(indexes|indices|_idxs|layer_ids|_layers|target_layers)")


def image_size(value: Any, template: PretrainedConfig) -> Any:
    """Return a size of a few patches; 64 pixels if patches are small or not given."""
    patch = template.__dict__.get("patch_size")
    patch = patch[0] if isinstance(patch, (list, tuple)) else patch
    size = 4 * patch if isinstance(patch, int) and patch > 8 else 64
    if "depths" in template.__dict__ and "window_size" in template.__dict__:
        size = 128  # the window must still fit the last stage
    return map_numbers(value, lambda old: min(old, size))


def map_numbers(value: Any, function: Callable[[int], int]) -> Any:
    """Apply a function to a number, or to each number in a nested list."""
    if isinstance(value, int):
        return function(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map_numbers(v, function) for v in value)
    return value


def small(name: str, value: int, width: int = WIDTH) -> int:
    """Return the tiny value of an integer setting."""
    for pattern, tiny in RULES:
        if re.fullmatch(pattern, name):
            return min(value, tiny * width // WIDTH if tiny in (WIDTH, WIDTH // 2) else tiny)
    return value


def short_list(name: str, values: Any, layers: int) -> Any:
    """Return the tiny value of a list: stage depths, heads or widths, or layer indices."""
    kind = type(values)
    if not values or not all(type(v) is int for v in values):
        return values
    if re.fullmatch(r"(depths?|num_layers|.*blocks_per_stage|stage_num_blocks|block_sizes)", name):
        return kind(min(v, 2) for v in values)
    if re.fullmatch(r".*heads(_per_stage)?", name):
        return kind(max(1, v // min(values)) for v in values)
    if re.fullmatch(
        r"hidden_sizes|embed_dims?|conv_dim|embed_dim_per_stage|tdnn_dim|backbone_channel_list",
        name,
    ):
        new = [16 * v / min(values) for v in values]
        return kind(int(v) for v in new) if all(v.is_integer() for v in new) else values
    if name in ("downsample_channels", "decoder_in_channels"):
        return kind(min(v, WIDTH) for v in values)
    if name == "encoder_in_channels":
        return kind(32 * v // min(values) for v in values)
    if INDEX_LIST.fullmatch(name) and layers and max(values) >= layers:
        return kind(range(max(0, layers - len(values)) or 1, layers))
    return values


def rope(value: Any, template: PretrainedConfig) -> Any:
    """Return rotary parameters that fit the small head dimension."""
    if not isinstance(value, dict):
        return value
    half = HEAD_DIM // 2
    new = {}
    if "mrope_section" in type(template).__dict__.get("ignore_keys_at_rope_validation", ()):
        nested = any(isinstance(old, dict) for old in value.values())
        value = value if nested else {"mrope_section": [1, 1, 1]} | value
    for name, old in value.items():
        if isinstance(old, dict):
            new[name] = rope(old, template)
        elif name in ("mrope_section", "xdrope_section"):
            half_rotary = int(half * value.get("partial_rotary_factor", 1.0))
            first = [half_rotary // len(old)] * (len(old) - 1)
            new[name] = [half_rotary - sum(first), *first]
        elif name in ("long_factor", "short_factor"):
            rotary = int(HEAD_DIM * value.get("partial_rotary_factor", 1.0))
            new[name] = list(old[: rotary // 2])
        else:
            new[name] = old
    return new
