"""Probes: texts, and what a model should do worse there without the heads that have a role."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import torch

from attnviz.analyses.survey.corpus import CorpusText
from attnviz.analyses.survey.result import Confirmation, HeadName
from attnviz.attribution.interventions import Head, measure_without, token_of, whole_words
from attnviz.attribution.methods import attempt
from attnviz.attribution.prediction import NextTokens
from attnviz.attribution.reference import is_causal, read
from attnviz.attribution.target import Target, mask_id, unembedding_of
from attnviz.attribution.tracing import tracing
from attnviz.errors import InputError, ModelError, expect_names
from attnviz.inputs import encode
from attnviz.inputs.tokens import TokenIds
from attnviz.pipeline.attend import Model
from attnviz.results import AnalysisCheck
from attnviz.runtime import part

TEXTS = {"ioi": 96, "repeated": 40, "retrieval": 48}  # of each kind
_FEWEST = 8  # names, or words, to choose from
_REPEATED, _SENTENCES = 20, 10  # words that occur twice, and sentences around two needles
RANDOM_SETS = 20
_ABLATED_TEXTS = 20  # of a probe, on which heads are ablated
_LEAST = 0.1  # the share of answers beyond chance that a model has to give to show the behavior
_TRIES = 1000  # draws of random sets, of which some may be alike
_NATS = 0.01  # by which log-probabilities of the model as loaded may differ
_PARTS: dict[str, list[str]] = json.loads(
    Path(__file__).with_name("probes.json").read_text("utf-8")
)  # of the texts
NAMES, TEMPLATES, NEEDLES, PLACES, FILLER = (
    _PARTS[name] for name in ("names", "templates", "needles", "places", "filler")
)


@dataclass(frozen=True)
class ProbeText:
    """A text with tokens that a model predicts, if it does what the probe is about."""

    text: str
    answers: int  # the number of these tokens: the last ones of the text, or its mask tokens
    copied: tuple[str, ...] = ()  # what they are, if the text has them before; one token each
    wrong: tuple[str, ...] = ()  # of the text: the model has the choice between these and answers


MakeTexts = Callable[[Model, int], Sequence[ProbeText]]  # of a model and a seed


@dataclass(frozen=True)
class Probe:
    """A kind of texts, and what the heads with a role do there."""

    role: str  # that is confirmed
    behavior: str  # what the model does worse without these heads
    make: MakeTexts
    hides_sink: bool = False  # whether heads only lose their attention to the first token


@dataclass(frozen=True)
class ProbeGroup:
    """Probes, and the texts that they share."""

    probes: Sequence[Probe]
    texts: Sequence[ProbeText]


PROBES: dict[str, Probe] = {}


def probe(
    name: str, *, role: str, behavior: str, hides_sink: bool = False
) -> Callable[[MakeTexts], MakeTexts]:
    """Register a function that makes the texts of a probe."""

    def register(make: MakeTexts) -> MakeTexts:
        PROBES[name] = Probe(role, behavior, make, hides_sink)
        return make

    return register


def find_probes(names: str | Sequence[str]) -> list[Probe]:
    """Return probes by name; raise InputError for an unknown one, or for two of different texts."""
    listed = names.replace(",", " ").split() if isinstance(names, str) else names
    listed = [*listed] if isinstance(listed, list | tuple) else [str(names)]
    expect_names(listed or [""], PROBES, "a probe")
    found = [PROBES[name] for name in dict.fromkeys(listed)]
    if len({one.make for one in found}) > 1:
        raise InputError("These probes have different texts. Survey one after the other.")
    return found


def some_words(model: Model, fewest: int, but: Collection[str] = ()) -> list[str]:
    """Return words that are one token each, without some; ModelError if there are too few."""
    assert model.tokenizer is not None
    words = [str(model.tokenizer.decode([token])).strip() for token in whole_words(model)]
    words = [word for word in words if word.lower() not in but]
    if len(words) < fewest:
        raise ModelError(
            f"The vocabulary of {model.name} has too few whole words for a probe. Give a corpus."
        )
    return words


def predicts_next(model: Model) -> bool:
    """Whether a model that predicts tokens reads only those before each."""
    some = TokenIds(tuple(whole_words(model)[:5]))
    return is_causal(model, encode(model.checkpoint, [some]).inputs)


def answer_or_mask(model: Model) -> Callable[[str], str]:
    """Return what ends a probe's text, the answer or a mask; InputError if none is predicted."""
    mask = getattr(model.tokenizer, "mask_token", None)
    if unembedding_of(model.module) is not None:
        if predicts_next(model):
            return str
        if mask is not None:
            return lambda _: f"{mask}."
    raise InputError(
        f"A probe of answers needs a model that predicts next or masked tokens, and {model.name} "
        "does not. Choose another model, such as --model smollm2 (model='smollm2')."
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
    if len(names) < _FEWEST:
        raise ModelError(
            f"The vocabulary of {model.name} has {len(names)} first names, and the probe needs "
            f"{_FEWEST}. Choose another probe or model."
        )
    rng = random.Random(seed)
    texts = []
    for number in range(TEXTS["ioi"]):
        subject, other = pair = rng.sample(names, 2)
        order = pair if number % 2 else pair[::-1]
        template = TEMPLATES[number // 2 % len(TEMPLATES)]
        text = template.format(*order, subject, end(other))
        texts.append(ProbeText(text, 1, copied=(other,), wrong=(subject,)))
    return texts


@probe("sink", role="rests on the first token", behavior="copying", hides_sink=True)
@probe("duplicate", role="same token", behavior="copying")
@probe("previous", role="previous token", behavior="copying")
@probe("induction", role="induction", behavior="copying")
def repeated_words(model: Model, seed: int) -> Sequence[ProbeText]:
    """Return texts of random words, each word one token, that occur twice in the same order.

    Source: Olsson et al. 2022, arXiv:2209.11895.
    """
    words = some_words(model, _REPEATED)
    rng = random.Random(seed)
    texts = [" ".join(rng.sample(words, _REPEATED)) for _ in range(TEXTS["repeated"])]
    return [ProbeText(f"{text} {text}", _REPEATED - 1) for text in texts]


@probe("retrieval", role="retrieval", behavior="retrieving a word")
def needles(model: Model, seed: int) -> Sequence[ProbeText]:
    """Return texts with two needles among other sentences, and the beginning of one at the end.

    Source: Wu et al. 2024, arXiv:2404.15574.
    """
    end = answer_or_mask(model)
    used = " ".join([*FILLER, *NEEDLES, *PLACES]).lower().replace(".", "").split()
    words = some_words(model, _FEWEST, but=used)
    rng = random.Random(seed)
    texts = []
    for number in range(TEXTS["retrieval"]):
        needle = NEEDLES[number % len(NEEDLES)]
        places, (answer, other) = rng.sample(PLACES, 2), rng.sample(words, 2)
        sentences = rng.sample(FILLER, _SENTENCES)
        for place, word in zip(places, (answer, other), strict=True):
            sentences.insert(rng.randrange(len(sentences) + 1), f"{needle.format(place, word)}.")
        question = needle.format(places[0], end(answer))
        texts.append(ProbeText(" ".join([*sentences, question]), 1, copied=(answer,)))
    return texts


# --- ablate heads with a role, and random ones beside them


def _find_answers(
    model: Model, text: ProbeText, ids: Sequence[int], special: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Return where the answers are predicted, their ids, those of wrong ones, and what tokens hold.

    Each token elsewhere holds an answer, from 1, -1 for a wrong one, or 0. Raises ModelError if the
    model reads the text in other tokens.
    """
    end = max(row for row, is_special in enumerate(special) if not is_special) + 1
    masks = [row for row, token in enumerate(ids) if token == mask_id(model)]
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
        raise ModelError(f"{model.name} reads a text of the probe in other tokens. Give a corpus.")
    number = {token: n for n, token in enumerate(tokens, start=1)} | dict.fromkeys(wrong, -1)
    holds = [0 if row in places else number.get(token, 0) for row, token in enumerate(ids)]
    tokens = tokens or [ids[place] for place in places]
    return tuple(rows), tuple(tokens), tuple(wrong), tuple(holds)


def mark_answers(model: Model, texts: Sequence[ProbeText], read: CorpusText) -> CorpusText:
    """Return a text of a probe with what each token asks for and holds, as in `Positions`."""
    text, encoding = texts[read.number], read.encoding
    if not text.copied:
        return read
    ids, special = encoding["input_ids"], encoding["special_tokens_mask"]
    rows, _, _, holds = _find_answers(model, text, ids, special)
    asks = [0] * len(ids)
    for number, row in enumerate(rows, start=1):
        asks[row] = number
    return replace(read, encoding={**encoding, "asks": asks, "holds": holds})


def confirm(
    model: Model, group: ProbeGroup, heads: Sequence[HeadName], roles: Sequence[str], seed: int = 0
) -> tuple[tuple[Confirmation, ...], AnalysisCheck | None]:
    """Ablate the heads that have the role of each probe, and random sets of heads beside them.

    Heads get their mean output over all texts; those that rest on the first token only lose their
    attention to it. Also compares the answers' numbers with those of the model as loaded.
    """
    reason = ""
    if unembedding_of(model.module) is None:
        reason = "the model predicts no tokens"
    elif not group.texts[0].copied and not predicts_next(model):  # those of others may be masks
        reason = "the model does not predict next tokens"
    confirmed, checks = [], []
    answers = cache(partial(_targets, model, group.texts[:_ABLATED_TEXTS]))  # of all probes
    for number, probe in enumerate(group.probes):
        with_roles = zip(heads, roles, strict=True)
        named = [(head.layer, head.head) for head, role in with_roles if role == probe.role]
        counts = Counter(head.layer for head in heads)
        ablated, sets = _draw_sets(named, counts, random.Random(seed))
        result = Confirmation(probe.role, probe.behavior, tuple(named), ablated=tuple(ablated))
        if reason or not named or len(sets) < RANDOM_SETS:
            few = "too few other heads to compare with" if named else "no head has the role"
            confirmed.append(replace(result, reason=reason or few))
            continue
        with part(number, len(group.probes), f"ablating “{probe.role}” heads"):
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
    loaded = [NextTokens.means(one.as_loaded()) for one in targets]
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


def _targets(model: Model, texts: Sequence[ProbeText]) -> list[Target]:
    targets = []
    for text in texts:
        reading = read(model, text.text)
        ids = reading.inputs["input_ids"][0].tolist()
        *answers, _ = _find_answers(model, text, ids, reading.tokens.special)
        targets.append(reading.target(model, NextTokens(model.module, *answers)))
    return targets
