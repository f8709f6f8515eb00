"""One word of a text changed at a time, and what another word's vector loses by it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.analyses.shift.deeplift import Secants
from attnviz.analyses.shift.reference import mask_token
from attnviz.analyses.shift.tracing import Watch, by_head, run
from attnviz.errors import ModelError
from attnviz.pipeline.attend import Model
from attnviz.runtime.progress import part, track

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


def patch_heads(
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    *,
    rows: Sequence[int],
    gate: Tensor | None = None,
) -> Tensor:
    """Swap what each head gives a word between two runs; return how far the word moves, (L, H, d).

    All other attention stays what it was, so that only the path through the word's own later norms
    and MLPs is open. What one head does depends on the others, so it is swapped in either run, and
    the mean of both is returned.

    Parameters
    ----------
    inputs : of the model, (2, T) each: the reference and the text.
    rows : the positions of the word's pieces. gate : (T, T), as in `attribution.secant`.

    Source: path patching (Goldowsky-Dill et al. 2023, arXiv:2304.05969).
    """
    watched = Secants(cut=False, gate=gate)
    run(module, inputs, watched)
    mixed = [(mix.weights @ mix.values).detach() for mix in watched.mixes]
    if not mixed:
        raise ValueError("no attention was followed")
    moved = []
    for own, other, sign in track(((1, 0, 1), (0, 1, -1))):
        text = {name: each[own : own + 1] for name, each in inputs.items()}
        given = [mix[own] for mix in mixed]
        instead = [mix[other] for mix in mixed]
        whole = _replay(module, text, given, given, rows, heads=[(0, 0)])
        every = [(layer, head) for layer, mix in enumerate(mixed) for head in range(mix.shape[1])]
        patched = _replay(module, text, given, instead, rows, heads=every)
        moved.append((whole - patched) * sign)
    mean = (moved[0] + moved[1]) / 2
    return mean.reshape(len(mixed), -1, mean.shape[-1])


def _replay(
    module: nn.Module,
    text: Mapping[str, Tensor],
    given: Sequence[Tensor],
    instead: Sequence[Tensor],
    rows: Sequence[int],
    heads: Sequence[tuple[int, int]],
) -> Tensor:
    """Return the end of the word where one head gives what it gives `instead`, (heads, d)."""
    at, ends = list(rows), []
    ids = text["input_ids"]
    size = max(1, MOST_TOKENS[ids.device.type != "cpu"] // ids.shape[1])
    base: nn.Module = getattr(module, "base_model", module)
    for start in track(range(0, len(heads), size)):
        part = heads[start : start + size]
        copies = {name: each.expand(len(part), -1) for name, each in text.items()}
        with torch.no_grad(), Replay(given, instead, at, part):
            ends.append(base(**copies)[0][:, at].mean(1))
    return torch.cat(ends)


class Replay(Watch):
    """While copies of a text run, every attention gives what it gave, but for one head in each.

    given, instead : of each layer, (H, T, d_v). rows : where the other is put in. heads : the layer
    and head of each copy.
    """

    def __init__(
        self,
        given: Sequence[Tensor],
        instead: Sequence[Tensor],
        rows: list[int],
        heads: Sequence[tuple[int, int]],
    ) -> None:
        super().__init__()
        self.given, self.instead, self.rows, self.heads = given, instead, rows, heads
        self.layer = 0

    def mix(self, weights: Tensor, values: Tensor) -> Tensor:
        """Give what was given, and the other thing where this layer's heads are asked for."""
        given, instead = self.given[self.layer], self.instead[self.layer]
        made = given.expand(len(self.heads), *given.shape).clone()
        for copy, (layer, head) in enumerate(self.heads):
            if layer == self.layer:
                made[copy, head, self.rows] = instead[head, self.rows]
        self.layer += 1
        return made.reshape(-1, *made.shape[2:]) if weights.dim() == 3 else made


ALL = ("mask", "replace", "knock-out", "delete")
_COMMON, _DRAWS = 1000, 8  # common words of a vocabulary, and how many stand in for a word


def possible(model: Model) -> tuple[str, ...]:
    """Return the interventions that a model allows; the first is the one to take by default."""
    masks = getattr(model.tokenizer, "mask_token_id", None) is not None
    return ALL if masks else ("knock-out", "replace", "delete")


def lose(
    model: Model, site: Site, words: Sequence[Sequence[int]], interventions: Sequence[str]
) -> dict[str, Tensor]:
    """Return what the vector at a site loses where each word is touched, (W, d) for each way.

    Parameters
    ----------
    words : the positions of the pieces of each word. interventions : some of `ALL`.
    """
    ways: dict[str, Callable[[], Tensor]] = {
        "mask": lambda: substitute(site, words, [mask_token(model)]),
        "replace": lambda: substitute(site, words, common_words(model)),
        "knock-out": lambda: knock_out(site, words),
        "delete": lambda: delete(site, words),
    }
    found = {}
    for number, name in enumerate(interventions):
        with part(number, len(interventions), f"each word: {name}"):
            found[name] = ways[name]().double().cpu()
    return found


def along(lost: Tensor, direction: Tensor, at: Sequence[int], count: int) -> Tensor:
    """Return what some of the words lose along a direction, NaN for the others, (count,)."""
    found = torch.full((count,), torch.nan, dtype=torch.float64)
    found[list(at)] = lost @ direction.double().cpu()
    return found


def common_words(model: Model) -> list[int]:
    """Return tokens drawn from the first words of the vocabulary, where common ones stand.

    A token counts where it is a whole word of letters by itself. The draw is the same every time.
    """
    tokenizer = model.tokenizer
    assert tokenizer is not None  # it has made the text into tokens

    def whole(token: int, before: str) -> bool:
        word = str(tokenizer.decode([token])).strip()
        alone = tokenizer.encode(before + word, add_special_tokens=False)
        return len(word) > 1 and word.isalpha() and alone == [token]

    # Vocabularies with blanks in their words have the pieces without a blank inside of words.
    for before in (" ", ""):
        every = (token for token in range(len(tokenizer)) if whole(token, before))
        found = list(islice(every, _COMMON))
        if len(found) >= _DRAWS:
            return random.Random(0).sample(found, _DRAWS)
    return found
