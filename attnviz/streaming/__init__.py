"""Exact maps of any length: tiles of weights, reduced as they are made, never T×T at once."""

from attnviz.records import Summary
from attnviz.streaming.scoring import Scoring
from attnviz.streaming.summary import attend, crop, summarise
from attnviz.streaming.sweep import log_sum_exp
from attnviz.streaming.visible import Visible

__all__ = ["Scoring", "Summary", "Visible", "attend", "crop", "log_sum_exp", "summarise"]
