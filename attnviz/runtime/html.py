"""What rich prints, as HTML for a notebook."""

from __future__ import annotations

import io
from typing import Any

_STYLE = "font-family:monospace;line-height:1.25;white-space:pre;overflow-x:auto"
_WIDTH = 100  # characters


def text_as_html(renderable: Any) -> str:
    """Return what rich prints, as HTML."""
    from rich.console import Console

    # In a notebook a console would also print there by itself.
    console = Console(
        record=True,
        file=io.StringIO(),
        width=_WIDTH,
        color_system="truecolor",
        force_jupyter=False,
    )
    console.print(renderable)
    return console.export_html(
        inline_styles=True, code_format=f'<pre style="{_STYLE}">{{code}}</pre>'
    )
