"""Optional towers, and replacements for towers from packages that may not be installed."""

from __future__ import annotations

from transformers import CONFIG_MAPPING, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from architectures.overrides import TOKEN_TOWERS
from architectures.rules import WIDTH, small


def optional_part(cls: type, name: str) -> PretrainedConfig | None:
    """Return the default configuration of an optional tower."""
    spec = (getattr(cls, "sub_configs_defaults", None) or {}).get(name)
    return spec.create_subconfig(name)[0] if hasattr(spec, "create_subconfig") else None


def replacement(config: PretrainedConfig, whole: str) -> PretrainedConfig:
    """Return a transformers tower that replaces one from the timm package."""
    if config.model_type == "timm_backbone":
        outputs = len(config.__dict__.get("_out_indices") or config.out_indices or [4])
        return CONFIG_MAPPING["resnet"](out_indices=list(range(5 - outputs, 5)))
    if not MODEL_MAPPING_NAMES.get(config.model_type, "").startswith("Timm"):
        return config
    base = vars(CONFIG_MAPPING["timm_wrapper"]())
    extra = {name: value for name, value in vars(config).items() if name not in base}
    extra = {name: small(name, v) if type(v) is int else v for name, v in extra.items()}
    extra["model_args"] = {"embed_dim": WIDTH}
    extra["hidden_size"] = WIDTH
    if whole in TOKEN_TOWERS:
        return CONFIG_MAPPING["vit"](**extra)
    stages = {"embedding_size": 16, "hidden_sizes": [16, 32, 64, WIDTH], "depths": [2, 2, 2, 2]}
    return CONFIG_MAPPING["resnet"](**stages, layer_type="basic", is_tiny=True, **extra)


def is_tiny(config: PretrainedConfig) -> bool:
    """Return whether a tower was already made tiny as a replacement."""
    return vars(config).get("is_tiny", False)
