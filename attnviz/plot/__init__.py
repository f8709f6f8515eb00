"""Figures: one file per kind. Each takes a result, draws with matplotlib, and never saves or shows.

Every figure carries model, layer, head, what was removed or renormalised, and the verdict of the
agreement check.
"""

from attnviz.plot.caption import add_caption
from attnviz.plot.disambiguation import disambiguation
from attnviz.plot.example import example
from attnviz.plot.export import save_figure
from attnviz.plot.head_grid import head_grid
from attnviz.plot.heatmap import heatmap
from attnviz.plot.steps import steps
from attnviz.plot.unfolding import attention_vector
from attnviz.plot.waterfall import waterfall

__all__ = [
    "add_caption",
    "attention_vector",
    "disambiguation",
    "example",
    "head_grid",
    "heatmap",
    "save_figure",
    "steps",
    "waterfall",
]
