"""Compare attribution methods with interventions that change the words of a sentence.

The axis of each sentence points from the mean of the other senses to its own sense, and is computed
without that sentence. The ground truth is the shift along the axis that the word loses when another
word is masked, replaced, knocked out or deleted. The four interventions agree with each other only
partly.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

import attnviz
from attnviz.analyses.senses import read_sentences
from attnviz.analyses.senses.compute import word_pieces
from attnviz.attribution.interventions import ALL, intervene
from attnviz.attribution.ranking import consensus, spearman
from attnviz.attribution.reference import gate_of
from attnviz.attribution.target import Readout, Score
from attnviz.capture.capture import hidden_states
from attnviz.capture.watch import restoring
from attnviz.inputs import encode
from attnviz.results.axis import token_groups
from faithfulness.methods import compute_all

RESAMPLES = 2000
FEWEST = 3  # minimum number of other words in a sentence
_ENDS = torch.tensor([0.025, 0.975], dtype=torch.float64)
Sentences = Mapping[str, Mapping[str, Sequence[str]]]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One sentence: attributions and intervention effects for each source word.

    attributions : by method, (words,).
    effects : by intervention, (words,), and their consensus.
    total : how far the whole context moved the word along the axis.
    """

    attributions: Mapping[str, Tensor]
    effects: Mapping[str, Tensor]
    total: float


def read(path: Path | None) -> Sentences:
    """Return sentences by word and sense, from a JSON list or from the sentences in the package."""
    if path is None:
        from attnviz.analyses.senses import bundled

        return bundled()
    sentences: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for entry in json.loads(path.read_text("utf-8")):
        sentences[entry["word"]][entry["sense"]].append(entry["sentence"])
    return sentences


def evaluate_all(sentences: Sentences, *, step: int = 1) -> list[Evaluation]:
    """Evaluate every `step`-th occurrence in a sentence with at least three other words."""
    model = attnviz.load()
    evaluations = []
    for word, by_sense in track(sentences.items(), "words", console=Console(stderr=True)):
        occurrences = _occurrences(model, word, by_sense)
        for number, occurrence in list(enumerate(occurrences))[::step]:
            evaluations.append(_evaluate(model, occurrence, _axis(occurrences, number)))
    return [sentence for sentence in evaluations if sentence is not None]


@dataclass(frozen=True, eq=False)
class _Occurrence:
    """One occurrence of a word: its sentence and sense, its pieces, and its mean output."""

    sentence: str
    sense: str
    rows: Sequence[int]
    vector: Tensor


def _occurrences(
    model: attnviz.Model, word: str, by_sense: Mapping[str, Sequence[str]]
) -> list[_Occurrence]:
    read = read_sentences(word, by_sense)
    batch = encode(model.checkpoint, [sentence.text for sentence in read])
    outputs = hidden_states(model.module, batch.inputs)[-1].double().cpu()
    return [
        _Occurrence(sentence.text, sentence.sense, rows, output[list(rows)].mean(0))
        for sentence, output in zip(read, outputs, strict=True)
        for rows in word_pieces(model, sentence)
    ]


def _axis(occurrences: Sequence[_Occurrence], number: int) -> Tensor:
    """Return the axis from the other senses to that of an occurrence, without its sentence."""
    target = occurrences[number]
    vectors = defaultdict(list)
    for other in occurrences:
        if other.sentence != target.sentence:
            vectors[other.sense].append(other.vector)
    centers = {sense: torch.stack(of_sense).mean(0) for sense, of_sense in vectors.items()}
    own = centers.pop(target.sense)
    axis = own - torch.stack([*centers.values()]).mean(0)
    return (axis / axis.norm()).float()


