"""The positions along one side of a map: tokens and their words, patches of an image, frames.

A word is what Unicode's word boundaries delimit (UAX #29), independent of the tokenizer:
"don't" is one word, punctuation stands by itself. Weights of pieces become weights of words as in
Clark et al. 2019 (arXiv:1906.04341): weight *to* a word is the sum over its pieces, weight *from*
a word is the mean over its pieces, so that every row still sums to 1.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import regex
import torch
from torch import Tensor

from attnviz.errors import InputError, did_you_mean, expect_words
from attnviz.results.base import Rules, Savable, doc, documented, one_each
from attnviz.results.text import counted, literal, shortened

if TYPE_CHECKING:
    from attnviz.results.attention_record import AttentionRecord

T = TypeVar("T")
Span = tuple[int, int]
_SPECIAL = re.compile(r"\[[A-Z]+\]|</?[^<>\s]+>")  # [CLS], <s>, </s>, <|endoftext|>
_NAMED = 6  # labels that a summary names
_WRITTEN = 10  # letters of a word before the token that was read in its place
_ENDS, _QUOTES = frozenset(".!?。！？"), "\"'”’)]"  # of sentences, and what may follow them
_TITLES = frozenset(("Dr", "Mr", "Mrs", "Ms", "Prof", "St", "vs", "dr", "mr", "mrs", "ms", "prof"))
Patches = tuple[tuple[int, int] | None, ...]

# English words that carry grammar rather than content: articles, pronouns, auxiliaries and such.
FUNCTION_WORDS = frozenset(
    Path(__file__).with_name("function_words.txt").read_text("utf-8").split()
)


def _select(entries: tuple[T, ...], positions: Sequence[int]) -> tuple[T, ...]:
    return tuple(entries[position] for position in positions)


@documented(eq=True)
class Axis(Savable):
    """The positions along one side of a map, one entry per position.

    Where there is no image, or no sound, `patches` or `seconds` are None, and so is the entry of a
    position that is no patch, or no frame.
    """

    labels: tuple[str, ...] = doc('The pieces as the tokenizer writes them ("play", "##ing").')
    words: tuple[int | None, ...] = doc(
        "The index in `word_labels` of the word that the piece belongs to; None for a special "
        "token and for padding."
    )
    word_labels: tuple[str, ...] = doc("The words as they stand in the text.")
    special: tuple[bool, ...] = doc("True for tokens that the tokenizer added, and for padding.")
    padding: tuple[bool, ...] = doc("True for the positions that only fill up a batch.")
    segments: tuple[int, ...] = doc("0, or 1 for the second text of a pair.")
    patches: Patches | None = doc("The (row, column) of each patch of an image.", default=None)
    seconds: tuple[float | None, ...] | None = doc("When each frame begins.", default=None)
    unknown: tuple[bool, ...] | None = doc(
        "True for what the vocabulary lacks ([UNK]); None without any.", default=None, later="0.2"
    )

    def __repr__(self) -> str:
        first = " ".join(self.labels[:_NAMED]) + (" …" if len(self) > _NAMED else "")
        return f"Axis({len(self)} positions: {literal(first, 60)})"

    def __len__(self) -> int:
        return len(self.labels)

    def _rules(self) -> Rules:
        entries = (self.words, self.special, self.padding, self.segments, self.patches)
        is_complete = one_each(len(self), (*entries, self.seconds, self.unknown))
        yield "one entry of each kind for each label", is_complete
        count = len(self.word_labels)
        have_labels = all(word is None or 0 <= word < count for word in self.words)
        yield "words that have a label", have_labels

    def at(self, positions: Sequence[int]) -> Axis:
        """Return some of the positions, in this order."""
        some: dict[str, Any] = {
            name: None if value is None else _select(value, positions)
            for name, value in vars(self).items()
            if name != "word_labels"
        }
        return replace(self, **some)

    def unknown_label(self, positions: Sequence[int]) -> str:
        """Return "准 [UNK]" for positions of which the model read one as unknown, else ""."""
        for n in positions:
            if self.unknown is not None and self.unknown[n]:
                word = self.words[n]
                written = "" if word is None else shortened(self.word_labels[word], _WRITTEN)
                return " ".join(dict.fromkeys(filter(None, (written, self.labels[n]))))
        return ""

    def unknown_words(self) -> tuple[str, ...]:
        """Return the words of which the vocabulary lacks at least a part, each once."""
        unknown = zip(self.words, self.unknown or (), strict=False)
        return tuple(
            self.word_labels[word]
            for word in dict.fromkeys(word for word, flag in unknown if flag and word is not None)
        )

    @classmethod
    def plain(
        cls,
        labels: Sequence[str],
        *,
        special: Sequence[bool],
        patches: Sequence[tuple[int, int] | None] | None = None,
        seconds: Sequence[float | None] | None = None,
    ) -> Axis:
        """Return an axis of positions that belong to no words: patches, frames."""
        zeros = (0,) * len(labels)
        axis = make_axis(labels, None, special, padding=(False,) * len(labels), segments=zeros)
        places = {"patches": patches, "seconds": seconds}
        known: dict[str, Any] = {n: tuple(of) for n, of in places.items() if of is not None}
        return replace(axis, **known)

    @classmethod
    def of_labels(cls, labels: Sequence[str]) -> Axis:
        """Return an axis in which each label that is no special token ([CLS], </s>) is a word."""
        special = tuple(bool(_SPECIAL.fullmatch(label)) for label in labels)
        words = tuple(label for label, s in zip(labels, special, strict=True) if not s)
        numbers = iter(range(len(words)))
        axis = cls.plain(labels, special=special)
        return replace(
            axis, words=tuple(None if s else next(numbers) for s in special), word_labels=words
        )

    @classmethod
    def numbered(cls, length: int) -> Axis:
        """Return an axis of positions of which only the number is known."""
        return cls.of_labels([*map(str, range(length))])


@dataclass(frozen=True)
class Landmark(Savable):
    """A position in a long text, and the words that stand there."""

    position: int
    words: str


@documented(eq=True)
class AxisGeometry(Savable):
    """Where the rows, or the columns, of a map lie in an image, in a sound or in a long text."""

    patches: Patches | None = doc("As in `Axis`, one entry per row or column.", default=None)
    seconds: tuple[float | None, ...] | None = doc("Likewise.", default=None)
    landmarks: tuple[Landmark, ...] = doc("Positions to be named, of a long text.", default=())
    start: int = doc("The position at which the first begins.", default=0)
    cell: int = doc("How many positions each joins.", default=1)
    unknown: tuple[str, ...] = doc(
        '"准 [UNK]" for a word read as an unknown token, else "".', default=(), later="0.2"
    )

    def fits(self, count: int) -> bool:
        """Return whether there is a place for each of `count` rows or columns."""
        return one_each(count, (self.patches, self.seconds, self.unknown or None))


def join_axes(first: Axis, *others: Axis) -> Axis:
    """Return axes that follow each other as one."""
    joined = first
    for axis in others:
        offset = len(joined.word_labels)
        words = tuple(None if word is None else offset + word for word in axis.words)
        patches = None if joined.patches is None else joined.patches + (None,) * len(axis)
        unknown = joined.unknown or (False,) * len(joined), axis.unknown or (False,) * len(axis)
        names = ("labels", "word_labels", "special", "padding", "segments")
        both = {name: getattr(joined, name) + getattr(axis, name) for name in names}
        known = sum(unknown, ()) if any(map(any, unknown)) else None
        words = joined.words + words
        joined = replace(axis, **both, words=words, patches=patches, unknown=known)
    return joined


def find_words(text: str) -> list[Span]:
    """Return the (start, end) of every word and punctuation mark, in characters."""
    ends = [match.end() for match in regex.finditer(r"(?w).+?\b", text, regex.DOTALL)]
    spans = itertools.pairwise([0, *ends, len(text)])
    return [(start, end) for start, end in spans if text[start:end].strip()]


def make_axis(
    labels: Sequence[str],
    offsets: Sequence[Span] | None,
    special: Sequence[bool],
    padding: Sequence[bool],
    segments: Sequence[int],
    texts: Sequence[str] = (),
    *,
    whole_words: bool = False,
    unknown: Sequence[bool] = (),
) -> Axis:
    """Place the pieces of one or two texts in the texts' words.

    Offsets are (start, end) in characters of the text that `segments` counts, or None where the
    tokenizer has none: then every piece stands by itself, as it does in a text of blanks. Words
    that one piece covers are one word.
    whole_words : each piece is a word, whatever Unicode delimits, such as an atom in a SMILES.
    """
    spans = [find_words(text) for text in texts]
    marks: list[set[int]] = [set() for _ in texts]  # the characters of special tokens
    if offsets is not None:
        for k in range(len(texts)):
            rows = zip(offsets, segments, special, strict=True)
            here = [(span, flag) for span, of, flag in rows if of == k]
            pieces = [span for span, flag in here if span[0] < span[1] and not flag]
            marks[k] = {n for span, flag in here if flag for n in range(*span)}
            between = [span for span in spans[k] if span[0] not in marks[k]]
            spans[k] = pieces if whole_words else _joined(between, pieces)
    words: list[int | None] = []
    index: dict[tuple[int, int], int] = {}  # of each word, by its text and its place there
    for position, segment in enumerate(segments):
        if offsets is None or special[position] or not spans[segment]:
            words.append(None)
            continue
        start, end = offsets[position]
        bisect = bisect_left if start == end else bisect_right  # blanks: of the word after them
        place = bisect(spans[segment], start, key=lambda word: word[1])
        place = min(place, len(spans[segment]) - 1)
        before = range(end, spans[segment][place][0])  # from blanks to the word after them
        word = segment, place - (place > 0 and not marks[segment].isdisjoint(before))
        words.append(index.setdefault(word, len(index)))
    return Axis(
        labels=tuple(labels),
        words=tuple(words),
        word_labels=tuple(texts[of][slice(*spans[of][word])] for of, word in index),
        special=tuple(special),
        padding=tuple(padding),
        segments=tuple(segments),
        unknown=tuple(unknown) if any(unknown) else None,
    )


def _joined(words: Sequence[Span], pieces: Sequence[Span]) -> list[Span]:
    """Return the spans of words, those joined over which one piece reaches."""
    joined = list(words)
    for start, end in pieces:
        first = bisect_right(joined, start, key=lambda word: word[1])
        last = bisect_left(joined, end, key=lambda word: word[0])
        if last - first > 1:
            joined[first:last] = [(joined[first][0], joined[last - 1][1])]
    return joined


def is_word(label: str) -> bool:
    """Return whether a label has a letter or a digit."""
    return any(c.isalnum() for c in label)


def is_content(label: str) -> bool:
    """Return whether a label is a word that carries content."""
    return is_word(label) and label.casefold().replace("’", "'") not in FUNCTION_WORDS


@dataclass(frozen=True)
class TokenGroups:
    """The rows or columns of a map: the positions that each one joins, and its label."""

    positions: tuple[tuple[int, ...], ...]
    labels: tuple[str, ...]
    special: tuple[bool, ...]
    segments: tuple[int, ...]
    side: AxisGeometry

    def boundary(self) -> int | None:
        """Return the group with which the second text starts, or None."""
        return self.segments.index(1) if 1 in self.segments else None

    @property
    def texts(self) -> tuple[str, ...]:
        """In which text of a pair each group is, "first text" or "second text"; empty for one."""
        names = ("first text", "second text") if any(self.segments) else ()
        return tuple(names[n > 0] for n in self.segments if names)

    @property
    def shown(self) -> tuple[str, ...]:
        """The labels in figures and tables: "准 [UNK]" where the model read an unknown token."""
        unknown = self.side.unknown or ("",) * len(self.labels)
        return tuple(read or label for read, label in zip(unknown, self.labels, strict=True))

    @property
    def padded(self) -> tuple[bool, ...]:
        """Which groups are frames that a processor appended to a sound, to a fixed length."""
        seconds = self.side.seconds or (None,) * len(self.labels)
        return tuple(
            special and second is not None
            for special, second in zip(self.special, seconds, strict=True)
        )

    def without_special(self) -> TokenGroups:
        """Return the groups that are no special tokens."""
        return self.at([i for i, special in enumerate(self.special) if not special])

    def at(self, indices: Sequence[int]) -> TokenGroups:
        """Return some of the groups, in this order."""
        names = ("positions", "labels", "special", "segments")
        some: dict[str, Any] = {name: _select(getattr(self, name), indices) for name in names}
        unknown = _select(self.side.unknown, indices) if self.side.unknown else ()
        return TokenGroups(**some, side=_geometry(self.side, indices, unknown))


def _geometry(
    axis: Axis | AxisGeometry, indices: Sequence[int], unknown: Sequence[str]
) -> AxisGeometry:
    return AxisGeometry(
        None if axis.patches is None else _select(axis.patches, indices),
        None if axis.seconds is None else _select(axis.seconds, indices),
        unknown=tuple(unknown) if any(unknown) else (),
    )


def token_groups(axis: Axis, *, words: bool = True) -> TokenGroups:
    """Join the pieces of each word (or take every piece by itself); padding is left out."""
    groups: dict[object, list[int]] = {}
    for position, word in enumerate(axis.words):
        if not axis.padding[position]:
            key = word if words and word is not None else ("piece", position)
            groups.setdefault(key, []).append(position)
    first = [positions[0] for positions in groups.values()]
    return TokenGroups(
        positions=tuple(map(tuple, groups.values())),
        labels=tuple(
            axis.word_labels[key] if isinstance(key, int) else axis.labels[position]
            for key, position in zip(groups, first, strict=True)
        ),
        special=_select(axis.special, first),
        segments=_select(axis.segments, first),
        side=_geometry(axis, first, list(map(axis.unknown_label, groups.values()))),
    )


def merge(weights: Tensor, rows: TokenGroups, columns: TokenGroups) -> Tensor:
    """Merge (…, m, n) weights of pieces: sum over each column's pieces, mean over each row's."""
    if all(len(group) == 1 for group in columns.positions):  # images and sounds, where n is large
        merged = weights[..., [group[0] for group in columns.positions]]
    else:
        merged = torch.stack([weights[..., list(g)].sum(-1) for g in columns.positions], dim=-1)
    if all(len(group) == 1 for group in rows.positions):
        return merged[..., [group[0] for group in rows.positions], :]
    return torch.stack([merged[..., list(group), :].mean(-2) for group in rows.positions], dim=-2)


def word_weights(
    record: AttentionRecord, *, words: bool = True
) -> tuple[Tensor, TokenGroups, TokenGroups]:
    """Return a record's weights (H, rows, columns) between words, and what the words are."""
    rows = token_groups(record.query_axis, words=words)
    columns = token_groups(record.key_axis, words=words)
    return merge(record.weights(), rows, columns).cpu(), rows, columns


