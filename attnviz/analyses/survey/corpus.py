"""A corpus of texts, images or sounds, as a model reads them, and its sample."""

from __future__ import annotations

import codecs
import csv
import glob
import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, count, islice
from operator import methodcaller
from pathlib import Path
from typing import Any, ClassVar, Literal, TextIO, TypeAlias, cast

from attnviz.analyses.survey.result import NOUNS
from attnviz.errors import InputError, first_line, is_unicode, refuse_given, require, true_or_false
from attnviz.inputs import Batch, Inputs, encode, parse_inputs, read_texts
from attnviz.inputs.text import (
    Encoded,
    max_tokens,
    spelled,
    tokenize_together,
    tokenizer_of,
)
from attnviz.inputs.tokens import Chat, TextSource, TokenIds, parse_text
from attnviz.io import is_file, translated
from attnviz.models.checkpoint import SpecialTokens
from attnviz.models.pretrained import has_text_decoder, input_kinds
from attnviz.pipeline import AttendOptions, run, transcript_of
from attnviz.pipeline.attend import Model, Source, load
from attnviz.results import AttentionResult, Axis
from attnviz.results.text import counted, listed
from attnviz.runtime.libraries import silence_logs

Kind: TypeAlias = Literal["text", "image", "audio"]
Corpus: TypeAlias = "str | Path | Iterable[TextSource]"
Encoding: TypeAlias = "Mapping[str, Sequence[int]]"
Row: TypeAlias = "str | InputError"  # a text, or why it cannot be read
MEDIA_SUFFIXES = {
    "image": (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"),
    "audio": (".wav", ".flac", ".ogg", ".mp3"),
}
SUFFIXES = (".txt", ".jsonl", ".csv", ".tsv", ".parquet")
OR_SAMPLE = "or read the sample that comes with attnviz (--sample)"
_LONGEST = 2**24  # characters of a line or a field: a file without ends must not fill the memory
PART = 1024  # texts that are sorted by length and written together
_UTF_8: dict[str, Any] = {"encoding": "utf-8-sig", "errors": "surrogateescape"}
_READ_TOGETHER = 128  # texts in one call of the tokenizer
_SAMPLE_TEXTS = 8  # on which all stages are verified and heads are compared
_SAMPLE_TOKENS = 128  # of each of these texts at most, if some are that short
_SAMPLE_MEDIA = {"image": 8, "audio": 2}  # likewise; a sound has many frames
_BATCH_WEIGHTS = 2**22  # of one head in a batch: they grow with the square of the length


@dataclass(frozen=True)
class CorpusText:
    """A text of a corpus, with the second one of a pair."""

    number: int  # its line or row, counted from 0
    text: str
    pair: str | None = None
    source: TokenIds | Chat | None = None  # a text that is no string
    encoding: Encoding = field(default_factory=dict)  # of its tokens, once it is tokenized
    cut: bool = False  # whether only its first tokens are there

    def __len__(self) -> int:
        return len(self.encoding["input_ids"])

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids of the tokens."""
        return tuple(self.encoding["input_ids"])


@dataclass
class CorpusChanges:
    """How the texts that are read differ from those of the corpus."""

    skip_bad: bool = False  # whether texts that cannot be read are left out, and no error
    noun: Kind = "text"  # what one is called
    left_out: list[int] = field(default_factory=list)  # that cannot be read, counted from 1
    first_error: str = ""  # why the first cannot
    cut: int = 0  # how many were cut
    cut_to: int = 0  # tokens at most

    def leave_out(self, number: int, why: str) -> None:
        """Leave out a text that cannot be read; InputError with `why` unless `skip_bad`."""
        if not self.skip_bad:
            raise InputError(f"{why} Or leave such {NOUNS[self.noun]} out (--skip-bad).") from None
        self.left_out.append(number)
        self.first_error = self.first_error or why

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of a result."""
        notes = []
        if self.left_out:
            numbers = listed([f"{number:,}" for number in self.left_out], most=20)
            count, error = counted(len(self.left_out), self.noun), self.first_error.rstrip(".")
            notes.append(
                f"left out, since it could not be read: {count} ({numbers}), first {error}"
            )
        if self.cut:
            notes.append(f"{counted(self.cut, self.noun)} cut to {self.cut_to:,} tokens")
        return tuple(notes)


@dataclass(frozen=True)
class GivenCorpus:
    """A corpus as it is given, before its model is known."""

    source: Any
    pairs: list[str] | None  # the second text of each
    truncate: bool
    special_tokens: SpecialTokens | None

    def read_by(
        self, model: Any, *, media: bool = False, skip_bad: bool, **of_texts: Any
    ) -> TextCorpus | MediaCorpus:
        """Return what a model reads: texts, or `media`; raise InputError if it is anything else."""
        model = model if isinstance(model, Model) else load(model)
        model.checkpoint.expect_pretrained("An analysis of a corpus")
        model = Model(model.checkpoint.shadow())
        reads = input_kinds(model.module)
        is_one = len(reads) == 1 and reads[0] in (NOUNS if media else ("text",))
        if not is_one or (reads != ("audio",) and has_text_decoder(model.module)):
            kind = "is an encoder–decoder" if is_one else f"reads {' and '.join(reads)}"
            what = "texts, images or sounds" if media else "one text"
            raise InputError(f"{model.name} {kind}. Choose a model that reads {what}.")
        model = Model(model.checkpoint.reading(self.special_tokens))
        options = {"source": self.source, "truncate": self.truncate, "skip_bad": skip_bad}
        if reads != ("text",):
            return MediaCorpus(model, cast("Kind", reads[0]), **options)
        if media and is_of_media(self.source):
            raise InputError(
                f"{str(self.source)!r:.200} is no corpus of texts, which {model.name} reads. Name "
                "a file of texts, or a model that reads images or sounds (--model dinov2-small, "
                "--model whisper-tiny.en)."
            )
        return TextCorpus(model, pairs=self.pairs, **options, **of_texts)


def parse_corpus(
    reader: str, source: Any, inputs: Source, seed: int, sample: bool = False
) -> GivenCorpus:
    """Return a corpus with the keywords of the function that reads it, which is named `reader`."""
    if true_or_false(sample, "sample"):
        refuse_given("the sample replaces them. Leave one out.", texts=source)
        source = Path(__file__).with_name("sample.txt")
    if not 0 <= seed < 2**63:
        raise InputError(f"The seed must be 0 to 2^63 - 1, not {seed}.")
    given: dict[str, Any] = {name: one for name, one in inputs.items() if one is not None}
    truncate = true_or_false(given.pop("truncate", False), "truncate")
    special_tokens, pairs = given.pop("special_tokens", None), given.pop("pair", None)
    for name in ("image", "audio"):
        source = given.pop(name, None) if source is None else source
    refuse_given(f"{reader} reads one corpus of texts or media. Leave it out.", **given)
    if pairs is not None:
        sized = None if isinstance(source, str | Path) or not isinstance(source, Sized) else source
        is_list = isinstance(pairs, Sized) and not isinstance(pairs, str)
        pairs = read_texts(list(pairs) if is_list else pairs, "pair", ids=False)[0] or []
        if sized is None or len(pairs) != len(sized):
            raise InputError(
                "pair is the second text of each: give a list of texts, and as many second ones."
            )
    return GivenCorpus(source, pairs, truncate, special_tokens)


def is_of_media(source: object) -> bool:
    """Whether a corpus is a folder, a pattern of names, or an image or a sound."""
    if not isinstance(source, str | os.PathLike):
        return False
    is_media = any(ending(source) in endings for endings in MEDIA_SUFFIXES.values())
    is_folder = os.path.isdir(source)  # noqa: PTH112  a name may be too long for a path
    return is_media or is_folder or (glob.has_magic(str(source)) and not is_file(source))


def ending(path: Any) -> str:
    """Return the suffix of a name, in lower case."""
    return Path(path).suffix.lower()


def check_corpus(source: object, column: str = "text", *, media: bool = False) -> None:
    """Raise InputError for what is no corpus, as far as its name tells, or has no such column."""
    if hasattr(source, "columns"):  # iterated, a table yields their names
        raise InputError("A table is not a list of texts. Give one column, such as table['text'].")
    if source is None:
        raise InputError(f"There is no corpus. Name a file with a text in each line, {OR_SAMPLE}.")
    if not isinstance(source, str | Path | Iterable):
        raise InputError(f"A corpus is a file or a list of texts, not {source!r:.60}.")
    if not isinstance(source, str | Path) or ending(source) not in SUFFIXES[1:]:
        why = f"only {', '.join(SUFFIXES[1:])} have columns. Leave it out."
        refuse_given(why, column=column != "text")
    if not isinstance(source, str | Path) or str(source) == "-":
        return
    if not (is_file(source) or os.path.isdir(source) or glob.glob(str(source))):  # noqa: PTH112, PTH207
        other = f", {OR_SAMPLE}" if media else ""
        raise InputError(f"There is no file or folder {source}. Check its name{other}.")
    if ending(source) not in SUFFIXES and not (media and is_of_media(source)):
        raise InputError(
            f"{Path(source).name!r:.60} is not a corpus: its name must end in "
            f"{', '.join(SUFFIXES)}, or be - for standard input. Or pass a list of texts."
        )


def _rows(source: Corpus, column: str) -> Iterator[Row | TokenIds | Chat]:
    """Yield the text of each row, also an empty one, or ids or messages, or its error."""
    if not isinstance(source, str | Path):
        several = parse_text(source, "The corpus", prompted=False)
        for number, item in enumerate(source if several is None else several, start=1):
            if isinstance(item, str):
                yield item if item.strip() else InputError(f"Text {number} is empty.")
                continue
            found: Sequence[Any] = [item]
            if not isinstance(item, TokenIds | Chat):
                try:
                    found = parse_text(item, f"Text {number}", prompted=False) or ()
                except InputError as error:
                    found = [error]
            if len(found) != 1:
                found = [InputError(f"Text {number} is {item!r:.60}, not a string.")]
            yield found[0]
        return
    if str(source) == "-":
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(**_UTF_8)
        yield from _lines(sys.stdin, "standard input")
        return
    path = Path(source)
    is_table = (suffix := ending(path)) not in (".txt", ".jsonl")
    with translated(path, "read"):
        with path.open("rb") as start:
            if start.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                raise InputError(f"{path} is UTF-16 text. Save it as UTF-8.")
        with path.open(newline="" if is_table else None, **_UTF_8) as file:
            if is_table:
                yield from _table(file, path, column)
            elif suffix == ".jsonl":
                yield from _json_lines(file, path.name, column)
            else:
                yield from _lines(file, path.name)


def _lines(file: TextIO, name: str) -> Iterator[Row]:
    for number in count(1):
        if not (line := file.readline(_LONGEST)):
            return
        if len(line) == _LONGEST:
            raise InputError(f"Line {number} of {name} is too long. Put each text on its own line.")
        line = line.rstrip("\r\n")  # bytes that are not UTF-8 are surrogates
        yield line if is_unicode(line) else InputError(f"Line {number} of {name} is not UTF-8.")


def _json_lines(file: TextIO, name: str, column: str) -> Iterator[Row]:
    for number, line in enumerate(_lines(file, name), start=1):
        if isinstance(line, InputError) or not line.strip():
            yield line
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield InputError(f"Line {number} of {name} is not valid JSON: {error}.")
            continue
        text = record.get(column) if isinstance(record, dict) else record
        if isinstance(text, str):
            yield text
        else:
            missing = isinstance(record, dict) and column not in record
            content = f"keys {', '.join(map(repr, record))}" if missing else repr(text)
            why = f"has no text under {column!r}: {content[:60]}"
            yield InputError(f"Line {number} of {name} {why}.")


def _table(file: Any, path: Path, column: str) -> Iterator[Row]:
    """Yield the text of each row of a table; the header of .csv and .tsv is their first row."""
    number, limit, is_parquet = 0, csv.field_size_limit(_LONGEST), ending(path) == ".parquet"
    try:
        if is_parquet:
            require("pyarrow", "survey", "Reading .parquet needs")
            import pyarrow.parquet as pq

            table: Any = pq.ParquetFile(file.buffer)
            names = table.schema_arrow.names
        else:
            table = csv.reader(file, delimiter="\t" if ending(path) == ".tsv" else ",", strict=True)
            names = next(table, [])
        if names.count(column) != 1:
            found = ", ".join(map(repr, names)) or "none"
            raise InputError(
                f"{path.name} needs one column {column!r}, but its columns are {found:.120}. Name "
                "the right one with --column."
            )
        if is_parquet:
            parts, names = table.iter_batches(PART, columns=[column]), [column]
            table = ([text] for part in parts for text in part[0].to_pylist())
        for number, row in enumerate(filter(None, table), start=1):
            text = row[names.index(column)] if len(row) == len(names) else row
            why = f"Row {number} of {path.name} has no UTF-8 text under {column!r}: {text!r:.60}."
            yield text if isinstance(text, str) and is_unicode(text) else InputError(why)
    except InputError:
        raise
    except (csv.Error, ValueError, NotImplementedError) as error:  # of an unclosed quote, say
        why = f"{path.name} cannot be read after row {number}: {first_line(error)}. Fix the file."
        raise InputError(why) from None
    finally:
        csv.field_size_limit(limit)


def inputs_of(texts: Sequence[CorpusText]) -> Inputs:
    """Return texts as `attend` reads them."""
    pairs = [one.pair for one in texts if one.pair is not None]
    sources = [one.text if one.source is None else one.source for one in texts]
    return Inputs(sources, pairs or None, None, None, None, several=len(texts) > 1)


def _run(corpus: TextCorpus | MediaCorpus, inputs: Inputs) -> list[AttentionResult]:
    """Return the verified results of a part of a corpus, for which its provenance stands."""
    with silence_logs():
        results = run(corpus.model.checkpoint, inputs, AttendOptions(truncate=corpus.truncate))
    named: dict[str, Any] = dict.fromkeys(("text", "target", "image", "audio"))
    return [replace(one, provenance=replace(one.provenance, **named)) for one in results]


@dataclass(eq=False)
class TextCorpus:
    """The texts of a corpus, with the tokens of a model. It is read again in each iteration."""

    model: Model
    source: Corpus
    column: str = "text"  # the column, or key, of the text
    pairs: Sequence[str] | None = None  # the second text of each
    truncate: bool = False  # whether long texts are cut
    skip_bad: bool = False  # whether texts that cannot be read are left out, and no error
    # The attentions to measure: by default those with a softmax.
    select: Callable[[AttentionResult], AttentionResult] = methodcaller(
        "without_linear", "statistics of heads need"
    )
    mark: Callable[[CorpusText], CorpusText] = lambda text: text  # adds to the tokens of a text
    changes: CorpusChanges = field(default_factory=CorpusChanges)  # in the last iteration
    positions: bool = False  # whether a model may be measured that reads no tokens
    separate: str = ""  # a note if texts run one by one: which attention reads no tokens
    kind: ClassVar[Kind] = "text"

    def __iter__(self) -> Iterator[CorpusText]:
        self.changes = CorpusChanges(self.skip_bad)
        return map(self.mark, self.tokenized(self.texts()))

    def texts(self) -> Iterator[CorpusText]:
        """Yield the texts, without the empty ones."""
        for number, text in enumerate(_rows(self.source, self.column)):
            second = None if self.pairs is None else self.pairs[number]
            if isinstance(text, InputError):
                self.changes.leave_out(number + 1, str(text))
            elif not isinstance(text, str):
                yield CorpusText(number, "", second, text)
            elif text.strip():
                yield CorpusText(number, text, second)

    def tokenized(self, texts: Iterable[CorpusText]) -> Iterator[CorpusText]:
        """Yield texts with their tokens."""
        changes, rest = self.changes, iter(texts)
        longest = max_tokens(self.model.module, tokenizer_of(self.model.checkpoint))
        while part := list(islice(rest, _READ_TOGETHER)):
            together = [text for text in part if text.source is None]
            pairs = [(text.text, text.pair) for text in together]
            tokens = tokenize_together(self.model.checkpoint, pairs, longest)
            encoded = dict(zip((text.number for text in together), tokens, strict=True))
            for text in part:
                try:
                    read = self._encode(text, encoded.get(text.number))
                except InputError as error:
                    changes.leave_out(text.number + 1, f"text {text.number + 1}: {error}")
                    continue
                if read.cut:
                    changes.cut, changes.cut_to = changes.cut + 1, max(changes.cut_to, len(read))
                yield read

    def _encode(self, text: CorpusText, one: Encoded | None) -> CorpusText:
        """Return a text with its tokens, if known; raise InputError if the model cannot read it."""
        if one is not None:
            return replace(text, encoding=one.fields, cut=one.cut_from is not None)
        batch = encode(self.model.checkpoint, inputs_of([text]), truncate=self.truncate)
        encoding = {name: tensor[0].tolist() for name, tensor in batch.inputs.items()}
        encoding["special_tokens_mask"] = list(map(int, batch.axes["text"][0].special))
        words = text.text
        if text.source is not None:
            words = spelled(self.model.checkpoint, text.source)[0]
        cut = batch.details[0].cut_from is not None
        return replace(text, text=words, encoding=encoding, cut=cut)

    @property
    def rows(self) -> int | None:
        """About how many rows the corpus has; None if only reading it can tell."""
        if not isinstance(self.source, str | Path):
            return len(self.source) if isinstance(self.source, Sized) else None
        path = Path(self.source)
        if not path.is_file() or ending(path) == ".parquet":
            return None
        with path.open("rb") as file:
            return 1 + sum(block.count(b"\n") for block in iter(lambda: file.read(2**20), b""))

    def parts(self) -> Iterator[list[CorpusText]]:
        """Yield the texts in parts."""
        rest = iter(self)
        while part := list(islice(rest, PART)):
            yield part

    def open(
        self,
    ) -> tuple[list[CorpusText], list[AttentionResult], Iterator[list[CorpusText]]]:
        """Return some texts, their results, and all texts in parts; InputError without any."""
        rest = self.parts()
        if (first := next(rest, None)) is None:
            message = "The corpus has no text. Choose one with at least one text."
            if left_out := len(self.changes.left_out):
                why = self.changes.first_error
                message = f"No text of the corpus could be read ({left_out:,}): {why}"
            raise InputError(message)
        short = [text for text in first if len(text) <= _SAMPLE_TOKENS] or [min(first, key=len)]
        sample = short[:: -(-len(short) // _SAMPLE_TEXTS)]
        return sample, self.verified(sample), chain([first], rest)

    def verified(self, sample: Sequence[CorpusText]) -> list[AttentionResult]:
        """Return verified results of a few texts, with the attentions that are selected.

        Of a model that also reads other positions than tokens, attention between these is left out.
        """

        def read(texts: Sequence[CorpusText]) -> list[AttentionResult]:
            return [*map(self.select, _run(self, inputs_of(texts)))]

        def of_tokens(result: AttentionResult, count: int) -> list[Any]:
            return [one for one in result.records if one.signed or one.size == (count, count)]

        results, longest = read(sample), max(map(len, sample))  # all are padded
        if len(of_tokens(results[0], longest)) == len(results[0].records):
            return results
        self.separate = "each text was read by itself, and measured where tokens attend"
        results = [result for text in sample for result in read([text])]
        kept = [*map(of_tokens, results, map(len, sample))]
        if not any(kept) and self.positions:
            self.separate = "no attention is between tokens: places are other positions"
            kept = [list(one.records) for one in results]
        if not (paths := set.intersection(*({one.path for one in own} for own in kept))):
            raise InputError(
                f"No attention of {self.model.name} is between the tokens of a text. Draw its maps "
                "with heads, or measure its heads with survey."
            )
        return [
            replace(result, records=tuple(one for one in own if one.path in paths))
            for result, own in zip(results, kept, strict=True)
        ]


def batches(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Return the indices of texts of similar length, the shortest first, so that padding is little.

    tokens : the most positions of a batch, with padding; a single text may have more. The weights
    of a head are limited too.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        positions = (len(batches[-1]) + 1) * lengths[index] if batches else math.inf
        if positions > tokens or positions * lengths[index] > _BATCH_WEIGHTS:
            batches.append([])
        batches[-1].append(index)
    return batches


@dataclass(frozen=True, eq=False)
class Medium:
    """An image or a sound of a corpus, as the model reads it."""

    kind: Kind
    number: int  # of the file, counted from 0
    name: str
    inputs: Inputs
    batch: Batch

    @property
    def ids(self) -> tuple[int, ...]:
        """The token ids of a transcript; empty without one."""
        has_one = "target" in self.batch.axes
        return tuple(self.batch.inputs["decoder_input_ids"][0].tolist()) if has_one else ()

    def axis(self, known: Axis) -> Axis:
        """Return the axis of the queries, or of the keys, that is known from another medium."""
        if known.seconds is not None and "audio" in self.batch.axes:
            return self.batch.axes["audio"][0]
        if known.patches is None and "target" in self.batch.axes:
            return self.batch.axes["target"][0]
        return known  # all pictures have the same patches


@dataclass(eq=False)
class MediaCorpus:
    """The images, or the sounds with their transcripts, that a model reads: see `TextCorpus`."""

    model: Model
    kind: Kind
    source: Any
    truncate: bool = False
    skip_bad: bool = False
    separate: ClassVar[str] = ""
    _targets: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        why = f"{self.model.name} reads {NOUNS[self.kind]}. Leave it out."
        refuse_given(why, truncate=self.truncate and self.kind == "image")
        self.changes = CorpusChanges(self.skip_bad, self.kind)

    @cached_property
    def sources(self) -> list[Any]:
        """The files, or what was given in their place."""
        noun, source = NOUNS[self.kind], self.source
        if not isinstance(source, str | os.PathLike):
            return list(source)
        path, endings = Path(source), MEDIA_SUFFIXES[self.kind]
        if not path.is_file():
            names = path.rglob("*") if path.is_dir() else map(Path, glob.glob(str(source)))  # noqa: PTH207
            files = sorted(name for name in names if ending(name) in endings)
        elif ending(path) == ".txt":
            lines = map(str.strip, path.read_text("utf-8", errors="replace").splitlines())
            files = [path.parent / name for name in lines if name]
            files = files if files and files[0].is_file() else []
        else:
            files = [path] if ending(path) in endings else []
        if files:
            return files
        raise InputError(
            f"{source} has no {noun[:-1]} for {self.model.name}: name a folder of {noun} "
            f"({', '.join(endings[:3])}, …), or a .txt file with the name of one in each line."
        )

    @property
    def rows(self) -> int:
        """How many files there are."""
        return len(self.sources)

    def parts(self) -> Iterator[list[Medium]]:
        """Yield the media, each alone."""
        self.changes = CorpusChanges(self.skip_bad, self.kind)
        return ([medium] for medium in self.some(range(self.rows)))

    def some(self, numbers: Iterable[int]) -> Iterator[Medium]:
        """Yield the media with these numbers."""
        for number in numbers:
            try:
                yield self._read(number)
            except InputError as error:
                self.changes.leave_out(number + 1, f"{self.kind} {number + 1}: {error}")

    def _read(self, number: int) -> Medium:
        checkpoint, source = self.model.checkpoint, self.sources[number]
        name = Path(source).name if isinstance(source, str | os.PathLike) else f"#{number + 1}"
        given: dict[str, Any] = {self.kind: [source]}
        inputs = parse_inputs(**given)
        if inputs.sounds and has_text_decoder(self.model.module):
            if number not in self._targets:
                (sound,) = inputs.sounds
                self._targets[number], _ = transcript_of(checkpoint, sound, truncate=self.truncate)
            inputs = replace(inputs, targets=[self._targets[number]])
        batch = encode(checkpoint, inputs, truncate=self.truncate)
        return Medium(self.kind, number, name, inputs, batch)

    def open(self) -> tuple[list[Medium], list[AttentionResult], Iterator[list[Medium]]]:
        """Return a few media, evenly chosen, their verified results, and all media, each alone."""
        step = -(-self.rows // _SAMPLE_MEDIA[self.kind]) or 1
        media = list(islice(self.some(range(0, self.rows, step)), _SAMPLE_MEDIA[self.kind]))
        media = media or list(islice(self.some(range(self.rows)), 1))
        if not media:
            raise InputError(
                f"The corpus has no {self.kind} that can be read. Name a folder of "
                f"{NOUNS[self.kind]}."
            )
        results = [result for medium in media for result in _run(self, medium.inputs)]
        return media, results, self.parts()
