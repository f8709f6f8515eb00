"""Rank the heads of a model: by content words, or by the weight between two words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attnviz.errors import whole_number
from attnviz.results import (
    AttentionRecord,
    AttentionResult,
    Axis,
    StreamedAttention,
    one_result,
)
from attnviz.results.words import (
    FUNCTION_WORDS,
    content_positions,
    content_words,
    is_content,
    is_word,
    locate,
    token_groups,
    word_weights,
)

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_BEST, _LISTED = 6, 10  # heads that are printed of a ranking, and with their ranks


@dataclass(frozen=True)
class HeadScore:
    """One head and its score."""

    layer: int
    head: int
    score: float


@dataclass(frozen=True)
class HeadRanking:
    """Heads, best first, and what the score is, in words for a caption."""

    scores: tuple[HeadScore, ...]
    meaning: str

    @property
    def best(self) -> HeadScore:
        """The head that ranks first."""
        return self.scores[0]

    def of_layer(self, layer: int) -> HeadRanking:
        """Return the ranking of the heads of one layer."""
        return replace(self, scores=tuple(s for s in self.scores if s.layer == layer))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print the best heads with their scores."""
        from rich.text import Text

        yield Text(f"{self.meaning}: {_names(self.scores[:_BEST], scores=True)}")


@dataclass(frozen=True)
class HeadMatch(HeadScore):
    """How one head weighs a key word for a query word.

    score : the weight. rank : 1 where no other word of the text weighs more for that query, the
    query itself and special tokens aside. above : the function words that weigh less.
    """

    rank: int
    above: frozenset[str]


