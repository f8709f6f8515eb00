"""Compare attribution methods with interventions in a decoder: next tokens, and shifts of vectors.

A next token is explained by the difference of its logit to that of a competitor, a shift along its
own direction. The truth is what the number loses when a word is knocked out, replaced by common
words or deleted, and the mean of the three effects in units of their deviations (consensus). All
runs have a BOS token before the text. The last word is not ranked, because the number is read
there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import attnviz
from attnviz.analyses.explain.compute import find_prediction
from attnviz.attribution.decomposition import decompose
from attnviz.attribution.interventions import common_words, intervene
from attnviz.attribution.methods import METHODS, Method, attempt
from attnviz.attribution.ranking import consensus, spearman, sum_pieces
from attnviz.attribution.reference import Reading, gate_of, make_reference, read
from attnviz.attribution.target import Readout, Score, Target
from attnviz.capture.watch import restoring
from faithfulness.peers import installed

DATA = Path(__file__).parents[2] / "tests" / "data"
PROMPTS = DATA / "next_token_prompts.json"
SENTENCES = DATA / "decoder_shift_sentences.json"
TRUTHS = ("knock-out", "replace", "delete")
DEFAULT = "split"
FEWEST = 3  # words that can be ranked


@dataclass(frozen=True, eq=False)
class Judged:
    """One text: attributions, effects of interventions, and times in forward passes.

    attributions : by method, (words,). effects : by intervention and their consensus, (words,).
    forwards : by method and for the truth. error : the completeness error of the split.
    """

    attributions: Mapping[str, Tensor]
    effects: Mapping[str, Tensor]
    forwards: Mapping[str, float]
    error: float
    notes: Sequence[str] = ()

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> Judged:
        """Return a text that `to_json` wrote."""
        scores = {
            field: {
                name: torch.tensor(numbers, dtype=torch.float64)
                for name, numbers in stored[field].items()
            }
            for field in ("attributions", "effects")
        }
        return cls(**{**stored, **scores})

    def to_json(self) -> dict[str, Any]:
        """Return its fields, with lists in place of tensors."""
        scores = {
            field: {name: scores.tolist() for name, scores in getattr(self, field).items()}
            for field in ("attributions", "effects")
        }
        return {**vars(self), **scores}


def next_token(
    model: attnviz.Model, entry: Mapping[str, str], methods: Mapping[str, Method]
) -> Judged | None:
    """Evaluate methods on a prompt with its target and its competitor."""
    site, choices = find_prediction(
        read(model, entry["prompt"]), model, entry["target"], entry["against"]
    )
    return judge(model, choices.reading, site.readout, torch.ones(1), methods)


def shifted(model: attnviz.Model, sentence: str, methods: Mapping[str, Method]) -> Judged | None:
    """Evaluate methods on the shift of the last word of a sentence, along its direction."""
    reading = read(model, sentence)
    rows = _words(reading)[-1]
    return judge(model, reading, Readout.word(model.module, rows), None, methods)


def judge(
    model: attnviz.Model,
    reading: Reading,
    readout: Readout,
    direction: Tensor | None,
    methods: Mapping[str, Method],
) -> Judged | None:
    """Return what methods and the interventions say about a text; None with too few words."""
    sources = _words(reading)[:-1]
    if len(sources) < FEWEST:
        return None
    target = reading.target(model, readout)
    gate = gate_of(target.special, sink=reading.sink)
    with restoring(model.module):
        pair = make_reference(target, "gate", reading).inputs
        split = decompose(readout, pair, direction=direction, gate=gate)
        score = Score(**vars(target), direction=split.direction, result=reading.result, gate=gate)
        run_whole(target)
        forward, _ = _time(lambda: run_whole(target), 3)
        attributions, forwards, notes = {}, {}, []
        with tokens_read(readout.module) as tokens:
            for name, method in methods.items():
                alone = replace(score, computed={})
                took, (scores, reason) = _time(partial(_attribute, method, alone))
                if scores is None:
                    notes.append(f"{name} is left out: {reason}")
                else:
                    attributions[name] = sum_pieces(scores, sources)
                    forwards[name] = took / forward
        draws = common_words(model)
        expect_separate(tokens - set(target.ids[0].tolist()), draws)
        took, changes = _time(lambda: intervene(target, sources, TRUTHS))
    forwards["truth"] = took / forward
    axis = split.direction.double()
    effects = {name: change.mean(1) @ axis for name, change in changes.items()}
    effects["consensus"] = consensus(effects, list(range(len(sources))))
    return Judged(attributions, effects, forwards, split.credit_error, notes)


def _attribute(method: Method, score: Score) -> tuple[Tensor | None, str]:
    """Return the attribution of a method, (T,), or None and the reason."""
    scores, reason = attempt(lambda: method(score).detach().double().cpu())
    if scores is not None and not scores.isfinite().all():
        return None, "it is nan or infinite"
    return scores, reason


@contextmanager
def tokens_read(module: nn.Module) -> Iterator[set[int]]:
    """Collect the ids of all tokens that the model embeds."""
    tokens: set[int] = set()

    def collect(_: nn.Module, args: Any) -> None:
        tokens.update(args[0].unique().tolist())

    embedding = module.get_input_embeddings()  # type: ignore[operator]
    hook = embedding.register_forward_pre_hook(collect)
    try:
        yield tokens
    finally:
        hook.remove()


def expect_separate(foreign: set[int], draws: Sequence[int]) -> None:
    """Raise ValueError if a method read a word that the truth also puts into the text."""
    if shared := sorted(foreign & set(draws)):
        raise ValueError(f"A method and the truth share the replacements {shared}.")


@torch.no_grad()
def run_whole(target: Target) -> None:
    """Run the model on the text, as anyone would: the unit of time."""
    target.readout.module(**target.inputs)


def _words(reading: Reading) -> list[tuple[int, ...]]:
    """Return the positions of the pieces of each ordinary word."""
    groups = reading.groups
    return [
        tuple(rows)
        for rows, special in zip(groups.positions, groups.special, strict=True)
        if not special
    ]


def _time(run: Callable[[], Any], rounds: int = 1) -> tuple[float, Any]:
    """Return the processor seconds that a function takes, and what it returns."""
    start = process_time()
    for _ in range(rounds):
        value = run()
    return (process_time() - start) / rounds, value


def evaluate(
    task: str,
    path: Path | None = None,
    *,
    step: int = 1,
    peers: bool = False,
    store: Path | None = None,
) -> list[Judged]:
    """Evaluate every `step`-th text of a task, "next-token" or "shift", on SmolLM2.

    path : other texts than the frozen ones. peers : whether to run the methods of other tools too.
    store : a file of JSON lines, to which each text is added at once. Texts that it has are read
        from there, so that an interrupted run goes on.
    """
    model = attnviz.load("smollm2")
    methods = {**METHODS, **(installed() if peers else {})}
    if task == "next-token":
        texts, run = json.loads((path or PROMPTS).read_text("utf-8"))["prompts"], next_token
    else:
        texts, run = json.loads((path or SENTENCES).read_text("utf-8"))["sentences"], shifted
    stored = {} if store is None else read_stored(store)
    for text in track(texts[::step], task, console=Console(stderr=True)):
        key = json.dumps(text)
        if key not in stored:
            stored[key] = run(model, text, methods)
            if store is not None:
                add_stored(store, key, stored[key])
    judged = [stored[json.dumps(text)] for text in texts[::step]]
    return [text for text in judged if text is not None]


def read_stored(store: Path) -> dict[str, Judged | None]:
    """Return the evaluated texts in a file of JSON lines, by the JSON of each text."""
    lines = store.read_text("utf-8").splitlines() if store.exists() else []
    return {
        key: None if judged is None else Judged.of_json(judged)
        for key, judged in map(json.loads, lines)
    }


def add_stored(store: Path, key: str, judged: Judged | None) -> None:
    """Add an evaluated text to a file of JSON lines."""
    with store.open("a", encoding="utf-8") as file:
        file.write(json.dumps([key, None if judged is None else judged.to_json()]) + "\n")


def correlations(judged: Sequence[Judged], method: str, truth: str = "consensus") -> list[float]:
    """Return Spearman's ρ of a method, or an intervention, with a truth for each text."""
    return [
        spearman({**text.effects, **text.attributions}[method], text.effects[truth]) or 0.0
        for text in judged
    ]


