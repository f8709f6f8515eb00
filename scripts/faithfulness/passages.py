"""Find the passage that holds the fact: prompts of ten passages, of which one answers the question.

Each passage is about another person. The truth is how a prompt was written. The effects are
compared with what the answer loses where random halves of the passages are left out of the prompt
(linear datamodeling score, Park et al. 2023, arXiv:2303.14186; ContextCite, Cohen-Wang et al. 2024,
arXiv:2409.00729).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import attnviz
from attnviz.attribution.ranking import spearman
from faithfulness.reactions import interval

PASSAGES, ABLATIONS = 10, 64
NAMES = (
    "Maria Kovacs", "Anton Lindqvist", "Selma Moreau", "Viktor Tanaka", "Irene Okafor",
    "Oskar Brandt", "Paula Silva", "Bruno Novak", "Helen Haddad", "Casper Ferrari",
    "Nadia Jensen", "Felix Petrov", "Judith Marlow", "Samir Costa",
)  # fmt: skip
# What is written of a person, what is asked, how the answer begins, and its values.
FACTS = {
    "job": ("{} works as a {}.", "What is the job of {}?", "{} works as a"),
    "city": ("{} lives in {}.", "Where does {} live?", "{} lives in"),
    "instrument": ("{} plays the {}.", "Which instrument does {} play?", "{} plays the"),
    "animal": ("{} has a {}.", "Which animal does {} have?", "{} has a"),
}
VALUES = {
    "job": ("baker", "lawyer", "pilot", "nurse", "farmer", "teacher", "tailor", "painter"),
    "city": ("Vienna", "Lisbon", "Oslo", "Cairo", "Madrid", "Tokyo", "Dublin", "Prague"),
    "instrument": ("violin", "piano", "flute", "guitar", "trumpet", "harp", "organ", "cello"),
    "animal": ("parrot", "horse", "goat", "rabbit", "turtle", "donkey", "hamster", "goose"),
}


@dataclass(frozen=True)
class Prompt:
    """A prompt, and which of its passages holds the fact that answers it."""

    passages: Sequence[str]
    question: str
    answer: str
    place: int

    @property
    def text(self) -> str:
        """The whole prompt."""
        return "\n\n".join([*self.passages, self.question])


def write_prompts(count: int, seed: int = 0) -> list[Prompt]:
    """Write prompts: one passage has a fact of the kind that is asked, the others have others."""
    random, prompts = Random(seed), []
    for _ in range(count):
        names, place = random.sample(NAMES, PASSAGES), random.randrange(PASSAGES)
        asked = random.choice([*FACTS])
        others = [kind for kind in FACTS if kind != asked]
        facts = [
            [(kind, random.choice(VALUES[kind])) for kind in random.sample(others, 2)]
            for _ in names
        ]
        answer = random.choice(VALUES[asked])
        facts[place][0] = asked, answer
        passages = [
            " ".join(FACTS[kind][0].format(name, value) for kind, value in told)
            for name, told in zip(names, facts, strict=True)
        ]
        question, begun = (part.format(names[place]) for part in FACTS[asked][1:])
        prompts.append(Prompt(passages, f"Question: {question}\nAnswer: {begun}", answer, place))
    return prompts


class Reader:
    """A decoder that answers prompts."""

    def __init__(self, name: str) -> None:
        self.model = attnviz.load(name)
        tokenizer = self.model.tokenizer
        assert tokenizer is not None
        self.tokenizer = tokenizer

    def log_probability(self, text: str, answer: str) -> float:
        """Return that of an answer after a text, by the model alone."""
        begins, ids = (self.tokenizer(one).input_ids for one in (text, text + answer))
        bos = self.tokenizer.bos_token_id
        before = [] if bos is None or ids[:1] == [bos] else [bos]
        read = torch.tensor([[*before, *ids]])
        with torch.no_grad():
            logits = self.model.module(input_ids=read).logits[0].double().log_softmax(-1)
        rows = range(len(before) + len(begins) - 1, read.shape[1] - 1)
        return sum(float(logits[row, read[0, row + 1]]) for row in rows)


def judge(reader: Reader, prompt: Prompt, *, ablations: int, seed: int) -> dict[str, object]:
    """Explain the answer to a prompt, and return whether it is right, the effects, and scores."""
    why = attnviz.explain(prompt.text, groups="passage", generate=3, model=reader.model)
    effects = why.effect[:PASSAGES]
    is_right = why.target.casefold().startswith(prompt.answer.casefold())
    judged: dict[str, object] = {
        "right": is_right, "place": prompt.place, "effects": effects.tolist(),
        "verdict": why.agreement.verdict,
    }  # fmt: skip
    if not (is_right and ablations):
        return judged

    def of_some(kept: Sequence[int]) -> float:
        text = "\n\n".join([*(prompt.passages[n] for n in kept), prompt.question])
        return reader.log_probability(text, f" {prompt.answer}")

    every, random = [*range(PASSAGES)], Random(seed)
    whole = of_some(every)
    alone = torch.tensor([whole - of_some([n for n in every if n != gone]) for gone in every])
    sets = [sorted(random.sample(every, PASSAGES // 2)) for _ in range(ablations)]
    truth = torch.tensor([of_some(kept) for kept in sets], dtype=torch.float64)
    for name, scores in (("knock-out", effects), ("leave-one-out", alone.double())):
        predicted = torch.stack([scores[kept].sum() for kept in sets])
        judged[f"LDS of {name}"] = spearman(predicted, truth)
    judged["leave-one-out"] = alone.tolist()
    return judged


def evaluate(
    name: str, count: int, *, scored: int, ablations: int = ABLATIONS, store: Path | None = None
) -> list[dict[str, object]]:
    """Judge prompts by one model; scored : of how many a score of ablations is computed."""
    done = []
    if store is not None and store.exists():
        done = [json.loads(line) for line in store.read_text().splitlines()]
    reader, prompts = Reader(name), write_prompts(count)
    for n, prompt in track([*enumerate(prompts)][len(done) :], f"passages in {name}"):
        done.append(judge(reader, prompt, ablations=ablations * (n < scored), seed=n))
        if store is not None:
            with store.open("a") as file:
                file.write(json.dumps(done[-1]) + "\n")
    return done[:count]


def written(numbers: Sequence[float]) -> str:
    """Return a mean and its 95 % interval over prompts as text."""
    return "{:.2f} ({:.2f} to {:.2f})".format(*interval(numbers)) if numbers else "–"


def show(judged: Sequence[dict[str, object]], name: str, console: Console) -> None:
    """Print how often the passage with the fact has the largest effect."""
    right = [one for one in judged if one["right"]]

    def first(one: dict[str, object], scores: str) -> bool:
        numbers = [-math.inf if x != x else x for x in one[scores]]  # type: ignore[attr-defined]
        return numbers.index(max(numbers)) == one["place"]

    table = Table(title=f"{len(judged)} prompts of {PASSAGES} passages, {name}")
    for column in ("", "prompts", "mean and 95 % interval over prompts"):
        table.add_column(column)
    table.add_row(
        "answered right", str(len(judged)), written([bool(one["right"]) for one in judged])
    )
    rows = {"knock-out": "effects", "leave-one-out": "leave-one-out"}
    for label, scores in rows.items():
        known = [first(one, scores) for one in right if scores in one]
        table.add_row(f"right passage first by {label}", str(len(known)), written(known))
    for label in rows:
        known = [float(x) for one in right if (x := one.get(f"LDS of {label}")) is not None]  # type: ignore[arg-type]
        table.add_row(f"LDS of {label}", str(len(known)), written(known))
    console.print(table)
