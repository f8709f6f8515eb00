"""Plant a fault in the captured attention of a model, and check the report."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import torch
from captures import checks_of, report_of

from attnviz import AttentionRecord

MAIN_PLACES = ("minilm", "bert", "gpt2", "llama", "t5/encoder", "t5/decoder", "t5/cross")
IN_FLOAT16 = ("bert", "llama", "t5/cross")
LAYER = 1  # the layer with the fault, which the report must name
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Fault:
    """A single fault.

    Attributes
    ----------
    name : what it does, by which tests and the page of the proof know it.
    plant : function from a record, and the records selected by `beside`, to a faulty record.
    places : the models in which it is planted; for an encoder–decoder with the stack, "t5/cross".
    stages : the first stage named by the report must be one of these.
    heads : the report must name these heads.
    beside : a second record used by the fault: the same one in the previous "layer" or in another
        "text", or the one of the "decoder" in this layer.
    padded : whether the fault is visible only in a text with padding.
    dtypes : dtypes in which it is a fault.
    """

    name: str
    plant: Callable[..., AttentionRecord]
    places: tuple[str, ...]
    stages: Collection[str]
    heads: Collection[int] = ()
    beside: str = ""
    padded: bool = False
    dtypes: tuple[torch.dtype, ...] = DTYPES


def position(records, place):
    """Return the index of the record in which a fault is planted."""
    stack = place.partition("/")[2] or records[LAYER].stack
    return [(record.stack, record.layer) for record in records].index((stack, LAYER))


def plant(fault, place, captures):
    """Yield (text, position, faulty record) for each text in which the fault is visible."""
    for text, capture in enumerate(captures):
        index = position(capture.records, place)
        record = capture.records[index]
        if fault.padded and not any(record.key_axis.padding):
            continue
        companions = {
            "": lambda: (),
            "layer": lambda c=capture, stack=record.stack: (_find(c.records, stack, LAYER - 1),),
            "text": lambda t=text, i=index: (captures[t - 1].records[i],),
            "decoder": lambda c=capture: (_find(c.records, "decoder", LAYER),),
        }
        yield text, index, fault.plant(record, *companions[fault.beside]())


def _find(records, stack, layer):
    return next(record for record in records if (record.stack, record.layer) == (stack, layer))


def expect_caught(fault, captured, honest, index, record):
    """Check that the report of a text names the fault in one record; return the failed check.

    honest : the proofs of the text without a fault.
    index : that of the faulty record.
    """
    checks = checks_of(record, captured.references[index])
    proofs = list(honest)
    proofs[index] = replace(proofs[index], checks=checks)
    report = report_of(proofs)
    first = report.first_difference
    assert report.verdict == "failed"
    assert (first.stack, first.layer) == (captured.records[index].stack, LAYER)
    assert first.stage in fault.stages
    assert set(fault.heads) <= set(first.failed_heads)
    assert f"layer {LAYER}, {first.stage}" in report.summary()
    return first
