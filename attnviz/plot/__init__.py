"""Figures: one file per kind. Each takes a result, draws with matplotlib, and never saves or shows.

Every figure carries model, layer, head, what was removed or renormalised, and the verdict of the
agreement check.
"""

from attnviz.plot.example import example
from attnviz.plot.export import save_figure
from attnviz.plot.head_grid import head_grid
from attnviz.plot.heatmap import heatmap

__all__ = ["example", "head_grid", "heatmap", "save_figure"]
