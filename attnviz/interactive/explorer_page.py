"""The page of `attnviz explore`: all heads of a model in one HTML file that works offline."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from attnviz.analyses.explore.result import ExploreResult
from attnviz.interactive.payload import compact_json
from attnviz.interactive.view import Page, digest_of, static


class ExplorerPage(Page):
    """An interactive page with every head of a model: its examples, and what it writes."""

    def __init__(self, result: ExploreResult) -> None:
        self._result = result

    def __repr__(self) -> str:
        """Return the result of the page and how to save it."""
        return f"ExplorerPage({self._result!r}): .save('heads.html')"

    @cached_property
    def _page(self) -> str:  # type: ignore[override]
        return explorer_page(self._result.payload())

    @property
    def _title(self) -> str:  # type: ignore[override]
        return f"What the heads of {self._result.provenance.model} do"


def explorer_page(payload: Mapping[str, Any]) -> str:
    """Return the document. Only its own script and style can run in it.

    payload : numbers, texts and None, which the front end reads (`frontend/src/explorer/data.ts`).
    """
    from jinja2 import Environment, PackageLoader

    environment = Environment(loader=PackageLoader("attnviz.interactive", ""), autoescape=True)
    script, style = static("attnviz.explore.js"), static("attnviz.explore.css")
    page: str = environment.get_template("explore.jinja").render(
        title=f"What the heads of {payload['model']} do",
        verdict=payload["verdict"],
        script=script,
        script_hash=digest_of(script),
        style=style,
        style_hash=digest_of(style),
        payload=compact_json(payload),
        pictures=any(medium["image"] for medium in payload.get("media", {}).values()),
    )
    return page
