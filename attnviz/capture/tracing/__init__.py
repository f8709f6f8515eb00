"""Attention found among the operators that a run executes, with no knowledge of the model.

`watch` sees the operators and follows every score (`shadows`, `formula`) from its product q·k to
the softmax; `layout` brings what was seen to (N, H, m, n).
"""

from attnviz.capture.tracing.arrange import NotExpressibleError, arrange
from attnviz.capture.tracing.nodes import Softmax
from attnviz.capture.tracing.tracer import OperatorWatch

__all__ = [
    "NotExpressibleError",
    "OperatorWatch",
    "Softmax",
    "arrange",
]
