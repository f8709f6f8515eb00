"""Numbers of every head on a batch of texts: where its weights go, and how widely.

Almost all of them are linear in the weights: the weight of the previous token is ⟨W, M⟩ with a
table M (T, T) of the weights that count, each divided by the number of rows that have any. So all
are one product of the weights with the tables of a text.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

LINEAR = (
    "distance", "self", "previous", "next", "first", "separators", "same token", "induction",
    "punctuation",
)  # fmt: skip
STATISTICS = (*LINEAR, "entropy", "most read")
"""What is measured of each head on each text: means over the tokens that are no special ones.

distance : |i - j| in tokens. self, previous, next : the weight for the own position, and for those
    beside it where these are no special tokens. first : for the first token of the text, special
    or not. separators : for special tokens. same token : for other positions of the same token.
    induction : for other positions that follow an earlier one of the same token (Olsson et al.
    2022). punctuation : for periods and commas. entropy : in nats. most read : the share of all
    weight that goes to that token, no special one, that is read most.
"""
SHARES = tuple(name not in ("distance", "entropy") for name in STATISTICS)
"""Which of them can be no more than 1."""
_WEIGHTS = 2**18  # of a head, in the rows of all texts of a block


def most(tokens: int) -> Tensor:
    """Return the most that each statistic can be of a text of so many tokens, (S,)."""
    limits = {"distance": tokens - 1, "entropy": math.log(tokens)}
    return torch.tensor([max(1.0, limits.get(name, 1.0)) for name in STATISTICS])


@dataclass(frozen=True, eq=False)
class Tokens:
    """What the positions of N texts are, each (N, T).

    ids : token ids. real : False for padding. special : tokens that the tokenizer added.
    stops : periods and commas.
    """

    ids: Tensor
    real: Tensor
    special: Tensor
    stops: Tensor

    def __getitem__(self, texts: slice) -> Tokens:
        """Return those of some texts."""
        return Tokens(*(each[texts] for each in (self.ids, self.real, self.special, self.stops)))


class Measure:
    """The statistics of any weights on a batch of texts, block by block of their rows."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.rows = (tokens.real & ~tokens.special).float()  # those that count, (N, T)
        N, T = tokens.ids.shape
        step = max(1, _WEIGHTS // (N * T))
        self.blocks = [slice(start, min(start + step, T)) for start in range(0, T, step)]
        self._kept: tuple[slice, Tensor, Tensor] | None = None

    def __call__(self, weights: Callable[[slice], Tensor]) -> Tensor:
        """Return the statistics of weights, in the order of STATISTICS: (N, H, S).

        NaN where a text has no token of the kind.

        weights : of some rows, (N, H, R, T); 0 for keys that are padding.
        """
        of_rows = [self._of_rows(block, weights(block)) for block in self.blocks]
        totals, counts, received = (sum(each[1:], each[0]) for each in zip(*of_rows, strict=True))
        rows = self.rows.sum(-1)[:, None, None]  # 0 / 0 is NaN: there is nothing to measure
        shares = (received / rows).masked_fill(self.rows[:, None] == 0, 0.0)
        return torch.cat([totals / counts[:, None], shares.amax(-1, keepdim=True)], dim=-1)

    def _of_rows(self, block: slice, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return sums over rows (N, H, S - 1), how many count (N, S - 1), and what each key got."""
        weights = weights.float()
        if self._kept is None or self._kept[0] != block:  # one block serves all layers
            self._kept = block, *self._made(block.start, block.stop)
        _, tables, counts = self._kept
        rows = self.rows[:, None, block]
        entropy = (-torch.special.xlogy(weights, weights).sum(-1) * rows).sum(-1, keepdim=True)
        totals = torch.cat([weights.flatten(2) @ tables, entropy], dim=-1)
        return totals, counts, (rows.unsqueeze(-2) @ weights).squeeze(-2)

    def _made(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return the tables of some rows, (N, R · T, S - 2), and how many rows count in each."""
        which, counted = _tables(self.tokens, start, stop)
        counted = counted * self.rows[:, None, start:stop]
        tables = (which * counted.unsqueeze(-1)).flatten(2).transpose(1, 2).contiguous()
        own = self.rows[:, None, start:stop]  # of the entropy
        return tables, torch.cat([counted, own], dim=1).sum(-1)


def _tables(tokens: Tokens, start: int, stop: int) -> tuple[Tensor, Tensor]:
    """Return which weights of some rows count, (N, S - 2, R, T), and which rows, (N, S - 2, R)."""
    ids, real = tokens.ids, tokens.real
    N, T = ids.shape
    R = stop - start
    j = torch.arange(T, device=ids.device)
    i = j[start:stop, None]
    behind = i - j
    both = real[:, start:stop, None] & real[:, None, :]
    same = (ids[:, start:stop, None] == ids[:, None, :]) & both & (behind != 0)
    before = (ids[:, start:stop, None] == ids[:, None, :-1]) & (behind[:, :-1] > 0)
    # Keys one to the right of the same token; where a token follows itself, not itself.
    follows = pad(before, (1, 0)) & both & (behind != 0)
    word = real & ~tokens.special
    whole = torch.ones(N, R, dtype=torch.bool, device=ids.device)
    tables = {
        "distance": (behind.abs(), whole),
        "self": (behind == 0, whole),
        "previous": (behind == 1, pad(word, (1, -1))[:, start:stop]),
        "next": (behind == -1, pad(word, (-1, 1))[:, start:stop]),
        "first": ((j == 0).expand(R, T), whole),
        "separators": (tokens.special[:, None], tokens.special.any(-1, True)),
        "same token": (same, same.any(-1)),
        "induction": (follows, follows.any(-1)),
        "punctuation": (tokens.stops[:, None], tokens.stops.any(-1, True)),
    }
    which, rows = zip(*(tables[name] for name in LINEAR), strict=True)
    return (
        torch.stack([each.float().expand(N, R, T) for each in which], 1),
        torch.stack([each.float().expand(N, R) for each in rows], 1),
    )
