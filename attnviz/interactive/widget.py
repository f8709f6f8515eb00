"""Show the view as a notebook widget whose selection Python can read and set."""

from __future__ import annotations

from typing import Any

import anywidget
import traitlets

from attnviz.errors import InputError
from attnviz.interactive import static_file

_SELECTION_TYPES: dict[str, tuple[type, ...]] = {
    "view": (str,),
    "stack": (str,),
    "layer": (int,),
    "heads": (list, tuple),
    "query": (int, type(None)),
    "key": (int, type(None)),
    "words": (bool,),
}


class AttentionWidget(anywidget.AnyWidget):
    """The interactive view in a live notebook.

    Attributes
    ----------
    selection : dict
        What the widget shows: "view", "stack", "layer" and "heads", counted from 0, "query" and
        "key", positions of tokens or None, and "words". Setting some of these changes the view:
        `widget.selection = {"view": "head", "layer": 5, "heads": [3]}`.
    """

    _esm = static_file("attnviz.es.js")
    _css = static_file("attnviz.css")
    payload: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    blocks: traitlets.List[str] = traitlets.List().tag(sync=True)
    selection: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)

    @traitlets.validate("selection")
    def _check_selection(self, proposal: dict[str, Any]) -> dict[str, Any]:
        selection: dict[str, Any] = proposal["value"]
        for name, value in selection.items():
            types = _SELECTION_TYPES.get(name, ())
            if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
                raise InputError(
                    f"A selection cannot have {name!r}: {value!r}. Its keys are "
                    f"{', '.join(_SELECTION_TYPES)}; write {{'view': 'head', 'layer': 5, "
                    "'heads': [3]}, for example."
                )
        return selection
