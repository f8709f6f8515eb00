"""Probes: texts made from the tokenizer alone, and the behavior that a role of heads claims there.

A role is a statistic of attention weights. A probe says what the model should do worse without the
heads that have it. To add a probe, write a file in this folder with a function that is decorated
with `@probe(...)`. `attnviz.survey(probe="its-name")` then measures and confirms it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules

from attnviz.errors import InputError, expect_names
from attnviz.pipeline.attend import Model


@dataclass(frozen=True)
class ProbeText:
    """A text whose last tokens a model predicts, if it does what the probe is about."""

    text: str
    answers: int  # the number of these tokens


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
    """Return probes by name; raise InputError for an unknown one, or for probes of other texts."""
    listed = names.replace(",", " ").split() if isinstance(names, str) else names
    if not isinstance(listed, list | tuple) or not all(isinstance(one, str) for one in listed):
        raise InputError(f"The probe must be a name such as induction, not {names!r:.60}.")
    if not listed:
        raise InputError(f"There is no probe. Choose from {', '.join(PROBES)}.")
    expect_names(listed, PROBES, "a probe")
    found = [PROBES[name] for name in dict.fromkeys(listed)]
    if len({one.make for one in found}) > 1:
        raise InputError(f"{' and '.join(listed)} have different texts. Survey them one by one.")
    return found


for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
