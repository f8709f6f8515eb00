"""Attentions as they are captured beside what the model computed, and reports of changed ones.

What goes past the public functions does so here, for all tests.
"""

from attnviz import agreement
from attnviz.agreement.compare import compare, model_values, prove
from attnviz.capture.capture import capture
from attnviz.capture.watch import restoring  # noqa: F401
from attnviz.inputs import Inputs, encode

NO_PROVENANCE = {"versions": {}, "weights_sha256": ""}


def capture_texts(model, texts, **more):
    """Return the captures of some texts; `more` are other inputs, such as targets."""
    batch = encode(model.checkpoint, Inputs(texts, **more))
    return capture(model.module, batch.inputs, batch.axes)


def verify(records, references):
    """Return the report of records that a test may have changed."""
    return agreement.verify(records, references, **NO_PROVENANCE)


def proof_of(record, reference):
    """Return the proof of one attention."""
    return prove([(record, model_values(record, reference))])[0]


def checks_of(record, reference):
    """Return the checks of one attention, without its proof."""
    return compare([(record, model_values(record, reference))])[0][0]


def report_of(proofs):
    """Return the report of the proofs of a text."""
    return agreement.report(proofs, "", "", **NO_PROVENANCE)
