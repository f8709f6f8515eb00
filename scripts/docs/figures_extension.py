"""Completes docstrings for griffe, which reads the source and runs no decorator."""

from importlib import import_module
from typing import Any

import griffe

from attnviz.figures import documented


class SharedParameters(griffe.Extension):  # type: ignore[misc]
    """Add what `attnviz.figures.figure` and `attnviz.results.base.documented` add."""

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """Complete the docstring of a decorated function."""
        if func.docstring and any(str(each.value) == "figure" for each in func.decorators):
            func.docstring.value = documented(func.docstring.value)

    def on_class_instance(self, *, cls: griffe.Class, **_: Any) -> None:
        """Complete the docstring of a decorated class."""
        if cls.docstring and any("documented" in str(each.value) for each in cls.decorators):
            cls.docstring.value = getattr(import_module(cls.module.path), cls.name).__doc__
