"""Figures: one file per kind. Each takes a result, draws with matplotlib, and never saves or shows.

Every figure carries model, layer, head, what was removed or renormalised, and the verdict of the
agreement check. Each is imported when it is first used, so that drawing one loads no other.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnviz.plot.caption import add_caption
    from attnviz.plot.census import census
    from attnviz.plot.comparison import comparison
    from attnviz.plot.disambiguation import disambiguation
    from attnviz.plot.example import example
    from attnviz.plot.export import save_figure
    from attnviz.plot.head_grid import head_grid
    from attnviz.plot.heatmap import heatmap
    from attnviz.plot.steps import steps
    from attnviz.plot.unfolding import attention_vector
    from attnviz.plot.waterfall import waterfall

_HOME = {
    "add_caption": "caption",
    "attention_vector": "unfolding",
    "census": "census",
    "comparison": "comparison",
    "disambiguation": "disambiguation",
    "example": "example",
    "head_grid": "head_grid",
    "heatmap": "heatmap",
    "save_figure": "export",
    "steps": "steps",
    "waterfall": "waterfall",
}

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
    "waterfall",
]


def __getattr__(name: str) -> Any:
    """Import a figure from its file when it is first asked for (PEP 562)."""
    if name in _HOME:
        return getattr(import_module(f"attnviz.plot.{_HOME[name]}"), name)
    raise AttributeError(f"module 'attnviz.plot' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])


class _Plot(ModuleType):
    """A package whose names are figures, also those of files: importing one binds its figure."""

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, ModuleType) and name in _HOME:
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Plot
