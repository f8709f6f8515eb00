"""Words: from word pieces to words, which words carry content, and how figures write them.

A word is what Unicode's word boundaries delimit (UAX #29), whatever the tokenizer does with it:
"don't" is one word, punctuation stands by itself. Weights of pieces become weights of words as in
Clark et al. 2019 (arXiv:1906.04341): weight *to* a word is the sum over its pieces, weight *from*
a word is the mean over its pieces, so that every row still sums to 1.
"""

from __future__ import annotations

import itertools
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import regex
import torch
from torch import Tensor

from attnviz.errors import InputError, did_you_mean
from attnviz.results.attention_record import AttentionRecord
from attnviz.results.axis import Axis, AxisGeometry

if TYPE_CHECKING:
    from attnviz.results.attention_result import Provenance

Span = tuple[int, int]

_STEERING = "Cc", "Cs", "Co", "Cn", "Zl", "Zp"  # categories of Unicode

# English words that carry grammar rather than content: articles, pronouns, prepositions,
# conjunctions, auxiliaries and particles.
FUNCTION_WORDS = frozenset(
    """
    a an the this that these those some any each every no such
    i me my mine myself you your yours yourself yourselves he him his himself she her hers herself
    it its itself we us our ours ourselves they them their theirs themselves one who whom whose
    which what where when why how there here
    about above across after against along among around as at before behind below beneath beside
    between beyond by down during except for from in inside into like near of off on onto out
    outside over past since through throughout till to toward towards under until up upon via with
    within without
    and but or nor so yet both either neither if then than because although though while whereas
    unless whether
    am is are was were be been being do does did doing done have has had having
    can could may might must shall should will would ought
    not isn't aren't wasn't weren't don't doesn't didn't haven't hasn't hadn't can't couldn't
    won't wouldn't shouldn't i'm you're he's she's it's we're they're i've you've we've they've
    i'll you'll he'll she'll we'll they'll that's
    also too very just only even again once more most other own same
    """.split()  # noqa: SIM905  a list of 200 literals reads worse
)


def find_words(text: str) -> list[Span]:
    """Return the (start, end) of every word and punctuation mark, in characters.

    >>> [text[a:b] for text in ["I don't, they do."] for a, b in find_words(text)]
    ['I', "don't", ',', 'they', 'do', '.']
    """
    ends = [match.end() for match in regex.finditer(r"(?w).+?\b", text, regex.DOTALL)]
    spans = itertools.pairwise([0, *ends, len(text)])
    return [(start, end) for start, end in spans if text[start:end].strip()]


def make_axis(
    labels: Sequence[str],
    offsets: Sequence[Span] | None,
    special: Sequence[bool],
    padding: Sequence[bool],
    segments: Sequence[int],
    texts: Sequence[str],
) -> Axis:
    """Place the pieces of one or two texts in the texts' words.

    Parameters
    ----------
    labels, offsets, special, padding, segments : one entry per position; offsets are (start, end)
        in characters of the text that `segments` counts, or None where the tokenizer has none:
        then every piece stands by itself, as it does in a text of blanks.
    texts : the text, and its pair if there is one.
    """
    spans = [find_words(text) for text in texts]
    words: list[int | None] = []
    names: list[str] = []
    index: dict[tuple[int, int], int] = {}
    for position, segment in enumerate(segments):
        if offsets is None or special[position] or not spans[segment]:
            words.append(None)
            continue
        word = _word_at(offsets[position], spans[segment])
        if (segment, word) not in index:
            index[segment, word] = len(names)
            start, end = spans[segment][word]
            names.append(texts[segment][start:end])
        words.append(index[segment, word])
    return Axis(
        labels=tuple(labels),
        words=tuple(words),
        word_labels=tuple(names),
        special=tuple(special),
        padding=tuple(padding),
        segments=tuple(segments),
    )


def _word_at(offset: Span, spans: Sequence[Span]) -> int:
    """Return the word that a piece overlaps; a piece of blanks belongs to the word after it."""
    start, end = offset
    find = bisect_left if start == end else bisect_right
    return min(find(spans, start, key=lambda span: span[1]), len(spans) - 1)


@dataclass(frozen=True)
class TokenGroups:
    """The rows or columns of a map: which positions each one joins, and what it is called."""

    positions: tuple[tuple[int, ...], ...]
    labels: tuple[str, ...]
    special: tuple[bool, ...]
    segments: tuple[int, ...]
    side: AxisGeometry

    def boundary(self) -> int | None:
        """Return the unit with which the second text starts, or None."""
        return self.segments.index(1) if 1 in self.segments else None

    def without_special(self) -> TokenGroups:
        """Return the units that are no special tokens."""
        return self.at([i for i, special in enumerate(self.special) if not special])

    def at(self, kept: Sequence[int]) -> TokenGroups:
        """Return some of the units, in this order."""
        return TokenGroups(
            positions=tuple(self.positions[i] for i in kept),
            labels=tuple(self.labels[i] for i in kept),
            special=tuple(self.special[i] for i in kept),
            segments=tuple(self.segments[i] for i in kept),
            side=_side(self.side, kept),
        )


def _side(of: Axis | AxisGeometry, kept: Sequence[int]) -> AxisGeometry:
    """Return where some of the positions lie."""
    patches, seconds = of.patches, of.seconds
    return AxisGeometry(
        None if patches is None else tuple(patches[i] for i in kept),
        None if seconds is None else tuple(seconds[i] for i in kept),
    )


