"""A few faults in many architectures: tiny random models of the architecture check, in float32."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from architectures.tiny_models import build

from attnviz.capture.capture import capture
from attnviz.results import AttentionRecord, LinearAttention, Rotation
from planted.formula import changed, count_alarms, judge, outcomes
from planted.rules import Accepted, StageValues, accepted_stages, values_of_stages

# isort: split
from faults import BY_NAME
from faults_in_models import FAULTS as OF_MODELS
from faults_in_models import SITES

NAMES = (
    "llama", "bert", "gpt2", "t5", "vit", "gpt_oss", "deepseek_v3", "bloom", "swin", "whisper",
    "jamba", "mixtral", "deberta-v2", "gemma2", "clip",
)  # fmt: skip


def wrong_rotary_base(record: AttentionRecord) -> AttentionRecord:
    """Rotate by one and a half times the angles."""
    assert record.rotation is not None
    angles = torch.atan2(record.rotation[1], record.rotation[0]) * 1.5
    return replace(record, rotation=(angles.cos(), angles.sin()))


PLANTS = {one.name: one.plant for one in BY_NAME.values()}
PLANTS["wrong_rotary_base"] = wrong_rotary_base
# Of the formula: each fault by its name, and whether it can be planted in an attention.
OF_FORMULA: dict[str, Callable[[AttentionRecord], bool]] = {
    "scale_one_percent_off": lambda record: True,
    "two_heads_swapped": lambda record: record.heads > 2,
    "weights_of_the_next_head": lambda record: record.heads > 1,
    "mask_shifted_by_one": lambda record: record.mask is not None,
    "wrong_rotary_base": lambda record: (
        record.projection is not None
        and record.projection.query is not None
        and any(isinstance(step, Rotation) for step in record.projection.query.after)
    ),
}
# In the model's own code: the function that each fault changes.
OF_CODE = {
    "scale 1 % off": "eager_attention_forward",
    "scale of one head 1 % off": "eager_attention_forward",
    "queries of two heads swapped": "eager_attention_forward",
    "outputs of two heads swapped": "eager_attention_forward",
    "mask shifted by one": "eager_attention_forward",
    "wrong rotary base": "apply_rotary_pos_emb",
}


def run(name: str, dtype: str, names: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Plant a few faults in one architecture; what is returned is as in `formula.run`."""
    assert dtype == "float32"
    model, inputs = build(name)
    captures = capture(model, inputs)
    before = [_observe(captured) for captured in captures]
    planted = []
    for text, captured in enumerate(captures):
        values, accepted = before[text]
        for fault, applies in OF_FORMULA.items():
            last, record, reference = _with_softmax(captured)[-1]
            if not applies(record):
                continue
            row = judge(
                PLANTS[fault](record),
                reference,
                {stage: of for (number, stage), of in values.items() if number == last},
                {stage: of for (number, stage), of in accepted.items() if number == last},
            )
            if row is not None:
                planted.append({"fault": fault.replace("_", " "), "text": text, **row})
    code = sys.modules[type(model).__module__]
    for fault in OF_MODELS:
        if not hasattr(code, OF_CODE.get(fault.name, "nothing")):
            continue
        with fault.plant(model, SITES["bert"]):  # the site is not used by these
            after = [_observe(captured) for captured in capture(model, inputs)]
        for text, (values, accepted) in enumerate(after):
            if changed(before[text][0], values):
                row = outcomes(before[text][1], accepted)
                planted.append({"fault": f"in the model: {fault.name}", "text": text, **row})
    return {
        "planted": [row for row in planted if not names or row["fault"] in names],
        "unplanted": [count_alarms([accepted]) for _, accepted in before],
    }


def _observe(captured: Any) -> tuple[dict[Any, StageValues], dict[Any, Accepted]]:
    """Return the numbers of every stage of a text, and which rules accept them."""
    values: dict[Any, StageValues] = {}
    accepted: dict[Any, Accepted] = {}
    for number, *pair in _with_softmax(captured):
        stages = values_of_stages(*pair)
        for stage, rules in accepted_stages(*pair, stages).items():
            values[number, stage], accepted[number, stage] = stages[stage], rules
    return values, accepted


def _with_softmax(captured: Any) -> list[tuple[int, AttentionRecord, Any]]:
    """Return the number, the record and the reference of each attention with a softmax."""
    pairs = enumerate(zip(captured.records, captured.references, strict=True))
    return [(n, *pair) for n, pair in pairs if not isinstance(pair[0], LinearAttention)]
