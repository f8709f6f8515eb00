"""Whether heads with a role do what its name claims: ablate them, and random ones beside them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import torch

from attnviz.analyses.survey.corpus import TextCorpus, TokenizedText
from attnviz.analyses.survey.probes import Probe, ProbeText, predicts_next
from attnviz.analyses.survey.result import Confirmation, HeadName
from attnviz.attribution.heads import Head, measure_without
from attnviz.attribution.interventions import token_of
from attnviz.attribution.methods import attempt
from attnviz.attribution.prediction import NextTokens
from attnviz.attribution.reference import read
from attnviz.attribution.target import Target, unembedding_of
from attnviz.attribution.tracing import tracing
from attnviz.capture.watch import restoring
from attnviz.errors import ModelError
from attnviz.pipeline.attend import Model
from attnviz.results import AnalysisCheck
from attnviz.runtime.progress import part


@dataclass(frozen=True)
class Answers:
    """The answers in the tokens of a text.

    rows : where they are predicted. tokens : their ids. wrong : the ids of wrong answers.
    holds : for each token the number of the answer that it is elsewhere in the text, from 1; -1 for
    a wrong answer, or 0.
    """

    rows: tuple[int, ...]
    tokens: tuple[int, ...]
    wrong: tuple[int, ...]
    holds: tuple[int, ...]

    @classmethod
    def find(
        cls, model: Model, text: ProbeText, ids: Sequence[int], special: Sequence[int]
    ) -> Answers:
        """Find them; raise ModelError if the model reads the text in other tokens."""
        end = max(row for row, is_special in enumerate(special) if not is_special) + 1
        mask = getattr(model.tokenizer, "mask_token_id", None)
        masks = [row for row, token in enumerate(ids) if token == mask]
        places = masks or list(range(end - text.answers, end))
        rows = places if masks else [place - 1 for place in places]
        tokens = [token_of(model, word) for word in text.copied]
        wrong = [token_of(model, word) for word in text.wrong]
        elsewhere = [0 if row in places else token for row, token in enumerate(ids)]
        if (
            len(places) != text.answers
            or min(rows) < 0
            or (tokens and not masks and tokens != [ids[place] for place in places])
            or not {*tokens, *wrong} <= {*elsewhere}
        ):
            raise ModelError(
                f"{model.name} reads a text of the probe in other tokens. Give a corpus."
            )
        number = {token: n for n, token in enumerate(tokens, start=1)} | dict.fromkeys(wrong, -1)
        holds = [0 if row in places else number.get(token, 0) for row, token in enumerate(ids)]
        tokens = tokens or [ids[place] for place in places]
        return cls(tuple(rows), tuple(tokens), tuple(wrong), tuple(holds))


@dataclass(eq=False, kw_only=True)
class ProbeCorpus(TextCorpus):
    """The texts of probes, with what each token asks for and what it holds, as in `Positions`."""

    probe_texts: Sequence[ProbeText]

    def __iter__(self) -> Iterator[TokenizedText]:
        for text in super().__iter__():
            probe_text, encoding = self.probe_texts[text.number], text.encoding
            if not probe_text.copied:
                yield text
                continue
            ids, special = encoding["input_ids"], encoding["special_tokens_mask"]
            answers = Answers.find(self.model, probe_text, ids, special)
            asks = [0] * len(ids)
            for number, row in enumerate(answers.rows, start=1):
                asks[row] = number
            more: Mapping[str, Sequence[int]] = {"asks": asks, "holds": answers.holds}
            yield replace(text, encoding={**encoding, **more})


RANDOM_SETS = 20
_TEXTS = 20  # of a probe
_LEAST = 0.1  # the share of answers beyond chance that a model has to give to show the behavior
_TRIES = 1000  # draws of random sets, of which some may be alike
_NATS = 0.01  # by which log-probabilities of the model as loaded may differ


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

    A random set has as many heads in each layer and none that is named. A role is confirmed if the
    answers of the probe lose log-probability without the named heads, and more than without any of
    twenty random sets, and if the model gives one of ten answers or more, beyond chance where it
    has a choice. Heads get their mean output over all texts; those that rest on the first token
    only lose their attention to it. Also compares the answers' numbers with those of the model as
    loaded.

    heads, roles : of the survey.
    """
    reason = ""
    if unembedding_of(model.module) is None:
        reason = "the model predicts no tokens"
    elif not texts[0].copied and not predicts_next(model):  # the answers of others may be masks
        reason = "the model does not predict next tokens"
    confirmed, checks = [], []
    answers = cache(partial(_find_answers, model, texts[:_TEXTS]))  # the same for all probes
    for number, probe in enumerate(probes):
        with_roles = zip(heads, roles, strict=True)
        named = [(head.layer, head.head) for head, role in with_roles if role == probe.role]
        counts = Counter(head.layer for head in heads)
        ablated, sets = _draw_sets(named, counts, random.Random(seed))
        result = Confirmation(probe.role, probe.behavior, tuple(named), ablated=tuple(ablated))
        if reason or not named or len(sets) < RANDOM_SETS:
            few = "too few other heads to compare with" if named else "no head has the role"
            confirmed.append(replace(result, reason=reason or few))
            continue
        with part(number, len(probes), f"ablating “{probe.role}” heads"):
            measure = partial(_measure, model, probe, answers, [ablated, *sets], result)
            measured, failure = attempt(measure)
        done, check = measured or (replace(result, reason=failure), None)
        confirmed.append(done)
        checks += [] if check is None else [check]
    return tuple(confirmed), max(checks, key=lambda check: check.difference, default=None)


