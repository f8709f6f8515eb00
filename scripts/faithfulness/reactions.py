"""Compare attribution methods with the centers of reactions, in a classifier of reactions.

The truth lies outside the model: a template says which bonds of a reaction are broken and formed
(`scripts/reaction_centers.py`). A score ranks the atoms of both sides, and its AUC is the share of
pairs of an atom of the center and another one that it orders right. Every second reaction of a
class is for development, where the best method is chosen; the others are held out. Methods that
read the recorded weights are computed for each reaction, all others for the first ones of a class.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.stats import rankdata
from torch import Tensor

import attnviz
from attnviz.analyses.explain import compute
from attnviz.analyses.explain.compute import explain_prediction, find_prediction
from attnviz.attribution.methods import METHODS, compute_methods
from attnviz.attribution.ranking import sum_pieces
from attnviz.attribution.reference import gate_of, read
from attnviz.attribution.target import Score
from attnviz.attribution.tracing import tracing
from faithfulness import RESAMPLES
from faithfulness.peers import installed

FILE = Path(__file__).parents[2] / "tests" / "data" / "reaction_centers.json"
MODEL = "rxnfp"
FAST = ("attention-value-norm", "late-rollout", "raw-attention", "rollout")
WHOLE = 4  # reactions of a class for which all methods are computed; in the held-out ones of these,
# atoms are also changed


@dataclass(frozen=True)
class Scored:
    """One reaction: the AUC of every score, by name, and what the model says it is."""

    reaction: str
    number: str  # of the class
    predicted: str
    probability: float
    aucs: Mapping[str, float]


def auc(scores: Tensor | np.ndarray, center: Sequence[bool]) -> float:
    """Return the share of pairs of an atom of the center and another one in the right order."""
    ranks, inside = rankdata(scores), np.asarray(center, dtype=bool)
    count, others = int(inside.sum()), int((~inside).sum())
    return float((ranks[inside].sum() - count * (count + 1) / 2) / (count * others))


def atoms_of(tokens: Sequence[str]) -> list[int]:
    """Return the places of the atoms among the tokens of a reaction."""
    special = ("[CLS]", "[SEP]", "[PAD]")
    return [n for n, one in enumerate(tokens) if one not in special and any(map(str.isalpha, one))]


def scores_of(why: attnviz.ExplainResult) -> Iterator[tuple[str, Tensor]]:
    """Yield what each method and each intervention gives to the words of an explanation."""
    yield from why.methods.items()
    yield "split", why.credit
    if why.causal:
        yield from ((f"measured: {name}", effect) for name, effect in why.causal.items())
        yield "measured: consensus", why.consensus


def score(
    model: attnviz.Model, entry: Mapping[str, Any], number: int, *, peers: bool = False
) -> Scored:
    """Explain the class of a reaction as `explain`, and score how each method ranks its atoms.

    number : of the reaction in its class. peers : whether to run the methods of other tools too.
    """
    reaction, center = entry["reaction"], set(entry["center"])
    site, choices = find_prediction(read(model, reaction), model)
    predicted, result = choices.top(1)[0], choices.reading.result
    gate = gate_of(site.special)
    target = Score(**vars(site), direction=torch.ones(1), result=result, gate=gate)
    if number < WHOLE:
        held_out = bool(number % 2)
        with mock.patch.object(compute, "FEW", math.inf):  # each atom is changed in every way
            why = explain_prediction(site, choices, methods=list(METHODS), measure=held_out)
        tokens, scores = why.words, dict(scores_of(why))
        for name, method in installed().items() if peers else ():
            with tracing(model):
                scores[name] = sum_pieces(method(target), why.positions)
    else:
        tokens, (scores, _) = choices.reading.tokens.labels, compute_methods(FAST, target)
    places = atoms_of(tokens)
    inside = [place in center for place in range(len(places))]
    if center - {*range(len(places))}:
        raise AssertionError(f"{reaction} has {len(places)} atoms, but its center is {center}.")
    aucs = {name: auc(torch.nan_to_num(of[places]), inside) for name, of in scores.items()}
    probability = float(choices.probabilities[predicted])
    return Scored(reaction, entry["class"], choices.label(predicted), probability, aucs)


def evaluate(
    path: Path | None = None, *, step: int = 1, peers: bool = False, store: Path | None = None
) -> list[Scored]:
    """Score every `step`-th pair of reactions of each class of a file like `FILE`.

    peers : whether to run the methods of other tools too. store : a file of JSON lines, to which
    each reaction is added at once. An interrupted run goes on from there.
    """
    by_class = defaultdict(list)
    for entry in json.loads((path or FILE).read_text("utf-8"))["reactions"]:
        by_class[entry["class"]].append(entry)
    # One of each class after the other, so that an interrupted run has some of each.
    order = [
        (number, of_class[number])
        for number in range(max(map(len, by_class.values())))
        for of_class in by_class.values()
        if number < len(of_class) and number // 2 % step == 0  # one for each half
    ]
    lines = store.read_text("utf-8").splitlines() if store is not None and store.exists() else []
    stored = {one["reaction"]: Scored(**one) for one in map(json.loads, lines)}
    model = attnviz.load(MODEL)
    for number, entry in track(order, "reactions", console=Console(stderr=True)):
        if entry["reaction"] not in stored:
            stored[entry["reaction"]] = scored = score(model, entry, number, peers=peers)
            if store is not None:
                with store.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(scored)) + "\n")
    return [stored[entry["reaction"]] for _, entry in order]


def halves(scored: Sequence[Scored]) -> tuple[list[Scored], list[Scored]]:
    """Return every second reaction of each class, from the first on, and the others."""
    by_class = defaultdict(list)
    for one in scored:
        by_class[one.number].append(one)
    return (
        [one for of_class in by_class.values() for one in of_class[::2]],
        [one for of_class in by_class.values() for one in of_class[1::2]],
    )


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return a mean, and its 95 % interval from a bootstrap over reactions."""
    numbers = np.asarray(values)
    draws = np.random.default_rng(0).integers(len(numbers), size=(RESAMPLES, len(numbers)))
    low, high = np.quantile(numbers[draws].mean(1), [0.025, 0.975])
    return float(numbers.mean()), float(low), float(high)


