"""The data of maps to disk: json, npz and safetensors, with labels, provenance and proof."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict
from typing import Any

from attnviz.files import atomic, check_output
from attnviz.records import AgreementReport, AttentionMap, HeadMaps


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
            temporary.write_text(to_json(map_data(drawn)) + "\n", encoding="utf-8")
        elif path.suffix.lower() == ".npz":
            import numpy as np

            rows, columns = np.array(drawn.rows), np.array(drawn.columns)
            about = np.array(to_json(_about(drawn)))
            with temporary.open("wb") as file:
                np.savez_compressed(
                    file, weights=weights.numpy(), rows=rows, columns=columns, about=about
                )
        else:
            from safetensors.torch import save

            labels = {"rows": list(drawn.rows), "columns": list(drawn.columns)}
            metadata = {"about": to_json({**labels, **_about(drawn)})}
            # As bytes: its own writer reports a full disk by an exception of its own.
            temporary.write_bytes(save({"weights": weights}, metadata=metadata))


def map_data(drawn: AttentionMap | HeadMaps) -> dict[str, Any]:
    """Return everything about a map in types that JSON knows."""
    return {
        "weights": drawn.weights.tolist(),
        "rows": list(drawn.rows),
        "columns": list(drawn.columns),
        **_about(drawn),
    }


def to_json(data: dict[str, Any]) -> str:
    """Return data as one JSON object; what is no number (NaN, infinity) becomes null."""
    return json.dumps(_finite(data), ensure_ascii=False, indent=1, allow_nan=False)


def agreement_data(agreement: AgreementReport) -> dict[str, Any]:
    """Return a report in types that JSON knows: the verdict, then every stage of every head."""
    first = agreement.first_difference
    return {
        "verdict": agreement.verdict,
        "summary": agreement.summary(),
        "heads": agreement.heads,
        "first_difference": None
        if first is None
        else {
            "stack": first.stack,
            "layer": first.layer,
            "stage": first.stage,
            "heads": list(first.failed_heads),
        },
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
            {"place": place, "stage": stage, "reason": reason}
            for place, stage, reason in agreement.not_compared
        ],
        "checks": [{"passed": check.passed, **asdict(check)} for check in agreement.checks],
    }


def _about(drawn: AttentionMap | HeadMaps) -> dict[str, Any]:
    if isinstance(drawn, AttentionMap):
        which: dict[str, Any] = {"layer": drawn.layer, "heads": list(drawn.heads)}
    else:
        which = {"layers": list(drawn.layers)}
    which["stack"] = drawn.stack
    return {
        **which,
        "notes": list(drawn.notes),
        "provenance": asdict(drawn.provenance),
        "agreement": agreement_data(drawn.agreement),
    }


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
