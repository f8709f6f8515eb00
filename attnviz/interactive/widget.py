"""The view as a widget: the same front end, whose selection Python reads and sets."""

from __future__ import annotations

from typing import Any

from attnviz.errors import InputError
from attnviz.interactive.page import static

try:
    import anywidget
    import traitlets
except ImportError:
    raise InputError(
        "Expected anywidget, which makes the widget, but it is not installed. Install it "
        "(pip install 'attnviz[widget]'), or show the view itself, which needs nothing."
    ) from None

_KINDS: dict[str, tuple[type, ...]] = {
    "view": (str,),
    "stack": (str,),
    "layer": (int,),
    "heads": (list, tuple),
    "query": (int, type(None)),
    "key": (int, type(None)),
    "words": (bool,),
}


class AttentionWidget(anywidget.AnyWidget):
    """The interactive view in a notebook that runs.

    Attributes
    ----------
    selection : what the reader looks at: "view", "stack", "layer" and "heads", counted from 0,
        "query" and "key", positions of pieces or None, and "words". Setting some of these changes
        the view: `widget.selection = {"view": "head", "layer": 5, "heads": [3]}`.
    """

    _esm = static("attnviz.es.js")
    _css = static("attnviz.css")
    payload = traitlets.Dict().tag(sync=True)
    blocks = traitlets.Unicode().tag(sync=True)
    selection = traitlets.Dict().tag(sync=True)

    @traitlets.validate("selection")
    def _expect_selection(self, proposal: dict[str, Any]) -> dict[str, Any]:
        given: dict[str, Any] = proposal["value"]
        for name, value in given.items():
            kinds = _KINDS.get(name, ())
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                raise InputError(
                    f"Expected a selection with {', '.join(_KINDS)}, got {name!r}: {value!r}. "
                    "Write {'view': 'head', 'layer': 5, 'heads': [3]}, for example."
                )
        return given


def make_widget(payload: dict[str, Any], blocks: str) -> AttentionWidget:
    """Return a widget of what a page shows: the payload, and its blocks as text."""
    start = payload["start"]
    selection = {name: start[name] for name in ("view", "stack", "layer", "words")}
    selection |= {"heads": [start["head"]], "query": None, "key": None}
    return AttentionWidget(payload=payload, blocks=blocks, selection=selection)