def _evaluate(model: attnviz.Model, occurrence: _Occurrence, axis: Tensor) -> Evaluation | None:
    batch = encode(model.checkpoint, [occurrence.sentence])
    tokens = batch.axes["text"][0]
    rows, groups = occurrence.rows, token_groups(tokens)
    sources = [
        positions
        for positions, special in zip(groups.positions, groups.special, strict=True)
        if not special and not set(positions) & set(rows)
    ]
    if len(sources) < FEWEST:
        return None
    result = model.attend(occurrence.sentence, mode="full")
    target = Score(
        model=model,
        inputs=batch.inputs,
        special=tokens.special,
        readout=Readout.word(model.module, rows),
        direction=axis,
        result=result,
        gate=gate_of(tokens.special),
    )
    by_token, total = compute_all(target)
    attributions = {
        name: torch.stack([attribution[list(positions)].sum() for positions in sources])
        for name, attribution in by_token.items()
    }
    with restoring(model.module):
        changes = intervene(target, sources, ALL)
    effects = {name: change.mean(1) @ axis.double() for name, change in changes.items()}
    effects["consensus"] = consensus(effects, list(range(len(sources))))
    return Evaluation(attributions, effects, total)


def show(evaluations: Sequence[Evaluation], words: str, console: Console) -> None:
    """Print the rank correlations of methods and interventions, with 95% intervals."""
    columns = [*ALL, "consensus"]
    ranks = Table("", *columns, title="rank correlation with interventions, mean over sentences")
    for name in evaluations[0].attributions:
        ranks.add_row(
            name,
            *(
                mean_interval(
                    [
                        rho(evaluation.attributions[name], evaluation.effects[t])
                        for evaluation in evaluations
                    ]
                )
                for t in columns
            ),
        )
    for name in ALL:
        ranks.add_row(
            name,
            *(
                mean_interval(
                    [
                        rho(evaluation.effects[name], evaluation.effects[t])
                        for evaluation in evaluations
                    ]
                )
                for t in columns
            ),
        )
    console.print(ranks)
    lost = Table(
        "", *ALL, "mean", "of the shift", title="effect of the top-ranked word ÷ a random word"
    )
    for name in evaluations[0].attributions:
        lost.add_row(
            name,
            *_losses([evaluation.attributions[name] for evaluation in evaluations], evaluations),
        )
    lost.add_row(
        "consensus itself",
        *_losses([evaluation.effects["consensus"] for evaluation in evaluations], evaluations),
    )
    console.print(lost)
    console.print(
        f"{len(evaluations)} occurrences of {words}; intervals: 95 %, from a bootstrap over them.\n"
        "raw attention and norms: last layer, mean or sum of all heads; split: over all paths "
        "unless direct; of the shift: the effect of changing the top word (mean of the four) as a "
        "share of the whole shift along the axis.",
        style="dim",
    )


def rho(a: Tensor, b: Tensor) -> float:
    """Return Spearman's ρ, or 0 if there is nothing to rank."""
    return spearman(a, b) or 0.0


def _losses(attributions: Sequence[Tensor], evaluations: Sequence[Evaluation]) -> list[str]:
    """Return the effect of the top word over a random one, per intervention; then the shares."""
    top, usual = first_and_random(attributions, evaluations)
    ratios = [_ratio(a, b) for a, b in zip(top.T, usual.T, strict=True)]
    share = top.mean(1).sum() / sum(evaluation.total for evaluation in evaluations)
    return [*ratios, _ratio(top.mean(1), usual.mean(1)), f"{share:.0%}"]


def first_and_random(
    attributions: Sequence[Tensor], evaluations: Sequence[Evaluation]
) -> tuple[Tensor, Tensor]:
    """Return the effects of the top-ranked word and of a random word, (sentences, 4) each."""
    effects = [
        torch.stack([evaluation.effects[name] for name in ALL]) for evaluation in evaluations
    ]
    top = [effect[:, ranks.argmax()] for effect, ranks in zip(effects, attributions, strict=True)]
    return torch.stack(top), torch.stack([effect.mean(1) for effect in effects])


def mean_interval(values: Sequence[float]) -> str:
    """Return the mean with its 95% interval."""
    known = torch.tensor(values, dtype=torch.float64)
    low, high = known[_draws(len(known))].mean(1).quantile(_ENDS).tolist()
    return f"{known.mean():.2f}  ({low:.2f} – {high:.2f})".replace("-0.00", "0.00")


def _ratio(top: Tensor, usual: Tensor) -> str:
    draws = _draws(len(top))
    ratios = top[draws].sum(1) / usual[draws].sum(1)
    low, high = ratios.quantile(_ENDS).tolist()
    return f"{top.sum() / usual.sum():.1f}  ({low:.1f} – {high:.1f})"


def _draws(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(count, (RESAMPLES, count), generator=generator)