def content_words(groups: TokenGroups) -> Tensor:
    """Return which groups carry content: letters or digits, no special token, no function word.

    Where fewer than two do, every word counts, but never one that the model read as unknown.
    """
    unknown = groups.side.unknown or ("",) * len(groups.labels)
    labels = [
        "" if special or read else label
        for label, special, read in zip(groups.labels, groups.special, unknown, strict=True)
    ]
    content = [is_content(label) for label in labels]
    return torch.tensor(
        content if sum(content) > 1 else [is_word(label) for label in labels], device="cpu"
    )


def content_positions(axis: Axis) -> Tensor:
    """Return which positions belong to words that carry content, (T,)."""
    groups = token_groups(axis)
    marked = torch.zeros(len(axis), dtype=torch.bool, device="cpu")
    for content, positions in zip(content_words(groups), groups.positions, strict=True):
        marked[list(positions)] = content
    return marked


def number_sentences(
    words: Sequence[str], special: Sequence[bool], generated: int | None
) -> list[int]:
    """Return the number of the sentence of each word, -1 of special tokens.

    Special tokens end a sentence, and so does the prompt. A point does not behind an initial or a
    title, as in "Dr. Smith".
    """
    numbers, number, begins, before = [], 0, False, ""
    for n, word in enumerate(words):
        if any(special[n : n + 1]):
            numbers.append(-1)
            begins = max(numbers) >= 0
            continue
        number += (begins and is_word(word)) or n == generated
        begins &= not is_word(word)
        numbers.append(number)
        is_short = len(before) == 1 or "." in before or before in _TITLES
        begins |= word.strip(_QUOTES)[-1:] in _ENDS and not (is_short and word[:1] == ".")
        before = word if is_word(word) else before
    return numbers


