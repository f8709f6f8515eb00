"""The data behind figures to disk: json, npz and safetensors, with labels, provenance and proof."""

from __future__ import annotations

import base64
import io
import json
import math
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeAlias

from attnviz.errors import InputError
from attnviz.files import DATA_SUFFIXES, atomic, check_output
from attnviz.records import (
    AgreementReport,
    AttentionMap,
    AttentionSteps,
    HeadMaps,
    SenseResult,
    ShiftResult,
    Side,
    WorkedExample,
)

if TYPE_CHECKING:
    from torch import Tensor

Drawn: TypeAlias = (
    AttentionMap | HeadMaps | AttentionSteps | WorkedExample | SenseResult | ShiftResult
)


def save_data(drawn: Drawn, path: str | os.PathLike[str]) -> None:
    """Write what a figure shows: its numbers, labels, notes, provenance and agreement.

    The suffix chooses the format. json: everything as one object, an image as a data URI. npz:
    arrays of the numbers and labels, and all else as the JSON text `about`. safetensors: the
    numbers, and all else as JSON in the header under `about`.

    Raises
    ------
    InputError, OutputError : as `check_output`.
    """
    path = check_output(path, DATA_SUFFIXES)
    suffix = path.suffix.lower()
    with atomic(path) as temporary:
        if suffix == ".json":
            temporary.write_text(to_json(to_data(drawn)) + "\n", encoding="utf-8")
            return
        tensors = {name: tensor.contiguous() for name, tensor in _tensors(drawn).items()}
        labels, about = _labels(drawn), _about(drawn)
        if suffix == ".npz":
            import numpy as np

            arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
            arrays |= {name: np.array(each) for name, each in labels.items()}
            with temporary.open("wb") as file:
                np.savez_compressed(file, about=np.array(to_json(about)), **arrays)
        else:
            from safetensors.torch import save

            # As bytes: its own writer reports a full disk by an exception of its own.
            temporary.write_bytes(save(tensors, metadata={"about": to_json({**labels, **about})}))


def to_data(drawn: Drawn) -> dict[str, Any]:
    """Return everything that a figure shows, in types that JSON knows."""
    numbers = {
        name: _data_uri(tensor) if name == "image" else tensor.tolist()
        for name, tensor in _tensors(drawn).items()
    }
    return {**numbers, **_labels(drawn), **_about(drawn)}


def _tensors(drawn: Drawn) -> dict[str, Tensor]:
    if not isinstance(drawn, Drawn):
        raise InputError(
            f"Expected what a figure shows, got {type(drawn).__name__}. Make it with make_map, "
            "make_maps, make_steps or make_example."
        )
    if isinstance(drawn, AttentionSteps):
        return {stage.name.replace(" ", "_"): stage.values for stage in drawn.stages}
    if isinstance(drawn, WorkedExample):
        return _example_tensors(drawn)
    if isinstance(drawn, SenseResult):
        return drawn.tensors()
    if isinstance(drawn, ShiftResult):
        return _shift_tensors(drawn)
    tensors = {"weights": drawn.weights}
    if isinstance(drawn, AttentionMap) and drawn.image is not None:
        tensors["image"] = drawn.image
    return tensors


def _labels(drawn: Drawn) -> dict[str, list[str]]:
    if isinstance(drawn, AttentionSteps):
        return {"queries": list(drawn.queries), "keys": list(drawn.keys)}
    if isinstance(drawn, WorkedExample):
        return {"tokens": list(drawn.tokens)}
    if isinstance(drawn, SenseResult):
        return {"sense_of_each": [one.sense for one in drawn.occurrences]}
    if isinstance(drawn, ShiftResult):
        return {"tokens": list(drawn.tokens)}
    return {"rows": list(drawn.rows), "columns": list(drawn.columns)}


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


def _about(drawn: Drawn) -> dict[str, Any]:
    if isinstance(drawn, WorkedExample):
        return _example(drawn)
    which: dict[str, Any] = {}
    if not isinstance(drawn, SenseResult | ShiftResult):
        which = {"stack": drawn.stack}
    match drawn:
        case SenseResult():
            which = drawn.about()
        case ShiftResult():
            which = _shift(drawn)
        case AttentionMap():
            which |= {"layer": drawn.layer, "heads": list(drawn.heads), **_places(drawn.sides)}
        case HeadMaps():
            which |= {"layers": list(drawn.layers), **_places(drawn.sides)}
        case AttentionSteps():
            which |= {"layer": drawn.layer, "head": drawn.head, "stages": _stages(drawn)}
            which |= {"word": drawn.word, "row": drawn.row, "shares": drawn.shares.tolist()}
    return {
        **which,
        "notes": list(drawn.notes),
        "provenance": asdict(drawn.provenance),
        "agreement": agreement_data(drawn.agreement),
    }


def _shift_tensors(result: ShiftResult) -> dict[str, Tensor]:
    """Return the numbers of a shift; what it does not have is left out."""
    split, account = result.secant, result.ledger
    found = {
        "value": split.value,
        "routing": split.routing,
        "credit": split.credit,
        "direction": split.direction,
        "ledger_attention": account.attention,
        "ledger_mlp": account.mlp,
        "causal": result.causal,
        "path": result.path,
    }
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def _shift(result: ShiftResult) -> dict[str, Any]:
    """Return what is said of a shift beside its numbers."""
    split, account = result.secant, result.ledger
    return {
        "word": result.word,
        "pieces": list(result.pieces),
        "special": list(result.special),
        "reference": result.reference,
        "regions": list(result.regions),
        "total": split.total,
        "start": split.start,
        "length": split.length,
        "completeness_error": split.error,
        "credit_error": split.credit_error,
        "rank_correlation": result.rank_correlation,
        "ledger": {
            "bias": account.bias,
            "own": account.own,
            "total": account.total,
            "completeness_error": account.error,
        },
    }


def _stages(taken: AttentionSteps) -> list[dict[str, Any]]:
    """Return what is said of each stage, without its numbers."""
    return [
        {
            "name": stage.name.replace(" ", "_"),
            "formula": stage.formula,
            "shape": list(stage.values.shape),
            "difference": stage.difference,
            "passed": stage.passed,
        }
        | ({"why_not_compared": stage.why_not} if stage.why_not else {})
        for stage in taken.stages
    ]


def _example_tensors(worked: WorkedExample) -> dict[str, Tensor]:
    """Return every matrix under a name of its own: "X given", "scores printed", …."""
    kinds = (
        "printed", "from_inputs", "from_printed", "slack_from_inputs", "slack_from_printed",
        "from_inputs_follows", "from_printed_follows",
    )  # fmt: skip
    found = {f"{one.key} given": one.values for one in worked.given}
    for stage in worked.stages:
        each = {f"{stage.key} {kind}": getattr(stage, kind) for kind in kinds}
        found |= {name: tensor for name, tensor in each.items() if tensor is not None}
    return found


def _example(worked: WorkedExample) -> dict[str, Any]:
    """Return all that is said of a worked example, without its numbers."""
    said = ("key", "name", "head", "title", "formula", "decimals", "slips")
    listed = ("rows", "columns", "sources", "notes")
    return {
        "example": worked.name,
        "title": worked.title,
        "summary": worked.summary(),
        "counts": worked.count(),
        "slips": list(worked.slips),
        "stages": [
            {key: getattr(stage, key) for key in said}
            | {key: list(getattr(stage, key)) for key in listed}
            for stage in worked.stages
        ],
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
