"""The statistics of a head: where its attention weights go, and how widely they spread.

They are measured on the text as the model reads it, on its tokens in another order, and on uniform
weights. Each statistic is declared once, in `STATISTICS`; the survey, the roles of heads, the
tables and the figures read the declaration. Most statistics are linear in the weights: the weight
on the previous token is ⟨W, M⟩ with a table M (T, T) that selects weights, divided by the number of
rows that select any. One matrix product of the weights with all tables gives all linear statistics.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.analyses.survey.corpus import Encoding, TokenizedText, batches, softmax_only
from attnviz.analyses.survey.result import HeadName
from attnviz.capture.batched import BatchedAttention, capture_batch, capture_matrices
from attnviz.errors import InputError
from attnviz.inputs.text import pad_texts, padded
from attnviz.models.checkpoint import Checkpoint
from attnviz.results import AttentionRecord, AttentionResult, LinearAttention, row_shares
from attnviz.runtime.libraries import release_unused

# What fits the caches of a CPU; what keeps a GPU busy.
_BATCH_TOKENS = {"cpu": 2048, "cuda": 16384}  # positions of a batch, with padding
_KEY_ORDER = [0, 0, 0, 1]  # where the random numbers of key orders start, apart from all others
_BLOCK_WEIGHTS = {"cpu": 2**18, "cuda": 2**23}  # of one head, in the rows processed at once


@dataclass(frozen=True, eq=False)
class Tokens:
    """The positions of N texts, each tensor (N, T).

    ids : token ids. real : False for padding. special : tokens that the tokenizer added.
    punctuation : periods and commas. asks : the number of the answer that is predicted there, from
    1, or 0. holds : the number of the answer that a token is, or -1 for a wrong answer, or 0. Only
    texts of a probe have the last two.
    """

    ids: Tensor
    real: Tensor
    special: Tensor
    punctuation: Tensor
    asks: Tensor | None = None
    holds: Tensor | None = None

    def __getitem__(self, texts: slice) -> Tokens:
        """Return the positions of some of the texts."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return Tokens(**{name: one[texts] for name, one in values.items() if one is not None})


@dataclass(frozen=True, eq=False)
class TokenPairs:
    """All pairs of a query in some rows R and a key, of N texts."""

    tokens: Tokens
    rows: slice

    @property
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

    @cached_property
    def answer(self) -> Tensor:
        """Whether the query asks for an answer of a probe that the key holds, (N, R, T)."""
        asks, holds = self._answers
        return (asks == holds) & (asks > 0)

    @cached_property
    def wrong_answer(self) -> Tensor:
        """Whether the query asks for an answer, and the key holds a wrong one, (N, R, T)."""
        asks, holds = self._answers
        return (asks > 0) & (holds < 0)

    @property
    def _answers(self) -> tuple[Tensor, Tensor]:
        """What queries ask for, (N, R, 1), and what keys hold, (N, 1, T)."""
        asks, holds = self.tokens.asks, self.tokens.holds
        assert asks is not None  # only statistics of texts of a probe use them
        assert holds is not None
        return asks[:, self.rows, None], holds[:, None]


@dataclass(frozen=True)
class HeadStatistic:
    """What any statistic declares.

    role : of a head that follows the rule, by `followed_rules`. resting : whether it then rests.
    even_baseline : whether even weights (shuffled keys) are a meaningful baseline.
    """

    name: str
    title: str
    role: str = field(default="", kw_only=True)
    resting: bool = field(default=False, kw_only=True)
    even_baseline: bool = field(default=True, kw_only=True)


@dataclass(frozen=True)
class Statistic(HeadStatistic):
    """One number of each head on each text: a mean over the tokens that are not special.

    Exactly one of `keys`, `row` and `received` is given, unless weights are signed.

    keys : from `TokenPairs` to the factor of each weight, broadcastable to (N, R, T): the statistic
    is the sum of a row's weights times these. Rows without any key that counts are left out, unless
    `every_row` is set. row : from the weights (N, H, R, T) to a number for each row, (N, H, R).
    received : from the share of all weight that each key receives (N, H, T), 0 for special tokens,
    to one number, (N, H). limit : the largest possible value for a number of tokens; None for a
    share. of_probe : whether only the texts of a probe with this role have it.
    """

    keys: Callable[[TokenPairs], Tensor] | None = None
    row: Callable[[Tensor], Tensor] | None = None
    received: Callable[[Tensor], Tensor] | None = None
    every_row: bool = False
    limit: Callable[[int], float] | None = None
    of_probe: bool = False


