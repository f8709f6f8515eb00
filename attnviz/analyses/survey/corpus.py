"""The texts of a corpus: read from a file or Python, tokenized, and put into batches."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from attnviz.errors import InputError, first_line
from attnviz.inputs import max_tokens, tokenize
from attnviz.inputs.text import translate
from attnviz.models.processors import has_text_decoder, input_kinds
from attnviz.pipeline.attend import Model, attend, load
from attnviz.results import AttentionResult

if TYPE_CHECKING:
    from attnviz.pipeline.attend import Loadable

Corpus: TypeAlias = "str | Path | Iterable[str]"
Encoding: TypeAlias = "Mapping[str, Sequence[int]]"
T = TypeVar("T")
SUFFIXES = (".txt", ".jsonl", ".csv", ".tsv", ".parquet")
PART = 512  # texts that are sorted by length, and written together
_LONGEST_LINE = 2**24  # characters, so that a file without line ends does not fill the memory
_UTF_8: dict[str, Any] = {"encoding": "utf-8-sig", "errors": "surrogateescape"}
_PARQUET_ROWS = 1024  # that are read at once
_ENCODING_FIELDS = ("input_ids", "attention_mask", "token_type_ids", "special_tokens_mask")
_SAMPLE_TEXTS = 8  # on which all stages are verified and heads are compared
_SAMPLE_TOKENS = 128  # at most in these texts, if some are that short


@dataclass(frozen=True)
class Text:
    """A text of a corpus; `number` is its line or row, counted from 0."""

    number: int
    text: str


@dataclass(frozen=True)
class TokenizedText(Text):
    """A text and the tokens that the tokenizer makes of it."""

    encoding: Encoding

    def __len__(self) -> int:
        """Count its tokens."""
        return len(self.encoding["input_ids"])


class BadTextError(InputError):
    """A line or row without a readable text, in a corpus that can be read further."""


@dataclass
class UnreadableTexts:
    """Counts the texts that cannot be read, and keeps the first error."""

    count: int = 0
    first_error: str = ""

    def add(self, error: str) -> None:
        """Count one more text."""
        self.count, self.first_error = self.count + 1, self.first_error or error

    def empty_corpus(self) -> InputError:
        """Return the error of a corpus without any readable text."""
        unread = f"; {self.count:,} could not be read: {self.first_error}" if self.count else "."
        return InputError(f"Expected a corpus with at least one text, got none{unread}")

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of a result."""
        if not self.count:
            return ()
        texts = "1 text" if self.count == 1 else f"{self.count:,} texts"
        error = self.first_error.rstrip(".")
        return (f"left out, since it could not be read: {texts}, first {error}",)


def read_corpus(
    source: Corpus,
    *,
    column: str = "text",
    on_bad: Callable[[str], None] | None = None,
) -> Iterator[Text]:
    """Yield the texts of a corpus, without the empty ones.

    Parameters
    ----------
    source : str, Path or iterable of str
        A file, whose ending tells the format: .txt has one text in each line, .jsonl one JSON
        object or string in each line, .csv and .tsv a header, .parquet a column; "-" is standard
        input, read as .txt. Or the texts themselves.
    column : str
        The column, or key, of the text.
    on_bad : callable, optional
        Called with the error of each line or row that cannot be read, which is then left out. By
        default the first such error is raised.

    Raises
    ------
    InputError
        No such file or column, an unknown format, a line that cannot be read.
    """
    for number, row in enumerate(_rows(source, column)):
        if isinstance(row, BadTextError):
            if on_bad is None:
                raise InputError(f"{row} Fix it, or leave such lines out with --skip-bad.")
            on_bad(str(row))
        elif row.strip():
            yield Text(number, row)


def count_rows(source: Corpus) -> int | None:
    """Return about how many lines or rows a corpus has; None if only reading it can tell."""
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
        return _python_texts(source)
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
    return _parquet(path, column) if suffix == ".parquet" else _text_file(path, suffix, column)


def _python_texts(texts: Iterable[object]) -> Iterator[str | BadTextError]:
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
    is_table = suffix in (".csv", ".tsv")
    try:
        with path.open(newline="" if is_table else None, **_UTF_8) as file:
            if is_table:
                yield from _csv(file, path.name, column, "\t" if suffix == ".tsv" else ",")
            elif suffix == ".jsonl":
                yield from _json_lines(_lines(file, path.name), path.name, column)
            else:
                yield from _lines(file, path.name)
    except OSError as error:
        raise InputError(
            f"Expected to read {path}, but: {error.strerror}. Name another file."
        ) from None


def _lines(file: Any, name: str) -> Iterator[str | BadTextError]:
    number = 0
    while line := file.readline(_LONGEST_LINE):
        number += 1
        if len(line) == _LONGEST_LINE:
            raise InputError(f"Expected a text in each line of {name}, got one without an end.")
        yield _check_utf_8(line.rstrip("\r\n"), number, name)


