"""How a fault is planted in what was captured of a model, and what must come of it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import pytest
import torch

from attnviz import agreement
from attnviz.agreement.compare import compare, model_values, prove
from attnviz.results import AttentionRecord

OFTEN = ("minilm", "bert", "gpt2", "llama", "t5/encoder", "t5/decoder", "t5/cross")
IN_FLOAT16 = ("bert", "llama", "t5/cross")
LAYER = 1  # where a fault is planted; the report must name it
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Fault:
    """One thing done wrong.

    Attributes
    ----------
    plant : from a record, and what stands `beside` it, to the record as it should not be.
    places : the models in which it is planted; of an encoder–decoder with the stack, "t5/cross".
    stages : one of these must be the first that the report names.
    heads : these must be among the heads that it names.
    beside : what the fault confuses the record with: the same in the "layer" before or in another
        "text", or in this layer that of the "decoder" itself.
    padded : whether it shows only in a text with padding.
    dtypes : where it is a fault at all.
    """

    plant: Callable[..., AttentionRecord]
    places: tuple[str, ...]
    stages: Collection[str]
    heads: Collection[int] = ()
    beside: str = ""
    padded: bool = False
    dtypes: tuple[torch.dtype, ...] = DTYPES

    @property
    def name(self) -> str:
        return self.plant.__name__


TOLD = {"versions": {}, "weights_sha256": ""}


def verify(records, references):
    return agreement.verify(records, references, **TOLD)


def prove_each(capture):
    """Return the proof of every attention of a text."""
    pairs = zip(capture.records, capture.references, strict=True)
    return [prove(record, model_values(record, reference)) for record, reference in pairs]


def cases(faults, *families):
    """Return the marker of a test that sees each fault planted in each place, in each dtype.

    Float16 lies between the two others: it is seen in some places only.
    """
    found = [
        pytest.param(fault, place, dtype, id=f"{fault.name}-{place}-{str(dtype)[6:]}")
        for fault in faults
        for place in fault.places
        for dtype in fault.dtypes
        if place.partition("/")[0] in families and (place in IN_FLOAT16 or dtype != torch.float16)
    ]
    return pytest.mark.parametrize(("fault", "place", "dtype"), found)


def position(records, place):
    """Return which record it is in which a fault is planted."""
    stack = place.partition("/")[2] or records[LAYER].stack
    return [(each.stack, each.layer) for each in records].index((stack, LAYER))


def plant(fault, place, captures):
    """Yield (text, position, record): the record with the fault, of each text in which it shows."""
    for text, each in enumerate(captures):
        at = position(each.records, place)
        record = each.records[at]
        if fault.padded and not any(record.key_axis.padding):
            continue
        beside = {
            "": lambda: (),
            "layer": lambda each=each, of=record: (_find(each.records, of.stack, LAYER - 1),),
            "text": lambda text=text, at=at: (captures[text - 1].records[at],),
            "decoder": lambda each=each: (_find(each.records, "decoder", LAYER),),
        }
        yield text, at, fault.plant(record, *beside[fault.beside]())


def _find(records, stack, layer):
    return next(each for each in records if (each.stack, each.layer) == (stack, layer))


def expect_caught(fault, captured, honest, at, record):
    """See that the report of a text names a fault in one record; return the check that did.

    honest : the proofs of the text without a fault. at : which of them the record stands for.
    """
    checks = tuple(compare(record, model_values(record, captured.references[at])))
    proofs = list(honest)
    proofs[at] = replace(proofs[at], checks=checks)
    report = agreement.report(proofs, "", "", **TOLD)
    first = report.first_difference
    assert report.verdict == "failed"
    assert (first.stack, first.layer) == (captured.records[at].stack, LAYER)
    assert first.stage in fault.stages
    assert set(fault.heads) <= set(first.failed_heads)
    assert f"layer {LAYER}, {first.stage}" in report.summary()
    return first
