"""Exact maps of any length: tiles of weights, reduced as they are made, never T×T at once."""

from attnviz.results.mask_rule import MaskRule
from attnviz.results.streamed import MapSummary
from attnviz.streaming.fused import fused
from attnviz.streaming.rooms import Rooms
from attnviz.streaming.scores import Scoring
from attnviz.streaming.summary import attend, crop, summarise
from attnviz.streaming.sweep import log_sum_exp

__all__ = [
    "MapSummary",
    "MaskRule",
    "Rooms",
    "Scoring",
    "attend",
    "crop",
    "fused",
    "log_sum_exp",
    "summarise",
]
