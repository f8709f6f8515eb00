"""Model and inputs → records: what every attention of a model saw, and what it answered.

The untouched model runs twice, watched in the same way (recording.py). The records come from the
first run, what they are compared with from the second. Nothing of one run enters the other, so
comparing them is a proof and not a tautology.
"""

from attnviz.capture.batched import Together, read_together
from attnviz.capture.capture import Capture, capture, capture_generation, hidden_states
from attnviz.capture.restore import one_at_a_time, unchanged
from attnviz.capture.row_sampler import Sample
from attnviz.capture.run_model import room_to_run
from attnviz.capture.streamed import (
    Keep,
    Seen,
    Streamed,
    capture_streamed,
    sample_rows,
    stream_maps,
)

__all__ = [
    "Capture",
    "Keep",
    "Sample",
    "Seen",
    "Streamed",
    "Together",
    "capture",
    "capture_generation",
    "capture_streamed",
    "hidden_states",
    "one_at_a_time",
    "read_together",
    "room_to_run",
    "sample_rows",
    "stream_maps",
    "unchanged",
]
