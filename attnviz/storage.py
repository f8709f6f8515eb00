"""The data of maps to disk: json, npz and safetensors, with labels, provenance and proof."""

from __future__ import annotations

import base64
import io
import json
import math
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from attnviz.files import atomic, check_output
from attnviz.records import AgreementReport, AttentionMap, HeadMaps, Side

if TYPE_CHECKING:
    from torch import Tensor


def save_map(drawn: AttentionMap | HeadMaps, path: str | os.PathLike[str]) -> None:
    """Write a map's weights, labels, notes, provenance and agreement.

    The suffix chooses the format. json: everything as one object, an image as a data URI. npz:
    arrays `weights`, `rows`, `columns`, `image` where there is one, and all else as the JSON text
    `about`. safetensors: `weights`, `image`, and all else as JSON in the header under `about`.

    Raises
    ------
    InputError, OutputError : as `check_output`.
    """
    path = check_output(path)
    tensors = {"weights": drawn.weights.contiguous()}
    if isinstance(drawn, AttentionMap) and drawn.image is not None:
        tensors["image"] = drawn.image.contiguous()
    with atomic(path) as temporary:
        if path.suffix.lower() == ".json":
            temporary.write_text(to_json(map_data(drawn)) + "\n", encoding="utf-8")
        elif path.suffix.lower() == ".npz":
            import numpy as np

            rows, columns = np.array(drawn.rows), np.array(drawn.columns)
            about = np.array(to_json(_about(drawn)))
            with temporary.open("wb") as file:
                arrays: dict[str, Any] = {name: each.numpy() for name, each in tensors.items()}
                np.savez_compressed(file, rows=rows, columns=columns, about=about, **arrays)
        else:
            from safetensors.torch import save

            labels = {"rows": list(drawn.rows), "columns": list(drawn.columns)}
            metadata = {"about": to_json({**labels, **_about(drawn)})}
            # As bytes: its own writer reports a full disk by an exception of its own.
            temporary.write_bytes(save(tensors, metadata=metadata))


def map_data(drawn: AttentionMap | HeadMaps) -> dict[str, Any]:
    """Return everything about a map in types that JSON knows."""
    data = {
        "weights": drawn.weights.tolist(),
        "rows": list(drawn.rows),
        "columns": list(drawn.columns),
        **_about(drawn),
    }
    if isinstance(drawn, AttentionMap) and drawn.image is not None:
        data["image"] = _data_uri(drawn.image)
    return data


def _data_uri(image: Tensor) -> str:
    """Return an RGB image as a PNG that a browser shows without a file."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image.numpy()).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


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
        **_places(drawn.sides),
        "notes": list(drawn.notes),
        "provenance": asdict(drawn.provenance),
        "agreement": agreement_data(drawn.agreement),
    }


def _places(sides: tuple[Side, Side]) -> dict[str, Any]:
    """Return where rows and columns lie in an image or a sound, if they do."""
    return {
        f"{kind}_of_{name}": list(places)
        for name, side in zip(("rows", "columns"), sides, strict=True)
        for kind, places in (("patches", side.patches), ("seconds", side.seconds))
        if places is not None
    }


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