def _follows_same_token(pairs: TokenPairs) -> Tensor:
    """Return whether the key comes right after an earlier occurrence of the query's token."""
    before = pairs.same_token[..., :-1] & (pairs.offset[:, :-1] > 0)
    return pad(before, (1, 0)) & pairs.other  # where a token follows itself, not itself


_DECLARED = (
    Statistic(
        "distance", "mean distance, tokens",
        keys=lambda pairs: pairs.offset.abs(), every_row=True, limit=lambda tokens: tokens - 1,
    ),
    Statistic("self", "weight for itself", keys=lambda pairs: pairs.offset == 0, role="own token"),
    Statistic(
        "previous", "for the previous token",
        keys=lambda pairs: (pairs.offset == 1) & pairs.word_key, role="previous token",
    ),
    Statistic(
        "next", "for the next token",
        keys=lambda pairs: (pairs.offset == -1) & pairs.word_key, role="next token",
    ),
    Statistic(  # special or not
        "first", "for the first token",
        keys=lambda pairs: pairs.key == 0, role="rests on the first token", resting=True,
    ),
    Statistic(
        "separators", "for special tokens", keys=lambda pairs: pairs.tokens.special[:, None],
        role="rests on special tokens", resting=True,
    ),
    Statistic(
        "same token", "for the same token elsewhere",
        keys=lambda pairs: pairs.same_token & pairs.other, role="same token",
    ),
    Statistic(  # Olsson et al. 2022
        "induction", "for what followed it before", keys=_follows_same_token, role="induction",
    ),
    Statistic(
        "punctuation", "for periods and commas",
        keys=lambda pairs: pairs.tokens.punctuation[:, None], role="punctuation",
    ),
    Statistic(  # Wu et al. 2024, arXiv:2404.15574
        "retrieval", "for the word to retrieve", keys=lambda pairs: pairs.answer,
        role="retrieval", of_probe=True,
    ),
    Statistic(  # Wang et al. 2022, arXiv:2211.00593
        "name mover", "for the indirect object, minus the subject",
        keys=lambda pairs: pairs.answer.float() - pairs.wrong_answer.float(),
        role="name mover", of_probe=True,
    ),
    Statistic(
        "subject inhibition", "for the subject, minus the indirect object",
        keys=lambda pairs: pairs.wrong_answer.float() - pairs.answer.float(),
        role="subject inhibition", of_probe=True,
    ),
    # Shuffling the keys of a row does not change its entropy, and spreads what the keys receive.
    Statistic(
        "entropy", "entropy, nats", row=lambda weights: torch.special.entr(weights).sum(-1),
        limit=math.log, even_baseline=False,
    ),
    Statistic(
        "most read", "share of the token read most",
        received=lambda shares: shares.amax(-1), even_baseline=False,
    ),
)  # fmt: skip
"""All statistics, in the order of every result: those with `keys`, with `row`, with `received`."""


def statistics_for(roles: Collection[str] = ()) -> tuple[Statistic, ...]:
    """Return the statistics of any text, and those of probes of some roles."""
    return tuple(one for one in _DECLARED if not one.of_probe or one.role in roles)


STATISTICS = statistics_for()
NAMES = tuple(statistic.name for statistic in STATISTICS)
ROLES = {statistic.role: statistic for statistic in _DECLARED if statistic.role}

# The weights of linear attention are signed. A statistic such as |previous| is that of softmax
# attention, of the shares of the weights in the sizes of their row: |M_ij| / Σ_j |M_ij|. So it is a
# share here, too, and roles follow by the same criteria. Beside them stands how much of the sizes
# is of negative weights.
_OF_SIZES = tuple(
    replace(one, name=f"|{one.name}|", title=one.title.replace("weight ", "|weight| "))
    for one in STATISTICS
)
_NEGATIVE = Statistic("negative", "share of negative weights", even_baseline=False)
SIGNED_STATISTICS = (*_OF_SIZES, _NEGATIVE)
"""The statistics of linear attention, in the order of every result."""
TITLES = {statistic.name: statistic.title for statistic in (*_DECLARED, *SIGNED_STATISTICS)}