def _draw_sets(
    named: Sequence[Head], heads: Counter[int], rng: random.Random
) -> tuple[list[Head], list[list[Head]]]:
    """Return the named heads to ablate, and different sets of as many other heads in each layer.

    Where a layer has few heads that are not named, some of the named ones are drawn: one fewer than
    the others, which then give different sets. There are fewer than `RANDOM_SETS` if not so many
    are found.

    heads : the number of heads of each layer.
    """
    ablated: list[Head] = []
    pools: list[tuple[list[Head], int]] = []
    for layer in dict.fromkeys(layer for layer, _ in named):
        others = [(layer, head) for head in range(heads[layer]) if (layer, head) not in named]
        here = [head for head in named if head[0] == layer]
        count = min(len(here), max(len(others) - 1, 0))
        ablated += rng.sample(here, count)
        pools.append((others, count))
    sets: dict[frozenset[Head], list[Head]] = {}
    for _ in range(_TRIES):
        drawn = [head for others, count in pools for head in rng.sample(others, count)]
        sets.setdefault(frozenset(drawn), drawn)
        if len(sets) == RANDOM_SETS:
            break
    return ablated, list(sets.values())


def _measure(
    model: Model,
    probe: Probe,
    find_answers: Callable[[], list[Target]],
    sets: Sequence[Sequence[Head]],
    result: Confirmation,
) -> tuple[Confirmation, AnalysisCheck]:
    """Return the answers' log-probability and accuracy before, and without each set of heads."""
    targets, hidden = find_answers(), (0,) if probe.hides_sink else ()
    with tracing(model):
        before, after = measure_without(targets, sets, hidden=hidden)
    with restoring(model.module, None, seed=2):
        loaded = [NextTokens.means(one.readout.run(one.inputs)) for one in targets]
    errors = (before - torch.stack(loaded))[..., 0].abs()
    check = AnalysisCheck("log-probabilities of answers", errors.max().item(), _NATS)
    whole, without = before.mean(0)[0], after.mean(0)
    accuracy = float(whole[1])
    wrong = getattr(targets[0].readout, "others", ())
    chance = 1 / (1 + len(wrong)) if wrong else 0.0
    can = accuracy >= chance + _LEAST
    cannot = "" if can else f"{probe.behavior} is right in {accuracy:.0%} only"
    confirmation = replace(
        result,
        log_probability=float(whole[0]),
        accuracy=accuracy,
        log_probability_without=float(without[0, 0]),
        accuracy_without=float(without[0, 1]),
        random_log_probabilities=tuple(without[1:, 0].tolist()),
        random_accuracies=tuple(without[1:, 1].tolist()),
        reason=cannot,
    )
    return confirmation, check


def _find_answers(model: Model, texts: Sequence[ProbeText]) -> list[Target]:
    """Read the texts, and where their answers are predicted."""
    targets = []
    for text in texts:
        reading = read(model, text.text)
        ids = reading.inputs["input_ids"][0].tolist()
        answers = Answers.find(model, text, ids, reading.special)
        readout = NextTokens(model.module, answers.rows, answers.tokens, answers.wrong)
        targets.append(Target(model, reading.inputs, reading.special, readout, reading.sink))
    return targets
