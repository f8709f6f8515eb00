"""Possible faults between the input and the queries, keys and values."""

from __future__ import annotations

from dataclasses import replace

import torch
from planting import MAIN_PLACES as EVERY
from planting import Fault

from attnviz.formula.projection import rotary, rotary_angles
from attnviz.results import Norm, Rotation

BIASED = ("minilm", "bert", "gpt2")
PARTS = ("query", "key", "value")
ALL = {0, 1, 2, 3}


def with_parts(record, *parts, of):
    """Return the record with changes to the steps that compute Q, K and V."""
    changed = {name: of(getattr(record.projection, name)) for name in parts}
    return replace(record, projection=replace(record.projection, **changed))


def without(kind):
    """Remove the projection steps of one kind."""

    def change(part):
        assert any(isinstance(step, kind) for step in part.after)
        return replace(part, after=tuple(s for s in part.after if not isinstance(s, kind)))

    return change


def two_heads_swapped(record):
    order = [0, 2, 1, *range(3, record.heads)]
    key_order = order if record.key_heads == record.heads else slice(None)
    key, value = record.key[key_order], record.value[key_order]
    return replace(record, query=record.query[order], key=key, value=value)


def query_and_key_swapped(record):
    return replace(record, query=record.key, key=record.query)


def key_and_value_swapped(record):
    return replace(record, key=record.value, value=record.key)


def matrices_of_query_and_key_swapped(record):
    projection = record.projection
    return replace(
        record, projection=replace(projection, query=projection.key, key=projection.query)
    )


def matrices_of_key_and_value_swapped(record):
    projection = record.projection
    key, value = (
        replace(projection.value, after=projection.key.after),
        replace(projection.key, after=projection.value.after),
    )
    return replace(record, projection=replace(projection, key=key, value=value))


def query_matrix_transposed(record):
    def of(part):
        square = part.weight.movedim(0, 1).flatten(1).mT  # (d_model, H · d_k), a square matrix
        return replace(part, weight=square.unflatten(1, part.weight.shape[::2]).movedim(1, 0))

    return with_parts(record, "query", of=of)


def heads_cut_the_other_way(record):
    """Treat contiguous heads as interleaved."""

    def of(part):
        heads, _, width = part.weight.shape
        columns = part.weight.movedim(0, 1).reshape(-1, width, heads).mT
        return replace(part, weight=columns.movedim(1, 0))

    return with_parts(record, *PARTS, of=of)


def two_per_cent_off(*parts):
    def of(part):
        bias = None if part.bias is None else part.bias * 1.02
        return replace(part, weight=part.weight * 1.02, bias=bias)

    def fault(record):
        return with_parts(record, *parts, of=of)

    fault.__name__ = f"{'_'.join(parts)}_two_per_cent_off"
    return fault


def bias_left_out_of(part):
    def fault(record):
        return with_parts(record, part, of=lambda each: replace(each, bias=None))

    fault.__name__ = f"{part}_bias_left_out"
    return fault


def one_token_late(part):
    def fault(record):
        return replace(record, **{part: getattr(record, part).roll(1, 1)})

    fault.__name__ = f"{part}_of_the_token_before"
    return fault


def query_matrix_rounded_to_bfloat16(record):
    return with_parts(
        record, "query", of=lambda part: replace(part, weight=part.weight.bfloat16().float())
    )


def wrong_heads_values(record):
    return replace(record, value=record.value.roll(1, 0))


def query_norm_left_out(record):
    return with_parts(record, "query", of=without(Norm))


# ----------------------------------------------------------------- taken from the wrong place
def input_of_the_layer_before(record, before):
    return replace(record, input=before.input)


def keys_of_the_layer_before(record, before):
    return replace(record, key=before.key)


def values_of_the_layer_before(record, before):
    return replace(record, value=before.value)


def keys_and_values_from_the_decoder(record):
    return replace(record, key_input=record.input)


def queries_from_the_encoder(record):
    return replace(record, input=record.key_input)


def the_two_sides_swapped(record):
    return replace(record, input=record.key_input, key_input=record.input)


# -------------------------------------------------------------------------- rotary positions
def angles_of(record, positions, base=10000.0):
    cos, sin = rotary_angles(positions, record.query.shape[-1], base)
    return cos.to(record.query.dtype), sin.to(record.query.dtype)


def turned(record, part, by):
    """Return queries or keys rotated further, as if shifted by some positions."""
    positions = torch.full((record.query.shape[1],), by, dtype=torch.float64)
    return rotary(getattr(record, part), *angles_of(record, positions))


def wrong_rotary_base(record):
    positions = torch.arange(record.query.shape[1])
    return replace(record, rotation=angles_of(record, positions, 500.0))


