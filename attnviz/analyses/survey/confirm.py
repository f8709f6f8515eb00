"""Whether heads with a role do what its name claims: ablate them, and random ones beside them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnviz.analyses.shift.compute import tracing
from attnviz.analyses.survey.probes import Probe, ProbeText
from attnviz.analyses.survey.result import Confirmation, HeadName
from attnviz.attribution.heads import Head, HeadRun, mean_of_outputs, outputs_of, run_without
from attnviz.attribution.readout import Readout
from attnviz.attribution.reference import is_causal, read
from attnviz.attribution.target import Target
from attnviz.capture import restoring
from attnviz.errors import ModelError
from attnviz.pipeline.attend import Model
from attnviz.results import AnalysisCheck
from attnviz.runtime.progress import part

RANDOM_SETS = 20
_TEXTS = 20  # of a probe
_NATS = 0.01  # by which log-probabilities of the model as loaded may differ


@dataclass(frozen=True, eq=False)
class _Answers(Readout):
    """The log-probability of each answer, and whether it is the first choice, (N, 2R)."""

    tokens: tuple[int, ...]  # the answers, one for each row

    def __call__(self, output: Tensor) -> Tensor:
        logits = output[:, list(self.rows)].float()
        tokens = torch.tensor(self.tokens, device=logits.device).expand(len(logits), -1)
        chosen = logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
        return torch.cat([chosen, (logits.argmax(-1) == tokens).to(chosen)], dim=1)


def confirm(
    model: Model,
    probes: Sequence[Probe],
    texts: Sequence[ProbeText],
    heads: Sequence[HeadName],
    roles: Sequence[str],
    *,
    seed: int = 0,
) -> tuple[tuple[Confirmation, ...], AnalysisCheck | None]:
    """Ablate the heads that have the role of each probe, and random sets of heads beside them.

    A random set has as many heads in each layer. A role is confirmed if the answers of the probe
    lose more log-probability without the named heads than without any of twenty random sets. Heads
    get their mean output over all texts; those that rest on the first token only lose their
    attention to it. Also compares the answers' numbers with those of the model as loaded.

    heads, roles : of the survey.
    """
    reason = _why_not(model)
    confirmed, check = [], None
    sites = [] if reason else [_find_answers(model, text) for text in texts[:_TEXTS]]
    for number, probe in enumerate(probes):
        named = [(head.layer, head.head) for head, role in zip(heads, roles, strict=True)
                 if role == probe.role]  # fmt: skip
        result = Confirmation(role=probe.role, behavior=probe.behavior, heads=tuple(named))
        missing = "" if named else "no head has the role"
        if named and not reason:
            counts = Counter(head.layer for head in heads)
            sets = [named, *_random_sets(named, counts, random.Random(seed))]
            with part(number, len(probes), f"ablating “{probe.role}” heads"):
                result, check = _measure(model, probe, texts, sites, sets, result)
        confirmed.append(replace(result, reason=reason or missing))
    return tuple(confirmed), check


def _why_not(model: Model) -> str:
    """Return why a model cannot show the behavior of a probe, or ""."""
    embeddings = getattr(model.module, "get_output_embeddings", lambda: None)()
    if embeddings is None:
        return "the model predicts no tokens"
    inputs = read(model, "a text of some words").inputs
    return "" if is_causal(model, inputs) else "the model does not predict next tokens"


def _random_sets(
    named: Sequence[Head], heads: Counter[int], rng: random.Random
) -> list[list[Head]]:
    """Return sets of as many heads in each layer as are named, others where there are enough.

    heads : the number of heads of each layer.
    """
    sets = []
    for _ in range(RANDOM_SETS):
        drawn: list[Head] = []
        for layer, count in Counter(layer for layer, _ in named).items():
            others = [head for head in range(heads[layer]) if (layer, head) not in named]
            pool = others if len(others) >= count else list(range(heads[layer]))
            drawn += [(layer, head) for head in rng.sample(pool, count)]
        sets.append(drawn)
    return sets


def _measure(
    model: Model,
    probe: Probe,
    texts: Sequence[ProbeText],
    sites: Sequence[Target],
    sets: Sequence[Sequence[Head]],
    result: Confirmation,
) -> tuple[Confirmation, AnalysisCheck]:
    """Return the answers' log-probability and accuracy before, and without each set of heads."""
    before, after = [], []
    with tracing(model):
        outputs = [outputs_of(site, text.text) for site, text in zip(sites, texts, strict=False)]
        for number, site in enumerate(sites):
            run = HeadRun.of(site)
            first = min(run.rows)
            with part(number, len(sites)):
                after.append(
                    run_without(
                        site,
                        run,
                        sets,
                        mean_of_outputs(outputs, first, like=run.outputs),
                        measure=_means,
                        hidden=(0,) if probe.hides_sink else (),
                    )
                )
            before.append(_means(run.numbers.detach()))
    with restoring(model.module, None, seed=2):
        loaded = [_means(site.readout.run(site.inputs)) for site in sites]
    errors = (torch.cat(before) - torch.cat(loaded))[:, 0].abs()
    check = AnalysisCheck("log-probabilities of answers", errors.max().item(), _NATS)
    whole, without = torch.stack(before).mean(0)[0], torch.stack(after).mean(0)
    confirmation = replace(
        result,
        log_probability=float(whole[0]),
        accuracy=float(whole[1]),
        log_probability_without=float(without[0, 0]),
        accuracy_without=float(without[0, 1]),
        random_log_probabilities=tuple(without[1:, 0].tolist()),
        random_accuracies=tuple(without[1:, 1].tolist()),
    )
    return confirmation, check


def _means(numbers: Tensor) -> Tensor:
    """Return the mean log-probability and the accuracy over the answers, (N, 2)."""
    return numbers.double().reshape(len(numbers), 2, -1).mean(-1).cpu()


def _find_answers(model: Model, text: ProbeText) -> Target:
    """Read a text, and where its answers are predicted."""
    reading = read(model, text.text)
    ids = reading.inputs["input_ids"][0].tolist()
    first = len(ids) - text.answers
    if first < 1:
        raise ModelError(
            f"{model.name} reads a text of the probe in too few tokens. Give a corpus."
        )
    rows = tuple(range(first - 1, len(ids) - 1))
    readout = _Answers(model.module, rows, tuple(ids[first:]))
    return Target(model, reading.inputs, reading.special, readout, reading.sink)
