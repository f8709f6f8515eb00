"""The figures. Each function takes a result, draws with matplotlib, and never saves or shows.

Every figure carries the model, the layer, the head, what was removed or renormalized, and the
verdict of the agreement check.

    >>> import attnviz
    >>> result = attnviz.attend("the train left the station")
    >>> axes = attnviz.plot.heatmap(result)  # one head, and all of them beside it

`plot.pyi` lists the functions. Each is imported when it is first used, so that drawing a map does
not load what surveys need.
"""

import ast
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from attnviz.results.arguments import checked

# lazy_loader would set these names on the package, where `explain` and others are functions that
# compute.
_MODULES = {
    imported.name: statement.module
    for statement in ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8")).body
    if isinstance(statement, ast.ImportFrom) and statement.module
    for imported in statement.names
}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> object:
    """Return a function that checks its arguments and draws."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _function(name)


@cache  # and not as a global, where doctest would find its examples a second time
def _function(name: str) -> Callable[..., Any]:
    function = checked(getattr(import_module(_MODULES[name]), name))
    function.__module__ = __name__  # where pickle finds it
    return function


def __dir__() -> list[str]:
    return __all__
