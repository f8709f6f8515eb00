"""Numbers, lists and tables as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text


def signed(value: float, missing: str = "–") -> str:
    """Return a number in two decimals with a minus sign; `missing` for NaN."""
    if value != value:
        return missing
    return with_minus(f"{value:.2f}".replace("-0.00", "0.00"))


def with_minus(number: str) -> str:
    """Return a number with a minus sign in place of a hyphen."""
    return number.replace("-", "\N{MINUS SIGN}")


def counted(number: int, noun: str) -> str:
    """Return a number of things: "1 text", "2,000 texts"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def numbered(words: Sequence[str]) -> tuple[str, ...]:
    """Return words with a number where they occur several times.

    >>> numbered(["The", "cat", "the"])
    ('The#1', 'cat', 'the#2')
    """
    folded = [word.casefold() for word in words]
    return tuple(
        word if folded.count(key) == 1 else f"{word}#{folded[: index + 1].count(key)}"
        for index, (word, key) in enumerate(zip(words, folded, strict=True))
    )


def plain_table(
    left: Sequence[str],
    right: Sequence[str] = (),
    rows: Iterable[Sequence[str | Text]] = (),
    *,
    no_wrap: int = 0,
) -> Table:
    """Return a table without lines, with the names of its columns: aligned left, then right.

    no_wrap : the number of columns that stay on one line, from the first on.
    """
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for number, name in enumerate((*left, *right)):
        justify: JustifyMethod = "left" if number < len(left) else "right"
        table.add_column(name, justify=justify, no_wrap=number < no_wrap)
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def dim(lines: Iterable[str]) -> Iterator[Text]:
    """Yield lines that say less than the others."""
    yield from (Text(line, "dim") for line in lines)
