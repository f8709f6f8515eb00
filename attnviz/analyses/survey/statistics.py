"""The statistics of a head: where its attention weights go, and how widely they spread.

Each statistic is declared once, in `STATISTICS`; the survey, the roles of heads, the tables and the
figures read the declaration. Most statistics are linear in the weights: the weight on the previous
token is ⟨W, M⟩ with a table M (T, T) that selects weights, divided by the number of rows that
select any. One matrix product of the weights with all tables gives all linear statistics.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

_BLOCK_WEIGHTS = 2**18  # of one head, in the rows that are processed at once


@dataclass(frozen=True, eq=False)
class Tokens:
    """The positions of N texts, each tensor (N, T).

    Attributes
    ----------
    ids : Tensor
        Token ids.
    real : Tensor
        False for padding.
    special : Tensor
        Tokens that the tokenizer added.
    punctuation : Tensor
        Periods and commas.
    """

    ids: Tensor
    real: Tensor
    special: Tensor
    punctuation: Tensor

    def __getitem__(self, texts: slice) -> Tokens:
        """Return the positions of some of the texts."""
        return Tokens(
            self.ids[texts], self.real[texts], self.special[texts], self.punctuation[texts]
        )


@dataclass(frozen=True, eq=False)
class TokenPairs:
    """All pairs of a query in some rows R and a key, of N texts."""

    tokens: Tokens
    rows: slice

    @cached_property
    def key(self) -> Tensor:
        """The position of the key, (T,)."""
        return torch.arange(self.tokens.ids.shape[1], device=self.tokens.ids.device)

    @cached_property
    def offset(self) -> Tensor:
        """How many tokens the key is before the query, (R, T)."""
        return self.key[self.rows, None] - self.key

    @cached_property
    def other(self) -> Tensor:
        """Whether query and key are two different tokens, neither of them padding, (N, R, T)."""
        real = self.tokens.real
        return real[:, self.rows, None] & real[:, None, :] & (self.offset != 0)

    @cached_property
    def same_token(self) -> Tensor:
        """Whether query and key have the same token id, (N, R, T)."""
        ids = self.tokens.ids
        return ids[:, self.rows, None] == ids[:, None, :]

    @cached_property
    def word_key(self) -> Tensor:
        """Whether the key is a token of the text, not a special token or padding, (N, 1, T)."""
        return (self.tokens.real & ~self.tokens.special)[:, None]


@dataclass(frozen=True)
class Statistic:
    """One number of each head on each text: a mean over the tokens that are not special.

    Exactly one of `keys`, `row` and `received` is given.

    Attributes
    ----------
    name : str
        As in results and tables.
    title : str
        Of its panel in figures.
    description : str
        One line for the documentation.
    keys : callable, optional
        From `TokenPairs` to the factor of each weight, broadcastable to (N, R, T): the statistic is
        the sum of a row's weights times these. Rows without any key that counts are left out.
    row : callable, optional
        From the weights (N, H, R, T) to a number for each row, (N, H, R).
    received : callable, optional
        From the share of all weight that each key receives (N, H, T), 0 for special tokens, to one
        number, (N, H).
    every_row : bool
        Keep rows in which all factors are 0.
    limit : callable, optional
        The largest possible value for a number of tokens; None for a share, which is at most 1.
    role : str
        The role of a head whose weight exceeds the even-weights baseline by at least `role_excess`.
    resting : bool
        The role describes where a head rests: assigned only if no other role applies.
    role_excess : float
        The smallest excess for the role.
    even_baseline : bool
        Whether even weights (shuffled keys) are a meaningful baseline.
    """

    name: str
    title: str
    description: str
    keys: Callable[[TokenPairs], Tensor] | None = None
    row: Callable[[Tensor], Tensor] | None = None
    received: Callable[[Tensor], Tensor] | None = None
    every_row: bool = False
    limit: Callable[[int], float] | None = None
    role: str = ""
    resting: bool = False
    role_excess: float = 0.25
    even_baseline: bool = True

    def largest(self, tokens: int) -> float:
        """Return the largest possible value on a text of so many tokens, and at least 1."""
        return 1.0 if self.limit is None else max(1.0, self.limit(tokens))


def _follows_same_token(pairs: TokenPairs) -> Tensor:
    """Return whether the key comes right after an earlier occurrence of the query's token."""
    before = pairs.same_token[..., :-1] & (pairs.offset[:, :-1] > 0)
    return pad(before, (1, 0)) & pairs.other  # where a token follows itself, not itself


def _entropy(weights: Tensor) -> Tensor:
    negative: Tensor = torch.special.xlogy(weights, weights).sum(-1)
    return -negative