def best(scored: Sequence[Scored]) -> str:
    """Return the method of explain with the largest mean AUC where all methods are computed."""
    offered = (*METHODS, "split")
    whole = [one.aucs for one in scored if all(name in one.aucs for name in offered)]
    return max(offered, key=lambda name: np.mean([aucs[name] for aucs in whole]))


def show(scored: Sequence[Scored], console: Console) -> None:
    """Print the AUC of each method on the held-out half, and of the one that was chosen."""
    development, held_out = halves(scored)
    names = {name for one in held_out for name in one.aucs}
    means = {
        name: interval([one.aucs[name] for one in held_out if name in one.aucs]) for name in names
    }
    table = Table("", "AUC, held out", "development", "reactions", title="centers of reactions")
    for name in sorted(names, key=lambda name: -means[name][0]):
        mean, low, high = means[name]
        first = [one.aucs[name] for one in development if name in one.aucs]
        count = sum(name in one.aucs for one in held_out)
        before = f"{np.mean(first):.3f}" if first else "–"
        table.add_row(name, f"{mean:.3f} ({low:.3f} – {high:.3f})", before, f"{count}")
    console.print(table)
    chosen = best(development)
    by_class = defaultdict(list)
    for one in held_out:
        by_class[one.number].append(one.aucs[chosen])
    console.print(
        f"best method of explain on the development half: {chosen}. On the held-out half by class: "
        + ", ".join(f"{number} {np.mean(values):.2f}" for number, values in by_class.items())
        + f".\n{len(scored)} reactions, the half of them held out; intervals: 95 %, from a "
        f"bootstrap over reactions. Mean probability of the class: "
        f"{np.mean([one.probability for one in scored]):.4f}.",
        style="dim",
    )
