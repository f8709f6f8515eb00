"""The texts of a corpus, one after the other, from a file, standard input or Python."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from attnviz.errors import InputError, first_line

Corpus: TypeAlias = "str | Path | Iterable[str]"
SUFFIXES = (".txt", ".jsonl", ".csv", ".tsv", ".parquet")
_LONGEST = 2**24  # characters of a line, so that a file without line ends is no memory
_UTF_8: dict[str, Any] = {"encoding": "utf-8-sig", "errors": "surrogateescape"}
_ROWS = 1024  # of a parquet file that are read at once


@dataclass(frozen=True)
class Text:
    """A text of a corpus; `number` is its line or row, counted from 0."""

    number: int
    text: str


class BadTextError(InputError):
    """A line or row that holds no text, where the corpus goes on behind it."""


def read_corpus(
    source: Corpus,
    *,
    column: str = "text",
    on_bad: Callable[[str], None] | None = None,
) -> Iterator[Text]:
    """Yield the texts of a corpus, empty ones left out.

    Parameters
    ----------
    source : a file, of which the ending tells the format: .txt has one text in each line, .jsonl
        one JSON object or string in each line, .csv and .tsv a header, .parquet a column; "-" is
        standard input, as .txt; or the texts themselves.
    column : which of the columns, or keys, holds the text.
    on_bad : is told of each line or row that cannot be read, which is then left out; by default
        the first of them raises.

    Raises
    ------
    InputError : no such file or column, a format that is not known, a line that cannot be read.
    """
    for number, found in enumerate(_rows(source, column)):
        text = found
        if isinstance(text, BadTextError):
            if on_bad is None:
                raise InputError(f"{text} Mend it, or leave such lines out with --skip-bad.")
            on_bad(str(text))
        elif text.strip():
            yield Text(number, text)


def count_rows(source: Corpus) -> int | None:
    """Return how many lines or rows a corpus has, or nearly; None where only reading it tells."""
    if not isinstance(source, str | Path):
        return len(source) if isinstance(source, Sized) else None
    path = Path(source)
    if not path.is_file():
        return None
    if path.suffix.lower() == ".parquet":
        import pyarrow.parquet as pq

        return int(pq.read_metadata(path).num_rows)
    with path.open("rb") as file:
        return 1 + sum(block.count(b"\n") for block in iter(lambda: file.read(2**20), b""))


def _rows(source: Corpus, column: str) -> Iterator[str | BadTextError]:
    if not isinstance(source, str | Path):
        return _given(source)
    if str(source) == "-":
        return _standard_input()
    path = Path(source)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(
            f"Expected a corpus that ends in {', '.join(SUFFIXES)}, or - for standard input, got "
            f"{path.name!r}. Rename it."
        )
    if not path.is_file():
        raise InputError(f"Expected a corpus to read, but there is no file {path}. Check its name.")
    if suffix == ".parquet":
        return _parquet(path, column)
    return _text_file(path, suffix, column)


def _given(texts: Iterable[object]) -> Iterator[str | BadTextError]:
    for number, text in enumerate(texts):
        if isinstance(text, str):
            yield text
        else:
            yield BadTextError(
                f"Expected texts as strings, got {type(text).__name__} as number {number}."
            )


def _standard_input() -> Iterator[str | BadTextError]:
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(**_UTF_8)
    return _lines(sys.stdin, "standard input")


def _text_file(path: Path, suffix: str, column: str) -> Iterator[str | BadTextError]:
    table = suffix in (".csv", ".tsv")
    try:
        with path.open(newline="" if table else None, **_UTF_8) as file:
            if table:
                yield from _csv(file, path.name, column, "\t" if suffix == ".tsv" else ",")
            elif suffix == ".jsonl":
                yield from _json(_lines(file, path.name), path.name, column)
            else:
                yield from _lines(file, path.name)
    except OSError as error:
        raise InputError(
            f"Expected to read {path}, but: {error.strerror}. Name another file."
        ) from None


def _lines(file: Any, name: str) -> Iterator[str | BadTextError]:
    number = 0
    while line := file.readline(_LONGEST):
        number += 1
        if len(line) == _LONGEST:
            raise InputError(f"Expected a text in each line of {name}, got one without an end.")
        yield _expect_utf_8(line.rstrip("\r\n"), number, name)


def _expect_utf_8(text: str, line: int, name: str) -> str | BadTextError:
    """Return a text, or what is wrong with it: bytes that are no UTF-8 were kept as they are."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return BadTextError(f"Expected text in UTF-8 in line {line} of {name}, got other bytes.")
    return text


def _json(
    lines: Iterable[str | BadTextError], name: str, column: str
) -> Iterator[str | BadTextError]:
    for number, line in enumerate(lines, start=1):
        if isinstance(line, BadTextError):
            yield line
            continue
        if not line.strip():
            yield ""
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield BadTextError(f"Expected JSON in line {number} of {name}, got: {error}.")
            continue
        text = found.get(column) if isinstance(found, dict) else found
        if isinstance(text, str):
            yield text
        else:
            missing = isinstance(found, dict) and column not in found
            had = f"keys {', '.join(map(repr, found))}" if missing else repr(text)
            yield BadTextError(
                f"Expected a text under {column!r} in line {number} of {name}, got {had[:60]}."
            )


def _csv(file: Any, name: str, column: str, delimiter: str) -> Iterator[str | BadTextError]:
    rows = csv.reader(file, delimiter=delimiter, strict=True)
    try:
        header = _next(rows) or []
        at = _index(header, column, name)
        while (row := _next(rows)) is not None:
            if len(row) == len(header):
                yield _expect_utf_8(row[at], rows.line_num, name)
            elif row:
                yield BadTextError(
                    f"Expected {len(header)} columns in line {rows.line_num} of {name}, got "
                    f"{len(row)}."
                )
    except csv.Error as error:  # quotes that do not end: what follows cannot be told
        raise InputError(
            f"Expected line {rows.line_num} of {name} to be readable, but: {error}. Mend it."
        ) from None


def _next(rows: Iterator[list[str]]) -> list[str] | None:
    """Return the next row; its fields may be longer than Python allows by default."""
    before = csv.field_size_limit(_LONGEST)
    try:
        return next(rows, None)
    finally:
        csv.field_size_limit(before)


def _parquet(path: Path, column: str) -> Iterator[str | BadTextError]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise InputError(
            "Expected pyarrow, which reads .parquet, but it is not installed. Install it: "
            "pip install 'attnviz[survey]'."
        ) from None
    try:
        with pq.ParquetFile(path) as file:
            _index(file.schema_arrow.names, column, path.name)
            row = 0
            for batch in file.iter_batches(_ROWS, columns=[column]):
                for text in batch.column(0).to_pylist():
                    row += 1
                    yield (
                        text
                        if isinstance(text, str)
                        else BadTextError(
                            f"Expected a text under {column!r} in row {row} of {path.name}, got "
                            f"{text!r:.60}."
                        )
                    )
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"Expected {path} to be a parquet file, but: {first_line(error)}. Check the file."
        ) from None


def _index(names: list[str], column: str, name: str) -> int:
    if names.count(column) != 1:
        had = ", ".join(map(repr, names)) or "none"
        raise InputError(
            f"Expected a column {column!r} in {name}, got {had:.120}. Name it with --column."
        )
    return names.index(column)
