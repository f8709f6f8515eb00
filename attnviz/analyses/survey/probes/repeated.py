"""Random words, twice: the second time, a model can copy what followed each word before."""

from __future__ import annotations

import random
from collections.abc import Sequence

from attnviz.analyses.survey.probes import ProbeText, probe, some_words
from attnviz.pipeline.attend import Model

TEXTS, WORDS = 40, 20


@probe("sink", role="rests on the first token", behavior="copying", hides_sink=True)
@probe("duplicate", role="same token", behavior="copying")
@probe("previous", role="previous token", behavior="copying")
@probe("induction", role="induction", behavior="copying")
def repeated_words(model: Model, seed: int) -> Sequence[ProbeText]:
    """Return texts of random words, each word one token, that occur twice in the same order.

    Source: Olsson et al. 2022, arXiv:2209.11895.
    """
    words = some_words(model, WORDS)
    rng = random.Random(seed)
    texts = [" ".join(rng.sample(words, WORDS)) for _ in range(TEXTS)]
    return [ProbeText(f"{text} {text}", WORDS - 1) for text in texts]
