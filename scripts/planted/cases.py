"""The cases of the page, and their results on disk: one JSON line per case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

Result = dict[str, Any]


class Case(NamedTuple):
    """One part in one model and one dtype."""

    part: str
    place: str
    dtype: str

    def __str__(self) -> str:
        return " ".join(self)


def every() -> list[Case]:
    """Return all cases, in the order of the page."""
    from planted import architectures, honest
    from planted.subjects import DTYPES, PLACES, families

    places = {"formula": [*PLACES], "model": families(), "unplanted": honest.cases()}
    cases = [
        Case(part, place, dtype) for part in places for place in places[part] for dtype in DTYPES
    ]
    return [*cases, *(Case("architectures", name, "float32") for name in architectures.NAMES)]


def run(case: Case) -> tuple[Case, Result]:
    """Return the result of one case."""
    import torch

    from planted import architectures, formula, honest, models

    torch.set_num_threads(1)
    modules = {
        "formula": formula,
        "model": models,
        "unplanted": honest,
        "architectures": architectures,
    }
    return case, modules[case.part].run(case.place, case.dtype)


def read(path: Path) -> dict[Case, Result]:
    """Return the latest result of each case; skip lines truncated by a crash."""
    results = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in lines:
        try:
            *case, result = json.loads(line)
        except ValueError:
            continue
        results[Case(*case)] = result
    return results


def append(path: Path, case: Case, result: Result) -> None:
    """Append the result of one case."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps([*case, result]) + "\n")
