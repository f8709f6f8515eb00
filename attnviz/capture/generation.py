"""A greedy generation, step by step, stitched into one attention per module.

Each step of a generation reads one token, and attends to those before it through the cache. Here
the steps are laid one below the other: row i of the whole is what the step that read token i saw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig, GenerationMixin

from attnviz.capture.attention_call import Attention, AttentionCall
from attnviz.capture.projections import Arrived
from attnviz.errors import ModelError


def generate(model: Any, inputs: Mapping[str, Tensor], tokens: int) -> Tensor:
    """Let the model say up to `tokens` tokens, always the likeliest.

    Returns
    -------
    The ids (T,) of all that a decoder read and said: the text and its continuation, or for an
    encoder–decoder the start token and the answer.

    Raises
    ------
    ModelError : the model cannot generate.
    """
    if not getattr(model, "can_generate", bool)():
        raise ModelError(
            f"Expected a model that generates text, but {type(model).__name__} cannot. Choose a "
            "causal language model or an encoder–decoder, with its language head."
        )
    # A cache of which nothing is dropped, also where layers look back through a window only.
    cache: Any = DynamicCache()
    if model.config.is_encoder_decoder:
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    # Nothing but the likeliest token: what else a checkpoint asks for (penalties, beams, a way of
    # its own to generate) is left out. `unchanged` puts the model's own settings back.
    model.generation_config = _greedy(model, tokens)
    mixin: Any = GenerationMixin
    said: Tensor = mixin.generate(model, **inputs, past_key_values=cache)
    return said[0]


def _greedy(model: Any, tokens: int) -> GenerationConfig:
    def own(name: str) -> Any:
        found = getattr(model.generation_config, name, None)
        return getattr(model.config, name, None) if found is None else found

    names = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    given = {name: own(name) for name in names}
    return GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=tokens, do_sample=False, use_cache=True, **given
    )


def whole_inputs(model: Any, inputs: Mapping[str, Tensor], read: Tensor) -> dict[str, Tensor]:
    """Return what the model takes to read (1, T) in one pass: a text with its continuation."""
    if model.config.is_encoder_decoder:
        return {**inputs, "decoder_input_ids": read}
    more = read.shape[1] - inputs["input_ids"].shape[1]
    # What is told of every token goes on as it ended: a mask of ones, the segment of the last.
    told = {
        name: torch.cat([inputs[name], inputs[name][:, -1:].expand(-1, more)], dim=1)
        for name in ("attention_mask", "token_type_ids")
        if name in inputs
    }
    return {**inputs, **told, "input_ids": read}


def stitch(calls: Sequence[AttentionCall]) -> list[AttentionCall]:
    """Join the calls of each module over the steps of a generation.

    Raises
    ------
    ModelError : the keys of a step are not those of the last one; then there is no one map.
    """
    steps: dict[str, list[AttentionCall]] = {}
    for call in calls:
        steps.setdefault(call.path, []).append(call)
    return [_join(of_module) for of_module in steps.values()]


def _join(steps: Sequence[AttentionCall]) -> AttentionCall:
    seen, last = [step.attention for step in steps], steps[-1]
    key, value = last.attention.key, last.attention.value
    for each in seen:
        if not torch.equal(each.key, key[..., : each.key.shape[-2], :]):
            raise ModelError(
                f"Expected {last.path} to keep the keys of earlier steps, but they changed while "
                "the model generated. Give the text as a whole."
            )
    n = key.shape[-2]
    attention = Attention(
        query=_rows([each.query for each in seen]),
        key=key,
        value=value,
        scale=last.attention.scale,
        soft_cap=last.attention.soft_cap,
        capped_bias=_terms(seen, lambda each: each.capped_bias, n, 0.0)
        if last.attention.capped_bias is not None
        else None,
        bias=_terms(seen, lambda each: each.bias, n, 0.0),
        mask=_terms(seen, lambda each: each.mask, n, torch.finfo(key.dtype).min),
        sinks=_sinks([each.sinks for each in seen]),
        scores=_rows([_wide(each.scores, n, -torch.inf) for each in seen]),
        weights=_rows([_wide(each.weights, n, 0.0) for each in seen]),
        head_output=_all_rows([each.head_output for each in seen]),
    )
    return replace(
        last,
        call=0,
        attention=attention,
        arrived=_arrived([step.arrived for step in steps]),
        given=_all_rows([step.given for step in steps]),
        output=_all_rows([step.output for step in steps]),
    )


def _rows(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts), dim=-2)


def _all_rows(parts: Sequence[Tensor | None]) -> Tensor | None:
    found = [part for part in parts if part is not None]
    return _rows(found) if len(found) == len(parts) else None


def _sinks(parts: Sequence[Tensor | None]) -> Tensor | None:
    found = [part for part in parts if part is not None]
    return torch.cat(found, -1) if found and found[0].dim() > 1 else parts[-1]


def _wide(tensor: Tensor, n: int, fill: float) -> Tensor:
    """Add the keys that are still to come."""
    return pad(tensor, (0, n - tensor.shape[-1]), value=fill)


def _terms(
    seen: Sequence[Attention], term: Callable[[Attention], Tensor | None], n: int, fill: float
) -> Tensor | None:
    found = [term(each) for each in seen]
    if all(each is None for each in found) and len({each.key.shape[-2] for each in seen}) == 1:
        return None
    heads = (
        max(each.shape[1] for each in found if each is not None)
        if any(each is not None for each in found)
        else 1
    )
    rows = []
    for each, part in zip(seen, found, strict=True):
        m, width = each.query.shape[-2], each.key.shape[-2]
        part = each.query.new_zeros(1, heads, m, width) if part is None else part
        rows.append(_wide(part.expand(1, heads, m, width), n, fill))
    return _rows(rows)


def _arrived(steps: Sequence[Arrived]) -> Arrived:
    rotations = [step.rotation for step in steps if step.rotation is not None]
    return Arrived(
        input=_all_rows([step.input for step in steps]),
        key_input=steps[0].key_input,
        rotation=(
            _rows([cos for cos, _ in rotations]),
            _rows([sin for _, sin in rotations]),
        )
        # One token at position 0 does not show whether its angles are given once or twice.
        if len(rotations) == len(steps) and len({cos.shape[-1] for cos, _ in rotations}) == 1
        else None,
    )
