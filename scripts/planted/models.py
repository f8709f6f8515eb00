"""Faults in the model, or between the model and the picture: judged by a whole run of attnviz."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch

from attnviz import agreement, pipeline
from attnviz.capture.watch import Outputs, floats
from attnviz.errors import InputError
from attnviz.results import AgreementReport, AttentionResult, Axis
from planted.formula import changed, count_alarms, outcomes
from planted.rules import (
    ATTNVIZ,
    FLASH,
    RULES,
    Accepted,
    StageValues,
    accepted_stages,
    values_of_stages,
)
from planted.subjects import Subject

# isort: split
from faults_in_models import FAULTS, SITES, ModelFault

OUTPUT, POSITIONS, LABELS = "model output", "positions", "labels"
UNSEEN = "cannot see"


@contextmanager
def labels_shifted(*_: object) -> Iterator[None]:
    """Shift the labels of the maps by one token."""
    encode = pipeline.encode

    def shifted(*given: Any, **options: Any) -> Any:
        batch = encode(*given, **options)
        axes = {kind: tuple(map(_shift, of_kind)) for kind, of_kind in batch.axes.items()}
        return replace(batch, axes=axes)

    with patch.object(pipeline, "encode", shifted):
        yield


def _shift(axis: Axis) -> Axis:
    return replace(axis, labels=(*axis.labels[-1:], *axis.labels[:-1]))


# Faults that are in no number: they are beside the maps.
BESIDE = [ModelFault("labels shifted by one", labels_shifted)]


@dataclass(frozen=True, eq=False)
class Observed:
    """A run of attnviz: of each text its report, the numbers, and what each rule accepts."""

    reports: list[AgreementReport]
    values: list[dict[Any, StageValues]]
    accepted: list[dict[Any, Accepted]]


def observe(subject: Subject, *, judge: bool = True) -> Observed:
    """Run attnviz, and let all rules `judge` the numbers that it compares."""
    compared: list[tuple[Any, Any]] = []
    outputs: list[Outputs] = []
    verify, check_output = agreement.verify, agreement.check_output

    def verify_(records: Any, references: Any, **options: Any) -> AgreementReport:
        compared.append((records, references))
        return verify(records, references, **options)

    def check_output_(of: Outputs, *given: Any) -> Any:
        outputs.append(of)
        return check_output(of, *given)

    with (
        patch.object(agreement, "verify", verify_),
        patch.object(agreement, "check_output", check_output_),
    ):
        results = _attend(subject)
    values, accepted = [], []
    for text, (result, pairs) in enumerate(zip(results, compared, strict=True)):
        report, of_text = result.agreement, {}
        values.append({})
        for number, pair in enumerate(zip(*pairs, strict=True) if judge else ()):
            stages = values_of_stages(*pair)
            for stage, rules in accepted_stages(*pair, stages).items():
                values[-1][number, stage], of_text[number, stage] = stages[stage], rules
        if judge and report.output is not None:
            axis = pairs[0][-1].query_axis
            values[-1][OUTPUT] = of_output = _of_output(outputs[-1], axis, text)
            rules = _judge_output(of_output, subject, axis, text)
            of_text[OUTPUT] = {**rules, ATTNVIZ: report.output.passed}
        if judge and report.positions is not None and report.positions.doubt is None:
            of_text[POSITIONS] = {**dict.fromkeys(RULES, True), ATTNVIZ: report.positions.passed}
        if judge:
            fit = report.positions is None or report.positions.doubt is None
            of_text[LABELS] = {**dict.fromkeys(RULES, True), ATTNVIZ: fit}
        accepted.append(of_text)
    return Observed([result.agreement for result in results], values, accepted)


def _attend(subject: Subject) -> list[AttentionResult]:
    """Run attnviz with a check of every position, or of some where the keys are not shown."""
    try:
        return subject.model.attend(**subject.arguments, positions="all")
    except InputError:
        return subject.model.attend(**subject.arguments)


def _of_output(outputs: Outputs, axis: Axis, text: int) -> StageValues:
    """Return the output of the recorded run, and as loaded: its first tensor, without padding."""
    recorded, loaded = (
        _without_padding(run.model, axis, text) for run in (outputs.recorded, outputs.loaded)
    )
    return StageValues(recorded.double(), loaded.double(), recorded.double(), recorded.dtype)


def _without_padding(tensors: tuple[torch.Tensor, ...], axis: Axis, text: int) -> torch.Tensor:
    real = torch.tensor([not padding for padding in axis.padding])
    tensor = tensors[0][text]
    return tensor[real] if len(tensor) == len(real) else tensor


def _judge_output(output: StageValues, subject: Subject, axis: Axis, text: int) -> Accepted:
    """Judge the output of the recorded run.

    FlashAttention's rule takes a copy of the model in float64 as the reference, and the model as
    loaded as the plain implementation.
    """
    if torch.equal(output.ours, output.model):
        return dict.fromkeys(RULES, True)
    exact = _without_padding(floats(subject.output_in_float64()), axis, text)
    by_flash = replace(output, ours=exact, model=output.ours, run=output.model)
    return output.accepted() | {FLASH: by_flash.accepted()[FLASH]}


def run(family: str, dtype: str, names: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Plant every fault in one model, and judge it; also judge the model without one.

    names, and what is returned: as in `formula.run`.
    """
    subject = Subject.of(family, dtype)
    module = subject.model.module
    module.set_attn_implementation("eager")  # so that a fault in it is in every run of the model
    before = observe(subject)
    planted = []
    for fault in [*FAULTS, *BESIDE]:
        if family not in fault.families or (names and fault.name not in names):
            continue
        with fault.plant(module, SITES[family]):
            after = observe(subject)
        for text, report in enumerate(after.reports):
            row = outcomes(before.accepted[text], after.accepted[text])
            if fault not in BESIDE and not changed(before.values[text], after.values[text]):
                continue  # as a mask left out of a text that has none
            if fault in BESIDE:
                row |= dict.fromkeys(RULES[1:], UNSEEN)
            if row[ATTNVIZ] == "missed" and report.verdict == "not proven":
                row[ATTNVIZ] = "not proven"
            planted.append({"fault": fault.name, "text": text, **row})
    unplanted = [count_alarms([accepted]) for accepted in before.accepted]
    return {"planted": planted, "unplanted": unplanted}
