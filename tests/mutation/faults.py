"""All faults that are planted in a record: of projections, of scores, of the formula."""

from __future__ import annotations

from dataclasses import replace

import torch
from planting import MAIN_PLACES as EVERY
from planting import Fault
from rotary_angles import rotary_angles

from attnviz import AttentionRecord
from attnviz.formula.projection import rotary
from attnviz.results import Norm, Rotation

BIASED = ("minilm", "bert", "gpt2")
PARTS = ("query", "key", "value")
ALL = {0, 1, 2, 3}
CAUSAL = ("gpt2", "llama", "t5/decoder")
BOTH_WAYS = ("minilm", "bert", "t5/encoder", "t5/cross")
WITH_BIAS = ("t5/encoder", "t5/decoder")
MASKED = ("bert", "gpt2", "mistral", "llama", "t5/encoder", "t5/decoder", "t5/cross")
CROSS = ("t5/cross", "bart/cross")
HIDDEN = {"scores", "weights"}
ONLY_FINE = {"dtypes": (torch.float32,)}


def fault(name, places, stages, heads=(), plant=None, *, beside="", padded=False, dtypes=None,
          **changes):  # fmt: skip
    """Return a fault; without `plant`, each change is of one field, a function of its value."""

    def change(record):
        return replace(
            record, **{field: of(getattr(record, field)) for field, of in changes.items()}
        )

    more = {} if dtypes is None else {"dtypes": dtypes}
    return Fault(name, plant or change, places, stages, heads, beside, padded, **more)


# --------------------------------------------------------------- the steps to Q, K, V and output
def with_parts(*parts, of):
    """Return a fault in the steps that compute Q, K and V, or the output."""

    def plant(record):
        changed = {name: of(getattr(record.projection, name)) for name in parts}
        return replace(record, projection=replace(record.projection, **changed))

    return plant


def with_weight(*parts, of):
    """Return a fault in the matrices of some parts."""
    return with_parts(*parts, of=lambda part: replace(part, weight=of(part.weight)))


def with_steps(*parts, after):
    """Return a fault in what follows the matrices of some parts."""
    return with_parts(*parts, of=lambda part: replace(part, after=after))


def without(kind, *parts):
    """Return a fault that removes the steps of one kind."""

    def change(part):
        assert any(isinstance(step, kind) for step in part.after)
        return replace(part, after=tuple(s for s in part.after if not isinstance(s, kind)))

    return with_parts(*parts, of=change)


def without_bias(part):
    return with_parts(part, of=lambda each: replace(each, bias=None))


def two_heads_swapped(record):
    order = [0, 2, 1, *range(3, record.heads)]
    key_order = order if record.key_heads == record.heads else slice(None)
    key, value = record.key[key_order], record.value[key_order]
    return replace(record, query=record.query[order], key=key, value=value)


def matrices_of_query_and_key_swapped(record):
    of = record.projection
    return replace(record, projection=replace(of, query=of.key, key=of.query))


def matrices_of_key_and_value_swapped(record):
    of = record.projection
    key, value = replace(of.value, after=of.key.after), replace(of.key, after=of.value.after)
    return replace(record, projection=replace(of, key=key, value=value))


def transposed(weight):
    square = weight.movedim(0, 1).flatten(1).mT  # (d_model, H · d_k), a square matrix
    return square.unflatten(1, weight.shape[::2]).movedim(1, 0)


def cut_the_other_way(weight):
    """Treat contiguous heads as interleaved."""
    heads, _, width = weight.shape
    return weight.movedim(0, 1).reshape(-1, width, heads).mT.movedim(1, 0)


def two_per_cent_off(part):
    bias = None if part.bias is None else part.bias * 1.02
    return replace(part, weight=part.weight * 1.02, bias=bias)


def output_of_one_head_two_per_cent_off(record):
    """Rounding hides it in the sum of all heads, but not in the contribution of the head."""
    width = record.value.shape[-1]
    factor = torch.ones(record.heads * width, 1)
    factor[2 * width : 3 * width] = 1.02
    return with_weight("output", of=lambda weight: weight.double() * factor)(record)


def joined_in_another_order(record):
    return with_weight("output", of=lambda weight: weight.roll(record.value.shape[-1], 0))(record)


def joined_feature_by_feature(record):
    def of(weight):
        return weight.unflatten(0, (record.heads, -1)).transpose(0, 1).flatten(0, 1)

    return with_weight("output", of=of)(record)


