"""Faults in a model: hooks and patched code, which leave what attnviz reads as it is.

Each is planted while a context is open. All of them are in every run of the model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask


@dataclass(frozen=True)
class Site:
    """Where faults are planted in a model: the modules of one attention in layer 1.

    attention : its path. query, key, value, output : the names of its projections; a third of a
    fused one has its number after a colon. width : the features of a head. first : the path of the
    layers. rotary : whether queries and keys are rotated.
    """

    attention: str
    query: str
    key: str
    value: str
    output: str
    width: int
    layers: str
    rotary: bool = False


_separate = ("q_proj", "k_proj", "v_proj", "o_proj")
_of_bert = ("self.query", "self.key", "self.value", "output.dense")
_fused = ("c_attn:0", "c_attn:1", "c_attn:2", "c_proj")
SITES = {
    "minilm": Site("encoder.layer.1.attention", *_of_bert, 32, "encoder.layer"),
    "bert": Site("bert.encoder.layer.1.attention", *_of_bert, 12, "bert.encoder.layer"),
    "gpt2": Site("transformer.h.1.attn", *_fused, 12, "transformer.h"),
    "llama": Site("model.layers.1.self_attn", *_separate, 12, "model.layers", rotary=True),
    "mistral": Site("layers.1.self_attn", *_separate, 16, "layers", rotary=True),
    "gemma2": Site("layers.1.self_attn", *_separate, 16, "layers", rotary=True),
    "gpt-oss": Site("layers.1.self_attn", *_separate, 16, "layers", rotary=True),
    "t5": Site("decoder.block.1.layer.1.EncDecAttention", *"qkvo", 12, "encoder.block"),
    "bart": Site(
        "model.decoder.layers.1.encoder_attn", *_separate[:3], "out_proj", 12,
        "model.encoder.layers",
    ),
    "vit": Site("layers.1.attention", *_separate, 8, "layers"),
}  # fmt: skip

Plant = Callable[[nn.Module, Site], AbstractContextManager[Any]]


@dataclass(frozen=True)
class ModelFault:
    """A fault, and in which models it can be planted: all by default."""

    name: str
    plant: Plant
    families: tuple[str, ...] = tuple(SITES)


# ------------------------------------------------------------------------- hooks on projections
def scaled(factor):
    return lambda module, args, output: output * factor


def swapped(module, args, output):
    """Swap the halves of the features: half of the heads take the place of the others."""
    return torch.cat(output.chunk(2, -1)[::-1], -1)


def without_a_head(module, args):
    """Zero the first head before W^O."""
    heads = args[0].clone()
    heads[..., : heads.shape[-1] // 4] = 0
    return (heads, *args[1:])


CHANGES = {
    "1.9 % off": scaled(1.019),
    "3 % off": scaled(1.03),
    "twice": scaled(2),
    "negative": scaled(-1),
    "swapped": swapped,
}


def reversed_positions(module, args, kwargs):
    """Reverse the positions of a layer's input."""
    args = tuple(x.flip(1) if isinstance(x, torch.Tensor) and x.dim() == 3 else x for x in args)
    states = kwargs.get("hidden_states")
    return args, kwargs if states is None else kwargs | {"hidden_states": states.flip(1)}


def projection_hook(stage: str, change: Callable[..., Tensor]) -> Plant:
    """Return a fault that changes the output of a projection."""

    def plant(model: nn.Module, site: Site) -> AbstractContextManager[None]:
        name, _, third = getattr(site, stage).partition(":")

        def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            if not third:
                return change(module, args, output)
            parts = [*output.chunk(3, -1)]
            parts[int(third)] = change(module, args, parts[int(third)])
            return torch.cat(parts, -1)

        projection = model.get_submodule(f"{site.attention}.{name}")
        return projection.register_forward_hook(hook)

    return plant


