"""Possible faults between queries and keys and the weights: scale, masks, biases, softmax."""

from __future__ import annotations

from dataclasses import replace

import torch
from faults_of_projections import ALL, EVERY
from planting import Fault

CAUSAL = ("gpt2", "llama", "t5/decoder")
BOTH_WAYS = ("minilm", "bert", "t5/encoder", "t5/cross")
WITH_BIAS = ("t5/encoder", "t5/decoder")
HIDDEN = {"scores", "weights"}


# ------------------------------------------------------------------------------------- scale
def scale_one_percent_off(record):
    return replace(record, scale=record.scale * 1.01)


def scale_left_out(record):
    return replace(record, scale=1.0)


def scale_that_there_is_not(record):
    assert record.scale == 1
    return replace(record, scale=record.query.shape[-1] ** -0.5)


def scale_by_the_models_width(record):
    d_k, d_model = record.query.shape[-1], record.input.shape[-1]
    return replace(record, scale=record.scale * (d_k / d_model) ** 0.5)


def scale_without_the_root(record):
    return replace(record, scale=1 / record.query.shape[-1])


def scale_of_another_layer(record):
    return replace(record, scale=record.scale * (record.layer + 1))


# ------------------------------------------------------------------------------------- masks
def hiding(record, where):
    """Hide additional keys: those where `where` (m, n) is true."""
    hidden = torch.zeros_like(record.mask).masked_fill(where, torch.finfo(record.mask.dtype).min)
    return replace(record, mask=torch.minimum(record.mask, hidden))


def grid(record):
    """Return the distance from each query back to each key, (m, n)."""
    m, n = record.mask.shape[-2:]
    return torch.arange(m)[:, None] - torch.arange(n)


def real_keys(record):
    return len(record.key_axis) - sum(record.key_axis.padding)


def mask_shifted_by_one(record):
    return replace(record, mask=record.mask.roll(1, -1))


def mask_left_out(record):
    return replace(record, mask=None)


def mask_only_minus_ten(record):
    return replace(record, mask=record.mask.clamp(min=-10))


def visible_next_token(record):
    return replace(record, mask=record.mask.masked_fill(grid(record) == -1, 0.0))


def itself_hidden(record):
    distance = grid(record)
    return hiding(record, (distance == 0) & (torch.arange(len(distance)) > 0)[:, None])


def causal_where_it_is_not(record):
    return hiding(record, grid(record) < 0)


def last_real_key_hidden(record):
    return hiding(record, torch.arange(record.mask.shape[-1]) == real_keys(record) - 1)


def visible_padding(record):
    mask = record.mask.clone()
    mask[..., real_keys(record) :] = 0
    return replace(record, mask=mask)


def visible_first_padding(record):
    mask = record.mask.clone()
    mask[..., real_keys(record)] = 0
    return replace(record, mask=mask)


def padding_on_the_other_side(record):
    """Hide as many keys at the start instead, but never all of them."""
    count = min(sum(record.key_axis.padding), real_keys(record) - 1)
    return hiding(visible_padding(record), torch.arange(record.mask.shape[-1]) < count)


def window_off_by_one(record):
    hidden = record.mask.min()
    last = record.mask.shape[-1] - 1
    rows = torch.arange(5, last)  # the key just outside the window of each query
    mask = record.mask.clone()
    assert (mask[:, rows, rows - 5] == hidden).all()
    mask[:, rows, rows - 5] = 0
    return replace(record, mask=mask)


# ----------------------------------------------------------- soft caps, biases and sinks
def soft_cap_left_out(record):
    return replace(record, soft_cap=None)


def soft_cap_one_fifth_lower(record):
    return replace(record, soft_cap=record.soft_cap * 0.8)


def bias_left_out(record):
    return replace(record, bias=None)


def bias_transposed(record):
    return replace(record, bias=record.bias.mT)


def bias_shifted(record):
    return replace(record, bias=record.bias.roll(1, -1))


def bias_of_another_head(record):
    return replace(record, bias=record.bias.roll(1, 0))


