"""Any valid result is restored bit for bit; any other file is rejected with one line."""

import hashlib
import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import REFUSED, slower, strings, texts, value_or_refused

from attnviz import load_result, save_result
from attnviz.analyses.ablate.result import AblationResult
from attnviz.analyses.compare.result import CompareResult
from attnviz.analyses.example.result import ExampleResult, GivenMatrix, ReplayedStage
from attnviz.analyses.explain.result import ExplainResult
from attnviz.analyses.explore.result import ExploreResult, HeadExample, QueryKeyPlane, WrittenTokens
from attnviz.analyses.maps.result import AttentionMap, HeadMaps
from attnviz.analyses.senses.result import Occurrence, SenseScore, SensesResult
from attnviz.analyses.shift.result import Decomposition, ResidualStream, ShiftResult
from attnviz.analyses.steps.result import Stage, StepsResult
from attnviz.analyses.survey.result import HeadName, SurveyResult
from attnviz.attribution.interventions import HeadEffects
from attnviz.attribution.prediction import LogitLens
from attnviz.errors import InputError
from attnviz.results import (
    AgreementReport,
    AttentionRecord,
    AttentionResult,
    Axis,
    AxisGeometry,
    Computation,
    MapSummary,
    MaskRule,
    NextTokens,
    Provenance,
    StageCheck,
    StreamedAttention,
    Waveform,
)
from attnviz.results.attention_record import GivenAttention, LinearAttention
from attnviz.results.base import SAVABLE, Result