def rotary_positions_stretched(record):
    return replace(record, rotation=angles_of(record, torch.arange(record.query.shape[1]) / 2))


def half_of_the_features_turned(record):
    quarter = record.query.shape[-1] // 4
    cos, sin = (torch.cat([part[:, :quarter]] * 2, -1) for part in record.rotation)
    return replace(record, rotation=(cos, sin))


def pairs_side_by_side(record):
    change = {"after": (Rotation(interleaved=True),)}
    return with_parts(record, "query", "key", of=lambda part: replace(part, **change))


def turned_backwards(record):
    change = {"after": (Rotation(backwards=True),)}
    return with_parts(record, "query", "key", of=lambda part: replace(part, **change))


def turned_twice(record):
    change = {"after": (Rotation(), Rotation())}
    return with_parts(record, "query", "key", of=lambda part: replace(part, **change))


def not_turned(record):
    return with_parts(record, "query", "key", of=without(Rotation))


def keys_not_turned(record):
    return with_parts(record, "key", of=without(Rotation))


def values_turned_too(record):
    return with_parts(record, "value", of=lambda part: replace(part, after=(Rotation(),)))


def queries_one_position_on(record):
    return replace(record, query=turned(record, "query", 1))


def angles_rounded_to_bfloat16(record):
    cos, sin = (part.bfloat16().float() for part in record.rotation)
    return replace(record, rotation=(cos, sin))


ONLY_FINE = (torch.float32,)
FAULTS = [
    Fault(two_heads_swapped, (*EVERY, "bloom", "roformer"), {"query"}, {1, 2}),
    Fault(query_and_key_swapped, ("minilm", "bert", "gpt2", "t5/encoder"), {"query"}, ALL),
    Fault(key_and_value_swapped, EVERY, {"key"}, {0, 1}),
    Fault(matrices_of_query_and_key_swapped, ("bert", "gpt2", "t5/encoder"), {"query"}, ALL),
    Fault(matrices_of_key_and_value_swapped, EVERY, {"key"}, {0, 1}),
    Fault(query_matrix_transposed, EVERY, {"query"}, ALL),
    Fault(heads_cut_the_other_way, EVERY, {"query"}, ALL),
    *(Fault(two_per_cent_off(part), (*EVERY[:4], "t5/cross"), {part}, {0, 1}) for part in PARTS),
    Fault(bias_left_out_of("query"), (*BIASED, "qwen2"), {"query"}, ALL),
    Fault(bias_left_out_of("value"), (*BIASED, "qwen2"), {"value"}, {1}),
    *(Fault(one_token_late(part), EVERY[1:], {part}, {0, 1}) for part in PARTS),
    Fault(wrong_heads_values, EVERY, {"value"}, {0, 1}),
    Fault(query_matrix_rounded_to_bfloat16, EVERY[1:], {"query"}, ALL, dtypes=ONLY_FINE),
    Fault(query_norm_left_out, ("qwen3",), {"query"}, ALL),
    Fault(input_of_the_layer_before, EVERY[1:], {"query"}, ALL, "layer"),
    Fault(keys_of_the_layer_before, EVERY[1:], {"key"}, {0, 1}, "layer"),
    Fault(values_of_the_layer_before, EVERY[1:], {"value"}, {0, 1}, "layer"),
    Fault(keys_and_values_from_the_decoder, ("t5/cross", "bart/cross"), {"key"}, ALL),
    Fault(queries_from_the_encoder, ("t5/cross", "bart/cross"), {"query"}, ALL),
    Fault(
        the_two_sides_swapped,
        ("t5/cross", "bart/cross", "marian/cross", "mbart/cross", "mt5/cross", "pegasus/cross"),
        {"query"},
        ALL,
    ),
    Fault(wrong_rotary_base, ("llama", "qwen3"), {"query"}, ALL),
    Fault(rotary_positions_stretched, ("llama",), {"query"}, ALL),
    Fault(half_of_the_features_turned, ("llama",), {"query"}, ALL),
    Fault(pairs_side_by_side, ("llama",), {"query"}, ALL),
    Fault(turned_backwards, ("llama",), {"query"}, ALL),
    Fault(turned_twice, ("llama",), {"query"}, ALL),
    Fault(not_turned, ("llama",), {"query"}, ALL),
    Fault(keys_not_turned, ("llama",), {"key"}, {0, 1}),
    Fault(values_turned_too, ("llama",), {"value"}, {0, 1}),
    Fault(queries_one_position_on, ("llama",), {"query"}, ALL),
    Fault(angles_rounded_to_bfloat16, ("llama",), {"query"}, ALL, dtypes=ONLY_FINE),
]
