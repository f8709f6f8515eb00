"""Sentences about numbers: titles, and parts of captions, headlines and lines of a terminal.

What would make a sentence untrue is asked here, once for all that say it.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.errors import InputError
from attnviz.heads import FAMILIES, Maps, OneMap, family_keys, head_families, resting_heads
from attnviz.results import AxisGeometry
from attnviz.results.axis import TokenGroups, content_words, is_word, locate
from attnviz.results.text import counted, literal, with_minus

LOGARITHMIC_FROM = 48  # keys: among so many, most weights are too small for a linear scale
SIGNED = "linear attention: weights are signed, and rows need not sum to 1"
ON_LOGARITHMIC_SCALE = "colors on a logarithmic scale"
_MOST_READ = 0.4  # of the attention of all words, from which on one word is the finding
_RULES = {
    "previous": "Words look at the word before them", "next": "Words look at the word after them",
    "itself": "Words look at themselves",
    "same": "Repeated words look at the same word elsewhere",
}  # fmt: skip
_FEWEST_ROWS = 3


def is_logarithmic(keys: int) -> bool:
    """Return whether weights of a number of keys have a logarithmic scale."""
    return keys >= LOGARITHMIC_FROM


def quoted(word: str) -> str:
    """Return a word in quotation marks, isolated if it is written from right to left."""
    shown = literal(word)
    return f"“\u2068{shown}\u2069”" if is_right_to_left(word) else f"“{shown}”"


def is_right_to_left(text: str) -> bool:
    """Return whether most letters of a text are of a right-to-left script."""
    kinds = Counter(map(unicodedata.bidirectional, text))
    return kinds["R"] + kinds["AL"] > kinds["L"]


def spelled(piece: str) -> str:
    """Return a word, or a piece of one with a dot where it continues: "·log" for "##log"."""
    return f"·{piece[2:]}" if piece.startswith("##") and len(piece) > 2 else piece


def were_read(side: AxisGeometry, *places: int) -> bool:
    """Return whether the model read these words, and no unknown tokens in their place."""
    return not any(any(side.unknown[place : place + 1]) for place in places)


@dataclass(frozen=True)
class Finding:
    """What a map shows, in a title."""

    title: str
    share: str = ""  # of the weight, where the title names one link
    more: str = ""  # what the title leaves open, in another sentence
    cell: tuple[int, int] | None = None  # the (row, column) that it is about, if there is one
    family: Tensor | None = None  # the cells (m, n) that it is about, where it names their rule

    @property
    def sentence(self) -> str:
        """The title with the share."""
        return f"{self.title}: {self.share}" if self.share else self.title


def cell_of(drawn: OneMap, query: str, key: str) -> tuple[int, int] | None:
    """Return the cell of two words, as `locate` finds them; None if the map does not show them."""
    rows, columns = drawn.is_word
    try:
        return locate(query, groups(drawn.rows, rows)), locate(key, groups(drawn.columns, columns))
    except InputError:
        return None


def unit_of(labels: Sequence[str]) -> str:
    """Return what a row or a column is: a word, or a position of which only the number is known."""
    return "position" if labels == tuple(map(str, range(len(labels)))) else "word"


def _named(labels: Sequence[str], place: int) -> str:
    is_word = unit_of(labels) == "word"
    return quoted(spelled(labels[place])) if is_word else f"position {place}"


def of_map(drawn: OneMap, asked: tuple[int, int] | None = None) -> Finding | None:
    """Return what the map of a text, or the cell asked for, shows; None for images and audio."""
    if any(side.patches or side.seconds for side in drawn.sides):
        return None
    if drawn.signed:
        return _of_signed(drawn, asked)
    if any(side.cell > 1 for side in drawn.sides):
        return _of_pooled(drawn)
    if sums := drawn.sums:
        return Finding(f"The rows sum to {sums}, not to 1", cell=asked)
    if asked is not None:
        return _of_cell(drawn, *asked)
    unread = sum(map(bool, drawn.sides[0].unknown))
    if unread > (count := len(drawn.rows) - sum(drawn.special_rows)) / 2:
        title = f"The model could not read {unread} of these {counted(count, 'word')}"
        return Finding(title, more="It read unknown tokens: the map shows positions, not words")
    return _ofgroups(drawn)


def _ofgroups(drawn: OneMap) -> Finding | None:
    """Return which rule a head follows, or which word looks at which."""
    family, linked, some = _of_family(drawn), links_between(drawn), unit_of(drawn.rows)
    if family is not None and family.family is not None:
        linked = linked & ~family.family  # of a head that rests, what it looks at besides
    if (start := drawn.generated_from) is not None:
        linked[:start], some = False, "generated word"
    sides = zip((drawn.rows, drawn.columns), drawn.is_word, strict=True)
    rows, columns = (content_words(groups(*side)) for side in sides)
    weights = drawn.weights.float().masked_fill(~linked, 0.0)
    leading = weights * (rows[:, None] & columns)
    weights = leading if leading.max() >= 2 / 3 * weights.max() else weights
    row, column = divmod(int(weights.argmax()), n := weights.shape[1])
    largest = float(weights[row, column])
    if family is not None and (largest < 0.5 or not any(resting_heads(drawn))):
        return family
    if not linked.any() or not drawn.weights.isfinite().all():
        return None
    if family is None and (read := _most_read(drawn)) is not None:
        return read
    if largest < 2 / n:
        more = f"No {some} gives another more than {largest:.0%}; evenly it is {1 / n:.0%}"
        return Finding(f"No {some} stands out", more=more)
    return _of_cell(drawn, row, column)


def links_between(drawn: OneMap) -> Tensor:
    """Return the cells (m, n) between two different words that were read and that say something."""
    rows, columns = (
        torch.tensor([is_word(label) for label in labels], device="cpu")
        for labels in (drawn.rows, drawn.columns)
    )
    linked = rows[:, None] & columns & ~drawn.uninformative
    if drawn.rows == drawn.columns:
        linked = linked & ~torch.eye(len(linked), dtype=torch.bool, device="cpu")
    return linked if drawn.masked is None else linked & ~drawn.masked


def _of_family(drawn: OneMap) -> Finding | None:
    """Return which rule a head follows, and the cells of its keys; None without any."""
    if (found := head_families(drawn)[0]) is None:
        return None
    family, share = found
    keys = family_keys(drawn)[FAMILIES.index(family)].expand(drawn.weights.shape)
    cells = keys & drawn.is_word[0][:, None]
    title = f"{_RULES.get(family.family, f'{family.words} {family.rule}')}: {_share(drawn, share)}"
    return Finding(title, family=cells)


def _of_signed(drawn: OneMap, asked: tuple[int, int] | None) -> Finding | None:
    """Return the largest weight of linear attention between two positions, of either sign."""
    rows, columns = (
        torch.tensor([were_read(side, place) for place in range(count)], device="cpu")
        for side, count in zip(drawn.sides, drawn.weights.shape, strict=True)
    )
    sizes = drawn.weights.float().abs().masked_fill(~(rows[:, None] & columns), 0.0)
    if drawn.rows == drawn.columns:
        sizes = sizes.masked_fill(torch.eye(len(sizes), dtype=torch.bool, device="cpu"), 0.0)
    if not sizes.isfinite().all() or not sizes.any() or any(s.cell > 1 for s in drawn.sides):
        return None
    row, column = divmod(int(sizes.argmax()), sizes.shape[1]) if asked is None else asked
    query, key = quoted(drawn.rows[row]), quoted(drawn.columns[column])
    weight = with_minus(f"{float(drawn.weights[row, column]):+.2g}")
    largest = "" if asked is not None else ", the largest weight between two words"
    return Finding(f"{query} reads {key} with {weight}{largest}", cell=(row, column))


def _share(drawn: OneMap, share: float) -> str:
    return f"{share:.0%}{', special tokens aside' * (drawn.special == 'remove')}"


def _of_cell(drawn: OneMap, row: int, column: int) -> Finding:
    """Return what one word looks at; hardly, if it gives it less than evenly."""
    query, key = _named(drawn.rows, row), _named(drawn.columns, column)
    query = query[0].upper() + query[1:] if query.startswith("position ") else query
    where, share = "at", float(drawn.weights[row, column])
    if drawn.rows == drawn.columns:
        where = "back at" if column < row else "ahead to"
        second = drawn.boundary[1] or 0
        where = "across at" if (row < second) != (column < second) else where
    looks = "hardly looks" if share < 1 / len(drawn.columns) else "looks"
    if drawn.rows == drawn.columns and row == column:
        return Finding(f"{query} {looks} at itself", _share(drawn, share), cell=(row, column))
    another = "another " * (drawn.rows == drawn.columns and query == key)
    title = f"{query} {looks} {where} {another}{key}"
    return Finding(title, _share(drawn, share), cell=(row, column))


def _most_read(drawn: OneMap) -> Finding | None:
    """Return which word gets most of the attention of all words; None if there is none."""
    rows, columns = drawn.is_word
    received = drawn.weights.float()[rows].mean(0)
    column = int(received.argmax())
    if rows.sum() < _FEWEST_ROWS or not columns[column] or received[column] < _MOST_READ:
        return None
    if column == 0 and drawn.starts_with_sink:
        return None
    key, share = _named(drawn.columns, column), _share(drawn, float(received[column]))
    among = rows[:, None] & (torch.arange(len(columns), device="cpu") == column)
    readers = f"{unit_of(drawn.rows).capitalize()}s"
    return Finding(f"{readers} look mostly at {key}: {share}", family=among)


def _of_pooled(drawn: OneMap) -> Finding | None:
    """Return where the attention of a long text to itself goes, in tokens."""
    weights, cell = drawn.weights.float(), drawn.sides[0].cell
    if drawn.stack == "cross" or drawn.sides[0] != drawn.sides[1] or not weights.isfinite().all():
        return None
    these = "this head's" if len(drawn.layers) * len(drawn.heads) == 1 else "these heads'"
    at_start = float(weights[:, 0].mean())  # rows are means of equally many tokens, but the last
    if at_start >= _MOST_READ and len(weights) > _FEWEST_ROWS:
        return Finding(f"About {at_start:.0%} of {these} attention goes to the first {cell} tokens")
    words, places = drawn.is_word[0], torch.arange(len(weights), device="cpu")
    distance = (places[:, None] - places).abs()
    between = weights.double() * (words[:, None] & words)
    by_distance = torch.bincount(distance.flatten(), between.flatten())
    shares = by_distance.cumsum(0) / by_distance.sum()
    # The last row may cover fewer tokens than the others and count too much, by 1 / rows at most.
    within = (int((shares < 0.5 + 1 / len(weights)).sum()) + 1) * cell
    return Finding(f"At least half of {these} attention stays within {within:,} tokens")


def groups(labels: Sequence[str], is_word: Tensor) -> TokenGroups:
    """Return the labels of a side of a map as groups, of no tokens."""
    none, special = ((),) * len(labels), tuple((~is_word).tolist())
    return TokenGroups(none, tuple(labels), special, (0,) * len(labels), AxisGeometry())


def of_heads(maps: Maps) -> str:
    """Return which two families most heads belong to, the larger first."""
    layers, heads = maps.weights.shape[:2]
    one = f" of layer {maps.layers[0]}" if layers == 1 else ""
    count = f"{counted(layers * heads, 'head')}{one}"
    if not (found := Counter(one[0].rule for one in head_families(maps) if one is not None)):
        return f"All {count}" if layers * heads > 1 and not maps.heads else count
    parts, said = list[str](), ""
    for rule, number in found.most_common(2):
        verb, _, rest = rule.partition(" ")
        does = "" if verb == said else f"{verb}s " if number == 1 else f"{verb} "  # not repeated
        parts.append(f"{number:,} {does}{rest}")
        said = verb
    the = "the " * (layers * heads > 1)
    if any(note.endswith("renormalized to 1") for note in getattr(maps, "notes", ())):
        return "Among words, " + " and ".join(parts).replace(" ", f" of {the}{count} ", 1)
    return f"Of {the}{count}, {' and '.join(parts)}"
