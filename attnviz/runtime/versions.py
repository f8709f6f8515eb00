"""The versions of installed packages."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def version_of(package: str) -> str:
    """Return the version of a package; attnviz also runs from its source folder, uninstalled."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"