def output_of_the_layer_before(record, before):
    return with_weight("output", of=lambda _: before.projection.output.weight)(record)


# -------------------------------------------------------------------------- rotary positions
def angles_of(record, positions, base=10000.0):
    cos, sin = rotary_angles(positions, record.query.shape[-1], base)
    return cos.to(record.query.dtype), sin.to(record.query.dtype)


def turned(record, part, by):
    """Return queries or keys rotated further, as if shifted by some positions."""
    positions = torch.full((record.query.shape[1],), by, dtype=torch.float64)
    return rotary(getattr(record, part), *angles_of(record, positions))


def with_angles(faster=1.0, base=10000.0):
    def plant(record):
        positions = torch.arange(record.query.shape[1]) * faster
        return replace(record, rotation=angles_of(record, positions, base))

    return plant


def half_of_the_features_turned(record):
    quarter = record.rotation[0].shape[-1] // 4
    turns = tuple(torch.cat([part[:, :quarter]] * 2, -1) for part in record.rotation)
    return replace(record, rotation=turns)


# ------------------------------------------------------------------------------------- masks
def hiding(record, where):
    """Hide additional keys: those where `where` (m, n) is true."""
    hidden = torch.zeros_like(record.mask).masked_fill(where, torch.finfo(record.mask.dtype).min)
    return replace(record, mask=torch.minimum(record.mask, hidden))


def grid(tensor):
    """Return the distance from each query back to each key, (m, n)."""
    m, n = tensor.shape[-2:]
    return torch.arange(m)[:, None] - torch.arange(n)


def real_keys(record):
    return len(record.key_axis) - sum(record.key_axis.padding)


def itself_hidden(record):
    distance = grid(record.mask)
    return hiding(record, (distance == 0) & (torch.arange(len(distance)) > 0)[:, None])


def last_real_key_hidden(record):
    return hiding(record, torch.arange(record.mask.shape[-1]) == real_keys(record) - 1)


def visible_padding(record, last=None):
    mask = record.mask.clone()
    mask[..., real_keys(record) : last and real_keys(record) + last] = 0
    return replace(record, mask=mask)


def padding_on_the_other_side(record):
    """Hide as many keys at the start instead, but never all of them."""
    count = min(sum(record.key_axis.padding), real_keys(record) - 1)
    return hiding(visible_padding(record), torch.arange(record.mask.shape[-1]) < count)


def window_off_by_one(mask):
    hidden, last = mask.min(), mask.shape[-1] - 1
    rows = torch.arange(5, last)  # the key just outside the window of each query
    mask = mask.clone()
    assert (mask[:, rows, rows - 5] == hidden).all()
    mask[:, rows, rows - 5] = 0
    return mask


# ---------------------------------------------------------------------------- scales and biases
def scale_that_there_is_not(record):
    assert record.scale == 1
    return replace(record, scale=record.query.shape[-1] ** -0.5)


def scale_by_the_models_width(record):
    d_k, d_model = record.query.shape[-1], record.input.shape[-1]
    return replace(record, scale=record.scale * (d_k / d_model) ** 0.5)


def bias_in_coarser_buckets(bias):
    """Merge two distances into one bucket."""
    keys = torch.arange(bias.shape[-1])
    return bias[..., keys - keys % 2]


def without_direction(bias):
    """Put later keys into the buckets of earlier keys."""
    return torch.where(grid(bias) < 0, bias.mT, bias)


# ------------------------------------------------------------------------------- the formula
def computing(stage, compute):
    """Return a fault: a record that computes its scores or weights differently."""

    def changed(self, head=None, rows=None, dtype=None, **_):
        assert head is None
        assert rows is None
        return compute(AttentionRecord(**vars(self)), dtype)

    kind = type("Faulty", (AttentionRecord,), {stage: changed})
    return lambda record: kind(**vars(record))


def softmax(record, dtype, of=lambda scores: scores.softmax(-1)):
    """Return the softmax of the scores in at least float32, as models compute it."""
    scores = record.scores(dtype=dtype)
    wide = torch.promote_types(scores.dtype, torch.float32)
    return of(scores.to(wide)).to(scores.dtype)


def weighing(of):
    """Return a fault: weights by another function of the scores."""
    return computing("weights", lambda record, dtype: softmax(record, dtype, of))


def after_softmax(of):
    """Return a fault: other weights than those of the softmax."""
    return computing("weights", lambda record, dtype: of(softmax(record, dtype)))


