"""Word pieces → words; special tokens; a word's place in the text; what a map shows.

A word is what Unicode's word boundaries delimit (UAX #29), whatever the tokenizer does with it:
"don't" is one word, punctuation stands by itself. Weights of pieces become weights of words as in
Clark et al. 2019 (arXiv:1906.04341): weight *to* a word is the sum over its pieces, weight *from*
a word is the mean over its pieces, so that every row still sums to 1.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import regex
import torch
from torch import Tensor

from attnviz.errors import InputError
from attnviz.records import AttentionMap, AttentionRecord, AttentionResult, Axis, HeadMaps, Special

Span = tuple[int, int]


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
        then every piece stands by itself.
    texts : the text, and its pair if there is one.
    """
    spans = [find_words(text) for text in texts]
    words: list[int | None] = []
    names: list[str] = []
    index: dict[tuple[int, int], int] = {}
    for position, segment in enumerate(segments):
        if offsets is None or special[position]:
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
    for word, (_, word_end) in enumerate(spans):
        if word_end > start or (word_end == start == end):
            return word
    return len(spans) - 1


@dataclass(frozen=True)
class Units:
    """The rows or columns of a map: which positions each one joins, and what it is called."""

    positions: tuple[tuple[int, ...], ...]
    labels: tuple[str, ...]
    special: tuple[bool, ...]
    segments: tuple[int, ...]

    def boundary(self) -> int | None:
        """Return the unit with which the second text starts, or None."""
        return self.segments.index(1) if 1 in self.segments else None

    def without_special(self) -> Units:
        """Return the units that are no special tokens."""
        kept = [i for i, special in enumerate(self.special) if not special]
        return Units(
            positions=tuple(self.positions[i] for i in kept),
            labels=tuple(self.labels[i] for i in kept),
            special=(False,) * len(kept),
            segments=tuple(self.segments[i] for i in kept),
        )


def units(axis: Axis, *, words: bool = True) -> Units:
    """Join the pieces of each word (or take every piece by itself); padding is left out."""
    joined: dict[object, list[int]] = {}
    for position in range(len(axis)):
        if axis.padding[position]:
            continue
        word = axis.words[position] if words else None
        joined.setdefault(("piece", position) if word is None else word, []).append(position)
    first = [positions[0] for positions in joined.values()]
    return Units(
        positions=tuple(tuple(positions) for positions in joined.values()),
        labels=tuple(
            axis.labels[at] if isinstance(unit, tuple) else axis.word_labels[unit]
            for unit, at in zip(joined, first, strict=True)
            if isinstance(unit, tuple | int)
        ),
        special=tuple(axis.special[at] for at in first),
        segments=tuple(axis.segments[at] for at in first),
    )


def merge(weights: Tensor, rows: Units, columns: Units) -> Tensor:
    """Merge (…, m, n) weights of pieces: sum over each column's pieces, mean over each row's."""
    summed = torch.stack([weights[..., list(at)].sum(-1) for at in columns.positions], dim=-1)
    return torch.stack([summed[..., list(at), :].mean(-2) for at in rows.positions], dim=-2)


def word_weights(record: AttentionRecord, *, words: bool = True) -> tuple[Tensor, Units, Units]:
    """Return a record's weights (H, rows, columns) between words, and what the words are."""
    rows, columns = units(record.query_axis, words=words), units(record.key_axis, words=words)
    return merge(record.weights(), rows, columns).cpu(), rows, columns


def make_map(
    result: AttentionResult,
    *,
    layer: int,
    head: int | Sequence[int],
    words: bool = True,
    special: Special = "keep",
    notes: Sequence[str] = (),
) -> AttentionMap:
    """Return the map of one head, or the mean of several heads of one layer, as it is drawn.

    Parameters
    ----------
    words : merge pieces into words.
    special : "keep" the special tokens; "hide" them (rows then no longer sum to 1); or "remove"
        them and renormalise every row to sum to 1.
    notes : what else the caption should say.

    Raises
    ------
    InputError : no such layer or head, an unknown `special`, or nothing left to draw.
    """
    heads = (head,) if isinstance(head, int) else tuple(dict.fromkeys(head))
    if any(not isinstance(each, int) or isinstance(each, bool) for each in heads):
        raise InputError(f"Expected heads as whole numbers, got {head!r}.")
    if not heads:
        raise InputError(
            "Expected at least one head, got none. Name a head, or several to average."
        )
    for each in heads:
        result.check_head(layer, each)
    weights, rows, columns = word_weights(result.record(layer), words=words)
    weights = weights[list(heads)].mean(0)
    said = [*_cutting(result), *notes, *_merging(rows, columns)]
    weights, rows, columns = _treat_special(weights, rows, columns, special, said)
    boundary = rows.boundary(), columns.boundary()
    return AttentionMap(
        weights=weights,
        rows=rows.labels,
        columns=columns.labels,
        stack=result.record(layer).stack,
        layer=layer,
        heads=heads,
        notes=tuple(said),
        agreement=result.agreement,
        provenance=result.provenance,
        boundary=boundary,
        special_rows=rows.special,
    )


