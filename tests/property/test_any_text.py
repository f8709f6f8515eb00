"""Words, labels and positions in the text, for any text and any kind of tokenizer."""

import itertools
import unicodedata

import pytest
from families import tiny
from hypothesis import assume, example, given
from hypothesis import strategies as st
from strategies import REFUSED, slower, strings, texts, value_or_refused
from vocabularies import vocabulary

import attnviz
from attnviz.analyses.senses import find_word, inflections
from attnviz.inputs.text import encode_texts
from attnviz.results import Axis
from attnviz.results.axis import find_words, locate, token_groups
from attnviz.results.text import literal


@pytest.fixture(scope="module")
def readers(model):
    """Models with tokenizers of word pieces, of bytes, and of pieces that mark spaces."""
    other = {
        kind: attnviz.load(tiny("gpt2"), tokenizer=vocabulary(kind)) for kind in ("gpt2", "unigram")
    }
    every = {"words": model, **other}
    return lambda kind: every[kind].checkpoint  # keeps failure reports short


kinds = st.sampled_from(["words", "gpt2", "unigram"])


@slower(0.5)
@given(texts)
def test_words_are_in_order_and_skip_only_blanks(text):
    spans = find_words(text)
    assert all(start < end for start, end in spans)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    inside = set(itertools.chain.from_iterable(range(*span) for span in spans))
    assert all(text[at].isspace() for at in range(len(text)) if at not in inside)
    assert all(text[start:end].strip() for start, end in spans)


@slower(2)
@example("gpt2", "a", " ")
@given(kinds, texts, st.none() | texts)
def test_every_token_has_its_word_and_every_word_its_tokens(readers, kind, text, pair):
    encoded = value_or_refused(encode_texts, readers(kind), [(text, pair)], truncate=True)
    if encoded is REFUSED:
        return
    inputs, (axis,), (detail,) = encoded
    assert detail.check.equal
    assert detail.doubt is None
    assert len(axis) == inputs["input_ids"].shape[1]
    read = text, pair or ""
    for special, word, segment in zip(axis.special, axis.words, axis.segments, strict=True):
        assert (word is None) == (special or not read[segment].strip())
    words = [word for word in axis.words if word is not None]
    assert list(dict.fromkeys(words)) == list(range(len(axis.word_labels)))  # in order, none unused
    for index, word in enumerate(axis.words):
        assert word is None or axis.word_labels[word] in read[axis.segments[index]]
    for side in (token_groups(axis), token_groups(axis, words=False)):
        together = sorted(itertools.chain(*side.positions))
        assert together == [index for index, padded in enumerate(axis.padding) if not padded]
        assert [index[0] for index in side.positions] == sorted(
            index[0] for index in side.positions
        )
        assert all(index == tuple(sorted(index)) for index in side.positions)
        assert all(side.labels)


@st.composite
def axes(draw):
    """Axes with any words, some of them special, some of them padding at the end."""
    words = draw(st.lists(st.none() | st.integers(0, 4), min_size=1, max_size=10))
    names = draw(st.lists(texts, min_size=5, max_size=5))
    special = tuple(word is None and draw(st.booleans()) for word in words)
    padded = draw(st.integers(0, len(words) - 1))
    return Axis(
        labels=tuple(draw(st.lists(texts, min_size=len(words), max_size=len(words)))),
        words=tuple(words),
        word_labels=tuple(names),
        special=special,
        padding=tuple(at >= len(words) - padded for at in range(len(words))),
        segments=(0,) * len(words),
    )


@slower(2)
@example(Axis.plain(["c", "c#", "the#2", "#", "#1"], special=[False] * 5), False)
@given(axes(), st.booleans())
def test_a_word_is_found_by_its_name_and_its_number(axis, words):
    side = token_groups(axis, words=words)
    folded = [label.casefold() for label in side.labels]
    for at, label in enumerate(side.labels):
        if not label:
            continue
        number = folded[: at + 1].count(folded[at])
        if f"{folded[at]}#{number}" not in folded:
            assert locate(f"{label}#{number}", side) == at
        if folded.count(folded[at]) == 1:
            assert locate(label, side) == at


@slower(2)
@given(texts, st.data())
def test_each_word_of_a_sentence_is_found_in_it(sentence, data):
    spans = find_words(sentence)
    assume(spans)
    start, end = data.draw(st.sampled_from(spans))
    word = sentence[start:end]
    assume(any(c.isalnum() for c in word))
    assert (start, end) in find_word(word, sentence)
    if len(word.upper()) == len(word):
        assert (start, end) in find_word(word.upper(), sentence)


@given(texts, texts)
def test_matches_are_the_word_or_an_inflection(word, sentence):
    forms = {form.casefold() for form in (word, *inflections(word))}
    for start, end in find_word(word, sentence):
        assert 0 <= start <= end <= len(sentence)
        assert sentence[start:end].casefold() in forms


@slower(0.5)
@example("\u2028", 24)
@given(strings, st.integers(2, 60))
def test_a_label_is_one_printable_line(text, longest):
    label = literal(text, longest)
    assert len(label) <= longest
    assert len(f"{label}.".splitlines()) == 1
    assert {unicodedata.category(c) for c in label}.isdisjoint({"Cc", "Cs", "Co", "Cn", "Zl", "Zp"})
    assert not any(unicodedata.bidirectional(c) in DIRECTIONS for c in label)
    assert literal(label, longest) == label
    if len(text) <= longest and text.isprintable():
        assert label == text


DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
