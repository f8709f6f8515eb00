"""What a word loses where each other word is touched, one at a time and in several ways."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import islice

import torch
from torch import Tensor

from attnviz.analyses.shift.knockout import (
    Site,
    delete,
    knock_out,
    substitute,
)
from attnviz.analyses.shift.reference import mask_token
from attnviz.pipeline.attend import Model
from attnviz.runtime.progress import part

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
