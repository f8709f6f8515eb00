"""Changes that look like faults but leave all weights equal, so no check must detect them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import torch
from faults_of_formula import formula, softmax
from faults_of_projections import bias_left_out_of, turned
from faults_of_scores import bias_without_direction, real_keys, visible_padding

from attnviz.formula.projection import regroup
from attnviz.results import AttentionRecord


@dataclass(frozen=True)
class Equivalent:
    """A change that leaves all weights of all real queries equal.

    plant, places : as in `Fault`.
    seen : stages before the weights where the change is visible, because they are compared
        separately.
    """

    plant: Callable[[AttentionRecord], AttentionRecord]
    places: tuple[str, ...]
    seen: Collection[str] = ()

    @property
    def name(self) -> str:
        return self.plant.__name__


def key_bias_left_out(record):
    """The key bias adds the same number to all scores of a query."""
    part = record.projection.key
    key = record.key.double() - part.bias.double()[:, None]
    projection = replace(record.projection, key=replace(part, bias=None))
    return replace(record, key=key, projection=projection)


def all_positions_shifted(record):
    """Only the distance between two positions matters."""
    record = replace(record, query=record.query.double(), key=record.key.double())
    return replace(record, query=turned(record, "query", 3), key=turned(record, "key", 3))


def features_in_another_order(record):
    """The order of features is arbitrary if queries and keys use the same one."""
    return replace(record, query=regroup(record.query), key=regroup(record.key))


def scale_in_the_queries(record):
    return replace(record, query=record.query.double() * record.scale, scale=1.0)


def queries_doubled_and_keys_halved(record):
    return replace(record, query=record.query * 2, key=record.key / 2)


def mask_of_minus_ten_thousand(record):
    """The weights are still exactly 0."""
    return replace(record, mask=record.mask.clamp(min=-1e4))


def mask_half_as_low(record):
    return replace(record, mask=record.mask / 2)


def mask_before_the_scale(record):
    return replace(record, mask=record.mask * record.scale)


def visible_padding_that_lies_ahead(record):
    """A causal mask already hides padding on the right."""
    ahead = torch.ones_like(record.mask, dtype=torch.bool).triu(1)
    return replace(record, mask=torch.where(ahead, record.mask, visible_padding(record).mask))


def queries_of_padding_unmasked(record):
    mask = record.mask.clone()
    mask[:, real_keys(record) :] = 0
    return replace(record, mask=mask)


def values_of_padding_lost(record):
    value = record.value.clone()
    value[:, real_keys(record) :] = 0
    return replace(record, value=value)


def bias_with_a_number_added(record):
    return replace(record, bias=record.bias.double() + torch.arange(record.heads)[:, None, None])


@formula("scores")
def scores_with_a_number_per_query(record, dtype):
    scores = record.scores(dtype=dtype)
    return scores + torch.arange(scores.shape[-2], dtype=scores.dtype)[:, None]


@formula("weights")
def softmax_of_scores_less_seven(record, dtype):
    return softmax(record, dtype, lambda scores: (scores - 7).softmax(-1))


@formula("weights")
def largest_score_not_subtracted(record, dtype):
    def of(scores):
        return scores.exp() / scores.exp().sum(-1, keepdim=True)

    return softmax(record, dtype, of)


BOTH_WAYS, CAUSAL = ("bert", "t5/encoder", "t5/cross"), ("gpt2", "llama", "t5/decoder")
EVERY = (*BOTH_WAYS, *CAUSAL)
EQUIVALENT = [
    Equivalent(key_bias_left_out, ("minilm", "bert", "gpt2"), {"scores"}),
    Equivalent(bias_left_out_of("key"), ("minilm", "bert", "gpt2"), {"key"}),
    Equivalent(all_positions_shifted, ("llama",), {"query", "key"}),
    Equivalent(features_in_another_order, EVERY, {"query", "key"}),
    Equivalent(scale_in_the_queries, ("minilm", "bert", "gpt2", "llama"), {"query"}),
    Equivalent(queries_doubled_and_keys_halved, EVERY, {"query", "key"}),
    Equivalent(mask_of_minus_ten_thousand, BOTH_WAYS),
    Equivalent(mask_of_minus_ten_thousand, CAUSAL, {"scores"}),
    Equivalent(mask_half_as_low, EVERY),
    Equivalent(mask_before_the_scale, ("minilm", "bert")),
    Equivalent(mask_before_the_scale, ("gpt2", "llama"), {"scores"}),
    Equivalent(visible_padding_that_lies_ahead, CAUSAL),
    Equivalent(queries_of_padding_unmasked, ("bert", "gpt2", "llama", "t5/encoder")),
    Equivalent(values_of_padding_lost, EVERY, {"value"}),
    Equivalent(bias_with_a_number_added, ("t5/encoder", "t5/decoder"), {"scores"}),
    Equivalent(bias_without_direction, ("t5/decoder",)),
    Equivalent(scores_with_a_number_per_query, EVERY, {"scores"}),
    Equivalent(softmax_of_scores_less_seven, EVERY),
    Equivalent(largest_score_not_subtracted, EVERY),
]
