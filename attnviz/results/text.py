"""Numbers, lists and tables as text."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from attnviz.results.attention_result import Provenance

_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
READ_WITH = "read with "  # begins a note on the token before a text
UNMEASURED = ", so its part is not measured"  # ends a note on the first token


def signed(value: float, missing: str = "–") -> str:
    """Return a number in two decimals with a minus sign; `missing` for NaN."""
    return missing if value != value else with_minus(f"{value:.2f}".replace("-0.00", "0.00"))


def with_minus(number: str) -> str:
    """Return a number with a minus sign in place of a hyphen."""
    return number.replace("-", "\N{MINUS SIGN}")


def percent(share: float) -> str:
    """Return a share: "81%", with two digits below 1 % ("0.31%"), or "<0.01%"."""
    small = f"{100 * share:.2g}%" if share >= 1e-4 else "<0.01%"
    return f"{share:.0%}" if share >= 0.01 else small


def fraction(value: float) -> str:
    """Return a part of a whole in two decimals: ".34", "−.05", "1.00", "0"; nothing for NaN."""
    number = signed(value, "").replace("0.", ".") if abs(value) < 0.995 else signed(value, "")
    return "0" if number == ".00" else number


def counted(number: int, noun: str) -> str:
    """Return a number of things: "1 text", "2,000 texts"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def numbered(words: Sequence[str]) -> tuple[str, ...]:
    """Return words with a number where they occur several times: The#1, cat, the#2."""
    folded = [word.casefold() for word in words]
    return tuple(
        word if folded.count(key) == 1 else f"{word}#{folded[: index + 1].count(key)}"
        for index, (word, key) in enumerate(zip(words, folded, strict=True))
    )


def raised(name: str) -> str:
    """Return a numbered word as it is drawn: "the¹²" for "the#12"."""
    word, _, number = name.rpartition("#")
    return word + number.translate(_RAISED) if word and number.isdecimal() else name


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


def shortened(text: str, most: int = 80) -> str:
    """Return a text of at most `most` characters, its end left out where it is longer."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def literal(token: str, longest: int = 24) -> str:
    """Return a token as it can be drawn: control characters visible, a very long one clipped."""
    shown = "".join("\N{REPLACEMENT CHARACTER}" if _steers(c) else c for c in token)
    return shortened(shown, longest)


def listed(parts: Sequence[str], longest: int = 60, most: int = 4) -> str:
    """Return the first of some parts, each shortened, and how many more there are."""
    more = [f"{len(parts) - most:,} more"] if len(parts) > most else []
    return ", ".join([*(literal(part, longest) for part in parts[:most]), *more])


def _steers(character: str) -> bool:
    """Whether a character steers what shows it: a terminal, the direction or the line."""
    if "\u202a" <= character <= "\u202e" or "\u2066" <= character <= "\u2069":
        return True
    return unicodedata.category(character) in ("Cc", "Cs", "Co", "Cn", "Zl", "Zp")


def selection(stack: str, layers: Sequence[int], heads: Sequence[int]) -> str:
    """Return "Layer 3, head 5" or "Mean of layers 0–2, head 5", and the stack if it is not text."""
    beside = {"cross": "Cross-attention", "vision": "Vision", "audio": "Audio"}.get(stack)
    where, of_heads = f"layer {layers[0]}", f"head {heads[0]}"
    if len(heads) > 1:
        of_heads = f"{'mean of ' * (len(layers) == 1)}heads {ranges(heads)}"
    if len(layers) > 1:
        where = f"mean of layers {ranges(layers)}"
    where = f"{where}, {of_heads}" if beside is None else f"{beside}, {where}, {of_heads}"
    return where[0].upper() + where[1:]


def ranges(numbers: Sequence[int]) -> str:
    """Return numbers as a list, with three or more in a row as a range: "0–2, 5, 7, 8"."""
    texts: list[str] = []
    for _, run in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        row = [number for _, number in run]
        texts += [f"{row[0]}–{row[-1]}"] if len(row) > 2 else map(str, row)
    return ", ".join(texts)


def source(provenance: Provenance) -> str:
    """Return the text, image or sound that was read, and the model that read it."""
    longest = 60 if provenance.pair is None and provenance.target is None else 30

    def quoted(text: str) -> str:
        return f"“{literal(' '.join(text.split()), longest)}”"

    inputs = [quoted(text) for text in (provenance.text, provenance.pair) if text is not None]
    arguments = None if inputs or not provenance.inputs else f"inputs: {provenance.inputs}"
    names = (provenance.image, provenance.audio, arguments)
    inputs += [literal(name, 80) for name in names if name is not None]
    model = provenance.model_name + provenance.with_changes
    target = "" if provenance.target is None else f" to say {quoted(provenance.target)}"
    return f"{' + '.join(inputs)}, read by {model}{target}"


def source_and_notes(provenance: Provenance, notes: Sequence[str]) -> list[str]:
    """Return the source, with a token that was read before the text, and the other notes."""
    before = [note for note in notes if note.startswith(READ_WITH)]
    others = [note for note in notes if note not in before]
    return [source(provenance) + "".join(note.removeprefix("read") for note in before), *others]