def exponentials(scores):
    return (scores - scores.amax(-1, keepdim=True)).exp()


def one_more_in_the_sum(scores):
    """Divide by the sum of the exponentials plus 1, as if there were a sink."""
    raised = exponentials(scores)
    return raised / (1 + raised.sum(-1, keepdim=True))


def visible(record):
    return record.mask > torch.finfo(record.mask.dtype).min / 2


def mask_as_a_factor(record, dtype):
    return replace(record, mask=None).scores(dtype=dtype) * visible(record)


def masked_after_the_softmax(record, dtype):
    """Set the weights of hidden keys to 0 without renormalizing the others."""
    return softmax(replace(record, mask=None), dtype) * visible(record)


def scores_transposed(record, dtype):
    return replace(record, query=record.key, key=record.query).scores(dtype=dtype)


def queries_of_a_group_apart(record, dtype):
    """Head h reads key head h mod G instead of h // (H / G)."""
    repeated = record.key.repeat(record.heads // record.key_heads, 1, 1)
    return replace(record, key=repeated).scores(dtype=dtype)


def keys_of_the_next_group(record, dtype):
    return replace(record, key=record.key.roll(1, 0)).scores(dtype=dtype)


def dropped(weights):
    chance = torch.rand(weights.shape, generator=torch.Generator().manual_seed(0))
    return weights * (chance > 0.1) / 0.9


def rounded(tensor):
    return tensor.bfloat16().to(tensor.dtype)


OF_PROJECTIONS = [
    fault("two_heads_swapped", (*EVERY, "bloom", "roformer"), {"query"}, {1, 2}, two_heads_swapped),
    fault(
        "query_and_key_swapped", ("minilm", "bert", "gpt2", "t5/encoder"), {"query"}, ALL,
        lambda record: replace(record, query=record.key, key=record.query),
    ),
    fault(
        "key_and_value_swapped", EVERY, {"key"}, {0, 1},
        lambda record: replace(record, key=record.value, value=record.key),
    ),
    fault(
        "matrices_of_query_and_key_swapped", ("bert", "gpt2", "t5/encoder"), {"query"}, ALL,
        matrices_of_query_and_key_swapped,
    ),
    fault(
        "matrices_of_key_and_value_swapped", EVERY, {"key"}, {0, 1},
        matrices_of_key_and_value_swapped,
    ),
    fault("query_matrix_transposed", EVERY, {"query"}, ALL, with_weight("query", of=transposed)),
    fault(
        "heads_cut_the_other_way", EVERY, {"query"}, ALL, with_weight(*PARTS, of=cut_the_other_way)
    ),
    *(
        fault(
            f"{part}_two_per_cent_off", (*EVERY[:4], "t5/cross"), {part}, {0, 1},
            with_parts(part, of=two_per_cent_off),
        )
        for part in PARTS
    ),
    fault("query_bias_left_out", (*BIASED, "qwen2"), {"query"}, ALL, without_bias("query")),
    fault("value_bias_left_out", (*BIASED, "qwen2"), {"value"}, {1}, without_bias("value")),
    *(
        fault(
            f"{part}_of_the_token_before", EVERY[1:], {part}, {0, 1},
            **{part: lambda tensor: tensor.roll(1, 1)},
        )
        for part in PARTS
    ),
    fault("wrong_heads_values", EVERY, {"value"}, {0, 1}, value=lambda value: value.roll(1, 0)),
    fault(
        "query_matrix_rounded_to_bfloat16", EVERY[1:], {"query"}, ALL,
        with_weight("query", of=rounded), **ONLY_FINE,
    ),
    fault("query_norm_left_out", ("qwen3",), {"query"}, ALL, without(Norm, "query")),
    fault(
        "input_of_the_layer_before", EVERY[1:], {"query"}, ALL,
        lambda record, before: replace(record, input=before.input), beside="layer",
    ),
    fault(
        "keys_of_the_layer_before", EVERY[1:], {"key"}, {0, 1},
        lambda record, before: replace(record, key=before.key), beside="layer",
    ),
    fault(
        "values_of_the_layer_before", EVERY[1:], {"value"}, {0, 1},
        lambda record, before: replace(record, value=before.value), beside="layer",
    ),
    fault(
        "keys_and_values_from_the_decoder", CROSS, {"key"}, ALL,
        lambda record: replace(record, key_input=record.input),
    ),
    fault(
        "queries_from_the_encoder", CROSS, {"query"}, ALL,
        lambda record: replace(record, input=record.key_input),
    ),
    fault(
        "the_two_sides_swapped",
        (*CROSS, "marian/cross", "mbart/cross", "mt5/cross", "pegasus/cross"), {"query"}, ALL,
        lambda record: replace(record, input=record.key_input, key_input=record.input),
    ),
    fault("wrong_rotary_base", ("llama", "qwen3"), {"query"}, ALL, with_angles(base=500.0)),
    *(
        fault(name, ("llama",), {"query"}, ALL, plant)
        for name, plant in {
            "rotary_positions_stretched": with_angles(faster=0.5),
            "half_of_the_features_turned": half_of_the_features_turned,
            "pairs_side_by_side": with_steps(*PARTS[:2], after=(Rotation(interleaved=True),)),
            "turned_backwards": with_steps(*PARTS[:2], after=(Rotation(backwards=True),)),
            "turned_twice": with_steps(*PARTS[:2], after=(Rotation(), Rotation())),
            "not_turned": without(Rotation, *PARTS[:2]),
        }.items()
    ),
    fault("keys_not_turned", ("llama",), {"key"}, {0, 1}, without(Rotation, "key")),
    fault(
        "values_turned_too", ("llama",), {"value"}, {0, 1}, with_steps("value", after=(Rotation(),))
    ),
    fault(
        "queries_one_position_on", ("llama",), {"query"}, ALL,
        lambda record: replace(record, query=turned(record, "query", 1)),
    ),
    fault(
        "angles_rounded_to_bfloat16", ("llama",), {"query"}, ALL,
        rotation=lambda rotation: tuple(map(rounded, rotation)), **ONLY_FINE,
    ),
]  # fmt: skip
OF_SCORES = [
    fault(
        "scale_one_percent_off", (*EVERY, "bloom", "falcon", "mpnet", "gpt-j"), HIDDEN,
        scale=lambda scale: scale * 1.01,
    ),
    fault("scale_left_out", EVERY[:4], {"scores"}, ALL, scale=lambda _: 1.0),
    fault("scale_that_there_is_not", EVERY[4:], {"scores"}, ALL, scale_that_there_is_not),
    fault("scale_by_the_models_width", EVERY, {"scores"}, ALL, scale_by_the_models_width),
    fault(
        "scale_without_the_root", EVERY, {"scores"}, ALL,
        lambda record: replace(record, scale=1 / record.query.shape[-1]),
    ),
    fault(
        "scale_of_another_layer", ("gpt2",), {"scores"}, ALL,
        lambda record: replace(record, scale=record.scale * (record.layer + 1)),
    ),
    *(
        fault(name, ("minilm", *MASKED, *more), HIDDEN, ALL, padded=True, mask=of)
        for name, more, of in (
            ("mask_shifted_by_one", (), lambda mask: mask.roll(1, -1)),
            ("mask_left_out", ("mpnet", "falcon"), lambda _: None),
            ("mask_only_minus_ten", (), lambda mask: mask.clamp(min=-10)),
        )
    ),
    fault(
        "visible_next_token", CAUSAL, HIDDEN, ALL,
        mask=lambda mask: mask.masked_fill(grid(mask) == -1, 0.0),
    ),
    fault("itself_hidden", CAUSAL, HIDDEN, ALL, itself_hidden),
    fault(
        "causal_where_it_is_not", BOTH_WAYS, HIDDEN, ALL,
        lambda record: hiding(record, grid(record.mask) < 0),
    ),
    fault("last_real_key_hidden", EVERY, HIDDEN, ALL, last_real_key_hidden),
    fault("visible_padding", BOTH_WAYS, HIDDEN, ALL, visible_padding, padded=True),
    fault(
        "visible_first_padding", BOTH_WAYS, HIDDEN, ALL,
        lambda record: visible_padding(record, last=1), padded=True,
    ),
    fault(
        "padding_on_the_other_side", BOTH_WAYS, HIDDEN, ALL, padding_on_the_other_side, padded=True
    ),
    fault("window_off_by_one", ("mistral", "gpt-neo"), {"scores"}, ALL, mask=window_off_by_one),
    fault("soft_cap_left_out", ("gemma2",), {"scores"}, ALL, soft_cap=lambda _: None),
    fault("soft_cap_one_fifth_lower", ("gemma2",), {"scores"}, ALL, soft_cap=lambda cap: cap * 0.8),
    fault(
        "bias_left_out", (*WITH_BIAS, "mpt", "bloom", "mpnet", "deberta-v2"), HIDDEN,
        bias=lambda _: None,
    ),
    *(
        fault(name, WITH_BIAS, HIDDEN, bias=of)
        for name, of in {
            "bias_transposed": lambda bias: bias.mT,
            "bias_shifted": lambda bias: bias.roll(1, -1),
            "bias_of_another_head": lambda bias: bias.roll(1, 0),
            "bias_negative": lambda bias: -bias,
            "bias_twice": lambda bias: bias * 2,
        }.items()
    ),
    fault(
        "bias_scaled_like_the_scores", WITH_BIAS, HIDDEN, (),
        lambda record: replace(record, bias=record.bias * record.query.shape[-1] ** -0.5),
    ),
    fault("bias_in_coarser_buckets", WITH_BIAS, HIDDEN, bias=bias_in_coarser_buckets),
    fault("bias_without_direction", ("t5/encoder",), HIDDEN, bias=without_direction),
    fault(
        "bias_where_there_is_none", ("t5/cross",), HIDDEN, (),
        lambda record, decoder: replace(record, bias=decoder.bias), beside="decoder",
    ),
    fault("sinks_left_out", ("gpt-oss",), HIDDEN, ALL, sinks=lambda _: None),
    fault("sinks_of_another_head", ("gpt-oss",), HIDDEN, {1}, sinks=lambda sinks: sinks.roll(1)),
]  # fmt: skip
OF_FORMULA = [
    fault("mask_as_a_factor", CAUSAL, {"weights"}, ALL, computing("scores", mask_as_a_factor)),
    fault(
        "scores_transposed", ("minilm", "bert", "gpt2", "t5/encoder"), {"scores"}, ALL,
        computing("scores", scores_transposed),
    ),
    fault(
        "queries_of_a_group_apart", ("llama", "qwen3"), {"scores"}, {1, 2},
        computing("scores", queries_of_a_group_apart),
    ),
    fault(
        "keys_of_the_next_group", ("llama", "qwen3"), {"scores"}, ALL,
        computing("scores", keys_of_the_next_group),
    ),
    *(
        fault(name, EVERY, {"weights"}, ALL, weighing(of))
        for name, of in {
            "softmax_over_the_queries": lambda scores: scores.softmax(-2),
            "softmax_in_base_two": lambda scores: (scores * 0.6931).softmax(-1),
            "one_more_in_the_sum": one_more_in_the_sum,
            "not_divided_by_the_sum": exponentials,
        }.items()
    ),
    fault(
        "masked_after_the_softmax", CAUSAL, {"weights"}, ALL,
        computing("weights", masked_after_the_softmax),
    ),
    fault("dropout_left_on", EVERY, {"weights"}, ALL, after_softmax(dropped)),
    fault(
        "weights_rounded_to_bfloat16", EVERY, {"weights"}, ALL, after_softmax(rounded), **ONLY_FINE
    ),
    *(
        fault(name, EVERY, {"weights"}, ALL, after_softmax(of))
        for name, of in {
            "weights_transposed": lambda weights: weights.mT,
            "weights_of_the_next_head": lambda weights: weights.roll(1, 0),
            "weights_of_the_head_mean": lambda w: w.mean(0, keepdim=True).expand_as(w),
        }.items()
    ),
    fault(
        "the_layer_before", EVERY, HIDDEN, ALL,
        lambda record, before: replace(before, layer=record.layer, path=record.path),
        beside="layer",
    ),
    fault("another_text", EVERY, HIDDEN, ALL, lambda record, other: other, beside="text"),
    *(
        fault(name, EVERY, {"output"}, (), plant)
        for name, plant in {
            "output_matrix_transposed": with_weight("output", of=lambda weight: weight.mT),
            "heads_joined_in_another_order": joined_in_another_order,
            "heads_joined_feature_by_feature": joined_feature_by_feature,
            "output_two_per_cent_off": with_weight("output", of=lambda weight: weight * 1.02),
            "output_of_one_head_two_per_cent_off": output_of_one_head_two_per_cent_off,
        }.items()
    ),
    fault(
        "output_of_the_layer_before", EVERY[1:], {"output"}, (), output_of_the_layer_before,
        beside="layer",
    ),
    fault("output_bias_left_out", EVERY[:3], {"output"}, (), without_bias("output")),
]  # fmt: skip
FAULTS = [*OF_PROJECTIONS, *OF_SCORES, *OF_FORMULA]
BY_NAME = {fault.name: fault for fault in FAULTS}
