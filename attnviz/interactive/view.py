"""The interactive view: one HTML page that works offline, alone and in notebooks.

Its front end is TypeScript in `frontend/`, built into `static/`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from attnviz.analyses.maps.heads import choose_head
from attnviz.errors import InputError
from attnviz.interactive.page import make_frame, make_page, static
from attnviz.io.files import PAGE_SUFFIXES, atomic, check_output
from attnviz.results import AttentionResult, one_result

if TYPE_CHECKING:
    from attnviz.interactive.widget import AttentionWidget

Show = Literal["grid", "head", "token", "steps"]
_SHOWS = ("grid", "head", "token", "steps")
_SHORT = 300_000  # weights of all heads of a sentence
_SIZES = 0.5, 8.0  # megabytes of the page of a sentence, and of a longer text
_AROUND = 3_000  # bytes of the page around data and front end


def view(
    result: AttentionResult,
    *,
    compare: AttentionResult | None = None,
    layer: int | None = None,
    head: int | None = None,
    show: Show = "grid",
    words: bool = True,
    size: float | None = None,
) -> View:
    """Return all attentions of a text as one page to explore: in a notebook it shows itself.

    The page needs nothing else: `.save("view.html")` writes it, and it opens from disk without a
    network. Weights are those of the records, to an error that the page states; with its queries
    and keys the page computes them itself, by the formula.

    Parameters
    ----------
    result : from `attend`, also of a long text.
    compare : a second result to compare with: as many layers, heads and tokens.
    layer, head : what is shown first, counted from 0; by default the head that relates the content
        words of the text most.
    show : "grid", all heads; "head", one of them, its lines and its map; "token", the row of one
        word in every head; "steps", how a weight comes about.
    words : merge word pieces into words, until the reader chooses otherwise.
    size : the largest page, in megabytes; by default 0.5 for a sentence and 8 for a longer text.
        What travels beside pooled maps is chosen by it, exact weights before queries and keys.

    Raises
    ------
    InputError : no such layer, head or view, a second result of another shape, or a size in which
        nothing fits.
    """
    results = [one_result(each, streamed=True) for each in (result, compare) if each is not None]
    if show not in _SHOWS:
        raise InputError(f"Expected show to be {', '.join(_SHOWS)}, got {show!r}.")
    if compare is not None:
        _expect_same_shape(result, compare)
    layer, heads, _ = choose_head(result, layer, head)
    if len(heads) > 1:
        raise InputError(f"Expected one head to show first, got {heads}. Name one of them.")
    start = {
        "stack": result.stack().stacks[0],
        "layer": layer,
        "head": heads[0],
        "view": show,
        "words": words,
    }
    return View(results, start, _limit(results, size))


class View:
    """A page with all attentions of one result, or of two that are compared."""

    def __init__(
        self, results: Sequence[AttentionResult], start: dict[str, Any], limit: int
    ) -> None:
        self._results, self._start, self._limit = results, start, limit

    def __repr__(self) -> str:
        """Say what it shows, and how to see it."""
        return f"View({', '.join(map(repr, self._results))}): .save('view.html')"

    def _repr_html_(self) -> str:
        title = self._payload[0]["results"][0]["source"]
        return make_frame(self._page, f"Attention of {title}")

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/html": self._repr_html_(), "text/plain": repr(self)}

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the page atomically; `force` overwrites also a read-only file.

        Raises
        ------
        InputError, OutputError : the file's name does not end in .html, or it cannot be written.
        """
        path = check_output(path, PAGE_SUFFIXES, force=force)
        with atomic(path) as temporary:
            temporary.write_text(self._page, encoding="utf-8", newline="\n")

    def data(self) -> dict[str, Any]:
        """Return what the page shows, as the front end takes it: "payload" and "blocks"."""
        payload, blocks = self._payload
        return {"payload": payload, "blocks": blocks}

    def widget(self) -> AttentionWidget:
        """Return the view as a widget, whose selection can be read from Python.

        Raises
        ------
        InputError : anywidget is not installed.
        """
        from attnviz.interactive.widget import make_widget

        return make_widget(*self._payload)

    @cached_property
    def _payload(self) -> tuple[dict[str, Any], str]:
        from attnviz.interactive.payload import make_payload

        return make_payload(self._results, self._start, self._limit)

    @cached_property
    def _page(self) -> str:
        return make_page(*self._payload)


def _limit(results: Sequence[AttentionResult], size: float | None) -> int:
    """Return how many bytes the data may have, beside the front end."""
    if size is None:
        every = [each for result in results for each in result.streamed or result.records]
        cells = sum(each.heads * len(each.query_axis) * len(each.key_axis) for each in every)
        size = _SIZES[cells > _SHORT * len(results)]
    elif isinstance(size, bool) or not isinstance(size, int | float) or not size > 0:
        raise InputError(f"Expected a size in megabytes, above 0, got {size!r}.")
    front_end = len(static("attnviz.iife.js")) + len(static("attnviz.css"))
    return int(min(size, 1e6) * 1e6) - front_end - _AROUND


def _expect_same_shape(one: AttentionResult, other: AttentionResult) -> None:
    """Raise InputError unless each weight of one result has its twin in the other."""
    from attnviz.interactive.describe import shape

    shapes = [[shape(each) for each in found.streamed or found.records] for found in (one, other)]
    if shapes[0] == shapes[1]:
        return
    (_, _, heads, _, m, _), (_, _, others, _, n, _) = shapes[0][0], shapes[1][0]
    raise InputError(
        "Expected two results of the same shape, which can be compared weight by weight, got "
        f"{len(shapes[0])} layers × {len(heads)} heads on {m:,} tokens and "
        f"{len(shapes[1])} × {len(others)} on {n:,}. Choose words that the model splits alike, "
        "and read both texts in one way."
    )
