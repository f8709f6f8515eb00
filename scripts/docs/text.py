"""Helpers for Markdown and HTML."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath

from latex2mathml.converter import convert

_CODE = r"(^```.*?^```|`[^`\n]+`)"  # which is left as it is


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    cells = ([" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells) + "\n"


def plain(text: str) -> str:
    """Escape the markup of HTML and Markdown in a text."""
    return re.sub(r"([\\`*_\[\]#{}])", r"\\\1", html.escape(text, quote=False))


def filter_line(label: str, rows: str) -> str:
    """Return a line to type in that filters the elements of a CSS selector."""
    return (
        f'<p class="filter"><label>{label} <input type="search" data-filters="{rows}" '
        'aria-describedby="found"></label> <output id="found"></output></p>\n'
    )


def frame(source: str, title: str, height: int) -> str:
    """Return an interactive page inside a page."""
    return (
        f'<iframe class="view" src="{source}" title="{html.escape(title)}" loading="lazy" '
        f'style="height: {height}px"></iframe>\n\n[Open it alone]({source}){{ target=_blank }}\n'
    )


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Change a Markdown text, but not its code."""
    parts = re.split(_CODE, text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if number % 2 else change(part) for number, part in enumerate(parts))


def formulas(text: str) -> str:
    """Turn $$…$$ and $…$ into MathML, which browsers draw without a script."""

    def block(match: re.Match[str]) -> str:
        return f'<div class="formula">{convert(match[1].strip(), display="block")}</div>'

    def change(part: str) -> str:
        part = re.sub(r"\$\$(.+?)\$\$", block, part, flags=re.DOTALL)
        # Inside a span, as Markdown ends a paragraph at a line that starts with <math>.
        return re.sub(r"\$([^$\n]+)\$", lambda match: f"<span>{convert(match[1])}</span>", part)

    return outside_code(text, change)


def links(text: str, file: Path, page: str, place: Callable[[Path], str | None]) -> str:
    """Point the links of a file of the repository to pages of the site.

    file : where the text is in the repository. page : where it is on the site. place : gives the
    address on the site of a file in the repository.
    """

    def change(match: re.Match[str]) -> str:
        before, target, anchor = match[1], match[2], match[3] or ""
        if not target or "://" in target:
            return match[0]
        if not (found := place(Path(os.path.normpath(file.parent / target)))):
            return match[0]
        return before + os.path.relpath(found, PurePosixPath(page).parent) + anchor

    pattern = r"(\]\(|<img src=\"|<a href=\")([^)#\"\s]*)(#[^)\"\s]*)?"
    return outside_code(text, lambda part: re.sub(pattern, change, part))