def token_groups(axis: Axis, *, words: bool = True) -> TokenGroups:
    """Join the pieces of each word (or take every piece by itself); padding is left out."""
    joined: dict[object, list[int]] = {}
    for position in range(len(axis)):
        if axis.padding[position]:
            continue
        word = axis.words[position] if words else None
        joined.setdefault(("piece", position) if word is None else word, []).append(position)
    first = [positions[0] for positions in joined.values()]
    return TokenGroups(
        positions=tuple(tuple(positions) for positions in joined.values()),
        labels=tuple(
            axis.labels[at] if isinstance(unit, tuple) else axis.word_labels[unit]
            for unit, at in zip(joined, first, strict=True)
            if isinstance(unit, tuple | int)
        ),
        special=tuple(axis.special[at] for at in first),
        segments=tuple(axis.segments[at] for at in first),
        side=_side(axis, first),
    )


def merge(weights: Tensor, rows: TokenGroups, columns: TokenGroups) -> Tensor:
    """Merge (…, m, n) weights of pieces: sum over each column's pieces, mean over each row's."""
    if all(len(at) == 1 for at in columns.positions):  # as in images and sounds, where T is large
        summed = weights[..., [at[0] for at in columns.positions]]
    else:
        summed = torch.stack([weights[..., list(at)].sum(-1) for at in columns.positions], dim=-1)
    if all(len(at) == 1 for at in rows.positions):
        return summed[..., [at[0] for at in rows.positions], :]
    return torch.stack([summed[..., list(at), :].mean(-2) for at in rows.positions], dim=-2)


def word_weights(
    record: AttentionRecord, *, words: bool = True
) -> tuple[Tensor, TokenGroups, TokenGroups]:
    """Return a record's weights (H, rows, columns) between words, and what the words are."""
    rows, columns = (
        token_groups(record.query_axis, words=words),
        token_groups(record.key_axis, words=words),
    )
    return merge(record.weights(), rows, columns).cpu(), rows, columns


def shortened(text: str, most: int = 80) -> str:
    """Return a text that a message can hold, its end left out where it is long."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def locate(word: str, side: TokenGroups) -> int:
    """Return where a word stands among the units; "the#2" is the second "the".

    Raises
    ------
    InputError : absent (near matches are named), or there several times and not numbered.
    """
    labels = [label.casefold() for label in side.labels]
    name, _, number = word.rpartition("#")
    is_number = number.isdecimal() and len(number) < 10
    if not (name and is_number) or word.casefold() in labels:
        name, number = word, ""  # the sign is part of the word, as in "c#"
    found = [i for i, label in enumerate(labels) if label == name.casefold()]
    if not found:
        words = ", ".join(dict.fromkeys(side.without_special().labels))
        hint = did_you_mean(name, side.labels) or f"Its words are {shortened(words)}."
        raise InputError(f"Expected a word of the text, got {shortened(name)!r}. {hint}")
    if number and not 1 <= int(number) <= len(found):
        raise InputError(
            f"Expected {shortened(name)!r} by a number from 1 to {len(found)}, as often as it "
            f"occurs, got {number}. Say which: {shortened(name)}#1."
        )
    if not number and len(found) > 1:
        raise InputError(
            f"Expected one word, but {name!r} occurs {len(found)} times. "
            f"Say which: {name}#1 {'or' if len(found) == 2 else '…'} {name}#{len(found)}."
        )
    return found[int(number) - 1 if number else 0]


def content_words(side: TokenGroups) -> Tensor:
    """Return which units carry content: letters or digits, no special token, no function word.

    Where fewer than two do, every word counts.
    """
    real, content = (
        [
            not special and counts(label)
            for label, special in zip(side.labels, side.special, strict=True)
        ]
        for counts in (is_word, is_content)
    )
    return torch.tensor(content if sum(content) > 1 else real)


def is_word(label: str) -> bool:
    """Return whether a label has a letter or a digit."""
    return any(c.isalnum() for c in label)


def is_content(label: str) -> bool:
    """Return whether a label is a word that carries content."""
    return is_word(label) and label.casefold().replace("’", "'") not in FUNCTION_WORDS


def content_positions(axis: Axis) -> Tensor:
    """Return which positions belong to words that carry content, (T,)."""
    side = token_groups(axis)
    marked = torch.zeros(len(axis), dtype=torch.bool)
    for content, at in zip(content_words(side).tolist(), side.positions, strict=True):
        marked[list(at)] = content
    return marked


def literal(token: str, longest: int = 24) -> str:
    """Return a token as it can be drawn: control characters visible, a very long one clipped."""
    shown = "".join("\N{REPLACEMENT CHARACTER}" if _controls(c) else c for c in token)
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def _controls(character: str) -> bool:
    """Whether a character steers what shows it: a terminal, the direction or the line."""
    steers_direction = "\u202a" <= character <= "\u202e" or "\u2066" <= character <= "\u2069"
    return steers_direction or unicodedata.category(character) in _STEERING


def selection(stack: str, layer: int, heads: Sequence[int]) -> str:
    """Return "Layer 3, head 5", or which heads were averaged; what a model has beside is said."""
    beside = {"cross": "Cross-attention", "vision": "Vision", "audio": "Audio"}.get(stack)
    where = f"Layer {layer}" if beside is None else f"{beside}, layer {layer}"
    if len(heads) == 1:
        return f"{where}, head {heads[0]}"
    return f"{where}, mean of heads {', '.join(map(str, heads))}"


def source(provenance: Provenance) -> str:
    """Return the text, image or sound that was read, and the model that read it."""
    read = [f"“{_quoted(text)}”" for text in (provenance.text, provenance.pair) if text is not None]
    read += [literal(name, 80) for name in (provenance.image, provenance.audio) if name is not None]
    target = "" if provenance.target is None else f" to say “{_quoted(provenance.target)}”"
    return f"{' + '.join(read)}, read by {literal(provenance.model, 80)}{target}"


def _quoted(text: str) -> str:
    return literal(" ".join(text.split()), 120)
