"""Probes: texts made from the tokenizer alone, and the behavior that a role of heads claims there.

A role is a statistic of attention weights. A probe says what the model should do worse without the
heads that have it. To add a probe, write a file in this folder with a function that is decorated
with `@probe(...)`. `attnviz.survey(probe="its-name")` then measures and confirms it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules

from attnviz.attribution.interventions import whole_words
from attnviz.attribution.reference import is_causal
from attnviz.attribution.target import unembedding_of
from attnviz.errors import InputError, ModelError, expect_names
from attnviz.inputs.batch import encode
from attnviz.inputs.tokens import TokenIds
from attnviz.pipeline.attend import Model


@dataclass(frozen=True)
class ProbeText:
    """A text with tokens that a model predicts, if it does what the probe is about.

    answers : the number of these tokens: the last ones of the text, or its mask tokens. copied :
    what they are, in order, where the text has them before; one token each. wrong : words of the
    text that the model could take for the answer. The model then has the choice among these.
    """

    text: str
    answers: int
    copied: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()


MakeTexts = Callable[[Model, int], Sequence[ProbeText]]  # of a model and a seed


@dataclass(frozen=True)
class Probe:
    """A kind of texts, and what the heads with a role do there.

    role : the role that is confirmed. behavior : what the model does worse without these heads.
    hides_sink : whether the heads only lose their attention to the first token, not their output.
    """

    name: str
    role: str
    behavior: str
    make: MakeTexts
    hides_sink: bool = False


@dataclass(frozen=True)
class ProbeGroup:
    """Probes with the same texts, and the numbers of these among the texts of all groups."""

    probes: Sequence[Probe]
    texts: Sequence[ProbeText]
    numbers: range


PROBES: dict[str, Probe] = {}


def probe(
    name: str, *, role: str, behavior: str, hides_sink: bool = False
) -> Callable[[MakeTexts], MakeTexts]:
    """Register a function that makes the texts of a probe."""

    def register(make: MakeTexts) -> MakeTexts:
        PROBES[name] = Probe(name, role, behavior, make, hides_sink)
        return make

    return register


def find_probes(names: str | Sequence[str]) -> list[Probe]:
    """Return probes by name; raise InputError for an unknown one."""
    listed = names.replace(",", " ").split() if isinstance(names, str) else names
    if not isinstance(listed, list | tuple) or not all(isinstance(one, str) for one in listed):
        raise InputError(f"The probe must be a name such as induction, not {names!r:.60}.")
    if not listed:
        raise InputError(f"There is no probe. Choose from {', '.join(PROBES)}.")
    expect_names(listed, PROBES, "a probe")
    return [PROBES[name] for name in dict.fromkeys(listed)]


def make_groups(probes: Sequence[Probe], model: Model, seed: int) -> list[ProbeGroup]:
    """Return the texts of probes, once for those that have the same."""
    groups: list[ProbeGroup] = []
    for make in dict.fromkeys(one.make for one in probes):
        texts, start = make(model, seed), groups[-1].numbers.stop if groups else 0
        same = [one for one in probes if one.make is make]
        groups.append(ProbeGroup(same, texts, range(start, start + len(texts))))
    return groups


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
    """Return what ends a text of a probe: the answer, or a mask for it in a model of masked tokens.

    InputError if the model predicts no tokens.
    """
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


for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