STATISTICS = (
    Statistic(
        "distance", "mean distance, tokens", "|i - j|, in tokens",
        keys=lambda pairs: pairs.offset.abs(), every_row=True, limit=lambda tokens: tokens - 1,
    ),
    Statistic(
        "self", "weight for itself", "weight on the token's own position",
        keys=lambda pairs: pairs.offset == 0, role="own token",
    ),
    Statistic(
        "previous", "for the previous token", "weight on the previous token, if not special",
        keys=lambda pairs: (pairs.offset == 1) & pairs.word_key, role="previous token",
    ),
    Statistic(
        "next", "for the next token", "weight on the next token, if not special",
        keys=lambda pairs: (pairs.offset == -1) & pairs.word_key, role="next token",
    ),
    Statistic(
        "first", "for the first token", "weight on the first token, special or not",
        keys=lambda pairs: pairs.key == 0,
        role="rests on the first token", resting=True, role_excess=0.5,
    ),
    Statistic(
        "separators", "for special tokens", "weight on special tokens",
        keys=lambda pairs: pairs.tokens.special[:, None],
        role="rests on special tokens", resting=True, role_excess=0.5,
    ),
    Statistic(
        "same token", "for the same token elsewhere", "weight on other positions of the same token",
        keys=lambda pairs: pairs.same_token & pairs.other, role="same token",
    ),
    Statistic(
        "induction", "for what followed it before",
        "weight on tokens that follow an earlier occurrence of the same token (Olsson et al. 2022)",
        keys=_follows_same_token, role="induction",
    ),
    Statistic(
        "punctuation", "for periods and commas", "weight on periods and commas",
        keys=lambda pairs: pairs.tokens.punctuation[:, None], role="punctuation",
    ),
    # Shuffling the keys of a row does not change its entropy, and spreads what the keys receive.
    Statistic(
        "entropy", "entropy, nats", "entropy of the weights, in nats",
        row=_entropy, limit=math.log, even_baseline=False,
    ),
    Statistic(
        "most read", "share of the token read most",
        "largest share of all weight that one token receives, special tokens left out",
        received=lambda shares: shares.amax(-1), even_baseline=False,
    ),
)  # fmt: skip
"""All statistics, in the order of every result: those with `keys`, with `row`, with `received`."""
_KEYS = [(statistic.keys, statistic.every_row) for statistic in STATISTICS if statistic.keys]
_ROW = [statistic.row for statistic in STATISTICS if statistic.row]
_RECEIVED = [statistic.received for statistic in STATISTICS if statistic.received]
NAMES = tuple(statistic.name for statistic in STATISTICS)
TITLES = {statistic.name: statistic.title for statistic in STATISTICS}
IS_SHARE = tuple(statistic.limit is None for statistic in STATISTICS)


def largest(tokens: int) -> Tensor:
    """Return the largest possible value of each statistic on a text of so many tokens, (S,)."""
    return torch.tensor([statistic.largest(tokens) for statistic in STATISTICS])


class WeightStatistics:
    """Computes the statistics of any weights on a batch of texts, block of rows by block."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.rows = (tokens.real & ~tokens.special).float()  # those that count, (N, T)
        N, T = tokens.ids.shape
        step = max(1, _BLOCK_WEIGHTS // (N * T))
        self.blocks = [slice(start, min(start + step, T)) for start in range(0, T, step)]
        self._cached: tuple[slice, Tensor, Tensor] | None = None

    def __call__(self, weights: Callable[[slice], Tensor]) -> Tensor:
        """Return the statistics of weights, (N, H, S), in the order of `STATISTICS`.

        NaN where a text has no token of the kind.

        Parameters
        ----------
        weights : callable
            From some rows to their weights, (N, H, R, T), 0 for keys that are padding.
        """
        of_blocks = [self._sums(block, weights(block)) for block in self.blocks]
        totals, counts, received = (sum(sums[1:], sums[0]) for sums in zip(*of_blocks, strict=True))
        rows = self.rows.sum(-1)[:, None, None]  # 0 / 0 is NaN: there is nothing to measure
        shares = (received / rows).masked_fill(self.rows[:, None] == 0, 0.0)
        of_received = torch.stack([received_by(shares) for received_by in _RECEIVED], -1)
        return torch.cat([totals / counts[:, None], of_received], dim=-1)

    def _sums(self, block: slice, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return sums over rows (N, H, L), the rows that count (N, L), and what each key gets.

        L statistics are linear or of rows.
        """
        weights = weights.float()
        if self._cached is None or self._cached[0] != block:  # one block serves all layers
            self._cached = block, *self._tables(block)
        _, tables, counts = self._cached
        rows = self.rows[:, None, block]
        of_rows = torch.stack([(of_row(weights) * rows).sum(-1) for of_row in _ROW], -1)
        totals = torch.cat([weights.flatten(2) @ tables, of_rows], dim=-1)
        return totals, counts, (rows.unsqueeze(-2) @ weights).squeeze(-2)

    def _tables(self, block: slice) -> tuple[Tensor, Tensor]:
        """Return the tables of some rows, (N, R · T, linear), and the rows that count, (N, L)."""
        pairs = TokenPairs(self.tokens, block)
        N, T = self.tokens.ids.shape
        tables, counted = [], []
        for keys, every_row in _KEYS:
            table = keys(pairs)
            has_key = torch.ones_like(table[..., 0]) if every_row else table.any(-1)
            tables.append(table.float().expand(N, len(pairs.offset), T))
            counted.append(has_key.float().expand(N, len(pairs.offset)))
        rows = self.rows[:, None, block]
        used = torch.stack(counted, 1) * rows
        stacked = (torch.stack(tables, 1) * used.unsqueeze(-1)).flatten(2)
        counts = torch.cat([used, rows.expand(-1, len(_ROW), -1)], dim=1).sum(-1)
        return stacked.transpose(1, 2).contiguous(), counts
