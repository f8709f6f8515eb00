"""Completes the docstrings of figures for griffe, which reads the source and runs no decorator."""

from typing import Any

import griffe

from attnviz.figures import documented


class SharedParameters(griffe.Extension):  # type: ignore[misc]
    """Add what `attnviz.figures.figure` adds."""

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """Complete the docstring of a decorated function."""
        if func.docstring and any(str(each.value) == "figure" for each in func.decorators):
            func.docstring.value = documented(func.docstring.value)
