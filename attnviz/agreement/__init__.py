"""Proof: our attention against the model's own, stage by stage, head by head.

Every stage is recomputed in float64: Q, K and V from the module's input and weights, all that
follows from the Q, K and V that the model had. A difference passes only if it is within the
tolerance of the model's precision *and* what our own run in that precision errs too. Two faults
would hide in that: a scale that is a little off looks like rounding in bfloat16, but not in the
slope of the log weights (or of the values); a mask that is not quite a mask shows only in weights
that should be exactly 0. So both are checked.
And since a check that cannot fail proves nothing, a scale 1 % off is planted in every layer, and
must be caught.
"""

from attnviz.agreement.compare import CANARY, Proof, bounded
from attnviz.agreement.reduced import Reduced
from attnviz.agreement.streamed import prove_rows, prove_streamed
from attnviz.agreement.tolerances import PRECISIONS, dtypes
from attnviz.agreement.verify import report, verify

__all__ = [
    "CANARY",
    "PRECISIONS",
    "Proof",
    "Reduced",
    "bounded",
    "dtypes",
    "prove_rows",
    "prove_streamed",
    "report",
    "verify",
]
