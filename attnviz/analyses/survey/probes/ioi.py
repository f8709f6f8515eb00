"""Two names, one of them twice: a model can tell to whom the other gave something."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

from attnviz.analyses.survey.probes import ProbeText, answer_or_mask, probe
from attnviz.attribution.interventions import token_of
from attnviz.attribution.methods import attempt
from attnviz.errors import ModelError
from attnviz.pipeline.attend import Model

TEXTS, FEWEST = 96, 8  # names to choose from
NAMES = (
    "Mary", "John", "Tom", "James", "Paul", "Anna", "Robert", "David", "Sarah", "Michael", "Peter",
    "Laura", "Alice", "Emma", "Jack", "Mark", "Kate", "Lucy", "Henry", "Daniel", "Simon", "Adam",
    "Martin", "Julia", "Helen", "Frank", "George", "Charles", "Susan", "Karen", "Linda", "Jane",
    "Ruth", "Rose", "Maria", "Eric", "Kevin", "Brian", "Thomas", "William",
)  # fmt: skip
TEMPLATES = (
    "When {} and {} went to the store, {} gave a drink to {}",
    "After {} and {} left the house, {} handed the key to {}",
    "Then {} and {} sat in the garden, and {} told a story to {}",
    "While {} and {} worked at the office, {} sent a letter to {}",
)


@probe("inhibition", role="subject inhibition", behavior="naming the indirect object")
@probe("ioi", role="name mover", behavior="naming the indirect object")
def two_names(model: Model, seed: int) -> Sequence[ProbeText]:
    """Return texts that name two people, then the subject again; the other is the answer.

    The subject comes first in half of them.

    Source: Wang et al. 2022, arXiv:2211.00593.
    """
    end = answer_or_mask(model)
    names = [name for name in NAMES if attempt(partial(token_of, model, name))[0] is not None]
    if len(names) < FEWEST:
        raise ModelError(
            f"The vocabulary of {model.name} has {len(names)} first names, and the probe needs "
            f"{FEWEST}. Choose another probe or model."
        )
    rng = random.Random(seed)
    texts = []
    for number in range(TEXTS):
        subject, other = pair = rng.sample(names, 2)
        order = pair if number % 2 else pair[::-1]
        template = TEMPLATES[number // 2 % len(TEMPLATES)]
        text = template.format(*order, subject, end(other))
        texts.append(ProbeText(text, 1, copied=(other,), wrong=(subject,)))
    return texts
