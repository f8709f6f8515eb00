"""The one document that holds the view: styles, data and script, and leave to load nothing else."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from functools import cache
from importlib.resources import files
from typing import Any

_HEIGHT = 720  # pixels of the view within a notebook


@cache
def static(name: str) -> str:
    """Return a file of the built front end: attnviz.iife.js, attnviz.es.js or attnviz.css."""
    return (files("attnviz.interactive") / "static" / name).read_text("utf-8")


def make_page(payload: dict[str, Any], blocks: str) -> str:
    """Return the document. What is not its own script or style cannot run in it."""
    from jinja2 import Environment, PackageLoader

    template = Environment(loader=PackageLoader("attnviz.interactive", ""), autoescape=True)
    script, style = static("attnviz.iife.js"), static("attnviz.css")
    results = payload["results"]
    page: str = template.get_template("page.jinja").render(
        title=" and ".join(each["source"] for each in results),
        lines=[line for each in results for line in (each["source"], each["summary"])],
        script=script,
        script_hash=_hash(script),
        style=style,
        style_hash=_hash(style),
        payload=to_script(payload),
        blocks=blocks,
    )
    return page


def to_script(payload: Any) -> str:
    """Return JSON that no text in it can end: within a script, `<` would begin a tag."""
    return json.dumps(payload, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def make_frame(page: str, title: str) -> str:
    """Return a frame with the document inside, in ASCII; it can reach nothing around it."""
    frame = (
        f'<iframe sandbox="allow-scripts allow-downloads" width="100%" height="{_HEIGHT}" '
        f'frameborder="0" title="{html.escape(title)}" srcdoc="{html.escape(page)}"></iframe>'
    )
    return frame.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
