"""Pages that work offline: the documents, and the built front end in `static/`."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from attnviz.errors import InputError, require
from attnviz.io.files import PAGE_SUFFIXES, atomic, check_output
from attnviz.results.arguments import checked_scalars

if TYPE_CHECKING:
    from attnviz.interactive.widget import AttentionWidget

_FRAME_HEIGHT = 720  # pixels of the view in a notebook


class View:
    """An interactive page that works offline. A notebook shows it.

    Examples
    --------
    >>> import attnviz
    >>> from tempfile import TemporaryDirectory
    >>> page = attnviz.view(attnviz.attend("the train left the station"))
    >>> with TemporaryDirectory() as folder:
    ...     page.save(f"{folder}/train.html")
    """

    def __init__(
        self,
        shown: Sequence[object],
        title: str,
        collect: Callable[[], dict[str, Any]],
        make: Callable[[Mapping[str, Any]], str],
    ) -> None:
        """Show some results. collect : returns the data of the front end. make : the document."""
        self._shown, self._title, self._collect, self._make = shown, title, collect, make

    def __repr__(self) -> str:
        return f"View({', '.join(map(repr, self._shown))}): .save('view.html')"

    @cached_property
    def _data(self) -> dict[str, Any]:
        return self._collect()

    @cached_property
    def _document(self) -> str:
        return self._make(self._data)

    def _repr_html_(self) -> str:
        return make_frame(self._document, self._title)

    @checked_scalars
    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the page to a file, atomically.

        Parameters
        ----------
        path : str or path
            Its name ends in .html.
        force : bool, optional
            Overwrite also a read-only file.

        Raises
        ------
        InputError, OutputError
            The name does not end in .html, or the file cannot be written.
        """
        path = check_output(path, PAGE_SUFFIXES, force=force)
        with atomic(path) as temporary:
            temporary.write_text(self._document, encoding="utf-8", newline="\n")

    def data(self) -> dict[str, Any]:
        """Return the data of the front end: of attentions, "payload" and "blocks"."""
        return dict(self._data)

    def widget(self) -> AttentionWidget:
        """Return the page of attentions as a widget whose selection Python can read and set.

        Raises
        ------
        InputError
            anywidget is not installed, or the page is that of an ExploreResult.
        """
        require("anywidget", "widget", "The widget needs")
        from attnviz.interactive.widget import AttentionWidget

        if "payload" not in self._data:
            raise InputError("The page of explore is no widget. Display the page itself.")
        start = self._data["payload"]["start"]
        selection = {name: start[name] for name in ("view", "stack", "layer", "words")}
        selection |= {"heads": [start["head"]], "query": None, "key": None}
        return AttentionWidget(**self._data, selection=selection)


def make_page(data: Mapping[str, Any]) -> str:
    """Return the document of a view; `data` is what `make_payload` returns."""
    results = data["payload"]["results"]
    return _document(
        "attnviz.iife.js",
        "attnviz.css",
        data,
        title=" and ".join(result["source"] for result in results),
        lines=[line for result in results for line in (result["source"], result["summary"])],
        drawn="the maps on this page",
        command="heatmap TEXT",
        images="data: blob:",
    )


def explorer_page(payload: Mapping[str, Any]) -> str:
    """Return the document of all heads.

    payload : numbers, texts and None, which the front end reads (`frontend/src/explorer/data.ts`).
    """
    has_pictures = any(medium["image"] for medium in payload.get("media", {}).values())
    return _document(
        "attnviz.explore.js",
        "attnviz.explore.css",
        payload,
        title=f"What the heads of {payload['model']} do",
        lines=[payload["verdict"]],
        drawn="this page",
        command="survey",
        images="data:" if has_pictures else "",
    )


def _document(script: str, style: str, data: Mapping[str, Any], **parts: Any) -> str:
    """Return a document. Only its own script and style can run in it."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(loader=PackageLoader("attnviz.interactive", ""), autoescape=True)
    for name, file in (("script", script), ("style", style)):
        digest = base64.b64encode(hashlib.sha256(static(file).encode()).digest()).decode("ascii")
        parts |= {name: static(file), f"{name}_hash": digest}
    return environment.get_template("page.jinja").render(data=compact_json(data), **parts)


def compact_json(data: Any) -> str:
    """Return JSON that cannot close the script element around it: every `<` is escaped."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def make_frame(page: str, title: str) -> str:
    """Return the document in a sandboxed frame, in ASCII."""
    frame = (
        f'<iframe sandbox="allow-scripts allow-downloads" width="100%" height="{_FRAME_HEIGHT}" '
        f'frameborder="0" title="{html.escape(title)}" srcdoc="{html.escape(page)}"></iframe>'
    )
    return frame.encode("ascii", "xmlcharrefreplace").decode("ascii")


@cache
def static(name: str) -> str:
    """Return a file of the built front end, such as attnviz.iife.js or attnviz.css."""
    return (files("attnviz.interactive") / "static" / name).read_text("utf-8")
