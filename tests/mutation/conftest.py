"""Shared captures in which all faults are planted."""

import pytest
import torch
from families import TEXTS, TWO_SIDED, tiny
from planting import NO_PROVENANCE, prove_each

import attnviz
from attnviz import agreement
from attnviz.capture.capture import capture
from attnviz.inputs.batch import Inputs, encode


@pytest.fixture(scope="session")
def captured(tokenizer):
    """Return the captures of some texts, by family and dtype.

    By default a long text and a padded short one; otherwise the first `count` texts. The targets of
    an encoder–decoder are the texts in reverse order.
    """
    captures = {}

    def of(family, dtype, count=None):
        key = family, dtype, count
        if key not in captures:
            if family == "minilm":  # the pretrained model
                model = attnviz.load(dtype=dtype)
            else:
                model = attnviz.load(tiny(family, dtype), tokenizer=tokenizer)
            texts = TEXTS[1:] if count is None else TEXTS[:count]
            targets = {"targets": texts[::-1]} if family in TWO_SIDED else {}
            batch = encode(model.checkpoint, Inputs(texts, **targets))
            captures[key] = capture(model.module, batch.inputs, batch.axes)
        return captures[key]

    return of


@pytest.fixture(scope="session")
def honest(captured):
    """Return the checks of the captures without a fault: all of them are verified.

    Processors with native bfloat16 multiplication round more, so the canary of a short text may be
    missed and the text reported as not proven. There is still no difference.
    """
    proofs_by_key = {}

    def of(family, dtype):
        if (family, dtype) not in proofs_by_key:
            proofs = [prove_each(capture) for capture in captured(family, dtype)]
            verdicts = {
                agreement.report(text_proofs, "", "", **NO_PROVENANCE).verdict
                for text_proofs in proofs
            }
            assert "verified" in verdicts
            assert verdicts <= {"verified", *(() if dtype == torch.float32 else ("not proven",))}
            proofs_by_key[family, dtype] = proofs
        return proofs_by_key[family, dtype]

    return of