def place_words(words: Iterable[str], text: str) -> Iterator[slice | None]:
    """Yield the place of each word in a text; None for special tokens, and in another spelling."""
    end, is_lost = 0, True
    for word in words:
        piece = word[1:] if word[:1] == "·" else word
        found = re.compile(re.escape(piece), re.I).search(text, end)
        if found and (is_lost or not text[end : found.start()].strip()):
            end, is_lost = found.end(), False
            yield slice(found.start(), end)
        else:
            is_lost = True
            yield None


def join_parts(groups: TokenGroups, text: str, by: str | Sequence[str]) -> TokenGroups:
    """Join the words of each part of a text: a "sentence", a "passage", or what is given.

    Blank lines separate passages, and sentences too. Raises InputError for a part that is not in
    the text, and for a text of one part.
    """
    places, sentences = [*place_words(groups.labels, text)], [0] * len(groups.labels)
    if by == "sentence":
        sentences = number_sentences(groups.labels, groups.special, None)
    given, whole = list[slice](), find_words(text)
    starts, ends = ({span[side] for span in whole} for side in (0, 1))
    for part in [] if isinstance(by, str) else by:
        part = expect_words(part, "A part").strip()
        found = [match.start() for match in re.finditer(re.escape(part), text, re.I)]
        found = [n for n in found if n in starts and n + len(part) in ends]  # whole words
        later = [n for n in found if given and n >= given[-1].stop]
        start, *_ = [*later, *found, -1]
        if start < 0:
            hint = did_you_mean(part, ("sentence", "passage")) or "Copy it."
            raise InputError(f"The part {shortened(part, 60)!r} is not in the text. {hint}")
        given.append(slice(start, start + len(part)))
    for one, other in itertools.pairwise(sorted(given, key=lambda part: part.start)):
        if other.start < one.stop:
            both = " and ".join(repr(shortened(text[part], 40)) for part in (one, other))
            raise InputError(f"{both} overlap. Name each word once.")
    parts: dict[Any, list[int]] = {}
    passage = end = 0
    for n, place in enumerate(places):
        if place is not None:
            passage += text[end : place.start].count("\n") > 1
            end = place.stop
        key: Any = passage, sentences[n]
        if not isinstance(by, str):
            begun = end if place is None else place.start + 1
            inside = (k for k, one in enumerate(given) if one.start < end and begun <= one.stop)
            key = next(inside, None)
        if not groups.special[n] and key is not None:
            parts.setdefault(key, []).append(n)
    if len(parts) < (len(given) or 2):
        has = counted(len(parts), by if isinstance(by, str) else "such part")
        raise InputError(f"The text has {has}. Separate passages by blank lines, or name parts.")
    members = [parts[key] for key in sorted(parts)]  # as given, or as in the text
    known = [[place for n in of if (place := places[n]) is not None] for of in members]
    texts = [text[of[0].start : of[-1].stop] if of else "" for of in known]
    return replace(
        groups.at([of[0] for of in members]),
        positions=tuple(tuple(p for n in of for p in groups.positions[n]) for of in members),
        labels=tuple(" ".join(one.split()) for one in texts),
        side=AxisGeometry(None, None),
    )