WIDE = torch.float32, torch.float64
EVERY = (*WIDE, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
sizes = st.integers(1, 3)


@st.composite
def tensors(draw, *shape, of=WIDE):
    """Any bits, including NaN payloads, in any memory layout."""
    shape = shape or draw(st.lists(st.integers(0, 3), max_size=4))
    kind, size = draw(st.sampled_from(of)), math.prod(shape)
    bits = np.random.default_rng(draw(st.integers(0, 2**32))).bytes(8 * max(1, size))
    raw = torch.frombuffer(bytearray(bits), dtype=torch.uint8)
    raw = raw % 2 if kind is torch.bool else raw
    order = draw(st.permutations(range(len(shape))))
    laid = raw.view(kind)[:size].reshape([shape[d] for d in order])
    return laid.permute(sorted(range(len(shape)), key=order.__getitem__))


def labels(count):
    return st.lists(strings, min_size=count, max_size=count).map(tuple)


@st.composite
def checks(draw):
    """The checks of a stage, one number per head, some of them above the tolerance."""
    heads = draw(sizes)
    each = st.lists(st.floats(0, allow_infinity=False), min_size=heads, max_size=heads).map(tuple)
    slopes = draw(st.sampled_from([0, heads]))
    fields = {
        "stack": draw(texts),
        "layer": draw(st.integers(0, 9)),
        "path": draw(texts),
        "stage": draw(st.sampled_from(["weights", "scores", "summary"])),
        "differences": draw(each),
        "tolerances": tuple(1e-9 + tolerance for tolerance in draw(each)),
        "own_errors": draw(each),
        "compared": draw(st.integers(0)),
        "finite": draw(st.booleans()),
        "failed_heads": draw(st.sampled_from([(), (0,)])),
        "slope_errors": (0.01,) * slopes,
        "slope_tolerances": (0.02,) * slopes,
        "slope_error": draw(st.none() | st.floats()),
        "slope_tolerance": draw(st.none() | st.floats(1e-9, allow_infinity=False)),
    }
    try:
        return StageCheck(**fields)
    except InputError:  # its numbers are inconsistent
        return StageCheck(**fields | {"failed_heads": (0,)})


@st.composite
def axes(draw, size):
    """An axis of a map, with equally many entries of each kind."""
    entries = {
        "special": st.booleans(),
        "padding": st.booleans(),
        "segments": st.integers(0, 1),
        "words": st.none() | st.integers(0, 1),
        "patches": st.none() | st.tuples(st.integers(0), st.integers(0)),
        "seconds": st.none() | st.floats(),
    }
    each = {name: draw(st.tuples(*[one] * size)) for name, one in entries.items()}
    for name in ("patches", "seconds"):
        each[name] = draw(st.sampled_from([None, each[name]]))
    return Axis(labels=draw(labels(size)), word_labels=draw(labels(2)), **each)


@st.composite
def attentions(draw):
    """An attention with all optional fields."""
    G, m, n, d = (draw(sizes) for _ in range(4))
    H = G * draw(sizes)
    term, row = st.none() | tensors(1, m, n), st.none() | tensors(m, d)
    return draw(
        st.builds(
            AttentionRecord,
            query_axis=axes(m),
            key_axis=axes(n),
            query=tensors(H, m, d),
            key=tensors(G, n, d),
            value=tensors(G, n, 2),
            scale=st.floats(allow_nan=False, allow_infinity=False),
            capped_bias=term,
            bias=term,
            mask=st.none() | tensors(H, m, n),
            sinks=st.none() | tensors(H) | tensors(H, m),
            input=row,
            key_input=st.none() | tensors(n, d),
            rotation=st.none() | st.tuples(tensors(m, 2), tensors(m, 2)),
            visible=st.none() | st.builds(MaskRule, keys=st.none() | tensors(n, of=[torch.bool])),
        )
    )


def summaries(H, m, n):
    pooled = tensors(H, -(-m // 2), -(-n // 2))
    names = ("entropy", "distance", "itself", "previous", "first", "marked", "lse")
    return st.builds(
        MapSummary,
        cell=st.just(2),
        mean=pooled,
        largest=pooled,
        received=tensors(H, n),
        empty=tensors(m, of=[torch.bool]),
        top_keys=tensors(H, m, 1, of=[torch.int64]),
        top_weights=tensors(H, m, 1),
        **dict.fromkeys(names, tensors(H, m)),
    )


@st.composite
def streamed(draw):
    """The summary of an attention, with or without the data that its weights follow from."""
    record = draw(attentions())
    H, (m, n) = draw(st.integers(1, record.heads)), map(len, (record.query_axis, record.key_axis))
    return draw(
        st.builds(
            StreamedAttention,
            query_axis=st.just(record.query_axis),
            key_axis=st.just(record.key_axis),
            heads=st.just(record.heads),
            kept=st.just(tuple(range(H))),
            summary=summaries(H, m, n),
            record=st.sampled_from([None, record]),
        )
    )


def next_tokens(m):
    probabilities = tensors(m, 2, of=[torch.float32]).map(
        lambda some: some.nan_to_num().clamp(0, 1)
    )
    return st.builds(
        NextTokens,
        axis=axes(m),
        ids=tensors(m, 2, of=[torch.int64]),
        labels=st.tuples(*[labels(2)] * m),
        probabilities=probabilities,
    )


st.register_type_strategy(torch.Tensor, tensors(of=EVERY))
st.register_type_strategy(
    Waveform,
    st.builds(
        Waveform,
        seconds=st.floats(1e-3, 1e6),
        extremes=sizes.flatmap(lambda parts: tensors(parts, 2)).map(torch.nan_to_num),
    ),
)
st.register_type_strategy(NextTokens, sizes.flatmap(next_tokens))
st.register_type_strategy(StageCheck, checks())
st.register_type_strategy(Axis, sizes.flatmap(axes))
st.register_type_strategy(AttentionRecord, attentions())
st.register_type_strategy(MapSummary, st.tuples(sizes, sizes).flatmap(lambda mn: summaries(2, *mn)))
st.register_type_strategy(StreamedAttention, streamed())
proof = {
    # Random bits are rarely numbers, and then nothing can be verified.
    "agreement": st.builds(
        AgreementReport, unproven=st.just(("a layer",)), rows=st.none() | st.just((3, 9))
    ),
    "provenance": st.builds(
        Provenance,
        model=strings,
        image=st.none() | strings,
        computation=st.none() | st.builds(Computation),
    ),
    "notes": labels(1),
}

lying = st.builds(AxisGeometry, patches=st.none(), seconds=st.none())
unlike = st.tuples(lying, lying)


@st.composite
def maps(draw):
    m, n = draw(sizes), draw(sizes)
    return draw(
        st.builds(
            AttentionMap,
            weights=tensors(m, n),
            rows=labels(m),
            columns=labels(n),
            sides=unlike,
            special_rows=st.just(()),
            special_columns=st.just((True,) * n),
            image=st.none() | tensors(2, 2, 3, of=[torch.uint8]),
            **proof,
        )
    )


@st.composite
def head_maps(draw):
    layers, heads, m, n = (draw(sizes) for _ in range(4))
    return draw(
        st.builds(
            HeadMaps,
            weights=tensors(layers, heads, m, n),
            rows=labels(m),
            columns=labels(n),
            layers=st.just(tuple(range(layers))),
            heads=st.just(()),
            sides=unlike,
            **proof,
        )
    )


@st.composite
def all_steps(draw):
    m, n, d = draw(sizes), draw(sizes), draw(sizes)
    shapes = {"weights": (m, n), "V": (n, d), "Q": (m, d)}
    stages = st.tuples(
        *(
            st.builds(Stage, name=st.just(name), values=tensors(*shape, of=[torch.float64]))
            for name, shape in shapes.items()
        )
    )
    queries, keys = labels(m), labels(n)
    row = st.integers(0, m - 1)
    return draw(st.builds(StepsResult, stages=stages, queries=queries, keys=keys, row=row, **proof))


@st.composite
def sense_results(draw):
    states, count, d = draw(sizes), draw(sizes), draw(sizes)
    score = st.builds(SenseScore, recalls=st.just((0.5, 1.0)))
    each = {"min_size": states, "max_size": states}
    return draw(
        st.builds(
            SensesResult,
            senses=labels(2),
            occurrences=st.lists(st.builds(Occurrence), min_size=count, max_size=count).map(tuple),
            vectors=tensors(states, count, d),
            right=tensors(states, count),
            plane=tensors(states, count, 2),
            scores=st.lists(score, **each).map(tuple),
            context=score,
            explained=st.lists(st.tuples(st.floats(), st.floats()), **each).map(tuple),
            plane_accuracy=st.lists(st.floats(), **each).map(tuple),
            best=st.integers(0, states - 1),
            **proof,
        )
    )


@st.composite
def shifts(draw):
    L, H, T = draw(sizes), draw(sizes), draw(sizes)
    number = st.floats(0.1, 10)
    split = st.builds(
        Decomposition,
        value=tensors(L, H, T),
        routing=tensors(L, H, T),
        credit=tensors(T, of=[torch.float64]).map(
            lambda each: each.nan_to_num(0, 1, -1).clamp(-9, 9)
        ),
        direction=tensors(4),
        length=number,
        total=number,
        start=number,
    )
    account = st.builds(
        ResidualStream,
        attention=tensors(L, H, T),
        mlp=tensors(L),
        direction=tensors(4),
        length=number,
    )
    regions = draw(st.booleans())
    return draw(
        st.builds(
            ShiftResult,
            at=st.integers(0, T - 1),
            words=labels(T),
            tokens=labels(T),
            positions=st.just(tuple((at,) for at in range(T))),
            special=st.just((False,) * T),
            decomposition=split,
            residual_stream=account,
            causal=st.dictionaries(texts, st.just(torch.arange(float(T))), max_size=2),
            direct_effect=st.none(),
            raw_attention=tensors(T),
            rollout=st.just(torch.ones(T)),
            regions=labels(2) if regions else st.just(()),
            place=tensors(2, L + 1, of=[torch.float64]),
            rails=tensors(2, L + 1, of=[torch.float64]) if regions else st.none(),
            way=number,
            size=number,
            distances=tensors(L + 1, 2) if regions else st.none(),
            **proof,
        )
    )


@st.composite
def explanations(draw):
    L, H, T, K = draw(sizes), draw(sizes), draw(sizes), draw(sizes)
    number = st.floats(0.1, 10)
    by_word = tensors(T, of=[torch.float64]).map(
        lambda each: each.nan_to_num(0, 1, -1).clamp(-9, 9)
    )
    split = st.builds(
        Decomposition,
        value=tensors(L, H, T),
        routing=tensors(L, H, T),
        credit=by_word,
        direction=st.just(torch.ones(1)),
        length=number,
        total=number,
        start=number,
    )
    return draw(
        st.builds(
            ExplainResult,
            number=st.sampled_from(["difference", "log-probability", "logit"]),
            value=number,
            baseline=number,
            probability=st.floats(0, 1),
            top=labels(2),
            top_probabilities=st.just((0.5, 0.25)),
            words=labels(T),
            tokens=labels(T),
            positions=st.just(tuple((at,) for at in range(T))),
            special=st.just((False,) * T),
            unmeasured=st.just(()),
            decomposition=split,
            causal=st.dictionaries(texts, by_word, min_size=1, max_size=2),
            replacements=st.just(torch.ones(K, T, dtype=torch.float64)),
            methods=st.dictionaries(texts, by_word, max_size=2),
            **proof,
        )
    )


@st.composite
def ablations(draw):
    L, H, N, S = draw(sizes), draw(sizes), draw(sizes), draw(sizes)
    head = st.tuples(st.integers(0, L - 1), st.integers(0, H - 1))
    some = st.lists(head, min_size=1, max_size=2).map(tuple)
    return draw(
        st.builds(
            AblationResult,
            sets=st.lists(some, min_size=S, max_size=S).map(tuple),
            layers=st.just(L),
            heads=st.just(H),
            lost=tensors(N, S),
            divergence=tensors(N, S),
            estimate=tensors(N, S),
            texts=labels(N),
            targets=labels(N),
            quantity=st.sampled_from(["log-probability", "difference", "vector"]),
            **proof,
        )
    )


@st.composite
def planes(draw):
    n = draw(sizes)
    return draw(
        st.builds(QueryKeyPlane, tokens=labels(n), queries=tensors(n, 2), keys=tensors(n, 2))
    )


@st.composite
def explorations(draw):
    each = {"min_size": (K := draw(sizes)), "max_size": K}
    example = st.builds(HeadExample, text=st.just(0), row=st.just(0), weights=st.just((0.5,)))
    of_heads = st.lists(st.lists(example, max_size=2).map(tuple), **each).map(tuple)
    names = st.lists(st.builds(HeadName), **each).map(tuple)
    return draw(
        st.builds(
            ExploreResult,
            survey=st.builds(SurveyResult, heads=names, **proof),
            tokens=st.just({"0": ("a", "\n")}),
            examples=of_heads,
            deciles=of_heads,
            planes=st.lists(planes(), **each).map(tuple),
            written=st.just(()) | st.lists(st.builds(WrittenTokens), **each).map(tuple),
            effects=st.none() | tensors(K),
            **proof,
        )
    )


@st.composite
def comparisons(draw):
    heads, statistics, count = draw(sizes), draw(sizes), draw(st.integers(2, 3))
    shape = heads, statistics
    reports, provenances = (
        tuple(draw(proof[name]) for _ in range(count)) for name in ("agreement", "provenance")
    )
    is_pair, each = count == 2, {"min_size": count, "max_size": count}
    return draw(
        st.builds(
            CompareResult,
            heads=st.lists(st.builds(HeadName), min_size=heads, max_size=heads).map(tuple),
            statistics=labels(statistics),
            checkpoints=labels(count),
            roles=st.just(()) if is_pair else st.lists(labels(heads), **each).map(tuple),
            **{name: tensors(count, *shape) for name in ("mean", "low", "high")},
            **{
                name: tensors(count - 1, *shape)
                for name in ("change", "change_low", "change_high", "p_value")
            },
            **{
                name: tensors(heads) if is_pair else st.none()
                for name in ("apart", "apart_low", "apart_high")
            },
            agreements=st.just(reports),
            provenances=st.just(provenances),
        )
    )


@st.composite
def tables(draw, of, *names):
    """A result of equally large tables."""
    shape = draw(sizes), draw(sizes)
    return of(**{name: draw(tensors(*shape)) for name in names})


@st.composite
def lenses(draw):
    L, k = draw(sizes), draw(sizes)
    shape = tensors(L, k)
    tokens = st.tuples(*[labels(k)] * L)
    return draw(st.builds(LogitLens, ids=shape, logits=shape, probabilities=shape, tokens=tokens))


@st.composite
def given_weights(draw, kind, of):
    """Attention without queries and keys, from weights or matrices (H, m, n)."""
    H, m, n = draw(sizes), draw(sizes), draw(sizes)
    fields = {
        "query_axis": axes(m),
        "key_axis": axes(n),
        "query": tensors(H, m, 0),
        "key": tensors(H, n, 0),
        "value": tensors(H, n, 2),
        "scale": st.just(1.0),
        of: tensors(H, m, n),
    }
    return draw(st.builds(kind, **fields))


@st.composite
def stages(draw):
    m, n = draw(sizes), draw(sizes)
    shape = tensors(m, n, of=[torch.float64])
    printed = st.none() | shape
    return draw(
        st.builds(
            ReplayedStage,
            rows=labels(m),
            columns=labels(n),
            printed=printed,
            from_inputs=shape,
            from_printed=printed,
            slack_from_inputs=printed,
            slack_from_printed=printed,
        )
    )


@st.composite
def examples(draw):
    m, n = draw(sizes), draw(sizes)
    shape = tensors(m, n, of=[torch.float64])
    matrices = st.builds(GivenMatrix, rows=labels(m), columns=labels(n), values=shape)
    given, shown = st.tuples(matrices), st.tuples(stages())
    return draw(st.builds(ExampleResult, tokens=labels(n), given=given, stages=shown))


DRAWN = {
    AttentionMap: maps(),
    CompareResult: comparisons(),
    HeadMaps: head_maps(),
    StepsResult: all_steps(),
    SensesResult: sense_results(),
    ShiftResult: shifts(),
    ExplainResult: explanations(),
    AblationResult: ablations(),
    ExploreResult: explorations(),
    QueryKeyPlane: planes(),
    ExampleResult: examples(),
}
MADE = {
    **DRAWN,
    LogitLens: lenses(),
    HeadEffects: tables(HeadEffects, "estimate", "exact"),
    GivenAttention: given_weights(GivenAttention, "given"),
    LinearAttention: given_weights(LinearAttention, "matrix"),
    ReplayedStage: stages(),
    AgreementReport: st.builds(AgreementReport, rows=st.none() | st.just((3, 9))),
    AttentionResult: st.builds(
        AttentionResult,
        records=st.lists(attentions(), min_size=1, max_size=2).map(tuple),
        image=st.none() | tensors(2, 2, 3, of=[torch.uint8]),
        waveform=st.none() | st.from_type(Waveform),
        next_tokens=st.none() | sizes.flatmap(next_tokens),
        agreement=proof["agreement"],
        provenance=proof["provenance"],
    ),
}
# Every type in a file; other tests define types of their own, and load results that are not made.
TYPES = [
    kind
    for kind in SAVABLE.values()
    if is_dataclass(kind) and kind.__module__.startswith("attnviz.")
    if kind in MADE or not issubclass(kind, Result)
]


def held(value):
    """Return everything in a value in a form comparable by ==: bits, memory order, types."""
    if isinstance(value, torch.Tensor):
        raw = value.contiguous().flatten()
        order = sorted(range(value.dim()), key=lambda d: -value.stride(d))
        laid = [d for d in order if value.shape[d] > 1] if value.numel() else []
        return value.dtype, tuple(value.shape), raw.view(torch.uint8).tolist(), laid
    if is_dataclass(value):
        # A file sets the day on which it was saved, and was not recomputed.
        names = [each.name for each in fields(value) if each.name not in ("saved", "recomputed")]
        return type(value), [(name, held(getattr(value, name))) for name in names]
    if isinstance(value, Mapping):
        return dict, [(key, held(each)) for key, each in value.items()]
    if isinstance(value, tuple):
        return tuple, [held(each) for each in value]
    return type(value), np.float64(value).tobytes() if isinstance(value, float) else value


def written(result, suffix=".safetensors"):
    """Return the bytes of a result file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"result{suffix}"
        save_result(result, path)
        return path.read_bytes()


def read(data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.safetensors"
        path.write_bytes(data)
        return load_result(path)


@slower(8)
@given(st.sampled_from(TYPES).flatmap(lambda kind: MADE.get(kind, st.from_type(kind))))
def test_any_result_round_trips_bit_for_bit(result):
    assert held(read(written(result))) == held(result)


@pytest.fixture(scope="module")
def sound():
    """Return a valid file and its contents."""
    drawn = one_map("a")
    return written(drawn), held(drawn)


def changed(data, changes):
    """Return the bytes after random changes, deletions and insertions."""
    data = bytearray(data)
    for offset, length, new_bytes in changes:
        offset %= len(data) + 1
        data[offset : offset + length] = new_bytes
    return bytes(data)


anywhere = st.tuples(st.integers(0, 2**20), st.integers(0, 40), st.binary(max_size=9))
in_the_numbers = st.tuples(st.integers(-5, -1), st.just(1), st.binary(min_size=1, max_size=1))
edits = st.lists(anywhere | in_the_numbers, max_size=4)


@example([])
@given(edits)
def test_a_file_that_was_changed_is_refused(sound, changes):
    data = changed(sound[0], changes)
    result = value_or_refused(read, data)
    assert (result is REFUSED) == (data != sound[0])
    assert result is REFUSED or held(result) == sound[1]


@slower(0.5)
@given(
    st.binary(max_size=200) | st.binary(max_size=99).map(lambda b: len(b).to_bytes(8, "little") + b)
)
def test_any_other_bytes_are_refused(data):
    assert value_or_refused(read, data) is REFUSED


def sealed(header, body):
    """Return a file with a valid digest."""
    blank = {**header, "__metadata__": {**header["__metadata__"], "sha256": "0" * 64}}
    begun = json.dumps(blank, separators=(",", ":")).encode()
    begun = len(begun).to_bytes(8, "little") + begun
    digest = hashlib.sha256(begun + body).hexdigest().encode()
    return begun.replace(b"0" * 64, digest) + body


def places(tree, at=()):
    """Return the paths of all positions in a tree."""
    yield at
    inner = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for key, each in inner:
        yield from places(each, (*at, key))


def replaced(tree, at, value):
    if not at:
        return value
    copy = tree.copy()
    copy[at[0]] = replaced(copy[at[0]], at[1:], value)
    return copy


nodes = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | strings,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["tensor", "same", "dict", "float", *(kind.__name__ for kind in TYPES)]
            ),
            inner,
            max_size=2,
        )
    ),
    max_leaves=5,
)


@slower(2)
@given(st.randoms(use_true_random=False), st.lists(nodes, min_size=1, max_size=2))
def test_a_malicious_file_is_a_result_or_refused(sound, random, values):
    data, _ = sound
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    tree = json.loads(header["__metadata__"]["tree"])
    for value in values:
        tree = replaced(tree, random.choice(list(places(tree))), value)
    header["__metadata__"]["tree"] = json.dumps(tree)
    found = value_or_refused(read, sealed(header, data[end:]))
    assert found is REFUSED or type(found) in TYPES


def finite(tensor):
    """Return numbers as in JSON, where NaN and infinity are null."""
    return [value if math.isfinite(value) else None for value in tensor.flatten().tolist()]


def one_map(label):
    """Return a map of one token, from a file of the same name."""
    proven = AgreementReport((), (), (), "float32", "cpu", {}, "0")
    told = Provenance(label, "0", None, None, "float32", "cpu", {}, image=label)
    return AttentionMap(torch.ones(1, 1), (label,), (label,), "vision", 0, (0,), (), proven, told)


@slower(8)
@example(one_map("\udcff.png"))
@given(maps())
def test_other_programs_read_the_same_map(drawn):
    rows, columns = list(drawn.rows), list(drawn.columns)
    data = json.loads(written(drawn, ".json"))
    assert [value for row in data["weights"] for value in row] == finite(drawn.weights)
    assert (data["rows"], data["columns"]) == (rows, columns)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "map.npz"
        save_result(drawn, path)
        with np.load(path, allow_pickle=False) as arrays:
            assert held(torch.tensor(arrays["weights"]))[:3] == held(drawn.weights)[:3]
            # numpy strips trailing NULs from text.
            assert arrays["rows"].tolist() == [row.rstrip("\0") for row in rows]
            assert json.loads(str(arrays["about"]))["provenance"]["model"] == drawn.provenance.model


@slower(20)
@example(one_map("\udcff.png"))
@given(maps())
def test_other_programs_read_the_same_table(drawn):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "map.parquet"
        save_result(drawn, path)
        table = pq.read_table(path).to_pydict()
    numbers = [None if value != value else value for value in drawn.weights.flatten().tolist()]
    assert table["weight"] == numbers
    # Arrow cannot store lone surrogates.
    rows, columns = (
        [label.encode("utf-8", "replace").decode() for label in side]
        for side in (drawn.rows, drawn.columns)
    )
    assert table["query"] == [row for row in rows for _ in columns]
    assert table["key"] == columns * len(rows)
