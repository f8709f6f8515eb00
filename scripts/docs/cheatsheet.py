"""The cheat sheet as one printed page."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt

_MARGIN, _ROW, _TASK, _COMMAND, _FUNCTION = 0.035, 0.0305, 0.035, 0.205, 0.605
_INK, _MUTED, _RULE, _SIZE = "#1a1a1a", "#5c5c5c", "#d9d9e0", 7.2


def rows(text: str) -> list[tuple[str, ...]]:
    """Return the cells of the tables of a page, and its headings, alone in their row."""
    found = []
    for line in text.splitlines():
        if line.startswith("## "):
            found.append((line[3:],))
        elif line.startswith("|") and not line.startswith(("|---", "| task")):
            found.append(tuple(cell.strip().strip("`") for cell in line.strip("|").split(" | ")))
    return found


def draw(page: Path, target: Path) -> None:
    """Draw the tables of a page on A4, landscape."""
    with plt.rc_context({"pdf.fonttype": 42, "font.family": "DejaVu Sans"}):
        figure = plt.figure(figsize=(11.69, 8.27))
        text = figure.text
        text(_MARGIN, 0.955, "attnviz", size=17, weight="bold", color=_INK, va="center")
        about = "See, verify and explain attention in pretrained Hugging Face models"
        text(0.125, 0.953, about, size=9, color=_MUTED, va="center")
        y = 0.91
        for cells in rows(page.read_text(encoding="utf-8")):
            if len(cells) == 1:
                y -= 0.008
                text(_TASK, y, cells[0], size=9.5, weight="bold", color="#b8334a", va="center")
                if y > 0.89:
                    for x, name in ((_COMMAND, "in a terminal"), (_FUNCTION, "in Python")):
                        text(x, y, name, size=8, color=_MUTED, va="center")
            else:
                task, command, function = cells
                text(_TASK, y, task, size=8, color=_INK, va="center")
                for x, code in ((_COMMAND, command), (_FUNCTION, function)):
                    text(x, y, code, size=_SIZE, family="DejaVu Sans Mono", color=_INK, va="center")
            y -= _ROW
            line = plt.Line2D((_TASK, 1 - _MARGIN), (y + _ROW / 2,) * 2, color=_RULE, linewidth=0.5)
            figure.add_artist(line)
        foot = (
            "Start with import attnviz. Layers and heads count from 0. The ending of -o chooses "
            "the format: png, svg, pdf, html, json, npz, safetensors, parquet. "
            "attnviz COMMAND --help lists all options."
        )
        text(_TASK, 0.035, foot, size=7.6, color=_MUTED, va="center")
        figure.savefig(target)
        plt.close(figure)
