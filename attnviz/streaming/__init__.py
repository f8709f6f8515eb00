"""Exact maps of any length: tiles of weights, reduced as they are made, never T×T at once."""

from attnviz.records import Summary, Visible
from attnviz.streaming.fused import fused
from attnviz.streaming.rooms import Rooms
from attnviz.streaming.scoring import Scoring
from attnviz.streaming.summary import attend, crop, summarise
from attnviz.streaming.sweep import log_sum_exp

__all__ = [
    "Rooms",
    "Scoring",
    "Summary",
    "Visible",
    "attend",
    "crop",
    "fused",
    "log_sum_exp",
    "summarise",
]
