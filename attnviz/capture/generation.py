"""A greedy generation, step by step, joined into one attention per module.

Each step of a generation reads one token, and attends to the tokens before it through the cache.
Here the steps are stacked: row i of the map is what the step that read token i computed.
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
from attnviz.capture.projections import ModuleInputs
from attnviz.errors import ModelError


def generate(model: Any, inputs: Mapping[str, Tensor], tokens: int) -> Tensor:
    """Generate up to `tokens` tokens, always the likeliest.

    Returns
    -------
    Tensor
        (T,), the ids of the text and its continuation, or for an encoder–decoder of the start token
        and the answer.

    Raises
    ------
    ModelError
        The model cannot generate.
    """
    if not getattr(model, "can_generate", bool)():
        raise ModelError(
            f"Expected a model that generates text, but {type(model).__name__} cannot. Choose a "
            "causal language model or an encoder–decoder, with its language head."
        )
    # A cache that drops nothing, also where layers look back through a window only.
    cache: Any = DynamicCache()
    if model.config.is_encoder_decoder:
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    # Greedy search only: other settings of a checkpoint (penalties, beams, its own generation
    # code) are left out. `restoring` puts the model's own settings back.
    model.generation_config = _greedy(model, tokens)
    mixin: Any = GenerationMixin
    ids: Tensor = mixin.generate(model, **inputs, past_key_values=cache)
    return ids[0]


def _greedy(model: Any, tokens: int) -> GenerationConfig:
    def setting(name: str) -> Any:
        value = getattr(model.generation_config, name, None)
        return getattr(model.config, name, None) if value is None else value

    names = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    special_ids = {name: setting(name) for name in names}
    return GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=tokens, do_sample=False, use_cache=True, **special_ids
    )


def full_inputs(model: Any, inputs: Mapping[str, Tensor], ids: Tensor) -> dict[str, Tensor]:
    """Return the inputs for reading ids (1, T), a text with its continuation, in one pass."""
    if model.config.is_encoder_decoder:
        return {**inputs, "decoder_input_ids": ids}
    added = ids.shape[1] - inputs["input_ids"].shape[1]
    # The continuation has the mask and the segment of the last token.
    extended = {
        name: torch.cat([inputs[name], inputs[name][:, -1:].expand(-1, added)], dim=1)
        for name in ("attention_mask", "token_type_ids")
        if name in inputs
    }
    return {**inputs, **extended, "input_ids": ids}


def stitch(calls: Sequence[AttentionCall]) -> list[AttentionCall]:
    """Join the calls of each module over the steps of a generation.

    Raises
    ------
    ModelError
        The keys of a step differ from those of the last one, so there is no single map.
    """
    steps: dict[str, list[AttentionCall]] = {}
    for call in calls:
        steps.setdefault(call.path, []).append(call)
    return [_join(module_steps) for module_steps in steps.values()]


def _join(steps: Sequence[AttentionCall]) -> AttentionCall:
    attentions, last = [step.attention for step in steps], steps[-1]
    key, value = last.attention.key, last.attention.value
    for attention in attentions:
        if not torch.equal(attention.key, key[..., : attention.key.shape[-2], :]):
            raise ModelError(
                f"Expected {last.path} to keep the keys of earlier steps, but they changed while "
                "the model generated. Give the text as a whole."
            )
    n = key.shape[-2]
    capped = last.attention.capped_bias is not None
    joined = Attention(
        query=_stack_rows([attention.query for attention in attentions]),
        key=key,
        value=value,
        scale=last.attention.scale,
        soft_cap=last.attention.soft_cap,
        capped_bias=_join_terms(attentions, lambda a: a.capped_bias, n, 0.0) if capped else None,
        bias=_join_terms(attentions, lambda a: a.bias, n, 0.0),
        mask=_join_terms(attentions, lambda a: a.mask, n, torch.finfo(key.dtype).min),
        sinks=_join_sinks([attention.sinks for attention in attentions]),
        scores=_stack_rows([_pad_keys(a.scores, n, -torch.inf) for a in attentions]),
        weights=_stack_rows([_pad_keys(a.weights, n, 0.0) for a in attentions]),
        head_output=_stack_if_all([attention.head_output for attention in attentions]),
    )
    return replace(
        last,
        call=0,
        attention=joined,
        inputs=_join_inputs([step.inputs for step in steps]),
        merged_heads=_stack_if_all([step.merged_heads for step in steps]),
        output=_stack_if_all([step.output for step in steps]),
    )


def _stack_rows(steps: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(steps), dim=-2)


def _stack_if_all(steps: Sequence[Tensor | None]) -> Tensor | None:
    tensors = [tensor for tensor in steps if tensor is not None]
    return _stack_rows(tensors) if len(tensors) == len(steps) else None


def _pad_keys(tensor: Tensor, n: int, fill: float) -> Tensor:
    """Add the keys of later steps."""
    return pad(tensor, (0, n - tensor.shape[-1]), value=fill)


def _join_sinks(steps: Sequence[Tensor | None]) -> Tensor | None:
    sinks = [tensor for tensor in steps if tensor is not None]
    return torch.cat(sinks, -1) if sinks and sinks[0].dim() > 1 else steps[-1]


def _join_terms(
    attentions: Sequence[Attention],
    term_of: Callable[[Attention], Tensor | None],
    n: int,
    fill: float,
) -> Tensor | None:
    terms = [term_of(attention) for attention in attentions]
    heads = [len(term[0]) for term in terms if term is not None]
    if not heads and len({attention.key.shape[-2] for attention in attentions}) == 1:
        return None
    most = max(heads, default=1)
    rows = []
    for attention, term in zip(attentions, terms, strict=True):
        m, width = attention.query.shape[-2], attention.key.shape[-2]
        if term is None:
            term = attention.query.new_zeros(1, most, m, width)
        rows.append(_pad_keys(term.expand(1, most, m, width), n, fill))
    return _stack_rows(rows)


def _join_inputs(steps: Sequence[ModuleInputs]) -> ModuleInputs:
    rotations = [step.rotation for step in steps if step.rotation is not None]
    # One token at position 0 does not show whether its angles are given once or twice.
    complete = len(rotations) == len(steps) and len({cos.shape[-1] for cos, _ in rotations}) == 1
    return ModuleInputs(
        input=_stack_if_all([step.input for step in steps]),
        key_input=steps[0].key_input,
        rotation=(
            _stack_rows([cos for cos, _ in rotations]),
            _stack_rows([sin for _, sin in rotations]),
        )
        if complete
        else None,
    )
