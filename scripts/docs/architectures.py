"""The table of architectures, with a line that filters it."""

from __future__ import annotations

import html
import re
from pathlib import Path

from attnviz.models import last_check, summary
from docs.text import filter_line

TABLE = Path(__file__).parents[2] / "gallery" / "architectures.md"


def page(date: str) -> str:
    """Return the page of all architectures that were checked on a day."""
    text = TABLE.read_text(encoding="utf-8")
    method = re.findall(r"^(Written by .*?)^## ", text, re.DOTALL | re.MULTILINE)[0]
    check = last_check()
    rows = sorted(check.architectures.values(), key=lambda one: one.name)
    cells = [
        "<tr>" + "".join(
            f"<td>{html.escape(str(cell))}</td>" for cell in (
                one.name, one.state, one.reached, one.attentions or "", one.linear or "",
                f"{one.difference:.0e}" if one.difference is not None else "",
                "" if len(one.stages) == 7 else ", ".join(one.stages), one.reason,
            )
        ) + "</tr>"
        for one in rows
    ]  # fmt: skip
    names = ("name", "state", "reached", "attentions", "linear", "difference", "stages", "reason")
    header = "".join(f'<th scope="col">{name}</th>' for name in names)
    return (
        "# Architectures\n\n"
        f"{summary(rows, check)} and torch {check.torch} on {date}.\n\n"
        "A tiny random model of each architecture is built, and every attention that it executes "
        "is compared with the model's own. An architecture agrees if the weights of all heads do. "
        "*Stages* is empty where all seven are compared: Q, K, V, scores, weights, head output, "
        "output. In Python: [`attnviz.architectures`](api/architectures.md).\n\n"
        + filter_line("Filter by name, state or reason", "#architectures tbody tr")
        + f'\n<table id="architectures"><thead><tr>{header}</tr></thead>\n<tbody>\n'
        + "\n".join(cells)
        + f"\n</tbody></table>\n\n## How it is checked\n\n{method}"
    )
