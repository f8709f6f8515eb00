"""The strongest and the typical examples of every head, in memory that does not grow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.heads import OWN_ROLES, RESTING_ROLES, Positions
from attnviz.results.base import Savable

STRONGEST = 8  # examples of a head, each of another text
DECILES = range(90, 0, -10)
_SAMPLE = 50  # texts of a head, drawn at random, from which deciles are taken


@dataclass(frozen=True)
class HeadExample(Savable):
    """One query of a text, and how a head attends from it.

    text : its number in the corpus. row, key : the query, and the token that it attends to most:
    an ordinary one other than itself, but itself too in a head with the role "own token", and
    special tokens in a head that rests on them. weights : of all tokens of the text. count : how
    often the key stands where the query can read it, in all places of the corpus that have these
    two tokens in one text; 1 for patches and frames.
    """

    text: int
    row: int
    key: int
    weight: float
    weights: tuple[float, ...]
    count: int = 1


_Kept: TypeAlias = list[tuple[float, HeadExample]]  # with priorities, the largest first


class Examples:
    """Keeps examples of heads with these roles while texts are read."""

    def __init__(self, roles: Sequence[str], seed: int) -> None:
        self._strongest: list[_Kept] = [[] for _ in roles]
        self._sample: list[_Kept] = [[] for _ in roles]
        self._reads_itself = torch.tensor([role in OWN_ROLES for role in roles], device="cpu")
        self._rests = torch.tensor([role in RESTING_ROLES for role in roles], device="cpu")
        self._seed = seed

    def add(
        self,
        heads: slice,
        numbers: Sequence[int],
        weights: Tensor,
        tokens: Positions,
        keys_of: Positions | None = None,
    ) -> None:
        """Add the weights of some heads in N texts, (N, H, T, T).

        numbers : of the texts in the corpus. tokens : of the texts. keys_of : the keys of a
        cross-attention, whose queries are the tokens.
        """
        ordinary, key_tokens = tokens.real & ~tokens.special, keys_of or tokens
        itself = torch.eye(*weights.shape[-2:], dtype=torch.bool, device=weights.device)
        itself = itself & (keys_of is None)
        shown = ((key_tokens.real & ~key_tokens.special)[:, None, :] & ~itself)[:, None]
        flags = self._reads_itself, self._rests
        reads_itself, rests = (one[heads].to(weights.device)[:, None, None] for one in flags)
        if keys_of is None and not weights.triu(1).any():  # the first token of a causal model
            shown = shown & ((torch.arange(shown.shape[-1], device=shown.device) > 0) | rests)
        shown = shown | (reads_itself & itself) | (rests & key_tokens.special[:, None, None])
        strengths, keys = weights.masked_fill(~shown, 0.0).max(-1)
        strengths = strengths.masked_fill(~ordinary[:, None], -1.0).cpu()
        strongest = strengths.argmax(-1)
        lengths = key_tokens.real.sum(-1).tolist()
        on_cpu, keys = weights.cpu(), keys.cpu()
        for n, number in enumerate(numbers):
            rows = (strengths[n] > 0).any(0).nonzero()[:, 0].tolist()  # with another token to read
            if not rows:
                continue
            generator = np.random.default_rng([self._seed, number])
            priorities = generator.random(len(self._sample))
            drawn = generator.choice(rows, len(self._sample))
            for head, k in enumerate(range(heads.start, heads.stop)):
                best = int(strongest[n, head])
                strength = float(strengths[n, head, best])
                for kept, most, priority, row in (
                    (self._strongest[k], STRONGEST, strength, best),
                    (self._sample[k], _SAMPLE, float(priorities[k]), int(drawn[k])),
                ):
                    if len(kept) == most and priority <= kept[-1][0]:
                        continue
                    example = HeadExample(
                        text=number,
                        row=row,
                        key=int(keys[n, head, row]),
                        weight=float(strengths[n, head, row]),
                        weights=tuple(on_cpu[n, head, row, : lengths[n]].tolist()),
                    )
                    kept.append((priority, example))
                    kept.sort(key=lambda pair: -pair[0])
                    del kept[most:]

    @property
    def texts(self) -> set[int]:
        """The numbers of all texts that are kept, or may come to be shown."""
        return {one.text for kept in (*self._strongest, *self._sample) for _, one in kept}

    @property
    def strongest(self) -> tuple[tuple[HeadExample, ...], ...]:
        """The strongest examples of each head, the strongest first."""
        return tuple(tuple(one for _, one in kept) for kept in self._strongest)

    @property
    def deciles(self) -> tuple[tuple[HeadExample, ...], ...]:
        """Examples of each head at the 90, 80, …, 10 % quantiles of a random sample of queries."""
        samples = ([one for _, one in sample] for sample in self._sample)
        return tuple(tuple(at_deciles(sample)) if sample else () for sample in samples)


Pair: TypeAlias = tuple[int, int, bool, bool]  # token ids, whether causal, whether one token
OfHeads: TypeAlias = tuple[tuple[HeadExample, ...], ...]


def with_counts(
    several: Sequence[OfHeads],
    texts: Iterable[Sequence[int]],
    ids: Mapping[int, Sequence[int]],
    causal: Sequence[bool | None],
) -> list[OfHeads]:
    """Return examples with how often the query can read the key, in all places of all texts.

    texts : the token ids of every text. ids : those of the texts of examples, by number. causal :
    of each head, whether it reads earlier tokens only; None where it does not read tokens.
    """
    wanted: dict[int, set[Pair]] = {}

    def pair_of(one: HeadExample, k: int) -> Pair:
        of_text = ids[one.text]
        return of_text[one.row], of_text[one.key], bool(causal[k]), one.row == one.key

    for of_heads in several:
        for k, examples in enumerate(of_heads):
            for one in examples if causal[k] is not None else ():
                pair = pair_of(one, k)
                wanted.setdefault(pair[0], set()).add(pair)
    counts = _count_pairs(texts, wanted)

    def counted(one: HeadExample, k: int) -> HeadExample:
        return one if causal[k] is None else replace(one, count=counts[pair_of(one, k)])

    return [
        tuple(tuple(counted(one, k) for one in examples) for k, examples in enumerate(of_heads))
        for of_heads in several
    ]


def _count_pairs(
    texts: Iterable[Sequence[int]], wanted: Mapping[int, Iterable[Pair]]
) -> Counter[Pair]:
    """Count the places where a query can read a key; wanted : pairs by their query."""
    counts: Counter[Pair] = Counter()
    for text in texts:
        places: dict[int, list[int]] = {}
        for place, token in enumerate(text):
            places.setdefault(token, []).append(place)
        for token in places.keys() & wanted.keys():
            for pair in wanted[token]:
                _, key, is_causal, is_one = pair
                counts[pair] += sum(
                    i == j if is_one else (j < i if is_causal else j != i)
                    for i in places[token]
                    for j in places.get(key, ())
                )
    return counts


def at_deciles(sample: Sequence[HeadExample]) -> list[HeadExample]:
    """Return the example at each decile, the strongest first."""
    ordered = sorted(sample, key=lambda one: one.weight)
    places: NDArray[np.float64] = np.array(DECILES) / 100 * (len(ordered) - 1)
    return [ordered[place] for place in places.round().astype(int)]
