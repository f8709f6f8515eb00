"""The libraries below attnviz: their versions, memory, logs, precision and private names."""

from __future__ import annotations

import io
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

NOT_INSTALLED = "(not installed)"
_STYLE = "font-family:monospace;line-height:1.25;white-space:pre;overflow-x:auto"


@cache
def version_of(package: str) -> str:
    """Return the version of a package; attnviz also runs from its source folder, uninstalled."""
    try:
        return version(package)
    except PackageNotFoundError:
        return NOT_INSTALLED


class Printed:
    """What a notebook shows as the text that the command line prints."""

    def _repr_html_(self) -> str:
        return text_as_html(self)


def text_as_html(renderable: Any) -> str:
    """Return what rich prints, as HTML for a notebook."""
    from rich.console import Console

    # In a notebook a console would also print there by itself.
    console = Console(
        record=True, file=io.StringIO(), width=100, color_system="truecolor", force_jupyter=False
    )
    console.print(renderable)
    code = f'<pre style="{_STYLE}">{{code}}</pre>'
    return console.export_html(inline_styles=True, code_format=code)
