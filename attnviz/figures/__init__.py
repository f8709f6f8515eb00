"""The drawing kit: style and sizes, sentences, pages with captions, cells with their labels."""

import inspect
import re
from collections.abc import Callable
from typing import TypeVar

_Draw = TypeVar("_Draw", bound=Callable[..., object])

_SHARED = """
width : float, default 183
    The width of the figure in mm. One column of a journal is 89 mm, two are 183.
caption : {"short", "full", "none"}
    Whether the caption has two lines, also says how everything was measured, or is left out. The
    label of the figure (`figure.get_label()`) and the metadata of its file always have all of it.
figure : Figure or SubFigure, optional
    The figure to fill, by default a new one. It becomes taller where it lacks height.

Returns
-------
Figure or SubFigure
    The figure."""


def documented(docstring: str, result: str = "") -> str:
    """Return a docstring with that of the result, and with what all figures share."""
    own, section = inspect.cleandoc(docstring), "\n\nParameters\n----------"
    shared = _SHARED if section in own else section + result + _SHARED
    own = own.replace(section, section + result)
    return re.sub(r"(?=\n\n(?:Raises|Examples)\n-)", lambda _: shared, own, count=1)


def figure(draw: _Draw) -> _Draw:
    """Document what figures share; a result that is not described is from its analysis."""
    own, kinds = draw.__doc__ or "", str(draw.__annotations__.get("result")).replace(" | ", " or ")
    of_analysis = f"\nresult : {kinds}\n    From `attnviz.{draw.__module__.split('.')[-2]}`."
    described = "\n    result : " in own or kinds == "None"
    draw.__doc__ = documented(own, "" if described else of_analysis)
    return draw
