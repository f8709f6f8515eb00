"""The figures. Each function takes a result, draws with matplotlib, and never saves or shows.

Every figure carries the model, the layer, the head, what was removed or renormalized, and the
verdict of the agreement check.
"""

from attnviz.analyses.check.plot import check
from attnviz.analyses.compare.plot import compare
from attnviz.analyses.example.plot import example
from attnviz.analyses.explain.plot import explain
from attnviz.analyses.maps.head_grid import heads
from attnviz.analyses.maps.heatmap import heatmap
from attnviz.analyses.senses.plot import senses
from attnviz.analyses.shift.plot import shift
from attnviz.analyses.steps.plot import attention_vector, steps
from attnviz.analyses.survey.plot import survey
from attnviz.figures.layout import add_caption, save
from attnviz.figures.style import style
from attnviz.results.arguments import checked

__all__ = [
    "add_caption",
    "attention_vector",
    "check",
    "compare",
    "example",
    "explain",
    "heads",
    "heatmap",
    "save",
    "senses",
    "shift",
    "steps",
    "style",
    "survey",
]

globals().update({name: checked(globals()[name]) for name in __all__})
