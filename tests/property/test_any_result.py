"""Any valid result is restored bit for bit; any other file is rejected with one line."""

import hashlib
import json
import math
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from golden.saved_results import MAKERS, SAVED
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import AWKWARD, REFUSED, slower, strings, value_or_refused

from attnviz import InputError, load_result, save_result
from attnviz.analyses.maps.result import AttentionMap
from attnviz.results import AgreementReport, Provenance
from attnviz.results.base import SAVABLE, Savable

WIDE = torch.float32, torch.float64


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


def other_text(random, text):
    """Return another text; a name that code reads, such as that of a stage, stays."""
    if " " not in text and text.isascii():
        return text
    drawn = "".join(random.choices([*AWKWARD, "\ud800", "\udcff.png"], k=3))
    return drawn.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def in_its_rules(value, other):
    """Return a value in which each field is another one, where its rules allow it."""
    for each in fields(value):
        if each.name == "name":  # of a stage, which names its tensors
            continue
        with suppress(InputError):
            changed = replace(value, **{each.name: other(getattr(value, each.name))})
            if isinstance(changed, Savable):
                changed.check(numbers=True)
            value = changed
    return value


@st.composite
def altered(draw, name):
    """A saved result with other texts and numbers, its tensors with any bits in any layout."""
    random = draw(st.randoms(use_true_random=False))

    def other(value):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return draw(tensors(*value.shape, of=[value.dtype]))
        if isinstance(value, str):
            return other_text(random, value)
        if isinstance(value, float):
            return random.choice([value, -value, value / 3, math.nan, math.inf])
        if isinstance(value, Mapping):
            return {key: other(one) for key, one in value.items()}
        if isinstance(value, tuple):
            return tuple(map(other, value))
        return in_its_rules(value, other) if is_dataclass(value) else value

    return other(saved(name))


@cache
def saved(name):
    """Return a result of the golden files, whose reports do not know its numbers."""

    def forget(report):
        return replace(report, unproven=("a layer",), digest=None, digests={})

    result = load_result(SAVED / f"{name}.safetensors")
    names = {each.name for each in fields(result)}
    if "agreements" in names:
        return replace(result, agreements=tuple(map(forget, result.agreements)))
    return replace(result, agreement=forget(result.agreement)) if "agreement" in names else result


# Every type in a file; other tests define types of their own.
TYPES = [kind for kind in SAVABLE.values() if kind.__module__.startswith("attnviz.")]


def test_no_type_is_printed_with_the_fields_of_another():
    for kind in TYPES:
        owner = next(each for each in kind.__mro__ if "__repr__" in vars(each))
        assert owner is kind or not hasattr(owner.__repr__, "__wrapped__")  # made for its fields


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


@pytest.mark.parametrize("name", MAKERS)
@slower(20)
@given(st.data())
def test_any_result_round_trips_bit_for_bit(name, data):
    result = data.draw(altered(name))
    assert held(result) != held(saved(name))
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
@given(altered("map"))
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
