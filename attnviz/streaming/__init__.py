"""Exact maps of any length: tiles of weights, reduced as they are made, never T×T at once."""

from attnviz.records import Summary, Visible
from attnviz.streaming.fused import attend, fused
from attnviz.streaming.scoring import Scoring
from attnviz.streaming.summary import crop, log_sum_exp, summarise

__all__ = ["Scoring", "Summary", "Visible", "attend", "crop", "fused", "log_sum_exp", "summarise"]