def one_heads_values_scaled(model: nn.Module, site: Site) -> AbstractContextManager[None]:
    def change(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        output = output.clone()
        output[..., : site.width] *= 1.03
        return output

    return projection_hook("value", change)(model, site)


def head_zeroed(model: nn.Module, site: Site) -> AbstractContextManager[None]:
    output = model.get_submodule(f"{site.attention}.{site.output}")
    return output.register_forward_pre_hook(without_a_head)


def positions_reversed(layer: int) -> Plant:
    def plant(model: nn.Module, site: Site) -> AbstractContextManager[None]:
        module = model.get_submodule(f"{site.layers}.{layer}")
        return module.register_forward_pre_hook(reversed_positions, with_kwargs=True)

    return plant


# --------------------------------------------------------- the model's own attention function
def attention_function(change: Callable[..., Any]) -> Plant:
    """Return a fault in the eager attention of a model's module.

    change : takes the function, the attention module and the arguments (query, key, value, mask).
    """

    def plant(model: nn.Module, site: Site) -> AbstractContextManager[Any]:
        code = sys.modules[type(model).__module__]
        return patch.object(
            code, "eager_attention_forward", partial(change, code.eager_attention_forward)
        )

    return plant


def with_queries(of: Callable[[Tensor], Tensor]) -> Plant:
    return attention_function(
        lambda function, module, query, *rest, **arguments: function(
            module, of(query), *rest, **arguments
        )
    )


def with_mask(of: Callable[[Tensor], Tensor | None]) -> Plant:
    def change(function, module, query, key, value, mask, **arguments):
        mask = mask if mask is None else of(mask)
        return function(module, query, key, value, mask, **arguments)

    return attention_function(change)


def with_output(of: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Plant:
    """Change the heads (N, m, H, d_v), given the weights and the values too."""

    def change(function, module, query, key, value, mask, **arguments):
        output, weights = function(module, query, key, value, mask, **arguments)
        value = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
        return of(output, weights, value), weights

    return attention_function(change)


def with_argument(name: str, of: Callable[[Any], Any]) -> Plant:
    def change(function, *given, **arguments):
        known = arguments.get(name)
        return function(*given, **arguments | {name: known if known is None else of(known)})

    return attention_function(change)


def last_head_times(factor: float, dim: int) -> Callable[..., Tensor]:
    """Scale the last head; `dim` is the dimension of the heads."""

    def of(tensor: Tensor, *_: Tensor) -> Tensor:
        factors = torch.ones(tensor.shape[dim], dtype=tensor.dtype)
        factors[-1] = factor
        return tensor * factors.view(*(-1 if d == dim else 1 for d in range(4)))

    return of


def in_order(dim: int) -> Callable[..., Tensor]:
    """Swap the last two heads."""

    def of(tensor: Tensor, *_: Tensor) -> Tensor:
        *heads, last = range(tensor.shape[dim])
        return tensor.index_select(dim, torch.tensor([*heads[:-1], last, *heads[-1:]]))

    return of


def dropped(output: Tensor, weights: Tensor, value: Tensor) -> Tensor:
    """Leave dropout on: the same in every run."""
    kept = torch.rand(weights.shape, generator=torch.Generator().manual_seed(0)) > 0.1
    return (weights * kept / 0.9 @ value).transpose(1, 2)


def sinks_left_out(function, module, *given, **arguments):
    sinks = module.sinks.data
    module.sinks.data = torch.full_like(sinks, -1e4)
    try:
        return function(module, *given, **arguments)
    finally:
        module.sinks.data = sinks


def faster_rotation(model: nn.Module, site: Site) -> AbstractContextManager[Any]:
    """Rotate by one and a half times the angles."""
    code = sys.modules[type(model).__module__]
    rotate = code.apply_rotary_pos_emb

    def faster(query, key, cos, sin, *rest, **options):
        angles = torch.atan2(sin.float(), cos.float()) * 1.5
        cos, sin = angles.cos().to(cos.dtype), angles.sin().to(sin.dtype)
        return rotate(query, key, cos, sin, *rest, **options)

    return patch.object(code, "apply_rotary_pos_emb", faster)


# ------------------------------------------------------------------------- the model as a whole
class Noise(nn.Module):
    """Dropout that draws in eval mode too (Monte-Carlo dropout)."""

    def forward(self, hidden):
        return dropout(hidden, 0.3, training=True)


class Drifting(nn.Module):
    """A module whose result changes from call to call."""

    calls = count()  # of the class, so that no run restores it

    def forward(self, hidden):
        return hidden * (1 + 0.1 * next(self.calls))


def after_embedding(kind: type[nn.Module]) -> Plant:
    def plant(model: nn.Module, site: Site) -> AbstractContextManager[None]:
        module = kind()
        kind.calls = count()
        embedding = model.get_input_embeddings()
        return embedding.register_forward_hook(lambda _, args, output: module(output))

    return plant


def local_attention(module, query, key, value, mask, scaling=None, **_):
    """Attend to the neighbors only."""
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    i = torch.arange(scores.shape[-1])
    weights = scores.masked_fill((i[:, None] - i).abs() > 1, -torch.inf).softmax(-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


@contextmanager
def registered_attention_replaced(model: nn.Module, site: Site) -> Iterator[None]:
    """Replace the attention that the user registered by transformers' eager one."""
    with (
        patch.dict(AttentionInterface._global_mapping, {"local": local_attention}),
        patch.dict(AttentionMaskInterface._global_mapping, {"local": eager_mask}),
        patch("attnviz.capture.watch.is_registered_by_user", lambda _: False),
    ):
        model.set_attn_implementation("local")
        try:
            yield
        finally:
            model.set_attn_implementation("eager")


MASKED = tuple(family for family in SITES if family != "vit")  # which has no mask
ROTARY = tuple(family for family, site in SITES.items() if site.rotary)
ONE_SIDED = tuple(family for family in SITES if family not in ("t5", "bart"))
FAULTS = [
    *(
        ModelFault(f"{stage} {name}", projection_hook(stage, change))
        for stage in ("query", "key", "value")
        for name, change in CHANGES.items()
    ),
    ModelFault("values of one head 3 % off", one_heads_values_scaled),
    ModelFault("output 3 % off", projection_hook("output", scaled(1.03))),
    ModelFault("head zeroed before the output", head_zeroed),
    ModelFault("wrong rotary base", faster_rotation, ROTARY),
    ModelFault("scale 1 % off", with_queries(lambda query: query * 1.01)),
    ModelFault("scale 2 % off", with_queries(lambda query: query * 1.02)),
    ModelFault("scale of one head 1 % off", with_queries(last_head_times(1.01, 1))),
    ModelFault("scale of one head 2 % off", with_queries(last_head_times(1.02, 1))),
    ModelFault("queries of two heads swapped", with_queries(in_order(1))),
    ModelFault("mask shifted by one", with_mask(lambda mask: mask.roll(1, -1)), MASKED),
    ModelFault("mask left out", with_mask(lambda _: None), MASKED),
    ModelFault("sinks left out", attention_function(sinks_left_out), ("gpt-oss",)),
    ModelFault("soft cap left out", with_argument("softcap", lambda _: None), ("gemma2",)),
    ModelFault("position bias left out", with_argument("position_bias", lambda _: None), ("t5",)),
    ModelFault(
        "position bias shifted by one",
        with_argument("position_bias", lambda bias: bias.roll(1, -1)),
        ("t5",),
    ),
    ModelFault("weights divided by 1.02", with_output(lambda output, *_: output / 1.02)),
    ModelFault("dropout left on", with_output(dropped)),
    ModelFault("outputs of two heads swapped", with_output(in_order(2))),
    ModelFault("output of one head 3 % off", with_output(last_head_times(1.03, 2))),
    ModelFault("positions reversed before layer 0", positions_reversed(0)),
    ModelFault("positions reversed before layer 1", positions_reversed(1)),
    ModelFault("random numbers in every run", after_embedding(Noise)),
    ModelFault("drifts from run to run", after_embedding(Drifting)),
    ModelFault("registered attention replaced by eager", registered_attention_replaced, ONE_SIDED),
]