def make_maps(
    result: AttentionResult,
    *,
    layer: int | None = None,
    words: bool = True,
    special: Special = "keep",
) -> HeadMaps:
    """Return the maps of all heads, of all layers or of one, as they are drawn.

    Parameters are those of `make_map`.

    Raises
    ------
    InputError : no such layer, an unknown `special`, or layers that differ in their heads.
    """
    records = result.stack().records if layer is None else (result.record(layer),)
    if len({record.heads for record in records}) > 1:
        raise InputError(
            "Expected layers with the same number of heads, got different ones. "
            "Choose one layer at a time."
        )
    weights, rows, columns = zip(*(word_weights(r, words=words) for r in records), strict=True)
    said = [*_cutting(result), *_merging(rows[0], columns[0])]
    stacked, left, across = _treat_special(torch.stack(weights), rows[0], columns[0], special, said)
    return HeadMaps(
        weights=stacked,
        rows=left.labels,
        columns=across.labels,
        stack=records[0].stack,
        layers=tuple(record.layer for record in records),
        notes=tuple(said),
        agreement=result.agreement,
        provenance=result.provenance,
    )


def _cutting(result: AttentionResult) -> list[str]:
    if result.provenance.cut_from is None:
        return []
    kept = sum(not padded for padded in result.records[0].key_axis.padding)
    return [f"text cut from {result.provenance.cut_from} to {kept} tokens"]


def _merging(rows: Units, columns: Units) -> list[str]:
    if any(len(at) > 1 for at in rows.positions + columns.positions):
        return ["word pieces merged (columns summed, rows averaged)"]
    return []


def _treat_special(
    weights: Tensor, rows: Units, columns: Units, special: Special, said: list[str]
) -> tuple[Tensor, Units, Units]:
    """Keep, hide or remove the special tokens, and say so."""
    if special not in ("keep", "hide", "remove"):
        raise InputError(f"Expected special to be keep, hide or remove, got {special!r}.")
    if special == "keep" or not any(rows.special + columns.special):
        return weights, rows, columns
    names = ", ".join(
        dict.fromkeys(
            label
            for side in (rows, columns)
            for label, is_special in zip(side.labels, side.special, strict=True)
            if is_special
        )
    )
    weights = weights[..., ~torch.tensor(rows.special), :][..., ~torch.tensor(columns.special)]
    left = weights.sum(-1, keepdim=True)
    lost = f"{1 - left.mean().item():.0%} of the weight"
    if special == "remove":
        weights = weights / left.clamp(min=torch.finfo(left.dtype).tiny)
        said.append(f"{names} removed ({lost}), rows renormalised to 1")
    else:
        said.append(f"{names} hidden ({lost}), rows not renormalised")
    return weights, rows.without_special(), columns.without_special()


def locate(word: str, side: Units) -> int:
    """Return where a word stands among the units; "the#2" is the second "the".

    Raises
    ------
    InputError : absent (near matches are named), or there several times and not numbered.
    """
    name, _, number = word.rpartition("#") if "#" in word[1:] else (word, "", "")
    if number and not number.isdecimal():
        name, number = word, ""
    found = [i for i, label in enumerate(side.labels) if label.casefold() == name.casefold()]
    if not found:
        lower = {label.casefold(): label for label in side.labels}
        near = difflib.get_close_matches(name.casefold(), lower, n=3, cutoff=0.5)
        if near:
            hint = f"Did you mean {' or '.join(lower[match] for match in near)}?"
        else:
            hint = f"Its words are {', '.join(dict.fromkeys(side.without_special().labels))}."
        raise InputError(f"Expected a word of the text, got {name!r}. {hint}")
    if number and not 1 <= int(number) <= len(found):
        raise InputError(f"Expected {name!r} to occur {number} times, but it occurs {len(found)}.")
    if not number and len(found) > 1:
        raise InputError(
            f"Expected one word, but {name!r} occurs {len(found)} times. "
            f"Say which: {name}#1 … {name}#{len(found)}."
        )
    return found[int(number) - 1 if number else 0]
