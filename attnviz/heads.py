"""What heads attend to: one table of statistics, of texts, images, sounds and signed weights.

Most are linear in the weights: the weight on the previous token is ⟨W, M⟩ with a table M (T, T)
that selects weights, divided by the number of rows that select any. One matrix product of the
weights with all tables gives all linear statistics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from attnviz.results import Axis, AxisGeometry, Provenance, Special, row_shares
from attnviz.results.agreement_report import LINEAR
from attnviz.results.axis import find_words

_BLOCK_WEIGHTS = {"cpu": 2**18, "cuda": 2**23}  # of one head, in the rows processed at once
_LEAST = 0.25, 0.5  # weight beyond even weights: of other rules, and of a head that rests
_NEAR = 0.1 + 1e-6  # seconds


@dataclass(frozen=True, eq=False)
class Positions:
    """The positions of N texts, images or sounds, each tensor (N, T).

    Places are the row and the column of each patch of an image, (N, T, 2), or when each frame of a
    sound begins, in seconds, (N, T, 1); NaN for other positions, None for tokens.
    """

    ids: Tensor  # of tokens
    real: Tensor  # False for padding
    special: Tensor  # tokens that the tokenizer added, and frames after a sound
    punctuation: Tensor  # periods and commas
    asks: Tensor | None = None  # in texts of a probe: the answer predicted there, from 1, or 0
    holds: Tensor | None = None  # the answer that a token is, -1 for a wrong one, or 0
    places: Tensor | None = None

    @classmethod
    def of(cls, axis: Axis, device: torch.device | str = "cpu") -> Positions:
        """Return the positions of one axis, whose token ids are not known."""
        special = torch.tensor([axis.special], device=device)
        none = torch.zeros_like(special)
        known: Sequence[tuple[float, ...] | None] | None = axis.patches
        if axis.seconds is not None:
            known = [None if second is None else (second,) for second in axis.seconds]
        places = None
        if known is not None:
            nowhere = (math.nan,) * (2 if axis.seconds is None else 1)
            entries = [nowhere if one is None else one for one in known]
            places = torch.tensor([entries], dtype=torch.float, device=device)
        return cls(none.long(), ~none, special, none, places=places)

    def __getitem__(self, texts: slice) -> Positions:
        """Return the positions of some of the texts."""
        known = {name: one[texts] for name, one in vars(self).items() if one is not None}
        return Positions(**known)

    @property
    def counted(self) -> Tensor:
        """The queries that count: no special tokens, and no padding, (N, T)."""
        return self.real & ~self.special

    @property
    def are_frames(self) -> bool:
        """Whether the positions are frames of a sound."""
        return self.places is not None and self.places.shape[-1] == 1

    @property
    def count(self) -> int:
        """How many positions there are, without padding."""
        return int(self.real.sum(-1).max())

    @property
    def extent(self) -> float:
        """The largest distance of two positions: in patches, in seconds, or in tokens."""
        if self.places is None:
            return self.count - 1
        known = self.places[~self.places.isnan().any(-1)]
        return float((known.amax(0) - known.amin(0)).norm())


@dataclass(frozen=True, eq=False)
class Pairs:
    """All pairs of a query in some rows R and one of n keys, of N texts, images or sounds.

    What such positions do not have is False or NaN: no statistic then counts any row.
    """

    queries: Positions
    keys: Positions
    rows: slice

    @property
    def of_itself(self) -> bool:
        """Whether positions attend to themselves: it is no cross-attention."""
        return self.queries is self.keys

    @property
    def of_tokens(self) -> bool:
        """Whether tokens of a text attend to each other."""
        return self.of_itself and self.keys.places is None

    @property
    def key(self) -> Tensor:
        """The position of the key, (n,)."""
        return torch.arange(self.keys.ids.shape[1], device=self.keys.ids.device)

    @cached_property
    def offset(self) -> Tensor:
        """How many positions the key is before the query, (R, n)."""
        query = torch.arange(self.queries.ids.shape[1], device=self.queries.ids.device)
        offset = query[self.rows, None] - self.key
        return offset if self.of_itself else torch.full_like(offset, torch.nan, dtype=torch.float)

    @cached_property
    def other(self) -> Tensor:
        """Whether query and key are two different tokens, neither of them padding, (N, R, n)."""
        return self.queries.real[:, self.rows, None] & self.keys.real[:, None] & (self.offset != 0)

    @cached_property
    def same_token(self) -> Tensor:
        """Whether query and key have the same token id, (N, R, n)."""
        return self.queries.ids[:, self.rows, None] == self.keys.ids[:, None]

    @cached_property
    def special_key(self) -> Tensor:
        """Whether the key is special, (N, 1, n)."""
        return self.keys.special[:, None]

    @cached_property
    def word_key(self) -> Tensor:
        """Whether the key is a token of the text, not a special token or padding, (N, 1, n)."""
        return self.keys.counted[:, None] & self.of_tokens

    @cached_property
    def answer(self) -> Tensor:
        """1 where the key holds the answer that the query asks for, -1 a wrong one, (N, R, n)."""
        assert self.queries.asks is not None  # only statistics of texts of a probe use it
        assert self.keys.holds is not None
        asks, holds = self.queries.asks[:, self.rows, None], self.keys.holds[:, None]
        return (asks > 0) * ((asks == holds).int() - (holds < 0).int())

    @cached_property
    def away(self) -> Tensor:
        """How far the key is in each direction of an image or a sound, (N, R, n, 2 or 1)."""
        places = self.keys.places
        if places is None or not self.of_itself:
            return torch.full((1, 1, 1, 2), torch.nan, device=self.keys.ids.device)
        return (places[:, self.rows, None] - places[:, None]).abs()

    @cached_property
    def distance(self) -> Tensor:
        """How far the key is, in patches or in seconds, (N, R, n)."""
        distance: Tensor = torch.linalg.vector_norm(self.away, dim=-1)
        return distance


@dataclass(frozen=True)
class Statistic:
    """One number of each head on each text, image or sound: a mean over the queries that count.

    Exactly one of `keys`, `row` and `received` is given.

    keys : from `Pairs` to the factor of each weight, broadcastable to (N, R, n): the statistic is
    the sum of a row's weights times these. Rows without any key that counts are left out, unless
    `every_row` is set. row : from the weights (N, H, R, n) to a number for each row, (N, H, R).
    received : from the share of all weight that each key receives (N, H, n), 0 for special tokens,
    to one number, (N, H).
    """

    name: str
    title: str  # as figures say it
    keys: Callable[[Pairs], Tensor] | None = None
    row: Callable[[Tensor, Pairs], Tensor] | None = None
    received: Callable[[Tensor], Tensor] | None = None
    every_row: bool = False
    signed: bool = False  # whether `row` reads the sign of the weights; all others read their sizes
    limit: Callable[[Positions], float] | None = None  # the largest value; None for a share
    even_baseline: bool = True  # whether even weights (shuffled keys) are a meaningful baseline
    of_probe: bool = False  # whether only the texts of a probe with this role have it
    role: str = ""  # of a head that follows the rule, by `followed_rules`
    resting: bool = False  # whether it then rests
    family: str = ""  # as the map of one text names such heads
    rule: str = ""  # what they do, in words
    words: str = "Words"  # which words of a text have such keys
    fewest: int = 1  # how many of them it needs


def _mean_distance(weights: Tensor, pairs: Pairs) -> Tensor:
    """Return the mean distance of what each query reads, (N, H, R), special tokens left out."""
    distance = pairs.distance[:, None]
    known = ~distance.isnan() & ~pairs.special_key[:, None]
    kept = weights * known
    total = (kept * distance.nan_to_num(0.0)).sum(-1)
    return (total / kept.sum(-1).clamp(min=1e-9)).masked_fill(~known.any(-1), torch.nan)


def _in_order(weights: Tensor, pairs: Pairs) -> Tensor:
    """Return the chance that a later token reads a later frame, a tie counting one half.

    The mean over two different tokens, as a sum over the earlier ones for each later one.
    """
    if pairs.of_itself or not pairs.keys.are_frames:
        return torch.full(weights.shape[:-1], torch.nan, device=weights.device)
    before = weights.cumsum(-1) - weights / 2
    later = before @ weights.mT  # of row j, the weight after what row i reads
    counted = pairs.queries.counted.float()
    others = counted.sum(-1)[:, None, None] - 1
    summed: Tensor = (later * counted[:, None, :, None]).triu(1).sum(-2)
    return 2 * summed / others


_OF_TEXTS = (
    Statistic(
        "distance", "mean distance, tokens", keys=lambda pairs: pairs.offset.abs(),
        every_row=True, limit=lambda keys: keys.extent,
    ),
    Statistic(
        "self", "weight for itself", keys=lambda pairs: pairs.offset == 0, role="own token",
        family="itself", rule="attend to the word itself",
    ),
    Statistic(
        "previous", "for the previous token",
        keys=lambda pairs: (pairs.offset == 1) & pairs.word_key, role="previous token",
        family="previous", rule="attend to the previous word",
    ),
    Statistic(
        "next", "for the next token",
        keys=lambda pairs: (pairs.offset == -1) & pairs.word_key, role="next token",
        family="next", rule="attend to the next word",
    ),
    Statistic(  # special or not
        "first", "for the first token", keys=lambda pairs: (pairs.key == 0) & pairs.of_tokens,
        role="rests on the first token", resting=True,
        family="first", rule="rest on the first word",
    ),
    Statistic(
        "separators", "for special tokens", keys=lambda pairs: pairs.special_key,
        role="rests on special tokens", resting=True,
        family="special", rule="rest on special tokens",
    ),
    Statistic(
        "same token", "for the same token elsewhere",
        keys=lambda pairs: pairs.same_token & pairs.other, role="same token",
        family="same", rule="attend to the same word elsewhere", words="Repeated words", fewest=8,
    ),
    Statistic(  # Olsson et al. 2022
        "induction", "for what followed it before", role="induction",  # right after an earlier one
        keys=lambda pairs: pad(pairs.same_token & (pairs.offset > 0), (1, -1)) & pairs.other,
    ),
    Statistic(
        "punctuation", "for periods and commas",
        keys=lambda pairs: pairs.keys.punctuation[:, None], role="punctuation",
    ),
    Statistic(  # Wu et al. 2024, arXiv:2404.15574
        "retrieval", "for the word to retrieve", keys=lambda pairs: pairs.answer > 0,
        role="retrieval", of_probe=True,
    ),
    Statistic(  # Wang et al. 2022, arXiv:2211.00593
        "name mover", "for the indirect object, minus the subject",
        keys=lambda pairs: pairs.answer,
        role="name mover", of_probe=True,
    ),
    Statistic(
        "subject inhibition", "for the subject, minus the indirect object",
        keys=lambda pairs: -pairs.answer,
        role="subject inhibition", of_probe=True,
    ),
    # Shuffling the keys of a row does not change its entropy, and spreads what the keys receive.
    Statistic(
        "entropy", "entropy, nats", row=lambda weights, _: torch.special.entr(weights).sum(-1),
        limit=lambda keys: math.log(keys.count), even_baseline=False,
    ),
    Statistic(
        "most read", "most read token's share",
        received=lambda shares: shares.amax(-1), even_baseline=False,
    ),
)  # fmt: skip
_SHARED = {one.name: one for one in _OF_TEXTS}
FIRST, SEPARATORS = _SHARED["first"], _SHARED["separators"]


def statistics_for(roles: Collection[str] = ()) -> tuple[Statistic, ...]:
    """Return the statistics of any text, and those of probes of some roles."""
    return tuple(one for one in _OF_TEXTS if not one.of_probe or one.role in roles)


STATISTICS = statistics_for()
NAMES = tuple(statistic.name for statistic in STATISTICS)

# The weights of linear attention are signed. A statistic such as |previous| is that of softmax
# attention, of the shares of the weights in the sizes of their row: |M_ij| / Σ_j |M_ij|. So it is a
# share here, too, and roles follow by the same criteria. Beside them stands how much of the sizes
# is of negative weights.
_OF_SIZES = [
    replace(one, name=f"|{one.name}|", title=one.title.replace("weight ", "|weight| "))
    for one in STATISTICS
]
_NEGATIVE = Statistic(
    "negative", "share of negative weights", signed=True, even_baseline=False,
    row=lambda weights, _: weights.clamp(max=0).abs().sum(-1),
)  # fmt: skip
STATISTICS_OF: Mapping[str, tuple[Statistic, ...]] = {
    "text": _OF_TEXTS,
    "linear": (*_OF_SIZES, _NEGATIVE),
    "image": (
        Statistic(
            "patch distance", "mean distance, patches", limit=lambda keys: keys.extent,
            row=_mean_distance,
        ),
        replace(_SHARED["self"], role="own patch"),
        Statistic(
            "neighbors", "for the 8 patches around", role="neighboring patches",
            keys=lambda pairs: pairs.away.amax(-1) == 1,
        ),
        Statistic(
            "same row", "for other patches of the row", role="same row",
            keys=lambda pairs: (pairs.away[..., 0] == 0) & (pairs.away[..., 1] > 0),
        ),
        Statistic(
            "same column", "for other patches of the column", role="same column",
            keys=lambda pairs: (pairs.away[..., 1] == 0) & (pairs.away[..., 0] > 0),
        ),
        SEPARATORS, _SHARED["entropy"], _SHARED["most read"],
    ),
    "audio": (
        _SHARED["entropy"], _SHARED["most read"],
        Statistic(
            "time distance", "mean distance, seconds", limit=lambda keys: keys.extent,
            row=_mean_distance,
        ),
        replace(_SHARED["self"], role="own position"),
        Statistic(
            "nearby", "for other frames within 0.1 s", role="nearby frames",
            keys=lambda pairs: (pairs.distance > 0) & (pairs.distance <= _NEAR),
        ),
        Statistic(
            "order", "chance that a later token reads a later frame", row=_in_order,
            role="follows the speech",
        ),
        _SHARED["previous"], FIRST,
        Statistic(
            "silence", "for frames after the sound", role="rests on the silence", resting=True,
            keys=lambda pairs: pairs.special_key & pairs.keys.are_frames,
        ),
    ),
}  # fmt: skip
"""The statistics of each kind of corpus, and of linear attention, in the order of every result."""
_DECLARED = [one for of_kind in STATISTICS_OF.values() for one in of_kind]
TITLES = {one.name: one.title for one in _DECLARED}
OWN_ROLES = {one.role for one in _DECLARED if one.name == "self"}
RESTING_ROLES = {one.role for one in _DECLARED if one.resting}


def largest(keys: Positions, statistics: Sequence[Statistic] = STATISTICS) -> Tensor:
    """Return the largest possible value of each statistic of weights for some keys, (S,)."""
    limits = [max(1.0, one.limit(keys)) if one.limit else 1.0 for one in statistics]
    return torch.tensor(limits, device="cpu")


def followed_rules(
    excess: NDArray[np.float64],
    statistics: Sequence[Statistic],
    sure: NDArray[np.bool_] | bool = True,
) -> list[int]:
    """Return which rule each head follows, -1 for none: in rankings, titles and surveys alike.

    A head follows the rule whose keys get most beyond even weights, if that is a quarter of the
    weight and sure. It rests only if it follows no other rule, and from half of the weight on.

    excess : (K, S), the mean weight beyond even weights; NaN if not known. sure : (K, S).
    """
    found = np.full(len(excess), -1)
    for resting in (True, False):
        are_rules = [bool(one.role) and one.resting == resting for one in statistics]
        of_kind = np.where(are_rules, np.nan_to_num(excess, nan=-1.0), -1.0)
        best = of_kind.argmax(1)[:, None]
        fits = np.take_along_axis((of_kind >= _LEAST[resting]) & sure, best, 1)
        found = np.where(fits, best, found[:, None])[:, 0]
    return [*map(int, found)]


class WeightStatistics:
    """Computes the statistics of any weights on a batch of texts, block of rows by block."""

    def __init__(
        self,
        queries: Positions,
        statistics: Sequence[Statistic] = STATISTICS,
        keys: Positions | None = None,
    ) -> None:
        self.queries, self.keys = queries, keys or queries
        self._of_keys = [one for one in statistics if one.keys]
        self._of_rows = [one for one in statistics if one.row]
        self._of_received = [one.received for one in statistics if one.received]
        self._signed = any(one.signed for one in statistics)
        computed = [*self._of_keys, *self._of_rows, *(one for one in statistics if one.received)]
        self._order = [computed.index(one) for one in statistics]
        self.rows = queries.counted.float()  # those that count, (N, T)
        N, T = queries.ids.shape
        most = _BLOCK_WEIGHTS.get(queries.ids.device.type, _BLOCK_WEIGHTS["cuda"])
        self._whole = keys is not None or queries.places is not None  # one block
        step = T if self._whole else max(1, most // (N * T))
        self.blocks = [slice(start, min(start + step, T)) for start in range(0, T, step)]
        self._cached: tuple[Pairs, Tensor, Tensor] | None = None

    def __call__(self, weights: Callable[[slice], Tensor]) -> Tensor:
        """Return the statistics (N, H, S); NaN where a text has no token of the kind.

        weights : from some rows to their weights, (N, H, R, n), 0 for keys that are padding.
        """
        of_blocks = [self._sums(block, weights(block)) for block in self.blocks]
        totals, counts, received = (sum(sums[1:], sums[0]) for sums in zip(*of_blocks, strict=True))
        rows = self.rows.sum(-1)[:, None, None]  # 0 / 0 is NaN: there is nothing to measure
        shares = (received / rows).masked_fill(~self.keys.counted[:, None], 0.0)
        of_received = torch.stack([received_by(shares) for received_by in self._of_received], -1)
        return torch.cat([totals / counts[:, None], of_received], dim=-1)[..., self._order]

    def _sums(self, block: slice, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return sums of L statistics over rows (N, H, L), rows that count, and keys' weights."""
        weights = weights.float()
        if self._cached is None or self._cached[0].rows != block:  # one block serves all layers
            pairs = Pairs(self.queries, self.keys, block)
            self._cached = pairs, *self._tables(pairs)
        pairs, tables, counts = self._cached
        sizes = weights.abs() if self._signed else weights
        rows = self.rows[:, None, block]
        of_rows = [
            one.row(weights if one.signed else sizes, pairs).masked_fill(rows == 0, 0.0).sum(-1)
            for one in self._of_rows
            if one.row is not None
        ]
        if self._whole:  # a sum of so many weights rounds less row by row
            of_keys = (sizes.transpose(1, 2) @ tables).sum(1)
        else:
            of_keys = sizes.flatten(2) @ tables.flatten(1, 2)
        totals = torch.cat([of_keys, torch.stack(of_rows, -1)], dim=-1)
        return totals, counts, (rows.unsqueeze(-2) @ sizes).squeeze(-2)

    def _tables(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Return the tables of some rows, (N, R, n, linear), and the rows that count, (N, L)."""
        rows = self.rows[:, None, pairs.rows]
        shape = len(rows), rows.shape[-1], self.keys.ids.shape[1]
        tables, counted = [], []
        for one in self._of_keys:
            assert one.keys is not None
            table = one.keys(pairs)
            has_key = torch.ones_like(table[..., 0]) if one.every_row else table.any(-1)
            tables.append(table.float().expand(shape))
            counted.append(has_key.float().expand(shape[:2]))
        used = torch.stack(counted, 1) * rows
        stacked = torch.stack(tables, 1) * used.unsqueeze(-1)
        counts = torch.cat([used, rows.expand(-1, len(self._of_rows), -1)], dim=1).sum(-1)
        return stacked.movedim(1, -1).contiguous(), counts


# --- which rules the heads of a map follow

FAMILIES = [one for one in STATISTICS if one.family]
OTHER_WORDS = "other words"  # what heads without a family attend to


class Maps:
    """Maps (…, m, n) with labeled rows and columns: see `AttentionMap` and `HeadMaps`."""

    weights: Tensor
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    sides: tuple[AxisGeometry, AxisGeometry]
    special_rows: tuple[bool, ...]
    special_columns: tuple[bool, ...]
    masked: Tensor | None
    starts_with_sink: bool
    stack: str
    heads: tuple[int, ...]
    if TYPE_CHECKING:  # computed by `OneMap`

        @property
        def layers(self) -> tuple[int, ...]: ...  # noqa: D102

    @property
    def signed(self) -> bool:
        """Whether weights may be negative and rows need not sum to 1, as in linear attention."""
        return self.stack == LINEAR

    @property
    def is_word(self) -> tuple[Tensor, Tensor]:
        """Which queries (m,) and which keys (n,) are words that the model read.

        These are no special tokens, and none that stands for what the vocabulary lacks.
        """
        special = self.special_rows, self.special_columns
        rows, columns = (
            torch.tensor(flags or (False,), device="cpu").expand(count)
            | torch.tensor([*map(bool, side.unknown or ("",))], device="cpu")
            for count, flags, side in zip(self.weights.shape[-2:], special, self.sides, strict=True)
        )
        return ~rows, ~columns

    @property
    def uninformative(self) -> Tensor:
        """Which cells say little about the text, (m, n).

        Those of special and unknown tokens, the rows of queries that may attend to one key only,
        and the first word of a causal model, on which heads rest.
        """
        rows, columns = self.is_word
        if self.masked is not None and len(columns) > 1:
            rows = rows & ((~self.masked).sum(1) != 1)
        if self.starts_with_sink:
            columns = columns.clone()
            columns[0] = False
        return ~(rows[:, None] & columns)

    @property
    def uninformative_name(self) -> str:
        """What uninformative cells are, for a color bar."""
        kinds = {"special tokens": self.special_columns, "[UNK]": self.sides[1].unknown}
        if names := " and ".join(name for name, flags in kinds.items() if any(flags)):
            return f"of {names}"
        return "of the first word" if self.starts_with_sink else "of the only key"

    @property
    def is_text(self) -> bool:
        """Whether the maps are of the words of a text that attends to itself, one in each cell."""
        plain = all(not (side.patches or side.seconds) and side.cell == 1 for side in self.sides)
        return plain and self.stack != "cross" and self.rows == self.columns

    @property
    def sums(self) -> str:
        """What rows sum to if their weights are no shares, as in "0.5 to 4"; else ""."""
        sums = self.weights.float().sum(-1)
        if not sums.max() > 1.01:  # 1, with rounding
            return ""
        least, most = (f"{float(end):.3g}" for end in sums[sums > 0].aminmax())
        return least if least == most else f"{least} to {most}"

    @property
    def shares(self) -> Tensor:
        """The weights, or their shares in the sizes of their rows if these are not 1."""
        return row_shares(self.weights) if self.signed or self.sums else self.weights

    @property
    def even_weights(self) -> Tensor:
        """The weights (m, n) of queries that attend evenly to all keys that they may read."""
        readable = torch.ones(self.weights.shape[-2:], device="cpu")
        if self.masked is not None:
            readable = (~self.masked).float()
        return readable / readable.sum(-1, keepdim=True).clamp(min=1)


class OneMap(Maps):
    """The map of one head, or the mean map of several heads or layers: see `AttentionMap`."""

    layer: int | tuple[int, ...]
    special: Special
    boundary: tuple[int | None, int | None]
    provenance: Provenance

    @property
    def layers(self) -> tuple[int, ...]:
        """The layer, or the layers that were averaged."""
        return (self.layer,) if isinstance(self.layer, int) else self.layer

    @property
    def generated_from(self) -> int | None:
        """The first query that the model generated; None without one, or of pieces."""
        text = self.provenance.text
        if self.provenance.generated is None or text is None or not self.is_text:
            return None
        prompt = [text[slice(*span)] for span in find_words(text)]
        places = [n for n in range(len(self.rows)) if not any(self.special_rows[n : n + 1])]
        begins = [self.rows[n] for n in places[: len(prompt)]] == prompt
        return next(iter(places[len(prompt) :]), None) if begins else None


def head_families(maps: Maps) -> list[tuple[Statistic, float] | None]:
    """Return the rule that each map follows, with the mean weight of its keys; None without any."""
    weights = maps.shares.reshape(-1, *maps.weights.shape[-2:])
    words, _ = maps.is_word
    if not maps.is_text or words.sum() < 2 or not weights.isfinite().all():
        return [None] * len(weights)
    even = maps.even_weights
    shares = torch.full((len(weights), len(FAMILIES)), torch.nan, device="cpu")
    excess = shares.clone()
    for n, (family, keys) in enumerate(zip(FAMILIES, family_keys(maps), strict=True)):
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


def resting_heads(maps: Maps) -> list[bool]:
    """Return which heads rest: as titles name them, and of images and sounds on special tokens."""
    if maps.is_text:
        return [found is not None and found[0].resting for found in head_families(maps)]
    rows, columns = maps.is_word
    excess = ((maps.shares - maps.even_weights) * ~columns).sum(-1)[..., rows].mean(-1)
    return [n == 0 for n in followed_rules(excess.reshape(-1, 1).double().numpy(), [SEPARATORS])]


def family_keys(maps: Maps) -> list[Tensor]:
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


def where_heads_look(maps: Maps) -> list[tuple[str, float]] | None:
    """Return the family of each head, or other words, with its mean weight; None without text."""
    words, _ = maps.is_word
    weights = maps.shares.flatten(0, 1).float()
    families = head_families(maps)
    if not maps.is_text or words.sum() < 2 or not weights.isfinite().all():
        return None
    others = words & ~torch.stack(family_keys(maps)).any(0)
    share = (weights * others).sum(-1)[:, words].mean(-1).tolist()
    return [
        (OTHER_WORDS, share[n]) if found is None else (found[0].family, found[1])
        for n, found in enumerate(families)
    ]