def locate(word: str, groups: TokenGroups) -> int:
    """Return where a word stands among the groups; "the#2" is the second "the".

    Raises InputError for a word that is absent, or that occurs several times without a number.
    """
    labels = [label.casefold() for label in groups.labels]
    name, _, number = word.rpartition("#")
    is_number = number.isdecimal() and len(number) < 10
    if not (name and is_number) or word.casefold() in labels:
        name, number = word, ""  # the sign is part of the word, as in "c#"
    indices = [i for i, label in enumerate(labels) if label == name.casefold()]
    count, name = len(indices), shortened(name)
    if not indices:
        words = ", ".join(dict.fromkeys(groups.without_special().labels))
        hint = did_you_mean(name, groups.labels) or f"Its words are {shortened(words)}."
        raise InputError(f"{name!r} is not a word of the text. {hint}")
    if number and not 1 <= int(number) <= count:
        raise InputError(
            f"{name}#{number} is out of range: {name!r} occurs {count} times. Use {name}#1."
        )
    if not number and count > 1:
        raise InputError(
            f"{name!r} occurs {count} times. "
            f"Say which: {name}#1 {'or' if count == 2 else '…'} {name}#{count}."
        )
    return indices[int(number) - 1 if number else 0]


def locate_known(word: str, groups: TokenGroups, axis: Axis) -> int:
    """Return where a word stands, as `locate`; raise InputError if the model read it as unknown."""
    index = locate(word, groups)
    expect_known(word, axis, groups.positions[index])
    return index


def expect_known(word: str, axis: Axis, positions: Sequence[int]) -> None:
    """Raise InputError if the model read an unknown token ([UNK]) at one of these positions."""
    if axis.unknown is not None and any(axis.unknown[n] for n in positions):
        raise InputError(
            f"The model has no token for {shortened(word)!r}, or for a part of it, and read an "
            "unknown one. Choose another word, or a model that knows it."
        )
