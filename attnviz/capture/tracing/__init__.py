"""Attention found among the operators that a run executes, with no knowledge of the model.

The tracer sees the operators and follows every score (provenance.py) from its product q·k to the
softmax (nodes.py); `arrange` brings a traced softmax to (N, H, m, n).
"""

from attnviz.capture.tracing.arrange import NotExpressibleError, arrange
from attnviz.capture.tracing.nodes import Softmax
from attnviz.capture.tracing.tracer import OperatorTracer, SoftmaxCollector

__all__ = [
    "NotExpressibleError",
    "OperatorTracer",
    "Softmax",
    "SoftmaxCollector",
    "arrange",
]
