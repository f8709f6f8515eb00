"""From a JSON file to what an example gives and prints; numbers keep the digits as they stand."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from decimal import Decimal
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from attnviz.analyses.example.stages import BY_HEAD, STAGES, WHOLE
from attnviz.analyses.example.values import (
    Mask,
    Matrix,
    expect,
    kind,
    only,
    shown,
    to_heads,
    to_labels,
    to_mask,
    to_matrices,
    to_object,
    to_scale,
    to_side_by_side,
    to_text,
)
from attnviz.errors import InputError, did_you_mean
from attnviz.io.files import read_text

NAMES = ("cat", "likes", "phones")
FIELDS = (
    "title", "tokens", "queries", *WHOLE, *BY_HEAD, "heads", "scale", "mask", "printed", "notes"
)  # fmt: skip
_MOST_BYTES = 1_000_000


@dataclass(frozen=True)
class Given:
    """What an example gives and prints, checked piece by piece but not against each other.

    whole : X and the matrices W. by_head : later stages that are given, one matrix per head.
    printed : by stage, one matrix per head (an empty one where a head has none) or one in all.
    """

    name: str
    title: str
    tokens: tuple[str, ...] | None = None
    queries: tuple[str, ...] | None = None
    heads: int = 1
    scale: Decimal | None = None
    mask: Literal["causal"] | Mask | None = None
    whole: dict[str, Matrix] = field(default_factory=dict)
    by_head: dict[str, tuple[Matrix, ...]] = field(default_factory=dict)
    printed: dict[str, tuple[Matrix, ...]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


def read_bundled(name: str) -> Given:
    """Read an example that comes along; raise InputError for one that does not."""
    if name not in NAMES:
        hint = did_you_mean(name, NAMES) or "Use --file for one of your own."
        raise InputError(f"Expected one of {', '.join(NAMES)}, got {shown(name)}. {hint}")
    text = files("attnviz").joinpath("analyses", "example", f"{name}.json").read_text("utf-8")
    return to_given(parse(text, name), name)


def read_file(file: str | os.PathLike[str]) -> Given:
    """Read an example of one's own; raise InputError where it is none."""
    path = Path(file)
    text = read_text(path, "a JSON file", most=_MOST_BYTES)
    return to_given(parse(text, path.name), path.name)


def parse(text: str, name: str) -> dict[str, Any]:
    """Return the JSON object in `text`, with numbers as decimals; raise InputError for others."""
    try:
        data = json.loads(
            text,
            parse_float=Decimal,
            parse_int=Decimal,
            parse_constant=_no_number,
            object_pairs_hook=_no_field_twice,
        )
    except json.JSONDecodeError as error:
        raise InputError(
            f"Expected JSON in {name}, got something else in line {error.lineno}, column "
            f"{error.colno}: {error.msg}. Mend it there."
        ) from None
    except (RecursionError, ArithmeticError):
        raise InputError(
            f"Expected an object of matrices in {name}, got lists nested too deeply or a number "
            "too large. A matrix is a list of rows of numbers."
        ) from None
    write = 'Write {"X": [[…]], "W_q": [[…]], …}.'
    expect(isinstance(data, dict), f"a JSON object in {name}", kind(data), write)
    fields: dict[str, Any] = data
    return fields


def _no_number(constant: str) -> None:
    raise InputError(f"Expected numbers, got {constant}. Leave it out or write a number.")


def _no_field_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for name, value in pairs:
        expect(name not in seen, "each field once", f"{shown(name)} twice", "Remove one.")
        seen[name] = value
    return seen


def to_given(data: dict[str, Any], name: str) -> Given:
    """Check every field by itself; raise InputError with the name of the one that is wrong."""
    only(data, FIELDS, "fields")
    heads = to_heads(data.get("heads", Decimal(1)))
    printed = to_object(data.get("printed", {}), "printed")
    notes = to_object(data.get("notes", {}), "notes")
    return Given(
        name=name,
        title=to_text(data.get("title", name), "title"),
        tokens=to_labels(data["tokens"], "tokens") if "tokens" in data else None,
        queries=to_labels(data["queries"], "queries") if "queries" in data else None,
        heads=heads,
        scale=to_scale(data["scale"]) if "scale" in data else None,
        mask=to_mask(data["mask"]) if "mask" in data else None,
        whole={key: to_side_by_side(data[key], key, heads) for key in WHOLE if key in data},
        by_head={key: to_matrices(data[key], key, heads) for key in BY_HEAD if key in data},
        printed={
            key: to_matrices(
                value, f"printed {key}", 1 if STAGES[key].joined else heads, printed=True
            )
            for key, value in printed.items()
        },
        notes={key: to_text(value, f"note on {key}") for key, value in notes.items()},
    )
