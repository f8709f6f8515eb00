"""Capture: from a model and its inputs to the inputs and outputs of every attention.

The untouched model runs twice, recorded in the same way (recorder.py). The records come from the
first run, the references that they are compared with from the second. Nothing of one run enters the
other, so comparing them is a proof and not a tautology.
"""

from attnviz.capture.batched import BatchedAttention, capture_batch
from attnviz.capture.capture import Capture, capture, capture_generation, hidden_states
from attnviz.capture.recorder import memory_budget
from attnviz.capture.restore import model_lock, restoring
from attnviz.capture.row_sampler import Sample
from attnviz.capture.streamed import (
    AttentionTemplate,
    ReducedAttention,
    ReductionOptions,
    capture_streamed,
    sample_rows,
    stream_maps,
)

__all__ = [
    "AttentionTemplate",
    "BatchedAttention",
    "Capture",
    "ReducedAttention",
    "ReductionOptions",
    "Sample",
    "capture",
    "capture_batch",
    "capture_generation",
    "capture_streamed",
    "hidden_states",
    "memory_budget",
    "model_lock",
    "restoring",
    "sample_rows",
    "stream_maps",
]