def largest(tokens: int, statistics: Sequence[Statistic] = STATISTICS) -> Tensor:
    """Return the largest possible value of each statistic for a number of tokens, (S,)."""
    limits = [statistic.limit for statistic in statistics]
    largest_values = [max(1.0, limit(tokens)) if limit else 1.0 for limit in limits]
    return torch.tensor(largest_values, device="cpu")


def batch_tokens(device: torch.device) -> int:
    """Return the most positions of a batch on a device, with padding."""
    return _BATCH_TOKENS.get(device.type, _BATCH_TOKENS["cuda"])


class WeightStatistics:
    """Computes the statistics of any weights on a batch of texts, block of rows by block."""

    def __init__(self, tokens: Tokens, statistics: Sequence[Statistic] = STATISTICS) -> None:
        self.tokens = tokens
        self._of_keys = [(one.keys, one.every_row) for one in statistics if one.keys]
        self._of_rows = [one.row for one in statistics if one.row]
        self._of_received = [one.received for one in statistics if one.received]
        self.rows = (tokens.real & ~tokens.special).float()  # those that count, (N, T)
        N, T = tokens.ids.shape
        most = _BLOCK_WEIGHTS.get(tokens.ids.device.type, _BLOCK_WEIGHTS["cuda"])
        step = max(1, most // (N * T))
        self.blocks = [slice(start, min(start + step, T)) for start in range(0, T, step)]
        self._cached: tuple[slice, Tensor, Tensor] | None = None

    def __call__(self, weights: Callable[[slice], Tensor]) -> Tensor:
        """Return the statistics (N, H, S); NaN where a text has no token of the kind.

        weights : from some rows to their weights, (N, H, R, T), 0 for keys that are padding.
        """
        of_blocks = [self._sums(block, weights(block)) for block in self.blocks]
        totals, counts, received = (sum(sums[1:], sums[0]) for sums in zip(*of_blocks, strict=True))
        rows = self.rows.sum(-1)[:, None, None]  # 0 / 0 is NaN: there is nothing to measure
        shares = (received / rows).masked_fill(self.rows[:, None] == 0, 0.0)
        of_received = torch.stack([received_by(shares) for received_by in self._of_received], -1)
        return torch.cat([totals / counts[:, None], of_received], dim=-1)

    def _sums(self, block: slice, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return sums over rows (N, H, L), the rows that count (N, L), and the weight of each key.

        L is the number of statistics with `keys` or `row`.
        """
        weights = weights.float()
        if self._cached is None or self._cached[0] != block:  # one block serves all layers
            self._cached = block, *self._tables(block)
        _, tables, counts = self._cached
        rows = self.rows[:, None, block]
        of_rows = torch.stack([(of_row(weights) * rows).sum(-1) for of_row in self._of_rows], -1)
        totals = torch.cat([weights.flatten(2) @ tables, of_rows], dim=-1)
        return totals, counts, (rows.unsqueeze(-2) @ weights).squeeze(-2)

    def _tables(self, block: slice) -> tuple[Tensor, Tensor]:
        """Return the tables of some rows, (N, R · T, linear), and the rows that count, (N, L)."""
        pairs = TokenPairs(self.tokens, block)
        N, T = self.tokens.ids.shape
        tables, counted = [], []
        for keys, every_row in self._of_keys:
            table = keys(pairs)
            has_key = torch.ones_like(table[..., 0]) if every_row else table.any(-1)
            tables.append(table.float().expand(N, len(pairs.offset), T))
            counted.append(has_key.float().expand(N, len(pairs.offset)))
        rows = self.rows[:, None, block]
        used = torch.stack(counted, 1) * rows
        stacked = (torch.stack(tables, 1) * used.unsqueeze(-1)).flatten(2)
        counts = torch.cat([used, rows.expand(-1, len(self._of_rows), -1)], dim=1).sum(-1)
        return stacked.transpose(1, 2).contiguous(), counts


@dataclass(frozen=True, eq=False)
class TextStatistics:
    """Statistics of K heads on N texts, each (N, K, S), in the order of `HeadStatistics`.

    numbers, tokens : the number of each text in its corpus, and of its tokens. value : of the text
    as the model reads it; NaN where a text has no token of the kind. shuffled : of the tokens in
    another order, special tokens in place. even : of uniform weights over the keys that each query
    may read, with the same sum. shuffled_keys : of the weights of each query in a random order of
    these keys, the same in all heads; the mean over all orders is even. differences : (K,), on the
    compared texts, the largest difference from the statistics of the model's own weights, as a
    share of the largest possible value; NaN if the model does not return them. compared : the
    number of compared texts.
    """

    numbers: tuple[int, ...]
    tokens: tuple[int, ...]
    value: Tensor
    shuffled: Tensor
    even: Tensor
    shuffled_keys: Tensor
    differences: Tensor
    compared: int


def largest_difference(ours: Tensor, theirs: Tensor | None, largest: Tensor) -> Tensor:
    """Return the largest difference of each head (H, S), as a share of the largest values, (H,).

    NaN if there is nothing to compare with.
    """
    if theirs is None:
        return torch.full(ours.shape[:1], torch.nan, device="cpu")
    shares = ((ours - theirs).abs() / largest).nan_to_num(0.0)
    return shares.masked_fill(ours.isnan() != theirs.isnan(), torch.inf).amax(-1)


class Heads:
    """Base of what measures the heads of one model, with the records of any one text or medium."""

    records: Sequence[AttentionRecord]

    @cached_property
    def heads(self) -> tuple[HeadName, ...]:
        """The heads, in the order in which the model runs."""
        return tuple(
            HeadName(record.stack, record.layer, head)
            for record in self.records
            for head in range(record.heads)
        )


@dataclass(frozen=True, eq=False)
class HeadStatistics(Heads):
    """Measures the heads of one model.

    records : the attentions of any one text. seed : of the shuffles. statistics : what is measured.
    only_on : the numbers of the texts that a statistic is measured on, by name; by default all.
    """

    checkpoint: Checkpoint
    records: Sequence[AttentionRecord]
    seed: int = 0
    statistics: Sequence[Statistic] = STATISTICS
    only_on: Mapping[str, range] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the statistics."""
        return tuple(statistic.name for statistic in self.statistics)

    def measure(self, texts: Sequence[TokenizedText]) -> TextStatistics:
        """Measure every head on each text; other texts in the batch change only the rounding."""
        lengths = [len(text) for text in texts]
        tokens = batch_tokens(self.checkpoint.device) // 2  # each text is read twice
        order = list(batches(lengths, tokens))
        measured = [self._measure_batch([texts[index] for index in batch]) for batch in order]
        indices = [index for batch in order for index in batch]
        positions = torch.tensor(indices, device="cpu").argsort()
        release_unused()
        *statistics, differences = zip(*measured, strict=True)
        value, shuffled, even, keys = (torch.cat(batch)[positions] for batch in statistics)
        for column, statistic in enumerate(self.statistics):
            numbers = self.only_on.get(statistic.name)
            if numbers is not None:
                rows = [row for row, text in enumerate(texts) if text.number not in numbers]
                value[rows, :, column] = torch.nan
        return TextStatistics(
            numbers=tuple(text.number for text in texts),
            tokens=tuple(lengths),
            value=value,
            shuffled=shuffled,
            even=even,
            shuffled_keys=keys,
            differences=torch.stack(differences).amax(0),
            compared=len(order),
        )

    def _measure_batch(
        self, texts: Sequence[TokenizedText]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return statistics (N, K, S) of texts, shuffled texts, even weights and shuffled keys.

        Last come the differences, (K,). The first text, the shortest and so the one with most
        padding, is compared.
        """
        plain = [text.encoding for text in texts]
        mixed = [shuffle(text.encoding, f"{self.seed} {text.number}") for text in texts]
        inputs, tokens = self.batch(plain + mixed)
        N, length = len(texts), len(texts[0])
        numbers = [text.number for text in texts]
        of_all, of_plain, of_first = (
            WeightStatistics(some, self.statistics) for some in (tokens, tokens[:N], tokens[:1])
        )
        measured: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

        def add(attention: BatchedAttention) -> None:
            def readable_keys(rows: slice) -> Tensor:
                """Return which keys a query may read, (N, R, T)."""
                return attention.readable(rows)[:N] & tokens.real[:N, None]

            def shuffled_keys(rows: slice) -> Tensor:
                """Return the weights of each query in another order, (N, H, R, T)."""
                readable, weights = readable_keys(rows), attention.weights(rows)[:N]
                order = key_order(readable, tokens.real[:N], rows, numbers, self.seed)[:, None]
                return weights.gather(-1, order.expand_as(weights))

            def even_weights(rows: slice) -> Tensor:
                """Return equal weights for all keys that a query may read, (N, 1 or H, R, T)."""
                readable = readable_keys(rows)
                uniform = readable / readable.sum(-1, keepdim=True).clamp(min=1)
                if attention.sinks is None:
                    return uniform[:, None]
                sums = attention.weights(rows)[:N].sum(-1, keepdim=True)  # less than 1
                return uniform[:, None] * sums

            values = of_all(attention.weights).cpu()
            even = of_plain(even_weights).expand_as(values[:N]).cpu()
            of_model = attention.model_weights
            theirs = None if of_model is None else of_first(of_model).cpu()[0]
            limits = largest(length, self.statistics)
            difference = largest_difference(values[0], theirs, limits)
            measured.append((values, even, of_plain(shuffled_keys).cpu(), difference))

        capture_batch(self.checkpoint.module, inputs, self.records, add)
        *statistics, differences = zip(*measured, strict=True)
        both, even, keys = (torch.cat(of_layers, dim=1) for of_layers in statistics)
        return both[:N], both[N:], even, keys, torch.cat(differences)

    def batch(self, encodings: Sequence[Encoding]) -> tuple[dict[str, Tensor], Tokens]:
        """Return texts as one padded input of the model, and their positions."""
        inputs = pad_texts(self.checkpoint, encodings)
        ids = inputs["input_ids"]
        masks = [encoding["special_tokens_mask"] for encoding in encodings]
        special = padded(masks, 0).bool().to(ids.device)
        lengths = torch.tensor([len(mask) for mask in masks], device=ids.device)
        real = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        punctuation = torch.isin(ids, self._punctuation_ids) & real & ~special
        nothing = [[0] * len(mask) for mask in masks]
        asks, holds = (
            padded([one.get(name, none) for one, none in zip(encodings, nothing, strict=True)], 0)
            for name in ("asks", "holds")
        )
        answers = asks.to(ids.device), holds.to(ids.device)
        return inputs, Tokens(ids, real, special, punctuation, *answers)

    @cached_property
    def _punctuation_ids(self) -> Tensor:
        """The ids of periods and commas, with or without a mark of a blank before them."""
        assert self.checkpoint.tokenizer is not None
        vocabulary = self.checkpoint.tokenizer.get_vocab().items()
        ids = {id for token, id in vocabulary if token.lstrip("\u0120\u2581") in (".", ",")}
        return torch.tensor(sorted(ids), device=self.checkpoint.device)


def shuffle(encoding: Encoding, seed: str) -> Encoding:
    """Return the same tokens in another order; special tokens stay where they are."""
    ids = list(encoding["input_ids"])
    special = encoding["special_tokens_mask"]
    places = [index for index in range(len(ids)) if not special[index]]
    sources = places.copy()
    random.Random(seed).shuffle(sources)
    for place, source in zip(places, sources, strict=True):
        ids[place] = encoding["input_ids"][source]
    return {**encoding, "input_ids": ids}


def key_order(
    readable: Tensor, real: Tensor, rows: slice, numbers: Sequence[int], seed: int
) -> Tensor:
    """Return a random order of the readable keys of each query in some rows, (N, R, T).

    Other keys stay in place. The order follows from the seed, the number of the text, its length
    and the row alone.

    readable : (N, R, T). real : False for padding, (N, T). numbers : of the texts.
    """
    N, R, T = readable.shape
    scores = np.zeros((N, R, T), np.int64)
    lengths = real.sum(-1).tolist()
    for of_text, number, length in zip(scores, numbers, lengths, strict=True):
        steps = -(-length // 4)  # Philox makes four numbers at each step
        generator = np.random.Philox(key=[seed, number], counter=_KEY_ORDER)
        drawn = generator.advance(rows.start * steps).random_raw(R * 4 * steps)
        of_text[:, :length] = drawn.view(np.int64).reshape(R, 4 * steps)[:, :length]
    last = torch.iinfo(torch.int64).max
    shuffled = torch.from_numpy(scores).to(readable.device).masked_fill(~readable, last)
    places = (~readable).long().argsort(dim=-1, stable=True)  # the readable keys first
    return torch.empty_like(places).scatter_(-1, places, shuffled.argsort(dim=-1, stable=True))


# --- linear attention: its weights are signed, and their sizes are measured

_MOST_HEADS = 2048  # of which the flips and the distances fit in memory


def select_stack(result: AttentionResult, stack: str | None) -> AttentionResult:
    """Return a result with the attentions to measure: those with a softmax, or the linear ones.

    Raises
    ------
    InputError
        There is no such stack, or it is one of several with a softmax.
    """
    softmax = [record for record in result.records if not record.signed]
    if stack is None:
        return softmax_only(result) if softmax else result
    chosen = result.stack(stack)
    if not chosen.records[0].signed and len(chosen) < len(softmax):
        raise InputError(
            f"A survey measures all stacks of softmax attention together, not only {stack!r}. "
            "Leave --stack (stack=) out."
        )
    return chosen


def check_head_count(records: Sequence[AttentionRecord]) -> None:
    """Raise InputError if linear attention has more heads than a survey can hold."""
    heads = sum(record.heads for record in records)
    if records[0].signed and heads > _MOST_HEADS:
        raise InputError(
            f"A survey of linear attention takes at most {_MOST_HEADS:,} heads, but here each "
            f"feature may be a head: there are {heads:,}. Choose a smaller model, or one whose "
            "features share matrices, such as Mamba-2."
        )


@dataclass(frozen=True, eq=False)
class SignedHeadStatistics(HeadStatistics):
    """Measures the heads of linear attention, from the whole matrices of one text after the other.

    Nothing is compared: the model returns no weights. The sample of the survey is verified.
    """

    statistics: Sequence[Statistic] = SIGNED_STATISTICS

    def measure(self, texts: Sequence[TokenizedText]) -> TextStatistics:
        """Measure every head on each text; those of a text with one token are NaN."""
        return replace(super().measure(texts), compared=0)

    def _measure_batch(
        self, texts: Sequence[TokenizedText]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return statistics (N, K, S) of texts, shuffled texts, even weights and shuffled keys."""
        measured = zip(*map(self._measure_text, texts), strict=True)
        value, shuffled, even, keys = (torch.cat(of_texts) for of_texts in measured)
        not_compared = torch.full((len(self.heads),), torch.nan, device="cpu")
        return value, shuffled, even, keys, not_compared

    def _measure_text(self, text: TokenizedText) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the statistics of one text, (1, K, S) each."""
        if len(text) < 2:  # nothing is mixed
            shape = 1, len(self.heads), len(self.statistics)
            return (torch.full(shape, torch.nan, device="cpu"),) * 4
        # With as many tokens, neither text is padded.
        mixed = shuffle(text.encoding, f"{self.seed} {text.number}")
        inputs, tokens = self.batch([text.encoding, mixed])
        records = cast("Sequence[LinearAttention]", self.records)
        every = slice(0, len(text))
        real = tokens.real[:1]
        of_both, of_text = (
            _SignedStatistics(WeightStatistics(some, _OF_SIZES)) for some in (tokens, tokens[:1])
        )
        value, even, keys = [], [], []
        matrices = capture_matrices(self.checkpoint.module, inputs, records)
        for matrix, record in zip(matrices, records, strict=True):
            M = matrix.to(real.device)
            readable = torch.ones_like(M[:1, 0], dtype=torch.bool)
            if record.visible is not None:
                readable = readable.tril()
            order = key_order(readable, real, every, [text.number], self.seed)[:, None]
            shares = row_shares(M[:1])
            uniform = readable / readable.sum(-1, keepdim=True)
            value.append(of_both(M))
            even.append(of_text(uniform[:, None] * shares.sum(-1, keepdim=True)))
            keys.append(of_text(shares.gather(-1, order.expand_as(shares))))
        both = torch.cat(value, dim=1)
        return both[:1], both[1:], torch.cat(even, dim=1), torch.cat(keys, dim=1)


@dataclass(frozen=True, eq=False)
class _SignedStatistics:
    """Computes the statistics of signed weights from those of their shares."""

    of_shares: WeightStatistics

    def __call__(self, weights: Tensor) -> Tensor:
        """Return the statistics (N, H, S) of weights (N, H, T, T)."""
        shares, rows = row_shares(weights), self.of_shares.rows[:, None]
        of_sizes = self.of_shares(lambda block: shares[:, :, block])
        negative = (shares * (weights < 0)).sum(-1)
        mean = (negative * rows).sum(-1) / rows.sum(-1)
        return torch.cat([of_sizes, mean[..., None]], dim=-1).cpu()