@dataclass(frozen=True)
class HeadMatches:
    """Every head's weight from one word to another, the largest first.

    query, key : the two words. others : the function words to compare with. heads : the heads.
    """

    query: str
    key: str
    others: tuple[str, ...]
    heads: tuple[HeadMatch, ...]

    @property
    def ranking(self) -> HeadRanking:
        """The heads as a ranking, for `choose_head`."""
        return HeadRanking(self.heads, f"weight from “{self.query}” to “{self.key}”")

    @property
    def first(self) -> tuple[HeadMatch, ...]:
        """The heads in which no word but the query itself weighs more."""
        return tuple(head for head in self.heads if head.rank == 1)

    @property
    def above_function_words(self) -> tuple[HeadMatch, ...]:
        """The heads in which every function word of the text weighs less."""
        return tuple(head for head in self.heads if head.above.issuperset(self.others))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print which heads weigh one word most for the other, and above which words."""
        from rich.table import Table
        from rich.text import Text

        table = Table("head", "weight", "rank among the words", box=None, header_style="dim")
        for head in self.heads[:_LISTED]:
            table.add_row(f"{head.layer}.{head.head}", f"{head.score:.3f}", str(head.rank))
        yield Text(f"weight from “{self.query}” to “{self.key}”, largest first", "bold")
        yield table
        yield Text(self._count(f"above every word but “{self.query}” itself", self.first))
        if self.others:
            words = " and ".join(f"“{word}”" for word in self.others)
            yield Text(self._count(f"above {words}", self.above_function_words))

    def _count(self, what: str, heads: Sequence[HeadScore]) -> str:
        names = f": {_names(heads)}" if heads else ""
        return f"{what} in {len(heads)} of {len(self.heads)} heads{names}"


def _names(heads: Sequence[HeadScore], *, scores: bool = False) -> str:
    return ", ".join(
        f"{head.layer}.{head.head}" + (f" ({head.score:.2f})" if scores else "") for head in heads
    )


def choose_word(axis: Axis) -> int:
    """Return the position of the first content word."""
    rows = token_groups(axis)
    content = content_words(rows).nonzero().flatten().tolist()
    return rows.positions[content[0] if content else 0][0]


def content_mass(record: AttentionRecord) -> Tensor:
    """Return the mean weight from content words to other content words by head, (H,)."""
    weights, rows, columns = word_weights(record)
    related = content_words(rows)[:, None] & content_words(columns)[None, :]
    if record.stack != "cross":  # attention of a word to itself does not count
        related = related & ~torch.eye(*related.shape, dtype=torch.bool)
    if not related.any():
        return weights.new_zeros(len(weights))
    return (weights * related).sum((1, 2)) / content_words(rows).sum()


def content_mass_of(streamed: StreamedAttention) -> Tensor:
    """Return the same for the streamed heads of a long text, for word pieces, (heads,)."""
    content = content_positions(streamed.query_axis)
    summary = streamed.summary
    related = (summary.marked - summary.itself).cpu()[:, content]
    return related.sum(1) / max(1, related.shape[1])


def rank_heads(result: AttentionResult) -> HeadRanking:
    """Rank all heads by how much content words of the text attend to each other.

    Many heads attend mostly to attention sinks such as [CLS] and [SEP]. This ranking finds the
    others.

    Parameters
    ----------
    result : AttentionResult
        From `attend`.

    Returns
    -------
    HeadRanking
        The scores, the largest first, and their meaning in words.
    """
    stack = one_result(result, streamed=True).stack()
    scores = [
        HeadScore(record.layer, head, mass)
        for record in stack.records
        for head, mass in enumerate(content_mass(record).tolist())
    ] + [
        HeadScore(streamed.layer, head, mass)
        for streamed in stack.streamed
        for head, mass in zip(streamed.kept, content_mass_of(streamed).tolist(), strict=True)
    ]
    scores.sort(key=lambda score: -score.score)
    first = (stack.streamed or stack.records)[0]
    queries, keys = _noun(first.query_axis), _noun(first.key_axis)
    other = "other " if queries == keys else ""
    pieces = ", piece by piece" if stack.streamed else ""
    return HeadRanking(tuple(scores), f"mean weight from {queries} to {other}{keys}{pieces}")


def _noun(axis: Axis) -> str:
    """Return the noun for what `content_words` selects on an axis."""
    nouns = []
    if any(word is not None for word in axis.words) or (axis.patches or axis.seconds) is None:
        labels = token_groups(axis).without_special().labels
        nouns = ["content words" if sum(map(is_content, labels)) > 1 else "words"]
        if axis == Axis.numbered(len(axis)):
            nouns = ["positions"]
    nouns += ["patches"] if axis.patches is not None else []
    nouns += ["frames"] if axis.seconds is not None else []
    return " and ".join(nouns)


def choose_head(
    result: AttentionResult,
    layer: int | None = None,
    head: int | Sequence[int] | None = None,
    *,
    ranking: HeadRanking | None = None,
) -> tuple[int, tuple[int, ...], tuple[str, ...]]:
    """Choose the best head for a layer or head that is left out.

    Parameters
    ----------
    result : AttentionResult
        From `attend`.
    layer : int, optional
        The layer, counted from 0.
    head : int or sequence of int, optional
        The head, counted from 0, or several heads.
    ranking : HeadRanking, optional
        The ranking to choose by. By default `rank_heads`.

    Returns
    -------
    (int, tuple of int, tuple of str)
        The layer, the heads, and a note for the caption if the head was chosen.

    Raises
    ------
    InputError
        The layer or head does not exist.
    """
    result = one_result(result, streamed=True)
    several = head if isinstance(head, Sequence) else (head,)
    heads = () if head is None else tuple(whole_number(number, "a head") for number in several)
    for number in heads:
        result.check_head(result.layers[0] if layer is None else layer, number)
    if layer is not None and head is not None:
        return whole_number(layer, "a layer"), heads, ()
    if layer is not None:
        result.layer(layer)  # raises if there is none
    ranking = ranking or rank_heads(result)
    best = next(
        score
        for score in ranking.scores
        if layer in (None, score.layer) and (not heads or score.head in heads)
    )
    among = "all heads" if layer is None and not heads else "those asked for"
    note = f"of {among} this one has the largest {ranking.meaning}: {best.score:.2f}"
    if best.score == 0:
        note = f"no head has any {ranking.meaning}"
    return best.layer, heads or (best.head,), (note,)


def find_heads(result: AttentionResult, *, query: str, key: str) -> HeadMatches:
    """Rank all heads by the weight from one word of the text to another.

    Parameters
    ----------
    result : AttentionResult
        From `attend`.
    query : str
        The word that attends.
    key : str
        The word that is attended to.

    Returns
    -------
    HeadMatches
        The heads, the largest weight first.

    Raises
    ------
    InputError
        A word is not in the text, or is ambiguous. "the#2" is the second "the".
    """
    heads: list[HeadMatch] = []
    for record in one_result(result).stack():
        weights, rows, columns = word_weights(record)
        i, j = locate(query, rows), locate(key, columns)
        others = [
            k
            for k, label in enumerate(columns.labels)
            if k not in (i, j) and not columns.special[k] and is_word(label)
        ]
        functional = {columns.labels[k].casefold() for k in others} & FUNCTION_WORDS
        for head, row in enumerate(weights[:, i]):
            heavier = {columns.labels[k].casefold() for k in others if row[k] >= row[j]}
            heads.append(
                HeadMatch(
                    record.layer,
                    head,
                    row[j].item(),
                    rank=1 + sum(bool(row[k] > row[j]) for k in others),
                    above=frozenset(functional - heavier),
                )
            )
    heads.sort(key=lambda head: -head.score)
    return HeadMatches(rows.labels[i], columns.labels[j], tuple(sorted(functional)), tuple(heads))
