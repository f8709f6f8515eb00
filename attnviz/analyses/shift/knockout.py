"""One word of a text changed at a time, and what another word's vector loses by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.analyses.shift.tracing import Watch, by_head
from attnviz.errors import ModelError
from attnviz.runtime.progress import track

MOST_TOKENS = 1024, 16384  # in one batch, on a CPU (whose caches are small) and beside it


@dataclass(frozen=True, eq=False)
class Site:
    """A word in a text, whose vector is looked at after a model has run.

    inputs : of the model, (1, T) each. rows : the positions of the word's pieces, of which the mean
    is taken. end : (d,), its vector as it is.
    """

    module: nn.Module
    inputs: Mapping[str, Tensor]
    rows: tuple[int, ...]
    end: Tensor

    @classmethod
    def of(cls, module: nn.Module, inputs: Mapping[str, Tensor], rows: Sequence[int]) -> Site:
        """Return the site, with the vector that the model gives it."""
        (end,) = _ends(module, inputs, rows)
        return cls(module, inputs, tuple(rows), end)

    @property
    def length(self) -> int:
        """How many tokens the text has."""
        return self.inputs["input_ids"].shape[1]


def substitute(site: Site, words: Sequence[Sequence[int]], tokens: Sequence[int]) -> Tensor:
    """Put other tokens in the place of each word, and return what is lost on average, (W, d).

    Parameters
    ----------
    words : the positions of the pieces of each word. tokens : ids that stand in for a piece, one
        after the other: [MASK] alone, or several drawn from the vocabulary.
    """
    ids = site.inputs["input_ids"]
    stand_ins = torch.tensor(tokens, device=ids.device)
    runs = ids.repeat(len(words) * len(tokens), 1)
    for word, positions in enumerate(words):
        for piece, at in enumerate(positions):
            first = word * len(tokens)
            runs[first : first + len(tokens), at] = stand_ins.roll(-piece)
    ends = [
        _ends(site.module, {**_as_many(site, len(part)), "input_ids": part}, site.rows)
        for part in track(torch.split(runs, _at_once(site)))
        if len(part)
    ]
    return site.end - _joined(ends, site).reshape(len(words), len(tokens), len(site.end)).mean(1)


def knock_out(site: Site, words: Sequence[Sequence[int]]) -> Tensor:
    """Let no other position read each word, in any layer, and return what is lost, (W, d).

    Raises
    ------
    ModelError : no attention was seen, so that nothing was hidden.

    Source: attention knockout (Geva et al. 2023, arXiv:2304.14767).
    """
    T, size, ends = site.length, _at_once(site), []
    for start in track(range(0, len(words), size)):
        part = words[start : start + size]
        gates = torch.ones(len(part), 1, T, T, dtype=torch.bool, device=site.end.device)
        for gate, positions in zip(gates[:, 0], part, strict=True):
            at = torch.tensor(positions)
            gate[:, at] = False
            gate[at[:, None], at] = True
        with Gated(gates) as gated:
            ends.append(_ends(site.module, _as_many(site, len(part)), site.rows))
        if not gated.count:
            raise ModelError(
                "Expected attention in which a word can be hidden, but "
                f"{type(site.module).__name__} shows none. Run it with eager attention."
            )
    return site.end - _joined(ends, site)


def delete(site: Site, words: Sequence[Sequence[int]]) -> Tensor:
    """Take each word out of the text, which becomes shorter, and return what is lost, (W, d)."""
    ends = []
    for positions in track(words):
        kept = [at for at in range(site.length) if at not in positions]
        shorter = {name: each[:, kept] for name, each in site.inputs.items()}
        ends.append(_ends(site.module, shorter, [kept.index(row) for row in site.rows]))
    return site.end - _joined(ends, site)


class Gated(Watch):
    """While N texts run, hides from every attention what a gate (N, 1, T, T) closes.

    count : the attentions that were seen.
    """

    def __init__(self, gate: Tensor) -> None:
        super().__init__()
        self.gate, self.count = gate, 0

    def softmax(self, own: Callable[[Tensor], Tensor], scores: Tensor, said: Any) -> Tensor:
        """Take the softmax of what is left open."""
        if scores.shape[-2:] != self.gate.shape[-2:]:
            return own(scores)
        self.count += 1
        gated = by_head(scores, len(self.gate)).masked_fill(~self.gate, -torch.inf)
        return own(gated.reshape_as(scores))


def _at_once(site: Site) -> int:
    """Return how many texts to run at once."""
    return max(1, MOST_TOKENS[site.end.device.type != "cpu"] // site.length)


def _as_many(site: Site, runs: int) -> dict[str, Tensor]:
    return {name: each.expand(runs, -1) for name, each in site.inputs.items()}


def _joined(ends: Sequence[Tensor], site: Site) -> Tensor:
    return torch.cat([site.end.new_empty(0, len(site.end)), *ends])


def _ends(module: nn.Module, inputs: Mapping[str, Tensor], rows: Sequence[int]) -> Tensor:
    """Return the mean over rows of the last hidden state of each text, (N, d)."""
    base: nn.Module = getattr(module, "base_model", module)
    with torch.no_grad():
        end: Tensor = base(**inputs)[0]
    return end[:, list(rows)].mean(1)
