"""The figures. Each function takes a result, draws with matplotlib, and never saves or shows.

Every figure carries the model, the layer, the head, what was removed or renormalized, and the
verdict of the agreement check.
"""

from attnviz.analyses.compare.plot import comparison
from attnviz.analyses.example.plot import example
from attnviz.analyses.maps.head_grid import head_grid
from attnviz.analyses.maps.heatmap import heatmap
from attnviz.analyses.senses.plot import disambiguation
from attnviz.analyses.shift.plot import waterfall
from attnviz.analyses.steps.attention_vector import attention_vector
from attnviz.analyses.steps.plot import steps
from attnviz.analyses.survey.plot import census
from attnviz.figures.caption import add_caption
from attnviz.figures.save import save_figure
from attnviz.figures.style import style

__all__ = [
    "add_caption",
    "attention_vector",
    "census",
    "comparison",
    "disambiguation",
    "example",
    "head_grid",
    "heatmap",
    "save_figure",
    "steps",
    "style",
    "waterfall",
]
