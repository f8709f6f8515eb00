"""Which words of a text carry content, and which only grammar."""

from __future__ import annotations

import torch
from torch import Tensor

from attnviz.results.axis import Axis
from attnviz.results.words import TokenGroups, token_groups

# English words that carry grammar rather than content: articles, pronouns, prepositions,
# conjunctions, auxiliaries and particles.
FUNCTION_WORDS = frozenset(
    """
    a an the this that these those some any each every no such
    i me my mine myself you your yours yourself yourselves he him his himself she her hers herself
    it its itself we us our ours ourselves they them their theirs themselves one who whom whose
    which what where when why how there here
    about above across after against along among around as at before behind below beneath beside
    between beyond by down during except for from in inside into like near of off on onto out
    outside over past since through throughout till to toward towards under until up upon via with
    within without
    and but or nor so yet both either neither if then than because although though while whereas
    unless whether
    am is are was were be been being do does did doing done have has had having
    can could may might must shall should will would ought
    not isn't aren't wasn't weren't don't doesn't didn't haven't hasn't hadn't can't couldn't
    won't wouldn't shouldn't i'm you're he's she's it's we're they're i've you've we've they've
    i'll you'll he'll she'll we'll they'll that's
    also too very just only even again once more most other own same
    """.split()  # noqa: SIM905  a list of 200 literals reads worse
)


def content_words(side: TokenGroups) -> Tensor:
    """Return which units carry content: letters or digits, no special token, no function word.

    Where fewer than two do, every word counts.
    """
    real, content = (
        [
            not special and counts(label)
            for label, special in zip(side.labels, side.special, strict=True)
        ]
        for counts in (is_word, is_content)
    )
    return torch.tensor(content if sum(content) > 1 else real)


def is_word(label: str) -> bool:
    """Return whether a label has a letter or a digit."""
    return any(c.isalnum() for c in label)


def is_content(label: str) -> bool:
    """Return whether a label is a word that carries content."""
    return is_word(label) and label.casefold().replace("’", "'") not in FUNCTION_WORDS


def content_positions(axis: Axis) -> Tensor:
    """Return which positions belong to words that carry content, (T,)."""
    side = token_groups(axis)
    marked = torch.zeros(len(axis), dtype=torch.bool)
    for content, at in zip(content_words(side).tolist(), side.positions, strict=True):
        marked[list(at)] = content
    return marked
