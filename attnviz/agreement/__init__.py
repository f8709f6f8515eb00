"""Proof: our attention against the model's own, stage by stage, head by head.

Every stage is recomputed in float64: Q, K and V from the module's input and weights, the rest from
the model's own Q, K and V. A difference passes only if it is within the tolerance of the model's
precision *and* within the error of our own run in that precision. Two faults would hide there: a
scale that is slightly off looks like rounding in bfloat16, but not in the slope of the log weights
(or of the values); a leaking mask shows only in weights that should be exactly 0. So both are
checked. And since a check that cannot fail proves nothing, a scale that is 1 % off (the canary) is
planted in every layer, and must be caught.
"""

from attnviz.agreement.compare import CANARY as CANARY
from attnviz.agreement.compare import load_result as load_result
from attnviz.agreement.compare import prove_all as prove_all
from attnviz.agreement.compare import report as report
from attnviz.agreement.compare import verify as verify
from attnviz.agreement.compare import verify_saved as verify_saved
from attnviz.agreement.runs import can_be_told as can_be_told
from attnviz.agreement.runs import check_hidden_runs as check_hidden_runs
from attnviz.agreement.runs import check_hidden_states as check_hidden_states
from attnviz.agreement.runs import check_output as check_output
from attnviz.agreement.runs import check_positions as check_positions
from attnviz.agreement.streamed import prove_rows as prove_rows
from attnviz.agreement.streamed import prove_streamed as prove_streamed
from attnviz.agreement.verdict import PRECISIONS as PRECISIONS
from attnviz.agreement.verdict import Proof as Proof
from attnviz.agreement.verdict import bounded_check as bounded_check
from attnviz.agreement.verdict import dtypes as dtypes
