"""Write the view as one HTML document with its styles, data and script inside."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from functools import cache
from importlib.resources import files
from typing import Any

_FRAME_HEIGHT = 720  # pixels of the view in a notebook


@cache
def static(name: str) -> str:
    """Return a file of the built front end: attnviz.iife.js, attnviz.es.js or attnviz.css."""
    return (files("attnviz.interactive") / "static" / name).read_text("utf-8")


def make_page(payload: dict[str, Any], blocks: str) -> str:
    """Return the document. Only its own script and style can run in it."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(loader=PackageLoader("attnviz.interactive", ""), autoescape=True)
    script, style = static("attnviz.iife.js"), static("attnviz.css")
    results = payload["results"]
    page: str = environment.get_template("page.jinja").render(
        title=" and ".join(result["source"] for result in results),
        lines=[line for result in results for line in (result["source"], result["summary"])],
        script=script,
        script_hash=_hash(script),
        style=style,
        style_hash=_hash(style),
        payload=to_script(payload),
        blocks=blocks,
    )
    return page


def to_script(payload: Any) -> str:
    """Return JSON that cannot close the script element around it: every `<` is escaped."""
    return json.dumps(payload, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def make_frame(page: str, title: str) -> str:
    """Return the document in a sandboxed frame, in ASCII."""
    frame = (
        f'<iframe sandbox="allow-scripts allow-downloads" width="100%" height="{_FRAME_HEIGHT}" '
        f'frameborder="0" title="{html.escape(title)}" srcdoc="{html.escape(page)}"></iframe>'
    )
    return frame.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
