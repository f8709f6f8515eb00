"""The reference of the public names: their docstrings, and what their examples draw."""

from __future__ import annotations

import inspect
import operator
import textwrap
from pathlib import Path

import attnviz
from docs.examples import NAMES, docstring
from docs.text import frame, plain, table

GROUPS = {
    "Run and verify": ["load", "attend", "record", "verify", "from_weights", "check"],
    "Models and setup": ["architectures", "doctor"],
    "Maps of heads": ["attention_map", "head_maps", "rank_heads", "find_heads", "steps"],
    "Explain": ["senses", "shift", "explain", "explain_generation", "ablate", "example"],
    "Whole models": ["survey", "explore", "compare"],
    "Show and keep": ["view", "save_result", "load_result"],
    "Draw": [name for name in NAMES if name.startswith("plot.")],
}  # fmt: skip
GROUPS["Results and other types"] = [
    name for name in NAMES if name[0].isupper() and not name.startswith("Attnviz")
    and not name.endswith("Error")
]  # fmt: skip
GROUPS["Errors"] = ["AttnvizError", "InputError", "ModelError", "OutputError", "AttnvizWarning"]


def summary(name: str) -> str:
    """Return the first line of a docstring."""
    return docstring(name).partition("\n")[0]


def signature(name: str) -> str:
    """Return how a function is called, without types; a class is only named."""
    thing = operator.attrgetter(name)(attnviz)
    if not inspect.isfunction(thing):
        return f"attnviz.{name}"
    bare = [
        one.replace(annotation=inspect.Parameter.empty)
        for one in inspect.signature(thing).parameters.values()
    ]
    return f"attnviz.{name}{inspect.Signature(bare)}"


def pages(shown: dict[str, Path]) -> dict[str, str]:
    """Return the page of each public name, and of all. `shown` is what their examples show."""
    if left_out := set(NAMES) - {"plot"} - {name for group in GROUPS.values() for name in group}:
        raise ValueError(f"In no group of the reference: {', '.join(sorted(left_out))}.")
    parts = [
        "# Python\n\nFunctions of `attnviz` compute and return a result. Functions of "
        "`attnviz.plot` draw it. Every page has an example that the tests run.\n"
    ]
    written = {}
    for group, names in GROUPS.items():
        rows = [(f"[`{name}`]({name}.md)", plain(summary(name))) for name in names]
        parts.append(f"## {group}\n\n{table(['name', 'what it does'], rows)}")
        for name in names:
            written[f"api/{name}.md"] = _page(name, shown.get(name))
    return {"api/index.md": "\n".join(parts), **written}


def _page(name: str, shown: Path | None) -> str:
    thing = inspect.unwrap(operator.attrgetter(name)(attnviz))
    call = ""
    if len(signature(name)) > len(f"attnviz.{name}"):
        call = f"```python\n{_wrapped(signature(name))}\n```\n\n"
    text = (
        f"# attnviz.{name}\n\n{call}::: {thing.__module__}.{thing.__qualname__}\n    options:\n"
        f"      heading: attnviz.{name}\n      show_root_heading: false\n      heading_level: 2\n"
    )
    if shown is None:
        return text
    if shown.suffix == ".html":
        return f"{text}\n{frame(f'../views/{shown.name}', f'What the example shows: {name}', 760)}"
    return f"{text}\n![What the example of {name} draws](../drawn/{shown.stem}.webp)\n"


def _wrapped(call: str) -> str:
    """Break a long call after its commas."""
    if len(call) <= 70:
        return call
    return textwrap.fill(call, 70, subsequent_indent="    ", break_long_words=False)
