"""Which models the installed transformers has, and what came of checking the attention of each.

`scripts/check_architectures.py` builds a tiny random model of every architecture, compares every
attention that it executes, and writes what it found to `catalogue.json` beside this module. Here
that is read, and joined with what is installed. Neither torch nor transformers is loaded.
"""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attnviz.errors import InputError, did_you_mean

STATES = (
    "agrees", "differs", "not read", "not run", "no attention", "part", "not checked",
)  # fmt: skip


@dataclass(frozen=True)
class Architecture:
    """A model type of the installed transformers, and what the last check found.

    Attributes
    ----------
    name : the model type, as in a model's config.json.
    model_class : the class that was run; empty where none was.
    attentions : how many attentions the tiny model executed.
    softmaxes : how many softmaxes it executed, counted independently; more than `attentions` where
        a model takes others, in routers for example.
    reached : how its attentions are seen: through transformers' attention "interface", among the
        "operators" that torch executes, or "both".
    stages : which stages are compared in every one of its attentions.
    difference : the largest |ours - the model's| of all weights in float32; None where none was
        compared.
    state : "agrees" or "differs" in every attention, "not read" where one could not be, "not run"
        where the model could not be, "no attention", "part" of another that was checked, "not
        checked" where the check knew no such model.
    reason : why it is not read or run, of what it is a part, or what does not agree; else empty.
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


@dataclass(frozen=True)
class Catalogue:
    """What the last check found, and with which versions.

    parts : what is not checked by itself, and of which architecture it is a part or another name.
    """

    transformers: str
    torch: str
    architectures: dict[str, Architecture]
    parts: dict[str, str]


def architectures(
    names: str | Iterable[str] = (), *, state: str | None = None
) -> tuple[Architecture, ...]:
    """List the model types of the installed transformers, with their state from the last check.

    Parameters
    ----------
    names : a part of a name, or several; without, all are listed.
    state : only those in one state. Those that are a part of another are left out, unless they are
        named or asked for.

    Raises
    ------
    InputError : nothing has such a name, or there is no such state.

    Examples
    --------
    >>> [(one.name, one.reached, one.state) for one in architectures("distilbert")]
    [('distilbert', 'interface', 'agrees')]
    """
    if state is not None and state not in STATES:
        raise InputError(f"Expected a state, one of {', '.join(STATES)}; got {state!r}.")
    parts = [names] if isinstance(names, str) else list(names)
    known = {name: _found(name) for name in sorted(installed())}
    for part in parts:
        if not any(part.lower() in name.lower() for name in known):
            hint = did_you_mean(part, known) or "Name a part of one."
            raise InputError(
                f"Expected a model of transformers {installed_version()}, got {part!r}. {hint}"
            )
    return tuple(
        one
        for name, one in known.items()
        if (not parts or any(part.lower() in name.lower() for part in parts))
        and (one.state == state if state else parts or one.state != "part")
    )


def summary(found: Iterable[Architecture], check: Catalogue | None = None) -> str:
    """Return how many of these agree, as one sentence; `check` is the last one by default."""
    counts = Counter(one.state for one in found)
    attentive = counts["agrees"] + counts["differs"] + counts["not read"]
    said = [f"{counts[state]} {state}" for state in STATES[3:] if counts[state]]
    if attentive:
        agree = f"{counts['agrees']} of {attentive} architectures with attention agree in all of it"
        said.insert(0, agree)
    check = check or last_check()
    listed = ", ".join(said) or "no such architecture"
    return f"{listed}; checked with transformers {check.transformers}"


@cache
def last_check() -> Catalogue:
    """Read what the last check found."""
    return read(
        json.loads(files("attnviz").joinpath("models", "architectures.json").read_text("utf-8"))
    )


def read(data: dict[str, Any]) -> Catalogue:
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


def _found(name: str) -> Architecture:
    catalogue = last_check()
    if name in catalogue.parts:
        return Architecture(name, state="part", reason=f"checked with {catalogue.parts[name]}")
    unknown = Architecture(name, reason="newer than the check, or no model that runs as a whole")
    return catalogue.architectures.get(name, unknown)


def installed_version() -> str:
    """Return the version of transformers that is installed."""
    try:
        return version("transformers")
    except PackageNotFoundError:
        return "(not installed)"


@cache
def installed() -> frozenset[str]:
    """Return the model types of the installed transformers, read from its source."""
    spec = find_spec("transformers")
    if spec is None or spec.origin is None:
        return frozenset()
    folder = Path(spec.origin).parent / "models" / "auto"
    names: set[str] = set()
    for file in ("auto_mappings.py", "configuration_auto.py"):
        if (folder / file).exists():
            names |= _configurations((folder / file).read_text("utf-8"))
    if len(names) < 100:  # it says it in another way: ask it, which takes seconds
        module = import_module("transformers.models.auto.configuration_auto")
        names = set(module.CONFIG_MAPPING_NAMES)
    return frozenset(names)


def _configurations(source: str) -> set[str]:
    """Return the model types in the statements of a module that fill CONFIG_MAPPING_NAMES."""
    names = set()
    for statement in ast.parse(source).body:
        if not isinstance(statement, ast.Assign | ast.Expr):
            continue
        if not ast.unparse(statement).startswith("CONFIG_MAPPING_NAMES"):
            continue
        for node in ast.walk(statement):
            pairs: list[tuple[ast.expr | None, ast.expr]] = []
            if isinstance(node, ast.Tuple) and len(node.elts) == 2:
                pairs = [(node.elts[0], node.elts[1])]
            elif isinstance(node, ast.Dict):
                pairs = list(zip(node.keys, node.values, strict=True))
            names |= {
                str(key.value)
                for key, value in pairs
                if isinstance(key, ast.Constant) and isinstance(value, ast.Constant)
            }
    return names
