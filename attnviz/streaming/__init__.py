"""Exact reductions of attention maps of any length, never with T×T in memory."""

from attnviz.streaming.scores import ScoreSpec
from attnviz.streaming.summary import attend, summarise

__all__ = ["ScoreSpec", "attend", "summarise"]
