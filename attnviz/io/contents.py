"""What is written of each kind of figure: its numbers, its labels, and all that is said of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import singledispatch
from typing import Any, TypeAlias

from torch import Tensor

from attnviz.analyses.compare.result import CompareResult
from attnviz.analyses.example.result import ExampleResult
from attnviz.analyses.maps.result import AttentionMap, HeadMaps
from attnviz.analyses.senses.result import SenseScore, SensesResult
from attnviz.analyses.shift.result import ShiftResult
from attnviz.analyses.steps.result import Stage, StepsResult
from attnviz.analyses.survey.result import SurveyResult
from attnviz.errors import InputError
from attnviz.results import (
    AgreementReport,
    AttentionRecord,
    AttentionResult,
    AxisGeometry,
    MapSummary,
    StreamedAttention,
)

Measured: TypeAlias = AttentionMap | HeadMaps | StepsResult | SensesResult | ShiftResult
Surveyed: TypeAlias = SurveyResult | CompareResult
Drawn: TypeAlias = Measured | Surveyed | ExampleResult
Whole: TypeAlias = (
    AttentionResult | AttentionRecord | StreamedAttention | MapSummary | AgreementReport
)
Result: TypeAlias = Drawn | Whole


@dataclass(frozen=True, eq=False)
class Contents:
    """The arrays by name, the labels of their rows and columns, and the rest as JSON knows it."""

    tensors: dict[str, Tensor]
    labels: dict[str, list[str]]
    about: dict[str, Any]


@singledispatch
def contents(drawn: Result) -> Contents:
    """Return what is written of a figure; raise InputError where it is none."""
    raise InputError(
        f"Expected what a figure shows, got {type(drawn).__name__}. Make it with attention_map, "
        "head_maps, make_steps or make_example; or save it as .safetensors, which holds any result."
    )


def described(result: Result) -> Contents:
    """Return what a file tells other programs of any result: of a figure all that it shows."""
    match result:
        case AttentionResult():
            return Contents({}, {}, {"stacks": list(result.stacks), **_proof(result)})
        case AgreementReport():
            return Contents({}, {}, agreement_data(result))
    shown = contents.dispatch(type(result)) is not contents.dispatch(object)
    return contents(result) if shown else Contents({}, {}, {})


@contents.register
def _(drawn: AttentionMap) -> Contents:
    image = {} if drawn.image is None else {"image": drawn.image}
    which = {"stack": drawn.stack, "layer": drawn.layer, "heads": list(drawn.heads)}
    return Contents(
        {"weights": drawn.weights, **image},
        {"rows": list(drawn.rows), "columns": list(drawn.columns)},
        {**which, **_places(drawn.sides), **_proof(drawn)},
    )


@contents.register
def _(drawn: HeadMaps) -> Contents:
    which = {"stack": drawn.stack, "layers": list(drawn.layers)}
    return Contents(
        {"weights": drawn.weights},
        {"rows": list(drawn.rows), "columns": list(drawn.columns)},
        {**which, **_places(drawn.sides), **_proof(drawn)},
    )


@contents.register
def _(drawn: StepsResult) -> Contents:
    return Contents(
        {_file_name(stage): stage.values for stage in drawn.stages},
        {"queries": list(drawn.queries), "keys": list(drawn.keys)},
        {
            "stack": drawn.stack,
            "layer": drawn.layer,
            "head": drawn.head,
            "stages": [_stage(stage) for stage in drawn.stages],
            "word": drawn.word,
            "row": drawn.row,
            "shares": drawn.shares.tolist(),
            **_proof(drawn),
        },
    )


@contents.register
def _(drawn: ExampleResult) -> Contents:
    kinds = (
        "printed", "from_inputs", "from_printed", "slack_from_inputs", "slack_from_printed",
        "from_inputs_follows", "from_printed_follows",
    )  # fmt: skip
    found = {f"{one.key} given": one.values for one in drawn.given}
    for stage in drawn.stages:
        each = {f"{stage.key} {kind}": getattr(stage, kind) for kind in kinds}
        found |= {name: tensor for name, tensor in each.items() if tensor is not None}
    said = ("key", "name", "head", "title", "formula", "decimals", "slips")
    listed = ("rows", "columns", "sources", "notes")
    about = {
        "example": drawn.name,
        "title": drawn.title,
        "summary": drawn.summary(),
        "counts": drawn.count(),
        "slips": list(drawn.slips),
        "stages": [
            {key: getattr(stage, key) for key in said}
            | {key: list(getattr(stage, key)) for key in listed}
            for stage in drawn.stages
        ],
    }
    return Contents(found, {"tokens": list(drawn.tokens)}, about)


@contents.register
def _(drawn: SensesResult) -> Contents:
    def told(score: SenseScore) -> dict[str, Any]:
        recalls = dict(zip(drawn.senses, score.recalls, strict=True))
        return {**asdict(score), "recalls": recalls, "macro_recall": score.macro_recall}

    states = [
        {
            "state": drawn.state_name(i),
            **told(score),
            "explained": list(drawn.explained[i]),
            "plane_accuracy": drawn.plane_accuracy[i],
        }
        for i, score in enumerate(drawn.scores)
    ]
    return Contents(
        {"vectors": drawn.vectors, "plane": drawn.plane, "right": drawn.right},
        {"sense_of_each": [one.sense for one in drawn.occurrences]},
        {
            "word": drawn.word,
            "senses": list(drawn.senses),
            "chance": drawn.chance,
            "best": drawn.best,
            "p_best": drawn.p_best,
            "shuffles": drawn.shuffles,
            "raw": drawn.raw,
            "states": states,
            "context_words": told(drawn.context),
            "attention_layer": drawn.attention_layer,
            "occurrences": [{"word": one.word, **asdict(one)} for one in drawn.occurrences],
            **_proof(drawn),
        },
    )


@contents.register
def _(drawn: ShiftResult) -> Contents:
    split, account = drawn.decomposition, drawn.residual_stream
    found = {
        "value": split.value,
        "routing": split.routing,
        "credit": split.credit,
        "direction": split.direction,
        "ledger_attention": account.attention,
        "ledger_mlp": account.mlp,
        **{f"causal_{way.replace('-', '_')}": lost for way, lost in drawn.causal.items()},
        "patched": drawn.patched,
        "raw_attention": drawn.raw_attention,
        "rollout": drawn.rollout,
        "path": drawn.path,
        "distances": drawn.distances,
    }
    heads = drawn.heads_correlation
    about = {
        "word": drawn.word,
        "at": drawn.at,
        "positions": [list(at) for at in drawn.positions],
        "special": list(drawn.special),
        "reference": drawn.reference,
        "regions": list(drawn.regions),
        "total": split.total,
        "start": split.start,
        "length": split.length,
        "completeness_error": split.error,
        "credit_error": split.credit_error,
        "rank_correlations": drawn.rank_correlations,
        "heads_correlation": None if heads is None else dict(zip(("r", "rho"), heads, strict=True)),
        "ledger": {
            "bias": account.bias,
            "own": account.own,
            "total": account.total,
            "completeness_error": account.error,
        },
        **_proof(drawn),
    }
    tensors = {name: tensor for name, tensor in found.items() if tensor is not None}
    return Contents(tensors, {"words": list(drawn.words), "tokens": list(drawn.tokens)}, about)


def _proof(drawn: Measured | AttentionResult) -> dict[str, Any]:
    """Return what all say that come of a model."""
    return {
        "notes": [] if isinstance(drawn, AttentionResult) else list(drawn.notes),
        "provenance": asdict(drawn.provenance),
        "agreement": agreement_data(drawn.agreement),
    }


def _places(sides: tuple[AxisGeometry, AxisGeometry]) -> dict[str, Any]:
    """Return where rows and columns lie in an image, a sound or a long text, if they do."""
    named = list(zip(("rows", "columns"), sides, strict=True))
    tokens: dict[str, Any] = {
        f"tokens_of_{name}": {"first": side.start, "in_each": side.cell}
        for name, side in named
        if side.landmarks
    }
    return tokens | {
        f"{kind}_of_{name}": list(places)
        for name, side in named
        for kind, places in (("patches", side.patches), ("seconds", side.seconds))
        if places is not None
    }


def _file_name(stage: Stage) -> str:
    return stage.name.replace(" ", "_")


def _stage(stage: Stage) -> dict[str, Any]:
    """Return what is said of a stage, without its numbers."""
    return {
        "name": _file_name(stage),
        "formula": stage.formula,
        "shape": list(stage.values.shape),
        "difference": stage.difference,
        "passed": stage.passed,
    } | ({"why_not_compared": stage.why_not} if stage.why_not else {})


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
