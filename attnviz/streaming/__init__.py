"""Exact reductions of attention maps of any length, tile by tile, never with T×T in memory."""

from attnviz.results.attention_record import MaskRule
from attnviz.results.streamed import MapSummary
from attnviz.streaming.fused import fused
from attnviz.streaming.scores import ScoreSpec
from attnviz.streaming.summary import attend, crop, summarise
from attnviz.streaming.tiled import log_sum_exp

__all__ = [
    "MapSummary",
    "MaskRule",
    "ScoreSpec",
    "attend",
    "crop",
    "fused",
    "log_sum_exp",
    "summarise",
]