def _check_utf_8(text: str, line: int, name: str) -> str | BadTextError:
    """Return the text, or an error if it has bytes that are not UTF-8, read as surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return BadTextError(f"Expected text in UTF-8 in line {line} of {name}, got other bytes.")
    return text


def _json_lines(
    lines: Iterable[str | BadTextError], name: str, column: str
) -> Iterator[str | BadTextError]:
    for number, line in enumerate(lines, start=1):
        if isinstance(line, BadTextError) or not line.strip():
            yield line
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield BadTextError(f"Expected JSON in line {number} of {name}, got: {error}.")
            continue
        text = record.get(column) if isinstance(record, dict) else record
        if isinstance(text, str):
            yield text
        else:
            missing = isinstance(record, dict) and column not in record
            content = f"keys {', '.join(map(repr, record))}" if missing else repr(text)
            yield BadTextError(
                f"Expected a text under {column!r} in line {number} of {name}, got {content[:60]}."
            )


def _csv(file: Any, name: str, column: str, delimiter: str) -> Iterator[str | BadTextError]:
    rows = csv.reader(file, delimiter=delimiter, strict=True)
    limit = csv.field_size_limit(_LONGEST_LINE)
    try:
        header = next(rows, [])
        index = _column_index(header, column, name)
        for row in rows:
            if len(row) == len(header):
                yield _check_utf_8(row[index], rows.line_num, name)
            elif row:
                yield BadTextError(
                    f"Expected {len(header)} columns in line {rows.line_num} of {name}, got "
                    f"{len(row)}."
                )
    except csv.Error as error:  # an unclosed quote: the lines after it cannot be read
        raise InputError(
            f"Expected line {rows.line_num} of {name} to be readable, but: {error}. Fix it."
        ) from None
    finally:
        csv.field_size_limit(limit)


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
            _column_index(file.schema_arrow.names, column, path.name)
            row = 0
            for batch in file.iter_batches(_PARQUET_ROWS, columns=[column]):
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


def _column_index(names: list[str], column: str, file_name: str) -> int:
    if names.count(column) != 1:
        listed = ", ".join(map(repr, names)) or "none"
        raise InputError(
            f"Expected a column {column!r} in {file_name}, got {listed:.120}. Name it with "
            "--column."
        )
    return names.index(column)


def load_text_model(model: Model | Loadable | None) -> Model:
    """Return a model that reads one text at a time; raise InputError for any other model."""
    model = model if isinstance(model, Model) else load(model)
    reads = input_kinds(model.module)
    if reads != ("text",) or has_text_decoder(model.module, model.module.config):
        kind = "is an encoder–decoder" if reads == ("text",) else f"reads {' and '.join(reads)}"
        raise InputError(
            f"Expected a model that reads one text, but {model.name} {kind}. Choose another."
        )
    return model


def check_seed(seed: int) -> None:
    """Raise InputError for a seed that the random generators do not take."""
    if not 0 <= seed < 2**63:
        raise InputError(f"Expected a seed from 0 to 2^63 - 1, got {seed}. Choose another.")


def tokenize_corpus(
    model: Model, texts: Iterable[Text], *, truncate: bool, on_bad: Callable[[str], None] | None
) -> Iterator[TokenizedText]:
    """Yield the texts with their tokens; texts that the model cannot read go to `on_bad`.

    Raises
    ------
    InputError
        A text cannot be read, and `on_bad` is None.
    """
    checkpoint = model.checkpoint
    assert checkpoint.tokenizer is not None  # the model reads text
    longest = max_tokens(checkpoint.module, checkpoint.tokenizer)
    for text in texts:
        try:
            with translate(checkpoint):
                encoding, _ = tokenize(checkpoint, (text.text, None), longest, truncate=truncate)
        except InputError as error:
            if on_bad is None:
                raise InputError(
                    f"In text {text.number + 1}: {error} Or leave such texts out (--skip-bad)."
                ) from None
            on_bad(f"text {text.number + 1}: {error}")
        else:
            fields = {name: encoding[name] for name in _ENCODING_FIELDS if name in encoding}
            yield TokenizedText(text.number, text.text, fields)


def verify_sample(
    model: Model, texts: Sequence[TokenizedText], truncate: bool
) -> list[AttentionResult]:
    """Return verified results of a few texts, evenly chosen among those of moderate length."""
    short = [text for text in texts if len(text) <= _SAMPLE_TOKENS] or [min(texts, key=len)]
    sample = [text.text for text in short[:: -(-len(short) // _SAMPLE_TEXTS)]]
    results = attend(sample, model=model, truncate=truncate, mode="full")
    return [replace(result, provenance=replace(result.provenance, text=None)) for result in results]


def parts(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield so many items at a time; the last part may be shorter.

    >>> list(parts("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part


def batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Yield the indices of texts of similar length, the shortest first, so that padding is little.

    Parameters
    ----------
    lengths : sequence of int
        Of the texts, in tokens.
    tokens : int
        How many positions a batch has at most, with padding; a single text may have more.

    >>> list(batches([5, 2, 9, 2], tokens=10))
    [[1, 3], [0], [2]]
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: (lengths[index], index)):
        if batch and (len(batch) + 1) * lengths[index] > tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
