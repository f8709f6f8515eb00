"""Capture: from a model and its inputs to the inputs and outputs of every attention."""

from attnviz.capture.batched import BatchedAttention, capture_batch
from attnviz.capture.capture import Capture, capture, capture_generation, hidden_states
from attnviz.capture.stacks import place_windows
from attnviz.capture.streamed import (
    AttentionTemplate,
    ReducedAttention,
    ReductionOptions,
    Sample,
    capture_streamed,
    sample_rows,
    stream_maps,
)
from attnviz.capture.watch import memory_budget, model_lock, restoring

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
    "place_windows",
    "restoring",
    "sample_rows",
    "stream_maps",
]