def bias_negative(record):
    return replace(record, bias=-record.bias)


def bias_twice(record):
    return replace(record, bias=record.bias * 2)


def bias_scaled_like_the_scores(record):
    return replace(record, bias=record.bias * record.query.shape[-1] ** -0.5)


def bias_in_coarser_buckets(record):
    """Merge two distances into one bucket."""
    keys = torch.arange(record.bias.shape[-1])
    return replace(record, bias=record.bias[..., keys - keys % 2])


def bias_without_direction(record):
    """Put later keys into the buckets of earlier keys."""
    return replace(record, bias=torch.where(grid(record) < 0, record.bias.mT, record.bias))


def bias_where_there_is_none(record, decoder):
    return replace(record, bias=decoder.bias)


def sinks_left_out(record):
    return replace(record, sinks=None)


def sinks_of_another_head(record):
    return replace(record, sinks=record.sinks.roll(1))


MASKED = ("bert", "gpt2", "mistral", "llama", "t5/encoder", "t5/decoder", "t5/cross")
FAULTS = [
    Fault(
        scale_one_percent_off,
        (*EVERY, "bloom", "falcon", "mpnet", "gpt-j"),
        HIDDEN,
    ),
    Fault(scale_left_out, EVERY[:4], {"scores"}, ALL),
    Fault(scale_that_there_is_not, EVERY[4:], {"scores"}, ALL),
    Fault(scale_by_the_models_width, EVERY, {"scores"}, ALL),
    Fault(scale_without_the_root, EVERY, {"scores"}, ALL),
    Fault(scale_of_another_layer, ("gpt2",), {"scores"}, ALL),
    Fault(mask_shifted_by_one, ("minilm", *MASKED), HIDDEN, ALL, padded=True),
    Fault(mask_left_out, ("minilm", *MASKED, "mpnet", "falcon"), HIDDEN, ALL, padded=True),
    Fault(mask_only_minus_ten, ("minilm", *MASKED), HIDDEN, ALL, padded=True),
    Fault(visible_next_token, CAUSAL, HIDDEN, ALL),
    Fault(itself_hidden, CAUSAL, HIDDEN, ALL),
    Fault(causal_where_it_is_not, BOTH_WAYS, HIDDEN, ALL),
    Fault(last_real_key_hidden, EVERY, HIDDEN, ALL),
    Fault(visible_padding, BOTH_WAYS, HIDDEN, ALL, padded=True),
    Fault(visible_first_padding, BOTH_WAYS, HIDDEN, ALL, padded=True),
    Fault(padding_on_the_other_side, BOTH_WAYS, HIDDEN, ALL, padded=True),
    Fault(window_off_by_one, ("mistral", "gpt-neo"), {"scores"}, ALL),
    Fault(soft_cap_left_out, ("gemma2",), {"scores"}, ALL),
    Fault(soft_cap_one_fifth_lower, ("gemma2",), {"scores"}, ALL),
    Fault(bias_left_out, (*WITH_BIAS, "mpt", "bloom", "mpnet", "deberta-v2"), HIDDEN),
    Fault(bias_transposed, WITH_BIAS, HIDDEN),
    Fault(bias_shifted, WITH_BIAS, HIDDEN),
    Fault(bias_of_another_head, WITH_BIAS, HIDDEN),
    Fault(bias_negative, WITH_BIAS, HIDDEN),
    Fault(bias_twice, WITH_BIAS, HIDDEN),
    Fault(bias_scaled_like_the_scores, WITH_BIAS, HIDDEN),
    Fault(bias_in_coarser_buckets, WITH_BIAS, HIDDEN),
    Fault(bias_without_direction, ("t5/encoder",), HIDDEN),
    Fault(bias_where_there_is_none, ("t5/cross",), HIDDEN, beside="decoder"),
    Fault(sinks_left_out, ("gpt-oss",), HIDDEN, ALL),
    Fault(sinks_of_another_head, ("gpt-oss",), HIDDEN, {1}),
]
