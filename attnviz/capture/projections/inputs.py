"""What a module is handed: its input, and the angles of a rotary position embedding."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_OTHER_SEQUENCE = ("key_value_states", "encoder_hidden_states", "cross_attention_states")
_ANGLES = ("position_embeddings", "sinusoidal_pos", "freqs_cis", "rotary_pos_emb")
_TABLES = ("embed_positions",)  # sines, then cosines, of every position


@dataclass(frozen=True, eq=False)
class Arrived:
    """What entered a module, as far as it was seen.

    input : X (N, m, d_model). key_input : (N, n, d_model), what the keys and values of
    cross-attention are made of. rotation : (cos, sin), each (N or 1, m, r).
    """

    input: Tensor | None = None
    key_input: Tensor | None = None
    rotation: tuple[Tensor, Tensor] | None = None


def arrived(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], texts: int
) -> Arrived:
    """Return what enters an attention module with a batch of so many texts."""
    # The class knows the names also where somebody has put another function around its forward.
    _, *names = inspect.signature(type(module).forward).parameters
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    rotation = _from_table(module, given) or angles(_first(given, _ANGLES))
    if rotation is not None and len(rotation[0]) not in (1, texts):
        rotation = None  # angles of several dimensions, as in pictures
    return Arrived(
        input=_kept(next((given[name] for name in names if name in given), None), texts),
        key_input=_kept(_first(given, _OTHER_SEQUENCE), texts),
        rotation=rotation,
    )


def angles(handed: Any) -> tuple[Tensor, Tensor] | None:
    """Return cosines and sines of what a model hands to its attention, or None if it is no such.

    Models give one complex number per pair; or the sines of all pairs, then their cosines; or
    cosines and sines, once per pair, or twice: side by side, or one half after the other. What
    comes back is the last of these.
    """
    if isinstance(handed, Tensor) and handed.is_complex():
        pairs: tuple[Tensor, Tensor] = handed.real, handed.imag
    elif isinstance(handed, Tensor) and handed.is_floating_point():
        sin, cos = handed.chunk(2, -1)
        pairs = cos, sin
    elif isinstance(handed, tuple | list) and len(handed) == 2:
        cos, sin = handed
        if not isinstance(cos, Tensor) or not isinstance(sin, Tensor) or cos.shape != sin.shape:
            return None
        pairs = _once(cos, sin)
    else:
        return None
    cos, sin = (_batched(part.detach()) for part in pairs)
    return torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)


def _once(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Keep one angle per pair."""
    width = cos.shape[-1]
    if width % 2 == 0 and all(torch.equal(*part.chunk(2, -1)) for part in (cos, sin)):
        return cos[..., : width // 2], sin[..., : width // 2]
    if width % 2 == 0 and all(torch.equal(part[..., 0::2], part[..., 1::2]) for part in (cos, sin)):
        return cos[..., 0::2], sin[..., 0::2]
    return cos, sin


def _batched(part: Tensor) -> Tensor:
    """Bring (T, r), (N, T, r) and what has one dimension for heads to (N, T, r)."""
    while part.dim() > 3 and 1 in part.shape[:-1]:
        part = part.squeeze([i for i, size in enumerate(part.shape[:-1]) if size == 1][-1])
    return part.unsqueeze(0) if part.dim() == 2 else part


def _from_table(module: nn.Module, given: Mapping[str, Any]) -> tuple[Tensor, Tensor] | None:
    positions, table = given.get("position_ids"), _first(vars(module) | module._buffers, _TABLES)
    if not isinstance(positions, Tensor) or not isinstance(table, Tensor):
        return None
    return angles(table.to(positions.device)[positions])


def _kept(hidden: Any, texts: int) -> Tensor | None:
    """Return a copy of what entered, (N, m, d_model); a model may add to it in place."""
    if not isinstance(hidden, Tensor) or hidden.dim() != 3 or len(hidden) != texts:
        return None
    return hidden.detach().clone()


def _first(given: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """Return the first of these that was given a value."""
    return next((given[name] for name in names if given.get(name) is not None), None)
