"""Make the configuration of an architecture tiny, by the names of its settings.

Every width becomes the same small number wherever it stands, so that towers, projectors and decoders
still fit each other; lists of widths keep their ratios. Of the layers, one of each kind is kept.
Settings that no rule knows keep their default.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from typing import Any

from transformers import CONFIG_MAPPING, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from architectures.exceptions import SETTINGS, TOKEN_TOWERS, UNSHRUNK, WIDTHS

WIDTH, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCABULARY, WINDOW = 64, 4, 2, 16, 256, 128, 4
FIRST_SPECIAL = 100  # token ids from here on are given anew, the same for all parts of a model

# The first pattern that matches the whole name of an integer setting gives its value. A rule only
# makes smaller, except where the value is in FORCED.
RULES: list[tuple[str, int]] = [
    (r"(patch_embed_hidden_size|keypoint_decoder_dim|.*num_encoder_blocks)", 10**9),  # kept
    (r"(output_channels|bottleneck_features|adapter_(in|out)_dim|adapter_input_size)", WIDTH),
    (r"(projector_(input|output)_dim|post_conv_in_channels)", WIDTH),
    (r"num_pos_feats", WIDTH // 2),
    (r"text_projection_(in|out)_dim", WIDTH),
    (r"(conv_dim|vit_dim|mm_embed_dim)", WIDTH),
    (r"(num_filters|n_filters|upsample_initial_channel|x4_feat_dim)", 32),
    (r".*_group_vocab", 1000),
    (r"(sliding_window(_size)?|attention_window(_size)?|local_attention_window_len)", WINDOW),
    (r"(local_attention|attention_chunk_size|keep_window_size)", WINDOW),
    (r"(local_radius|global_block_size|(local|lsh)_attn_chunk_length|local_transformer_stride)", WINDOW),
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
SWITCHES = {"use_sliding_window": True}


class Shrinker:
    """One tiny model: what all its parts share, such as the new ids of its special tokens."""

    def __init__(self, width: int = WIDTH) -> None:
        self.width = width
        self.tokens: dict[int, int] = {}

    def token(self, old: int) -> int:
        """Return the new id of a special token, the same wherever the old one stands."""
        if old < FIRST_SPECIAL:
            return old
        return self.tokens.setdefault(old, FIRST_SPECIAL + len(self.tokens))

    def config(self, template: PretrainedConfig) -> PretrainedConfig:
        """Return a tiny configuration of the same class."""
        cls = type(template)
        if cls.model_type in UNSHRUNK:
            return template
        fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
        switches = {k: v for k, v in SWITCHES.items() if k in fields}
        if switches:
            kwargs = {**_given(template, fields), **switches}
            template = cls(**kwargs)
        settings: dict[str, Any] = {}
        kept = _kept_layers(template)
        count = _layer_count(template)
        given = _given(template, fields) | switches
        settings |= {name: value for name, value in given.items() if name not in fields}
        for name in fields:
            value = _stored(template, name)
            if value is None and name in ("vision_config", "audio_config"):
                value = _optional_part(cls, name)
            if isinstance(value, PretrainedConfig):
                tower = _stand_in(value, cls.model_type)
                is_tiny = tower is not value and tower.model_type == "resnet" and name != "backbone_config"
                settings[name] = tower if is_tiny else self.config(tower)
                continue
            new = self._value(name, value, kept, count, template)
            if value is None:
                new = self._where_none(name)
            if name == "num_key_value_heads" and "kv_lora_rank" in fields:
                new = HEADS  # latent attention has as many keys as queries
            if name in given or (new != value and new is not None):
                settings[name] = new
        settings |= _stages(template, kept)
        settings |= SETTINGS.get(cls.model_type or cls.__name__, {})
        return cls(**{k: v for k, v in settings.items() if not k.startswith("_out_")})

    def _where_none(self, name: str) -> int | None:
        """Return a value for settings that models read without asking whether they are set."""
        if re.fullmatch(r"(image|video|audio)_token_(id|index)", name):
            return self.token(sum(name.encode()) + 10**6)
        return {"head_dim": HEAD_DIM, "num_experts_per_tok": 2,
                "n_routed_experts": 4}.get(name)  # fmt: skip

    def _value(self, name: str, value: Any, kept: list[int], count: int, template: Any) -> Any:
        """Return the tiny value of one setting."""
        if isinstance(value, bool) or value is None or isinstance(value, (str, float)):
            return value
        if name in ("rope_parameters", "rope_scaling"):
            return _rope(value, template)
        if TOKEN.fullmatch(name):
            return _each(value, self.token)
        if isinstance(value, (list, tuple)) and count > 2 and len(value) == count:
            value = type(value)(value[i] for i in kept)
            if value and all(type(v) is int and v > 4 for v in value):
                return type(value)(_small(name, v, self.width) for v in value)
            return value
        if name in ("image_size", "img_size"):
            return _image_size(value, template)
        if name == "window_size" and isinstance(value, int):
            return min(value, WINDOW) if value < 50 else 56  # of patches, else of pixels
        if isinstance(value, int):
            if count and value == count and _is_layer_count(name):
                return len(kept)
            return _small(name, value, self.width)
        if isinstance(value, (list, tuple)):
            return _list(name, value, len(kept))
        return value


def _image_size(value: Any, template: PretrainedConfig) -> Any:
    """Return a size of a few patches; of 64 pixels where patches are small or none are named."""
    patch = template.__dict__.get("patch_size")
    patch = patch[0] if isinstance(patch, (list, tuple)) else patch
    size = 4 * patch if isinstance(patch, int) and patch > 8 else 64
    if "depths" in template.__dict__ and "window_size" in template.__dict__:
        size = 128  # so that a window still fits the last stage
    return _each(value, lambda old: min(old, size))


def _each(value: Any, function: Any) -> Any:
    if isinstance(value, int):
        return function(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_each(v, function) for v in value)
    return value


def _small(name: str, value: int, width: int = WIDTH) -> int:
    for pattern, small in RULES:
        if re.fullmatch(pattern, name):
            return min(value, small * width // WIDTH if small in (WIDTH, WIDTH // 2) else small)
    return value


def _list(name: str, values: Any, layers: int) -> Any:
    """Return the tiny value of a list: depths, heads and widths of stages, or indices of layers."""
    kind = type(values)
    if not values or not all(type(v) is int for v in values):
        return values
    if re.fullmatch(r"(depths?|num_layers|.*blocks_per_stage|stage_num_blocks|block_sizes)", name):
        return kind(min(v, 2) for v in values)
    if re.fullmatch(r".*heads(_per_stage)?", name):
        return kind(max(1, v // min(values)) for v in values)
    if re.fullmatch(
        r"(hidden_sizes|embed_dims?|conv_dim|embed_dim_per_stage|tdnn_dim|"
        r"backbone_channel_list)",
        name,
    ):
        new = [16 * v / min(values) for v in values]
        return kind(int(v) for v in new) if all(v.is_integer() for v in new) else values
    if name == "downsample_channels":
        return kind(min(v, WIDTH) for v in values)
    if name == "decoder_in_channels":
        return kind(min(v, WIDTH) for v in values)
    if name == "encoder_in_channels":
        return kind(32 * v // min(values) for v in values)
    if INDEX_LIST.fullmatch(name) and layers and max(values) >= layers:
        return kind(range(max(0, layers - len(values)) or 1, layers))
    return values


def _is_layer_count(name: str) -> bool:
    return name in ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "depth", "layers")


def _layer_count(template: PretrainedConfig) -> int:
    """Return the number of layers of the default model, 0 where that is not one number."""
    if isinstance(template.__dict__.get("depths"), (list, tuple)):
        return 0
    for name in ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth", "layers"):
        name = type(template).attribute_map.get(name, name)
        value = template.__dict__.get(name)
        if type(value) is int:
            return value
    return 0


def _kept_layers(template: PretrainedConfig) -> list[int]:
    """Return which layers of the default model stay: one of each kind, and at least two."""
    count = _layer_count(template)
    lists = [
        [_hashable(v) for v in value]
        for name, value in template.__dict__.items()
        if isinstance(value, (list, tuple)) and len(value) == count > 2
        and not TOKEN.fullmatch(name) and not all(isinstance(v, float) for v in value)
    ]  # fmt: skip
    kinds = list(zip(*lists, strict=True)) if lists else [()] * count
    kept = [i for i, kind in enumerate(kinds) if kind not in kinds[:i]]
    if len(kept) > 8:  # something differs in every layer: no kinds
        kept = [0, count - 1]
    outputs = len(template.__dict__.get("_out_indices") or [])
    least = max(2, outputs if "depths" not in template.__dict__ else 0)
    for i in range(count):
        if len(kept) < least and i not in kept:
            kept.append(i)
    return sorted(kept)


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _stored(config: PretrainedConfig, name: str) -> Any:
    """Return the value of a setting, which may be kept under another name."""
    return config.__dict__.get(type(config).attribute_map.get(name, name))


def _optional_part(cls: type, name: str) -> PretrainedConfig | None:
    """Return the default configuration of a tower that the model can also be without."""
    spec = (getattr(cls, "sub_configs_defaults", None) or {}).get(name)
    return spec.create_subconfig(name)[0] if hasattr(spec, "create_subconfig") else None


def _given(template: PretrainedConfig, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from what the class would derive by itself."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            default = type(template)()
    except Exception:
        return {}
    base = {field.name for field in dataclasses.fields(PretrainedConfig)}
    extra = {  # what a model asks of its backbone beyond the settings that the class names
        name: value
        for name, value in vars(template).items()
        if name not in vars(default) and name not in base and not name.startswith("_")
    }
    return extra | {
        name: _stored(template, name)
        for name in fields
        if name not in base | {"_out_features", "_out_indices"}
        and not isinstance(_stored(template, name), PretrainedConfig)
        and _stored(template, name) != _stored(default, name)
    }


def _stages(template: PretrainedConfig, kept: list[int]) -> dict[str, Any]:
    """Return the outputs of a backbone: as many as before, the last stages."""
    outputs = template.__dict__.get("_out_indices")
    if not outputs:
        return {}
    names = template.__dict__.get("stage_names") or []
    if len(names) == _layer_count(template) + 1 and "depths" not in template.__dict__:
        last = len(kept)
        return {"out_indices": list(range(last - len(outputs) + 1, last + 1))}
    return {"out_indices": list(outputs)}


def _stand_in(config: PretrainedConfig, whole: str) -> PretrainedConfig:
    """Return a tower of transformers' own in place of one of the timm package."""
    if config.model_type == "timm_backbone":
        outputs = len(config.__dict__.get("_out_indices") or config.out_indices or [4])
        return CONFIG_MAPPING["resnet"](out_indices=list(range(5 - outputs, 5)))
    if not MODEL_MAPPING_NAMES.get(config.model_type, "").startswith("Timm"):
        return config
    base = vars(CONFIG_MAPPING["timm_wrapper"]())
    extra = {name: value for name, value in vars(config).items() if name not in base}
    extra = {name: _small(name, v) if type(v) is int else v for name, v in extra.items()}
    extra["model_args"] = {"embed_dim": WIDTH}
    extra["hidden_size"] = WIDTH
    if whole in TOKEN_TOWERS:
        return CONFIG_MAPPING["vit"](**extra)
    stages = {"embedding_size": 16, "hidden_sizes": [16, 32, 64, WIDTH], "depths": [2, 2, 2, 2]}
    return CONFIG_MAPPING["resnet"](**stages, layer_type="basic", **extra)


def _rope(value: Any, template: PretrainedConfig) -> Any:
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
            new[name] = _rope(old, template)
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


def tiny_config(architecture: str) -> PretrainedConfig:
    """Return the tiny configuration of an architecture."""
    cls = CONFIG_MAPPING[architecture]
    settings = SETTINGS.get(architecture, {})
    try:
        template = cls()
    except Exception:
        template = cls(**settings)
    return Shrinker(WIDTHS.get(architecture, WIDTH)).config(template)
