"""Possible faults in the formula and in what follows from the weights."""

from __future__ import annotations

from dataclasses import replace

import torch
from faults_of_projections import ALL, EVERY, ONLY_FINE
from faults_of_scores import CAUSAL, HIDDEN
from planting import Fault

from attnviz.results import AttentionRecord


def formula(stage):
    """Return a decorator for a fault: a record that computes its scores or weights differently."""

    def of(compute):
        def changed(self, head=None, rows=None, dtype=None, **_):
            assert head is None
            assert rows is None
            return compute(AttentionRecord(**vars(self)), dtype)

        kind = type("Faulty", (AttentionRecord,), {stage: changed})

        def fault(record):
            return kind(**vars(record))

        fault.__name__ = compute.__name__
        return fault

    return of


def softmax(record, dtype, of=lambda scores: scores.softmax(-1)):
    """Return the softmax of the scores in at least float32, as models compute it."""
    scores = record.scores(dtype=dtype)
    wide = torch.promote_types(scores.dtype, torch.float32)
    return of(scores.to(wide)).to(scores.dtype)


def exponentials(scores):
    return (scores - scores.amax(-1, keepdim=True)).exp()


# ------------------------------------------------------------------------------------ scores
@formula("scores")
def mask_as_a_factor(record, dtype):
    visible = record.mask > torch.finfo(record.mask.dtype).min / 2
    return replace(record, mask=None).scores(dtype=dtype) * visible


@formula("scores")
def scores_transposed(record, dtype):
    return replace(record, query=record.key, key=record.query).scores(dtype=dtype)


@formula("scores")
def queries_of_a_group_apart(record, dtype):
    """Head h reads key head h mod G instead of h // (H / G)."""
    repeated = record.key.repeat(record.heads // record.key_heads, 1, 1)
    return replace(record, key=repeated).scores(dtype=dtype)


@formula("scores")
def keys_of_the_next_group(record, dtype):
    return replace(record, key=record.key.roll(1, 0)).scores(dtype=dtype)


# ----------------------------------------------------------------------------------- weights
@formula("weights")
def softmax_over_the_queries(record, dtype):
    return softmax(record, dtype, lambda scores: scores.softmax(-2))


@formula("weights")
def softmax_in_base_two(record, dtype):
    return softmax(record, dtype, lambda scores: (scores * 0.6931).softmax(-1))


@formula("weights")
def one_more_in_the_sum(record, dtype):
    """Divide by the sum of the exponentials plus 1, as if there were a sink."""

    def of(scores):
        raised = exponentials(scores)
        return raised / (1 + raised.sum(-1, keepdim=True))

    return softmax(record, dtype, of)


@formula("weights")
def not_divided_by_the_sum(record, dtype):
    return softmax(record, dtype, exponentials)


@formula("weights")
def masked_after_the_softmax(record, dtype):
    """Set the weights of hidden keys to 0 without renormalizing the others."""
    visible = record.mask > torch.finfo(record.mask.dtype).min / 2
    return softmax(replace(record, mask=None), dtype) * visible


@formula("weights")
def dropout_left_on(record, dtype):
    weights = softmax(record, dtype)
    chance = torch.rand(weights.shape, generator=torch.Generator().manual_seed(0))
    return weights * (chance > 0.1) / 0.9


@formula("weights")
def weights_rounded_to_bfloat16(record, dtype):
    return softmax(record, dtype).bfloat16().to(dtype)


@formula("weights")
def weights_transposed(record, dtype):
    return softmax(record, dtype).mT


@formula("weights")
def weights_of_the_next_head(record, dtype):
    return softmax(record, dtype).roll(1, 0)


@formula("weights")
def weights_of_the_head_mean(record, dtype):
    weights = softmax(record, dtype)
    return weights.mean(0, keepdim=True).expand_as(weights)


# -------------------------------------------------------------------- a wrong record
def the_layer_before(record, before):
    return replace(before, layer=record.layer, path=record.path)


def another_text(record, other):
    return other


# ------------------------------------------------------------------------------------ output
def with_output(record, of):
    output = record.projection.output
    changed = replace(output, weight=of(output.weight))
    return replace(record, projection=replace(record.projection, output=changed))


def output_matrix_transposed(record):
    return with_output(record, lambda weight: weight.mT)


def heads_joined_in_another_order(record):
    return with_output(record, lambda weight: weight.roll(record.value.shape[-1], 0))


def heads_joined_feature_by_feature(record):
    return with_output(
        record, lambda weight: weight.unflatten(0, (record.heads, -1)).transpose(0, 1).flatten(0, 1)
    )


def output_two_per_cent_off(record):
    return with_output(record, lambda weight: weight * 1.02)


def output_of_one_head_two_per_cent_off(record):
    """Rounding hides it in the sum of all heads, but not in the contribution of the head."""
    width = record.value.shape[-1]
    factor = torch.ones(record.heads * width, 1)
    factor[2 * width : 3 * width] = 1.02
    return with_output(record, lambda weight: weight.double() * factor)


def output_of_the_layer_before(record, before):
    return with_output(record, lambda weight: before.projection.output.weight)


def output_bias_left_out(record):
    output = replace(record.projection.output, bias=None)
    return replace(record, projection=replace(record.projection, output=output))


FAULTS = [
    Fault(mask_as_a_factor, CAUSAL, {"weights"}, ALL),
    Fault(scores_transposed, ("minilm", "bert", "gpt2", "t5/encoder"), {"scores"}, ALL),
    Fault(queries_of_a_group_apart, ("llama", "qwen3"), {"scores"}, {1, 2}),
    Fault(keys_of_the_next_group, ("llama", "qwen3"), {"scores"}, ALL),
    Fault(softmax_over_the_queries, EVERY, {"weights"}, ALL),
    Fault(softmax_in_base_two, EVERY, {"weights"}, ALL),
    Fault(one_more_in_the_sum, EVERY, {"weights"}, ALL),
    Fault(not_divided_by_the_sum, EVERY, {"weights"}, ALL),
    Fault(masked_after_the_softmax, ("gpt2", "llama", "t5/decoder"), {"weights"}, ALL),
    Fault(dropout_left_on, EVERY, {"weights"}, ALL),
    Fault(weights_rounded_to_bfloat16, EVERY, {"weights"}, ALL, dtypes=ONLY_FINE),
    Fault(weights_transposed, EVERY, {"weights"}, ALL),
    Fault(weights_of_the_next_head, EVERY, {"weights"}, ALL),
    Fault(weights_of_the_head_mean, EVERY, {"weights"}, ALL),
    Fault(the_layer_before, EVERY, HIDDEN, ALL, "layer"),
    Fault(another_text, EVERY, HIDDEN, ALL, "text"),
    Fault(output_matrix_transposed, EVERY, {"output"}),
    Fault(heads_joined_in_another_order, EVERY, {"output"}),
    Fault(heads_joined_feature_by_feature, EVERY, {"output"}),
    Fault(output_two_per_cent_off, EVERY, {"output"}),
    Fault(output_of_one_head_two_per_cent_off, EVERY, {"output"}),
    Fault(output_of_the_layer_before, EVERY[1:], {"output"}, beside="layer"),
    Fault(output_bias_left_out, EVERY[:3], {"output"}),
]
