"""Redraw a model's parameters so that attention is far from uniform and activations stay bounded.

With the library's default initialization, scores have a standard deviation of 0.025 and every row
of weights is flat: almost any fault would pass a comparison. Here every matrix preserves the scale
of its input, the query and key projections increase it, and no parameter stays at its initial zero
or one.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

GAIN = 1.0
QUERY_KEY_GAIN = 1.5  # the standard deviation of scores is then about its square
QUERY_KEY = re.compile(
    r"(^|[._])(q|k|qk|qkv|kv|wq|wk|wqkv|query|key|query_key_value|c_attn|in_proj|to_q|to_k|to_kv|"
    r"qkv_proj|q_proj|k_proj|q_lin|k_lin|kv_proj|q_[ab]_proj|kv_b_proj|attn_qkv|att_proj)([._]|$)"
)
TABLE = re.compile(r"embed|token|position|quer(y|ies)_|latent|prompt|probe|bias|codebook|anchor")
SCALE = re.compile(r"layer_?scale|lambda|gamma|(^|\.)ls\d|norm")
LEFT = re.compile(r"original0$|A_log$|dt_bias$|time_decay$|inv_freq|logit_scale|\.D$")


@torch.no_grad()
def sharpen(model: nn.Module, seed: int = 0) -> None:
    """Redraw every parameter in place."""
    generator = torch.Generator().manual_seed(seed)
    owners = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point() or not parameter.numel() or LEFT.search(name):
            continue
        owner = owners[name.rpartition(".")[0]]
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(_drawn(name, parameter, owner, noise))
    for owner in owners.values():
        if isinstance(owner, nn.Embedding) and owner.padding_idx is not None:
            owner.weight[owner.padding_idx] = 0  # as the library initializes it


def _drawn(name: str, old: Tensor, owner: nn.Module, noise: Tensor) -> Tensor:
    if old.dim() <= 1:
        if name.endswith("bias"):
            return 0.3 * noise
        if SCALE.search(name.lower()) or "norm" in type(owner).__name__.lower():
            zero_centred = old.numel() > 0 and bool(old.abs().max() == 0)  # used as 1 + weight
            return 0.2 * noise + (0.0 if zero_centred else 1.0)
        return old + 0.3 * noise
    if isinstance(owner, nn.Embedding):
        return noise
    is_module_weight = isinstance(owner, nn.Linear) or "Conv" in type(owner).__name__
    if not is_module_weight and (TABLE.search(name) or old.shape[0] == 1):
        return noise
    if SCALE.search(name.lower()) and not is_module_weight:
        return 1.0 + 0.2 * noise
    gain = QUERY_KEY_GAIN if QUERY_KEY.search(name) else GAIN
    return gain * noise / _fan_in(old, owner) ** 0.5


def _fan_in(weight: Tensor, owner: nn.Module) -> int:
    if "ConvTranspose" in type(owner).__name__ or type(owner).__name__ == "Conv1D":
        return weight.shape[0]  # stored with the input dimension first
    if isinstance(owner, nn.Linear) or "Conv" in type(owner).__name__:
        return max(1, weight[0].numel())
    return max(weight.shape[-2:])  # a stack of experts, in either orientation


def sharpness(weights: Tensor) -> float:
    """Return how far rows of softmax weights are from uniform; 1 is uniform.

    The mean, over rows with at least two visible keys, of the largest weight times the number of
    visible keys. Rows with one visible key are always 1 and are excluded; nan if no row is left.
    """
    visible = (weights > 0).sum(-1)
    rows = visible >= 2
    if not rows.any():
        return float("nan")
    return float((weights.amax(-1) * visible)[rows].float().mean())
