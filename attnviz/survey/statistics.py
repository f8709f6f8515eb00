"""Numbers of every head on a batch of texts: where its weights go, and how widely.

Almost all of them are linear in the weights: the weight of the previous token is ⟨W, M⟩ with a
table M (T, T) of the weights that count, each divided by the number of rows that have any. So all
are one product of the weights with the tables of a text.
"""

from __future__ import annotations

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
    beside it. first : for the first token of the text, special or not. separators : for special
    tokens. same token : for other positions of the same token. induction : for positions that
    follow an earlier one of the same token (Olsson et al. 2022). punctuation : for periods and
    commas. entropy : in nats. most read : the share of all weight that goes to that token, no
    special one, that is read most.
"""


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


class Measure:
    """The statistics of any weights on a batch of texts."""

    def __init__(self, tokens: Tokens) -> None:
        self._rows = (tokens.real & ~tokens.special).float()  # those that count, (N, T)
        which, counted = _tables(tokens)
        rows = counted.float() * self._rows[:, None]  # (N, S, T)
        # 0 / 0 is NaN: of a text without any such token there is nothing to measure.
        tables = which.float() * (rows / rows.sum(-1, keepdim=True)).unsqueeze(-1)
        self._tables = tables.flatten(2).transpose(1, 2).contiguous()  # (N, T · T, S)

    def __call__(self, weights: Tensor) -> Tensor:
        """Return the statistics of weights (N, H, T, T), in the order of STATISTICS: (N, H, S).

        NaN where a text has no token of the kind. Weights are 0 for keys that are padding.
        """
        linear = weights.float().flatten(2) @ self._tables
        rows = self._rows[:, None]
        count = rows.sum(-1)
        entropy = (-torch.special.xlogy(weights, weights).sum(-1) * rows).sum(-1) / count
        received = (weights * rows.unsqueeze(-1)).sum(-2) / count.unsqueeze(-1)
        return torch.cat(
            [linear, entropy.unsqueeze(-1), (received * rows).amax(-1, keepdim=True)], dim=-1
        )


def _tables(tokens: Tokens) -> tuple[Tensor, Tensor]:
    """Return which weights count in each statistic, (N, S, T, T), and which rows, (N, S, T)."""
    ids, real = tokens.ids, tokens.real
    N, T = ids.shape
    i = torch.arange(T, device=ids.device)
    behind = (i[:, None] - i).expand(N, T, T)
    both = real[:, :, None] & real[:, None, :]
    same = (ids[:, :, None] == ids[:, None, :]) & both & (behind != 0)
    follows = pad(same & (behind > 0), (1, -1)) & both  # one to the right: what came after it
    whole = torch.ones_like(real)
    stops = tokens.stops[:, None].expand(N, T, T)
    tables = {
        "distance": (behind.abs(), whole),
        "self": (behind == 0, whole),
        "previous": (behind == 1, (i > 0).expand(N, T)),
        "next": (behind == -1, pad(real, (-1, 1))),
        "first": ((i == 0).expand(N, T, T), whole),
        "separators": (tokens.special[:, None].expand(N, T, T), tokens.special.any(-1, True)),
        "same token": (same, same.any(-1)),
        "induction": (follows, follows.any(-1)),
        "punctuation": (stops, tokens.stops.any(-1, True)),
    }
    which, rows = zip(*(tables[name] for name in LINEAR), strict=True)
    return (
        torch.stack([each.long() for each in which], 1),
        torch.stack([each.expand(N, T) for each in rows], 1),
    )
