"""Needles in filler: a model can retrieve the word of the one that it is asked for."""

from __future__ import annotations

import random
from collections.abc import Sequence

from attnviz.analyses.survey.probes import ProbeText, answer_or_mask, probe, some_words
from attnviz.pipeline.attend import Model

TEXTS, SENTENCES, FEWEST = 48, 10, 8  # words to choose from
NEEDLES = "The secret word of the {} is {}", "The pass key of the {} is {}"
PLACES = "house", "garden", "office", "school", "church", "museum"
FILLER = (
    "The grass is green.", "The sky is blue.", "The sun is bright.", "People walk along the river.",
    "A dog sleeps near the door.", "The market opens early.", "Some birds sing at night.",
    "The train leaves soon.", "He likes warm bread.", "They paint the old fence.",
    "Snow falls in the hills.", "She closed the window.", "The road turns left.",
    "Clouds drift over the lake.", "A child reads a book.", "The bridge was built last year.",
    "Two cats share a chair.", "We had soup for lunch.", "The wind moves the trees.",
    "Her brother plays the piano.",
)  # fmt: skip


@probe("retrieval", role="retrieval", behavior="retrieving a word")
def needles(model: Model, seed: int) -> Sequence[ProbeText]:
    """Return texts with two needles among other sentences, and the beginning of one at the end.

    Source: Wu et al. 2024, arXiv:2404.15574.
    """
    end = answer_or_mask(model)
    used = " ".join([*FILLER, *NEEDLES, *PLACES]).lower().replace(".", "").split()
    words = some_words(model, FEWEST, but=used)
    rng = random.Random(seed)
    texts = []
    for number in range(TEXTS):
        needle = NEEDLES[number % len(NEEDLES)]
        places, (answer, other) = rng.sample(PLACES, 2), rng.sample(words, 2)
        sentences = rng.sample(FILLER, SENTENCES)
        for place, word in zip(places, (answer, other), strict=True):
            sentences.insert(rng.randrange(len(sentences) + 1), f"{needle.format(place, word)}.")
        question = needle.format(places[0], end(answer))
        texts.append(ProbeText(" ".join([*sentences, question]), 1, copied=(answer,)))
    return texts
