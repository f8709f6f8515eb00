"""Who says rightly which words moved a word? Methods against what interventions do.

The axis of each sentence runs from the mean of the other senses to its own, and is made without it.
What a word loses along it where another word is masked, replaced, knocked out or deleted is the
truth; there are four of these, and they agree with one another only in part.
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
from attnviz.analyses.senses.result import Occurrence, SensesResult
from attnviz.analyses.shift.interventions import ALL, Site, lose
from attnviz.analyses.shift.result import consensus, spearman
from attnviz.capture.restore import restoring
from attnviz.inputs import encode, pieces_in, token_spans
from attnviz.results.words import token_groups
from faithfulness.methods import Case, judge

RESAMPLES = 2000
FEWEST = 3  # other words in a sentence
_ENDS = torch.tensor([0.025, 0.975], dtype=torch.float64)
Sentences = Mapping[str, Mapping[str, Sequence[str]]]


@dataclass(frozen=True, eq=False)
class Judged:
    """One sentence: per source word, what every method says and what every intervention takes.

    total : what the whole context moved, the shift away from the gate along the axis.
    """

    said: Mapping[str, Tensor]
    truth: Mapping[str, Tensor]
    total: float


def read(path: Path | None) -> Sentences:
    """Return sentences by word and sense: from a list of {word, sense, sentence}, or bundled."""
    if path is None:
        from attnviz.analyses.senses.sentences import bundled

        return bundled()
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for entry in json.loads(path.read_text("utf-8")):
        found[entry["word"]][entry["sense"]].append(entry["sentence"])
    return found


def judge_all(sentences: Sentences, *, step: int = 1) -> list[Judged]:
    """Judge every occurrence (or one of `step`) that has three other words or more beside it."""
    model = attnviz.load()
    judged = []
    for word, by_sense in track(sentences.items(), "words", console=Console(stderr=True)):
        found = attnviz.senses(word, by_sense, model=model)
        for n, one in list(enumerate(found.occurrences))[::step]:
            judged.append(_judge(model, one, _axis(found, n)))
    return [each for each in judged if each is not None]


def _axis(found: SensesResult, n: int) -> Tensor:
    """Return the axis from the other senses to the own one, made without this sentence."""
    every, own = found.occurrences, found.occurrences[n]
    rest = [i for i, each in enumerate(every) if each.sentence != own.sentence]
    centres = {
        sense: found.vectors[-1][[i for i in rest if every[i].sense == sense]].mean(0)
        for sense in found.senses
    }
    others = [centre for sense, centre in centres.items() if sense != own.sense]
    axis = centres[own.sense] - torch.stack(others).mean(0)
    return (axis / axis.norm()).float()


def _judge(model: attnviz.Model, one: Occurrence, axis: Tensor) -> Judged | None:
    batch = encode(model.checkpoint, [one.sentence])
    tokens = batch.axes["text"][0]
    spans = token_spans(model.checkpoint, one.sentence)
    rows = pieces_in(spans, (one.start, one.end))
    side = token_groups(tokens)
    sources = [
        at
        for at, special in zip(side.positions, side.special, strict=True)
        if not special and not set(at) & set(rows)
    ]
    if len(sources) < FEWEST:
        return None
    case = Case(model, batch.inputs, rows, tokens.special, axis)
    found, total = judge(case)
    said = {
        name: torch.stack([each[list(at)].sum() for at in sources]) for name, each in found.items()
    }
    with restoring(model.module):
        lost = lose(model, Site.of(model.module, batch.inputs, rows), sources, ALL)
    truth = {name: each @ axis.double() for name, each in lost.items()}
    truth["consensus"] = consensus(truth, list(range(len(sources))))
    return Judged(said, truth, total)


def show(judged: Sequence[Judged], words: str, console: Console) -> None:
    """Print how every method ranks words as each intervention does, with 95 % intervals."""
    columns = [*ALL, "consensus"]
    ranks = Table("", *columns, title="rank correlation with interventions, mean over sentences")
    for name in judged[0].said:
        ranks.add_row(
            name, *(mean_said([rho(j.said[name], j.truth[t]) for j in judged]) for t in columns)
        )
    for name in ALL:
        ranks.add_row(
            name, *(mean_said([rho(j.truth[name], j.truth[t]) for j in judged]) for t in columns)
        )
    console.print(ranks)
    lost = Table(
        "", *ALL, "mean", "of the shift", title="changing the word that comes first ÷ a random word"
    )
    for name in judged[0].said:
        lost.add_row(name, *_losses([j.said[name] for j in judged], judged))
    lost.add_row("consensus itself", *_losses([j.truth["consensus"] for j in judged], judged))
    console.print(lost)
    console.print(
        f"{len(judged)} occurrences of {words}; intervals: 95 %, from a bootstrap over them.\n"
        "raw attention and norms: of the last layer, mean or sum of all heads; secant: over all "
        "paths unless direct; of the shift: what the first word takes (mean of the four), of all "
        "that the context did along the axis.",
        style="dim",
    )


def rho(a: Tensor, b: Tensor) -> float:
    """Return the rank correlation; where there is nothing to rank, that of chance."""
    return spearman(a, b) or 0.0


def _losses(said: Sequence[Tensor], judged: Sequence[Judged]) -> list[str]:
    """Return per intervention what the first word takes beside a random one, and of the shift."""
    top, usual = first_and_random(said, judged)
    ratios = [_ratio(a, b) for a, b in zip(top.T, usual.T, strict=True)]
    share = top.mean(1).sum() / sum(j.total for j in judged)
    return [*ratios, _ratio(top.mean(1), usual.mean(1)), f"{share:.0%}"]


def first_and_random(said: Sequence[Tensor], judged: Sequence[Judged]) -> tuple[Tensor, Tensor]:
    """Return what changing the word named first takes, and a random one: (sentences, ways)."""
    effects = [torch.stack([j.truth[name] for name in ALL]) for j in judged]
    top = [each[:, of.argmax()] for each, of in zip(effects, said, strict=True)]
    return torch.stack(top), torch.stack([each.mean(1) for each in effects])


def mean_said(values: Sequence[float]) -> str:
    """Return the mean with its interval."""
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
