"""The drawing kit: style and sizes, sentences, pages with captions, cells with their labels."""

import inspect
import re
from collections.abc import Callable
from typing import TypeVar

_Draw = TypeVar("_Draw", bound=Callable[..., object])

_SHARED = """
width : float, default 183
    The width of the figure in mm. One column of a journal is 89 mm, two are 183.
caption : {"short", "full"}
    Whether the caption has two lines, or also says how everything was measured. The file always
    says so in its metadata.

Returns
-------
Figure
    A new figure."""


def documented(docstring: str) -> str:
    """Return a docstring with the parameters and the result that all figures share."""
    own = inspect.cleandoc(docstring)
    return re.sub(r"(?=\n\n(?:Raises|Examples)\n-)", lambda _: _SHARED, own, count=1)


def figure(draw: _Draw) -> _Draw:
    """Document what a function that draws a figure shares with the others."""
    draw.__doc__ = documented(draw.__doc__ or "")
    return draw
