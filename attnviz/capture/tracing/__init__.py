"""Attention found among the operators that a run executes, with no knowledge of the model.

The tracer sees the operators and follows every score (provenance.py) from its product q·k to the
softmax; `arrange` brings a traced softmax to (N, H, m, n).
"""
