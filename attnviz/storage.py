"""Results to disk: the data formats, and the one way in which the package writes a file.

A file appears whole or not at all: it is written beside its place and then moved there.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attnviz.errors import InputError, OutputError
from attnviz.records import AgreementReport, AttentionMap, HeadMaps

FIGURE_SUFFIXES = (".png", ".svg", ".pdf")
DATA_SUFFIXES = (".json", ".npz", ".safetensors")


def check_output(path: str | os.PathLike[str]) -> Path:
    """Return the path if a figure or data can be written there; write nothing.

    Raises
    ------
    InputError : the ending names no format.
    OutputError : the folder is missing or read-only, or the path is a folder.
    """
    path = Path(path)
    allowed = FIGURE_SUFFIXES + DATA_SUFFIXES
    if path.is_dir():
        raise OutputError(f"Expected a file to write, but {path} is a folder. Add a file name.")
    if path.suffix.lower() not in allowed:
        raise InputError(
            f"Expected a file name that ends in {', '.join(allowed)}, got {path.name!r}. "
            "The ending chooses the format."
        )
    if not path.parent.is_dir():
        raise OutputError(f"Expected the folder {path.parent} to exist. Create it first.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OutputError(f"Expected to write in {path.parent}, but it is read-only. Use another.")
    return path


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which becomes `path` if all goes well.

    Raises
    ------
    OutputError : it could not be written; what was there before is still there.
    """
    temporary = None
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".attnviz-", suffix=path.suffix)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())  # temporary files are private; this one no longer is
        temporary.replace(path)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise OutputError(f"Expected to write {path}, but: {reason}. Nothing changed.") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def save_map(drawn: AttentionMap | HeadMaps, path: str | os.PathLike[str]) -> None:
    """Write a map's weights, labels, notes, provenance and agreement.

    The suffix chooses the format. json: everything as one object. npz: arrays `weights`, `rows`,
    `columns`, and all else as the JSON text `about`. safetensors: `weights`, and all else as JSON
    in the header under `about`.

    Raises
    ------
    InputError, OutputError : as `check_output`.
    """
    path = check_output(path)
    weights = drawn.weights.contiguous()
    with atomic(path) as temporary:
        if path.suffix.lower() == ".json":
            text = json.dumps(map_data(drawn), ensure_ascii=False, indent=1)
            temporary.write_text(text + "\n", encoding="utf-8")
        elif path.suffix.lower() == ".npz":
            import numpy as np

            rows, columns = np.array(drawn.rows), np.array(drawn.columns)
            about = np.array(json.dumps(_about(drawn)))
            with temporary.open("wb") as file:
                np.savez_compressed(
                    file, weights=weights.numpy(), rows=rows, columns=columns, about=about
                )
        else:
            from safetensors.torch import save_file

            labels = {"rows": list(drawn.rows), "columns": list(drawn.columns)}
            save_file(
                {"weights": weights},
                temporary,
                metadata={"about": json.dumps({**labels, **_about(drawn)})},
            )


def map_data(drawn: AttentionMap | HeadMaps) -> dict[str, Any]:
    """Return everything about a map in types that JSON knows."""
    return {
        "weights": drawn.weights.tolist(),
        "rows": list(drawn.rows),
        "columns": list(drawn.columns),
        **_about(drawn),
    }


def agreement_data(agreement: AgreementReport) -> dict[str, Any]:
    """Return a report in types that JSON knows: the verdict, then every stage of every head."""
    first = agreement.first_difference
    return {
        "verdict": agreement.verdict,
        "summary": agreement.summary(),
        "heads": agreement.heads,
        "first_difference": None
        if first is None
        else {"layer": first.layer, "stage": first.stage, "heads": list(first.failed_heads)},
        **{
            key: value
            for key, value in asdict(agreement).items()
            if key not in ("checks", "not_compared")
        },
        "largest_differences": {
            stage: agreement.largest_difference(stage)
            for stage in dict.fromkeys(check.stage for check in agreement.checks)
        },
        "not_compared": [
            {"layer": layer, "stage": stage, "reason": reason}
            for layer, stage, reason in agreement.not_compared
        ],
        "checks": [{"passed": check.passed, **asdict(check)} for check in agreement.checks],
    }


def _about(drawn: AttentionMap | HeadMaps) -> dict[str, Any]:
    if isinstance(drawn, AttentionMap):
        which: dict[str, Any] = {"layer": drawn.layer, "heads": list(drawn.heads)}
    else:
        which = {"layers": list(drawn.layers)}
    return {
        **which,
        "notes": list(drawn.notes),
        "provenance": asdict(drawn.provenance),
        "agreement": agreement_data(drawn.agreement),
    }


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
