"""Capture: from a model and its inputs to the inputs and outputs of every attention."""

from attnviz.capture.batched import BatchedAttention, capture_batch, capture_matrices
from attnviz.capture.capture import (
    Capture,
    capture,
    capture_generation,
    generate_greedily,
    hidden_states,
)
from attnviz.capture.computation import read_computation
from attnviz.capture.positions import (
    MovedKeys,
    change_by_code,
    change_every_position,
    change_some_positions,
)
from attnviz.capture.stacks import place_windows
from attnviz.capture.streamed import (
    LinearLayers,
    ReducedAttention,
    ReductionOptions,
    Sample,
    capture_pooled,
    capture_streamed,
    linear_calls,
    outputs_of_start,
)
from attnviz.capture.watch import Output, Outputs, memory_budget, model_lock, restoring

__all__ = [
    "BatchedAttention",
    "Capture",
    "LinearLayers",
    "MovedKeys",
    "Output",
    "Outputs",
    "ReducedAttention",
    "ReductionOptions",
    "Sample",
    "capture",
    "capture_batch",
    "capture_generation",
    "capture_matrices",
    "capture_pooled",
    "capture_streamed",
    "change_by_code",
    "change_every_position",
    "change_some_positions",
    "generate_greedily",
    "hidden_states",
    "linear_calls",
    "memory_budget",
    "model_lock",
    "outputs_of_start",
    "place_windows",
    "read_computation",
    "restoring",
]
