"""Faults of the formula: in our recomputation of one attention, beside the model's own numbers."""

from __future__ import annotations

from typing import Any

from attnviz.agreement.compare import model_values, prove
from attnviz.results import AttentionRecord, Reference
from attnviz.runtime.libraries import silence_logs
from planted.rules import (
    ATTNVIZ,
    RULES,
    Accepted,
    StageValues,
    accepted_stages,
    values_of_stages,
)
from planted.subjects import DTYPES, IMPOSSIBLE, PLACES, Subject

# isort: split
from faults import FAULTS
from planting import Fault, plant, position

_CHANGED = 1e-6  # of the largest number of a stage: less is no fault, but rounding


def run(place: str, dtype: str, names: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Plant every fault of one place, and judge it; also judge what has no fault.

    names : of the faults, by default all.

    Returns
    -------
    planted : one row for each fault and text: the fault, and the outcome of each rule.
    unplanted : one row for each text: how many stages each rule rejects, of how many.
    """
    with silence_logs():
        captures = Subject.of(place.partition("/")[0], dtype).captures()
    index = position(captures[0].records, place)
    before, unproven, unplanted = [], [], []
    for captured in captures:
        pairs = list(zip(captured.records, captured.references, strict=True))
        of_layers = [(values, accepted_stages(*pair, values)) for pair in pairs
                     for values in [values_of_stages(*pair)]]  # fmt: skip
        before.append(of_layers[index])
        record, reference = pairs[index]
        unproven.append(prove([(record, model_values(record, reference))])[0].unproven)
        unplanted.append(count_alarms([accepted for _, accepted in of_layers]))
    planted = []
    for fault, test_place in faults_of(place, dtype):
        if names and fault.name not in names:
            continue
        for text, at, record in plant(fault, test_place, captures):
            values, accepted = before[text]
            row = judge(record, captures[text].references[at], values, accepted)
            if row is not None:
                if row[ATTNVIZ] == "missed" and unproven[text]:
                    row[ATTNVIZ] = "not proven"
                planted.append({"fault": fault.name.replace("_", " "), "text": text, **row})
    return {"planted": planted, "unplanted": unplanted}


def faults_of(place: str, dtype: str) -> list[tuple[Fault, str]]:
    """Return the faults that are planted in a place, each with the place of the tests."""
    pairs = [
        (fault, test_place)
        for fault in FAULTS
        for test_place in PLACES[place]
        if test_place in fault.places
        and DTYPES[dtype] in fault.dtypes
        and fault.name not in IMPOSSIBLE.get(place, ())
    ]
    stack = place.partition("/")[2]
    once = {fault.name: fault for fault, _ in pairs}
    return [(fault, f"{place.partition('/')[0]}/{stack}".rstrip("/")) for fault in once.values()]


def judge(
    record: AttentionRecord,
    reference: Reference,
    values: dict[str, StageValues],
    accepted: dict[str, Accepted],
) -> dict[str, str] | None:
    """Return the outcome of each rule for a faulty record; None if no number changes.

    values, accepted : of the same attention without a fault.
    """
    faulty = values_of_stages(record, reference)
    if not changed(values, faulty):
        return None
    after = accepted_stages(record, reference, faulty)
    return outcomes(accepted, after)


def changed(before: dict[Any, StageValues], after: dict[Any, StageValues]) -> bool:
    """Return whether a fault changes any number by more than rounding."""
    return before.keys() != after.keys() or any(
        float((new - old).abs().max()) > _CHANGED * float(old.abs().max())
        for key, values in after.items()
        for new, old in ((values.ours, before[key].ours), (values.model, before[key].model))
    )


def outcomes(before: dict[Any, Accepted], after: dict[Any, Accepted]) -> dict[str, str]:
    """Return the outcome of each rule: it catches a fault by rejecting what it accepted before.

    With some faults attnviz says of a stage that it is not compared: it reproduces it no longer.
    """

    def of(rule: str) -> str:
        rejects = [key for key, by_rule in after.items() if not by_rule[rule]]
        if any(key not in before or before[key][rule] for key in rejects):
            return "caught"
        if rejects:
            return "either way"
        return "not compared" if before.keys() - after.keys() else "missed"

    return {rule: of(rule) for rule in RULES}


def count_alarms(layers: list[dict[str, Accepted]]) -> dict[str, int]:
    """Return how many stages of all layers each rule rejects, and how many there are."""
    stages = [by_rule for accepted in layers for by_rule in accepted.values()]
    alarms = {rule: sum(not by_rule[rule] for by_rule in stages) for rule in RULES}
    return {"stages": len(stages), **alarms}