def top_agreement(judged: Sequence[Judged], method: str) -> float:
    """Return the share of texts in which a method ranks the same word first as the consensus."""
    hits = [
        bool(text.attributions[method].argmax() == text.effects["consensus"].argmax())
        for text in judged
    ]
    return sum(hits) / len(hits)


def show_decoder(judged: Sequence[Judged], title: str, console: Console) -> None:
    """Print the agreement of each method with the interventions, and its time."""
    from faithfulness import mean_interval

    columns = ("consensus", *TRUTHS)
    table = Table("", *columns, "top-1", "forwards", title=title)
    names = [
        name for name in judged[0].attributions if all(name in text.attributions for text in judged)
    ]
    names.sort(key=lambda name: -sum(correlations(judged, name)))
    for name in names:
        rhos = [mean_interval(correlations(judged, name, truth)) for truth in columns[:1]]
        rhos += [f"{sum(correlations(judged, name, t)) / len(judged):.2f}" for t in TRUTHS]
        times = sorted(text.forwards[name] for text in judged)
        table.add_row(
            name, *rhos, f"{top_agreement(judged, name):.2f}", f"{times[len(times) // 2]:.1f}"
        )
    console.print(table)
    left_out = sorted({note for text in judged for note in text.notes})
    truth = sorted(text.forwards["truth"] for text in judged)
    console.print(
        f"{len(judged)} texts; ρ: mean, 95 % intervals from a bootstrap over texts; truth: "
        f"{truth[len(truth) // 2]:.1f} forwards; completeness error of {DEFAULT}: at most "
        f"{max(text.error for text in judged):.0e}." + "".join(f"\n{note}" for note in left_out),
        style="dim",
    )
