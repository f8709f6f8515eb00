"""What maps show, in a sentence: the family of a head, or the words that it relates most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.analyses.maps.result import AttentionMap, HeadMaps
from attnviz.errors import InputError
from attnviz.figures.claims import (
    is_logarithmic,
    of_attention,
    other_sums,
    quoted,
    whose,
)
from attnviz.heads import (
    FIRST,
    SEPARATORS,
    STATISTICS,
    Pairs,
    Positions,
    Statistic,
    followed_rules,
)
from attnviz.results import AxisGeometry, row_shares
from attnviz.results.axis import TokenGroups, content_words, locate
from attnviz.results.text import counted, with_minus

_MOST_READ = 0.4  # of the attention of all words, from which on one word is the finding
_FEWEST_ROWS = 3
_AS_EVEN = 0.75  # of the reach of even weights, from which on a head is not called local
_FEW = 0.05  # of the words
_MUCH = 5 * _FEW  # of the attention, from which on a few words say what a head does
_CLEAR = 0.1  # of a query's attention, from which on one key says something of a long map
_EXAMPLES, _NAMED = 4, 3  # cells and words that stand for all


FAMILIES = [one for one in STATISTICS if one.family]
OTHER_WORDS = "other words"  # what heads without a family attend to


@dataclass(frozen=True)
class Finding:
    """What a map shows.

    cell : the (row, column) that the title is about; None if there is none. reach : how many words
    away half of the attention goes at most, if the title is about that. examples : some cells that
    the title is about, where it is about many.
    """

    title: str
    cell: tuple[int, int] | None = None
    reach: int | None = None
    examples: tuple[tuple[int, int], ...] = ()


def head_families(maps: HeadMaps | AttentionMap) -> list[tuple[Statistic, float] | None]:
    """Return the rule that each map follows, by `followed_rules`; None without any.

    With it comes the mean weight that its keys get.
    """
    weights = _shares(maps).reshape(-1, *maps.weights.shape[-2:])
    words, _ = maps.is_word
    if not _is_text(maps) or words.sum() < 2 or not weights.isfinite().all():
        return [None] * len(weights)
    even = _even_weights(maps)
    shares = torch.full((len(weights), len(FAMILIES)), torch.nan, device="cpu")
    excess = shares.clone()
    for n, (family, keys) in enumerate(zip(FAMILIES, _family_keys(maps), strict=True)):
        rows = words & keys.any(-1)
        if rows.sum() >= family.fewest:
            shares[:, n] = (weights * keys).sum(-1)[..., rows].mean(-1)
            excess[:, n] = shares[:, n] - (even * keys).sum(-1)[rows].mean()
    followed = followed_rules(excess.double().numpy(), FAMILIES)
    if any(maps.special_columns[:1]):  # a head that rests on this first token rests on special ones
        first, special = FAMILIES.index(FIRST), FAMILIES.index(SEPARATORS)
        followed = [special if n == first else n for n in followed]
    named = zip(followed, shares.tolist(), strict=True)
    return [None if n < 0 else (FAMILIES[n], of[n]) for n, of in named]


def resting_heads(maps: HeadMaps) -> list[bool]:
    """Return which heads rest: as titles name them, and of images and sounds on special tokens."""
    if _is_text(maps):
        return [found is not None and found[0].resting for found in head_families(maps)]
    rows, columns = maps.is_word
    excess = ((_shares(maps) - _even_weights(maps)) * ~columns).sum(-1)[..., rows].mean(-1)
    return [n == 0 for n in followed_rules(excess.reshape(-1, 1).double().numpy(), [SEPARATORS])]


def _family_keys(maps: HeadMaps | AttentionMap) -> list[Tensor]:
    """Return the keys (T, T) of each family."""
    words, _ = maps.is_word
    special = torch.tensor(maps.special_columns or (False,), device="cpu").expand(len(words))
    numbers: dict[str, int] = {}
    spelled = [numbers.setdefault(word.lower(), n) for n, word in enumerate(maps.rows)]
    ids = torch.tensor(spelled, device="cpu").masked_fill(~words, -1)
    of_text = Positions(*(one[None] for one in (ids, words | special, special, ids < -1)))
    pairs = Pairs(of_text, of_text, slice(None))
    shape = 1, len(words), len(words)
    return [family.keys(pairs).expand(shape)[0] for family in FAMILIES if family.keys]


def where_heads_look(maps: HeadMaps) -> list[tuple[str, float]] | None:
    """Return what each head attends to, with its mean weight: its family, or other words.

    Other words are those of no family. None if the maps are not of the words of a text.
    """
    words, _ = maps.is_word
    weights = _shares(maps).flatten(0, 1).float()
    families = head_families(maps)
    if not _is_text(maps) or words.sum() < 2 or not weights.isfinite().all():
        return None
    others = words & ~torch.stack(_family_keys(maps)).any(0)
    share = (weights * others).sum(-1)[:, words].mean(-1).tolist()
    return [
        (OTHER_WORDS, share[n]) if found is None else (found[0].family, found[1])
        for n, found in enumerate(families)
    ]


def _shares(maps: HeadMaps | AttentionMap) -> Tensor:
    """Return the weights, or their shares in the sizes of their rows if these are not 1."""
    is_more = maps.signed or other_sums(maps.weights)
    return row_shares(maps.weights) if is_more else maps.weights


def _is_text(maps: HeadMaps | AttentionMap) -> bool:
    """Whether the maps are of the words of a text that attends to itself, one in each cell."""
    plain = all(not (side.patches or side.seconds) and side.cell == 1 for side in maps.sides)
    return plain and maps.stack != "cross" and maps.rows == maps.columns


def cell_of(drawn: AttentionMap, query: str, key: str) -> tuple[int, int] | None:
    """Return the cell of two words, as `locate` finds them; None if the map does not show them."""
    rows, columns = drawn.is_word
    try:
        return locate(query, _words(drawn.rows, rows)), locate(key, _words(drawn.columns, columns))
    except InputError:
        return None


def of_map(drawn: AttentionMap, asked: tuple[int, int] | None = None) -> Finding | None:
    """Return what the map of a text shows; None for images, audio and pooled maps of two texts.

    asked : the cell of the words that were asked for.
    """
    m, n = drawn.weights.shape
    if any(side.patches or side.seconds for side in drawn.sides):
        return None
    if drawn.signed:
        return _of_signed(drawn, asked)
    if any(side.cell > 1 for side in drawn.sides):
        return _of_pooled(drawn)
    weights = drawn.weights.float()
    if sums := other_sums(weights):
        return Finding(f"The rows sum to {sums}, not to 1", asked)
    if asked is not None:
        return _of_cell(drawn, *asked)
    rows, columns = drawn.is_word
    if (found := head_families(drawn)[0]) is not None:
        family, share = found
        title = f"{family.words} {family.rule}: {of_attention(share, special=drawn.special)}"
        if family.family != "same":
            return Finding(title)
        keys = _family_keys(drawn)[FAMILIES.index(family)]
        return Finding(title, examples=_largest_cells(drawn, keys))
    related = content_words(_words(drawn.rows, rows))[:, None]
    related = related & content_words(_words(drawn.columns, columns))
    if drawn.rows == drawn.columns:
        related = related & ~torch.eye(m, dtype=torch.bool, device="cpu")
    if drawn.masked is not None:
        related = related & ~drawn.masked
    if (related & ~drawn.uninformative).any():
        related = related & ~drawn.uninformative
    if not related.any() or not weights.isfinite().all():
        return None
    if (read := _most_read(drawn)) is not None:
        return read
    if is_logarithmic(n) and drawn.rows == drawn.columns:
        reach = _reach(drawn.weights, rows)
        if reach >= _AS_EVEN * _reach(_even_weights(drawn), rows):
            return _concentration(drawn, related)
        this, words = whose(drawn.layers, drawn.heads), counted(reach, "word")
        return Finding(f"Half of {this} attention between words stays within {words}", reach=reach)
    row, column = divmod(int(weights.masked_fill(~related, -1).argmax()), n)
    if weights[row, column] < 2 / n:
        return Finding(
            f"No content word stands out: none gets more than {weights[row, column]:.0%} of "
            f"another's attention (evenly {1 / n:.0%})"
        )
    return _of_cell(drawn, row, column)


def _largest_cells(drawn: AttentionMap, among: Tensor) -> tuple[tuple[int, int], ...]:
    """Return the largest weights of a long map among some cells, one for each key."""
    if not is_logarithmic(len(drawn.columns)):
        return ()
    cells: dict[str, tuple[int, int]] = {}
    largest_first = drawn.weights.float()[among].argsort(descending=True)
    for row, column in among.nonzero()[largest_first].tolist():
        apart = min((abs(row - other) for other, _ in cells.values()), default=len(among))
        if apart > len(among) / 12:
            cells.setdefault(drawn.columns[column].lower(), (row, column))
        if len(cells) == _EXAMPLES:
            break
    return tuple(cells.values())


def _of_signed(drawn: AttentionMap, asked: tuple[int, int] | None) -> Finding | None:
    """Return the largest weight of linear attention between two positions, of either sign."""
    unread = [torch.tensor([*map(bool, side.unknown or ("",))]) for side in drawn.sides]
    sizes = drawn.weights.float().abs().masked_fill(unread[0][:, None] | unread[1], 0.0)
    if drawn.rows == drawn.columns:
        sizes = sizes.masked_fill(torch.eye(len(sizes), dtype=torch.bool, device="cpu"), 0.0)
    if not sizes.isfinite().all() or not sizes.any() or any(s.cell > 1 for s in drawn.sides):
        return None
    row, column = divmod(int(sizes.argmax()), sizes.shape[1]) if asked is None else asked
    query, key = quoted(drawn.rows[row]), quoted(drawn.columns[column])
    weight = with_minus(f"{float(drawn.weights[row, column]):+.2g}")
    largest = "" if asked is not None else ", the largest weight between two words"
    return Finding(f"{query} reads {key} with {weight}{largest}", (row, column))


def _of_cell(drawn: AttentionMap, row: int, column: int) -> Finding:
    query, key = quoted(drawn.rows[row]), quoted(drawn.columns[column])
    of_itself = drawn.rows == drawn.columns
    another = "another " if of_itself and row != column and query == key else ""
    share = of_attention(float(drawn.weights[row, column]), "its", drawn.special)
    return Finding(f"{query} gives {another}{key} {share}", (row, column))


def _most_read(drawn: AttentionMap) -> Finding | None:
    """Return which word gets most of the attention of all words; None if there is none."""
    rows, columns = drawn.is_word
    received = drawn.weights.float()[rows].mean(0)
    column = int(received.argmax())
    if rows.sum() < _FEWEST_ROWS or not columns[column] or received[column] < _MOST_READ:
        return None
    if column == 0 and drawn.starts_with_sink:
        return None
    share = of_attention(float(received[column]), special=drawn.special)
    return Finding(f"Words attend mostly to {quoted(drawn.columns[column])}: {share}")


def _of_pooled(drawn: AttentionMap) -> Finding | None:
    """Return where the attention of a long text to itself goes, in tokens."""
    weights, cell = drawn.weights.float(), drawn.sides[0].cell
    if drawn.stack == "cross" or drawn.sides[0] != drawn.sides[1] or not weights.isfinite().all():
        return None
    these = whose(drawn.layers, drawn.heads)
    at_start = float(weights[:, 0].mean())  # rows are means of equally many tokens, but the last
    if at_start >= _MOST_READ and len(weights) > _FEWEST_ROWS:
        return Finding(
            f"About {of_attention(at_start, these)} goes to the first {cell} tokens"
        )
    # The last row may cover fewer tokens than the others and count too much, by 1 / rows at most.
    within = (_reach(weights, drawn.is_word[0], 0.5 + 1 / len(weights)) + 1) * cell
    return Finding(f"At least half of {these} attention stays within {within:,} tokens")


def _concentration(drawn: AttentionMap, related: Tensor) -> Finding:
    """Return how much of the attention between words a few of them get.

    related : the cells of two content words, whose largest weights are named if the few get little.
    """
    words, these = drawn.is_word[0], whose(drawn.layers, drawn.heads)
    received = drawn.weights.double()[words][:, words].mean(0)
    count = max(1, round(_FEW * len(received)))
    most = received.topk(count)
    share = float(most.values.sum() / received.sum())
    examples = _largest_cells(drawn, related)
    if share < _MUCH and drawn.weights[examples[0]] >= _CLEAR:
        title = f"{_of_cell(drawn, *examples[0]).title}, the most between content words"
        return Finding(title, examples=examples)
    if share < 2 * _FEW:
        return Finding(f"{these.capitalize()} attention spreads evenly over the words")
    labels = [label for label, is_word in zip(drawn.rows, words.tolist(), strict=True) if is_word]
    names = list(dict.fromkeys(quoted(labels[n]) for n in most.indices.tolist()))
    listed = ", ".join(names) if len(names) <= _NAMED else f"{', '.join(names[: _NAMED - 1])} …"
    some = f"{count} of {len(received)} words ({listed})"
    keys = torch.zeros_like(words)
    keys[words.nonzero()[most.indices, 0]] = True
    among = words[:, None] & keys & ~torch.eye(len(words), dtype=torch.bool, device="cpu")
    title = f"{some} get {of_attention(share, these)} between words"
    return Finding(title, examples=_largest_cells(drawn, among))


def _even_weights(maps: HeadMaps | AttentionMap) -> Tensor:
    """Return the weights (m, n) of queries that attend evenly to all keys that they may read."""
    readable = torch.ones(maps.weights.shape[-2:], device="cpu")
    if maps.masked is not None:
        readable = (~maps.masked).float()
    return readable / readable.sum(-1, keepdim=True).clamp(min=1)


def _reach(weights: Tensor, words: Tensor, share: float = 0.5) -> int:
    """Return how many words away a share of the attention between words goes at most."""
    places = torch.arange(len(words), device="cpu")
    distance = (places[:, None] - places).abs()
    weights = weights.double() * (words[:, None] & words)
    by_distance = torch.zeros(len(words), dtype=torch.double, device="cpu")
    by_distance.index_add_(0, distance.flatten(), weights.flatten())
    shares = by_distance.cumsum(0) / by_distance.sum()
    return int((shares < share).sum())


def _words(labels: Sequence[str], is_word: Tensor) -> TokenGroups:
    return TokenGroups((), tuple(labels), tuple((~is_word).tolist()), (), AxisGeometry())


def of_heads(maps: HeadMaps) -> str:
    """Return which families the heads belong to, the largest first."""
    layers, heads = maps.weights.shape[:2]
    one = f" of layer {maps.layers[0]}" if layers == 1 else ""
    count = f"{counted(layers * heads, 'head')}{one}"
    found = Counter(one[0].family for one in head_families(maps) if one is not None)
    if not found:
        return f"All {count}" if layers * heads > 1 and not maps.heads else count
    rules = {one.family: one.rule for one in FAMILIES}
    parts: list[str] = []
    said = ""
    for name, number in found.most_common():
        verb, _, rest = rules[name].partition(" ")
        # The verb is not repeated.
        does = "" if verb == said else f"{verb}s " if number == 1 else f"{verb} "
        parts.append(f"{number:,} {does}{rest}")
        said = verb
    the = "the " * (layers * heads > 1)
    return f"Of {the}{count}, {', '.join(parts)}"
