"""What is captured once for all faults that are planted in it, and the table of them."""

import pytest
import torch
from families import TEXTS, TWO_SIDED, tiny
from planted import OFTEN, TOLD, expect_caught, plant, prove_each
from tally import Tally, print_table

import attnviz
from attnviz import agreement
from attnviz.capture import capture
from attnviz.inputs import encode


@pytest.fixture(scope="module")
def captured(tokenizer):
    """Return what was captured of some texts, by family and dtype.

    By default a long text and a short one, which is padded; else the first `count`. An
    encoder–decoder says them in another order than it reads them.
    """
    found = {}

    def of(family, dtype, count=None):
        key = family, dtype, count
        if key not in found:
            if family == "minilm":  # the real one
                model = attnviz.load(dtype=dtype)
            else:
                model = attnviz.load(tiny(family, dtype), tokenizer=tokenizer)
            texts = TEXTS[1:] if count is None else TEXTS[:count]
            said = {"targets": texts[::-1]} if family in TWO_SIDED else {}
            batch = encode(model.checkpoint, texts, **said)
            found[key] = capture(model.module, batch.inputs, batch.axes)
        return found[key]

    return of


@pytest.fixture(scope="module")
def honest(captured):
    """Return the proofs of what was captured, without a fault: all of it is verified.

    Processors that multiply in bfloat16 themselves round more: there the canary of a short text may
    be lost, which is said. Nothing differs for all that.
    """
    found = {}

    def of(family, dtype):
        if (family, dtype) not in found:
            proofs = [prove_each(each) for each in captured(family, dtype)]
            verdicts = {agreement.report(of_text, "", "", **TOLD).verdict for of_text in proofs}
            assert "verified" in verdicts
            assert verdicts <= {"verified", *(() if dtype == torch.float32 else ("not proven",))}
            found[family, dtype] = proofs
        return found[family, dtype]

    return of


@pytest.fixture
def tally(record_property):
    """Take what a test has to tell in the table under the tests."""
    return Tally(record_property)


@pytest.fixture
def see_caught(captured, honest, tally):
    """Return what plants a fault in a model, and sees that it is caught and named."""

    def see(fault, place, dtype):
        family = place.partition("/")[0]
        tally.fault(f"in {place}" if place in OFTEN else "in other models")
        captures, proofs = captured(family, dtype), honest(family, dtype)
        found = [
            expect_caught(fault, captures[text], proofs[text], at, record)
            for text, at, record in plant(fault, place, captures)
        ]
        assert found, "it was planted nowhere"
        tally.honest(
            [check for of_text in proofs for each in of_text for check in each.checks], dtype
        )
        tally.planted(found, dtype)

    return see


def pytest_terminal_summary(terminalreporter):
    reports = [each for kind in terminalreporter.stats.values() for each in kind]
    print_table(terminalreporter, [each for each in reports if getattr(each, "when", "") == "call"])
