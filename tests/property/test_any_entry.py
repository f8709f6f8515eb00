"""Typed values and values from user files are parsed or rejected, without any other outcome."""

import json
import tempfile
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import REFUSED, slower, strings, texts, value_or_refused

from attnviz.analyses.example.compute import FIELDS, STAGES
from attnviz.analyses.example.compute import example as replay_example
from attnviz.analyses.senses import read_sentences
from attnviz.analyses.shift.compute import parse_pair
from attnviz.io import read_text
from attnviz.terminal import parse_named_sentences


@slower(0.5)
@example("The {mud|cash} bank", None)
@given(texts, st.none() | texts)
def test_braces_name_two_texts(text, reference):
    pair = value_or_refused(parse_pair, text, reference)
    if pair is REFUSED:
        return
    one, other = pair
    if one == text:
        assert other == ("gate" if reference is None else reference)
    else:
        assert reference is None
        assert len(one) < len(text)


@given(st.lists(texts, max_size=4), texts, texts, st.booleans())
def test_alternatives_are_joined_literally(around, one, other, braces):
    def plain(text):
        return "".join(c for c in text if c not in "{}|") or "x"

    around = [*map(plain, around), "end"]
    sides = [(plain(one) + str(at), plain(other) + str(at)) for at in range(len(around) - 1)]
    entry = "".join(
        part + (f"{{{sides[at][0]}|{sides[at][1]}}}" if at < len(sides) else "")
        for at, part in enumerate(around)
    )
    text, reference = parse_pair(entry, None)
    expected = [
        "".join(p + (sides[at][n] if at < len(sides) else "") for at, p in enumerate(around))
        for n in (1, 0)
    ]
    assert [text, reference] == (expected if sides else [entry, "gate"])


entries = st.one_of(
    texts,
    st.tuples(st.sampled_from(["river", "money", " a ", ""]), texts).map("=".join),
)


@pytest.fixture(autouse=True, scope="module")
def _empty_folder(tmp_path_factory):
    """Use an empty folder, because texts may be interpreted as file names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("empty"))
        yield


@slower(0.5)
@given(st.lists(entries, max_size=4))
def test_typed_senses_are_sentences_by_name(several):
    found = value_or_refused(parse_named_sentences, several, "--sentences")
    if found is REFUSED:
        return
    assert list(found) == list(dict.fromkeys(one.partition("=")[0].strip() for one in several))
    assert all(sentence.strip() for sentences in found.values() for sentence in sentences)


sentences = st.dictionaries(texts, texts | st.lists(texts, max_size=3), max_size=3)


@slower(0.5)
@example("bank", {"a": ["the bank", "a bank"], "b": ["bank", "banks"]})
@example("", None)
@given(texts, st.none() | sentences)
def test_sentences_are_gathered_with_the_places_of_the_word(word, senses):
    result = value_or_refused(read_sentences, word, senses)
    if result is not REFUSED:
        for one in result:
            assert all(0 <= start < end <= len(one.text) for start, end in one.places)


@slower(4)
@given(st.binary(max_size=60) | strings.map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_a_file_of_sentences_has_sentences_or_is_refused(content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "river.txt"
        path.write_bytes(content)
        text = value_or_refused(lambda: read_text(path, most=50))
        assert text is REFUSED or len(text) <= 50
        sentences = value_or_refused(parse_named_sentences, [f"river={path}"], "--sentences")
        assert sentences is REFUSED or all(
            line.strip() == line != "" for line in sentences["river"]
        )


cells = st.one_of(
    st.integers(-99, 99), st.floats(-9, 9).map(lambda x: round(x, 3)), st.floats(), texts,
    st.none(), st.booleans(), st.just(10**30), st.just(Decimal("1E-30")),
)  # fmt: skip
anything = st.recursive(
    cells,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=8,
)
names = st.sampled_from([*FIELDS, *STAGES, "x"])
matrices = st.integers(1, 3).flatmap(
    lambda width: st.lists(
        st.lists(st.integers(-9, 9) | st.sampled_from([0.5, 1.25]), min_size=width, max_size=width),
        min_size=1,
        max_size=3,
    )
)
values = st.one_of(
    matrices, matrices, st.lists(matrices, max_size=3), anything, st.sampled_from(["causal", 1, 2]),
    st.dictionaries(st.sampled_from([*STAGES]), matrices | texts, max_size=2),
)  # fmt: skip
files = st.dictionaries(names, values, max_size=7)


def written(data):
    return json.dumps(data, default=str)


def replayed(text):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "own.json"
        path.write_text(text, encoding="utf-8")
        return replay_example(file=path)


@slower(2)
@example('{"a": 1, "a": 2}')
@example("[" * 100_000)
@example('{"X": [[1e999999999999999999999]]}')
@example('{"X": [[NaN]]}')
@given(strings | anything.map(written) | files.map(written))
def test_any_text_is_an_example_or_refused(text):
    value_or_refused(lambda: replayed(text))


@slower(4)
@example({"X": [[1, 2]], "W_q": [[1], [1]], "W_k": [[1], [1]], "W_v": [[1], [1]]})
@given(
    st.fixed_dictionaries(
        {"X": matrices},
        optional={name: values for name in (*FIELDS, *STAGES) if name not in ("X", "title")},
    )
)
def test_any_file_is_replayed_or_refused(data):
    worked = value_or_refused(lambda: replayed(written(data)))
    if worked is not REFUSED:
        assert worked.name == "own.json"
        worked.summary()
