"""Runs without a fault: whatever is rejected is a false alarm."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

from planted.models import observe
from planted.rules import RULES
from planted.subjects import DTYPES, ROOT, Subject, bundled, tokenizer_

# isort: split
from families import FAMILIES, OWN_CODE, TWO_SIDED, tiny

import attnviz
from attnviz.errors import ModelError

SENTENCES = ROOT / "attnviz" / "analyses" / "senses" / "sentences.json"
BATCHES = {"the bundled model": 200, "a setting": 3, "a family": 2}
JUDGED = 20  # batches whose numbers the other rules judge
LONGEST = 4  # texts in a batch
WORDS = 30  # of a text, which tiny models can read


@cache
def sentences() -> list[str]:
    """Return the bundled example sentences, and those of the guides."""
    bundled_ = json.loads(SENTENCES.read_text(encoding="utf-8"))
    texts = [text for word in bundled_.values() for sense in word.values() for text in sense]
    for path in sorted((ROOT / "gallery" / "guides").glob("*.md")):
        if path.name != "proof.md":  # which this script writes
            prose = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
            lines = (re.sub(r"[*`\[\]|#]|\(.*?\)", "", line) for line in prose.split("\n\n"))
            texts += [line for text in lines for line in re.split(r"(?<=[.:?!])\s+", text)]
    return [text for text in texts if 3 <= len(text.split()) <= WORDS]


def batch(name: str, number: int) -> list[str]:
    """Return the texts of one batch, always the same."""
    chance = random.Random(f"{name} {number}")
    return chance.sample(sentences(), chance.randint(1, LONGEST))


def with_attention(implementation: str) -> Callable[[Any], None]:
    """Return a change of the attention implementation."""
    return lambda module: module.set_attn_implementation(implementation)


def train(module: Any) -> None:
    """Put a model into train mode."""
    module.train()


def checkpointing(module: Any) -> None:
    """Recompute activations in the backward pass, as in training."""
    module.train()
    module.activation_checkpointing_enable()


def compiled(module: Any) -> None:
    """Compile the forward of a model."""
    module.compile()


SETTINGS: dict[str, Callable[[Any], None]] = {
    "eager": with_attention("eager"),
    "sdpa": with_attention("sdpa"),
    "flex_attention": with_attention("flex_attention"),
    "model.compile()": compiled,
    "train mode": train,
    "gradient checkpointing": checkpointing,
}
SET_MODELS = ("minilm", "llama")


def run(case: str, dtype: str) -> dict[str, Any]:
    """Run one case in one dtype; return counts, and what is not verified.

    case : "minilm" for the bundled model, "NAME: SETTING" for one of `SETTINGS`, or a tiny family.

    Returns
    -------
    batches, texts : how many there were. unplanted : how many stages were judged, and how many of
    them each rule rejects. verdicts : of attnviz, by text. others : the texts that are not
    verified, and why.
    """
    name, _, setting = case.partition(": ")
    model = bundled(dtype) if name == "minilm" else _tiny(name, dtype)
    kind = "a setting" if setting else "the bundled model" if name == "minilm" else "a family"
    if setting:
        SETTINGS[setting](model.module)
    verdicts, alarms, others, texts = Counter(), Counter(), [], 0
    for number in range(BATCHES[kind]):
        given = batch(name, number)
        targets = {"target": given[::-1]} if name in TWO_SIDED else {}
        texts += len(given)
        try:
            subject = Subject(model, {"text": given, **targets})
            observed = observe(subject, judge=number < JUDGED)
        except ModelError as error:
            verdicts["refused"] += len(given)
            others.append({"batch": number, "text": given[0], "why": f"refused: {error}"})
            continue
        for text, report, accepted in zip(given, observed.reports, observed.accepted, strict=True):
            verdicts[report.verdict] += 1
            alarms["stages"] += len(accepted)
            alarms.update(
                {rule: sum(not by_rule[rule] for by_rule in accepted.values()) for rule in RULES}
            )
            if report.verdict != "verified":
                others.append({"batch": number, "text": text, "why": report.summary()})
    return {
        "batches": BATCHES[kind],
        "texts": texts,
        "unplanted": [dict(alarms)],
        "verdicts": dict(verdicts),
        "others": others,
    }


def _tiny(name: str, dtype: str) -> attnviz.Model:
    return attnviz.load(tiny(name, DTYPES[dtype]), tokenizer=tokenizer_())


def cases() -> list[str]:
    """Return all cases."""
    settings = [f"{name}: {setting}" for name in SET_MODELS for setting in SETTINGS]
    return ["minilm", *FAMILIES, *TWO_SIDED, *OWN_CODE, *settings]
