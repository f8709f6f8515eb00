"""The folder of a survey: one long table in parts, each of which is written whole or not at all.

A part holds a range of texts of the corpus, so that a survey can be resumed: parts that are there
are not measured again, and a part that is written twice is the same twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from attnviz.analyses.survey.corpus import TokenizedText
from attnviz.analyses.survey.measure import TextStatistics
from attnviz.analyses.survey.result import HeadName
from attnviz.analyses.survey.statistics import NAMES
from attnviz.errors import InputError, OutputError
from attnviz.io.files import atomic

_VALUES = ("value", "even", "shuffled")
_SCHEMA = pa.schema(
    [
        ("sentence", pa.int64()),
        ("tokens", pa.int32()),
        ("stack", pa.dictionary(pa.int8(), pa.string())),
        ("layer", pa.int16()),
        ("head", pa.int16()),
        ("statistic", pa.dictionary(pa.int8(), pa.string())),
        *((name, pa.float32()) for name in _VALUES),
    ]
)
_REPEATED = [name for name in _SCHEMA.names if name not in _VALUES]
_MANIFEST = "survey.json"
_PARTS = "parts"
_ABOUT = b"attnviz"  # the key, in the metadata of a part, of its texts and of what was compared


@dataclass(frozen=True)
class Folder:
    """The parts of a survey on disk.

    Attributes
    ----------
    path : Path
        The folder.
    about : mapping
        The model, its weights, and the options that change a number: the same for all parts.
    heads : sequence of HeadName
        The heads of the model.
    """

    path: Path
    about: Mapping[str, object]
    heads: Sequence[HeadName] = ()

    def open(self, *, resume: bool) -> None:
        """Create the folder, or go on with the survey that it holds.

        Raises
        ------
        InputError
            The folder holds another survey, or this one and `resume` is not set.
        OutputError
            The folder cannot be made.
        """
        manifest = self.path / _MANIFEST
        try:
            (self.path / _PARTS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"Expected to write in {self.path}, but: {error.strerror}. Choose another folder."
            ) from None
        if manifest.exists() or any((self.path / _PARTS).iterdir()):
            if manifest.exists() and not resume:
                raise InputError(
                    f"Expected an empty folder, but {self.path} holds a survey. Go on with it by "
                    "--resume (resume=True), or choose another folder."
                )
            self._check_manifest(manifest)
        with atomic(manifest) as temporary:
            temporary.write_text(json.dumps(dict(self.about), indent=1), encoding="utf-8")

    def _check_manifest(self, manifest: Path) -> None:
        """Raise InputError unless the folder holds a survey of the same model and options."""
        try:
            content = json.loads(manifest.read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise InputError(
                f"Expected a folder for a survey, but {self.path} holds other parts and no valid "
                f"{_MANIFEST}. Choose another folder."
            )
        for name, value in self.about.items():
            if name != "model" and content.get(name) != value:  # a model may be renamed
                raise InputError(
                    f"Expected to go on with a survey of the same {name}, {value}, but "
                    f"{self.path} holds one of {content.get(name)}. Choose another folder."
                )

    def has(self, number: int, texts: Sequence[TokenizedText]) -> bool:
        """Whether a part is there, undamaged.

        Raises
        ------
        InputError
            The part is there, but of other texts.
        """
        path = self._part(number)
        try:
            schema = pq.read_table(path, page_checksum_verification=True).schema
            about = _read_about(schema)
        except (OSError, pa.ArrowException, ValueError):  # missing or damaged: written again
            return False
        if schema.names != _SCHEMA.names:
            return False
        if about["texts"] == _fingerprint(texts):
            return True
        raise InputError(
            f"Expected {path} to be of the same corpus, but it is of other texts, or their "
            "tokens are others. Choose another folder."
        )

    def write(
        self, number: int, texts: Sequence[TokenizedText], statistics: TextStatistics
    ) -> None:
        """Write a part, whole or not at all."""
        about = {
            "texts": _fingerprint(texts),
            "compared": statistics.compared,
            "differences": statistics.differences.tolist(),
        }
        metadata = json.dumps(about | {"digest": _digest(about)})
        table = long_table(statistics, self.heads).replace_schema_metadata({_ABOUT: metadata})
        with atomic(self._part(number)) as temporary:
            pq.write_table(
                table,
                temporary,
                compression="zstd",
                use_dictionary=_REPEATED,
                write_page_checksum=True,
            )

    def _part(self, number: int) -> Path:
        return self.path / _PARTS / f"{number:06}.parquet"

    def read(self, count: int) -> Iterator[TextStatistics]:
        """Yield the parts, in order.

        Raises
        ------
        InputError
            There are others too, or one is not a part of a survey.
        """
        paths = [self._part(number) for number in range(count)]
        for path in sorted((self.path / _PARTS).glob("*.parquet")):
            if path not in paths:
                raise InputError(
                    f"Expected {count} parts of a survey, but {path} is another. Remove it, or "
                    "choose another folder."
                )
        for path in paths:
            table = pq.read_table(path)
            if table.schema.names != _SCHEMA.names:
                raise InputError(
                    f"Expected {path} to be a part of a survey, got other columns. Remove it."
                )
            yield from_table(table, self.heads, _read_about(table.schema))


def long_table(statistics: TextStatistics, heads: Sequence[HeadName]) -> pa.Table:
    """Return one row for each sentence, head and statistic that a text has."""
    N, K, S = statistics.value.shape
    stacks = list(dict.fromkeys(head.stack for head in heads))
    present = ~statistics.value.isnan().numpy()

    def flat(values: object, kind: type) -> NDArray[Any]:
        column: NDArray[Any] = np.broadcast_to(np.asarray(values, kind), (N, K, S))[present]
        return column

    def of_heads(values: list[int]) -> NDArray[Any]:
        return flat(np.asarray(values)[:, None], np.int16)

    def with_names(codes: NDArray[Any], names: Sequence[str]) -> pa.DictionaryArray:
        return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int8)), list(names))

    columns: list[Any] = [
        flat(np.array(statistics.numbers)[:, None, None], np.int64),
        flat(np.array(statistics.tokens)[:, None, None], np.int32),
        with_names(of_heads([stacks.index(head.stack) for head in heads]), stacks),
        of_heads([head.layer for head in heads]),
        of_heads([head.head for head in heads]),
        with_names(flat(np.arange(S), np.int8), NAMES),
        *(flat(getattr(statistics, name).numpy(), np.float32) for name in _VALUES),
    ]
    return pa.table(columns, schema=_SCHEMA)


def from_table(
    table: pa.Table, heads: Sequence[HeadName], about: Mapping[str, Any]
) -> TextStatistics:
    """Return the statistics in a long table, whatever the order of its rows."""
    columns = {name: table.column(name).combine_chunks() for name in table.schema.names}
    stacks = columns["stack"].dictionary.to_pylist()
    known = np.array([_code(stacks.index(head.stack), head.layer, head.head) for head in heads])
    codes = _code(*(_integers(columns[name]) for name in ("stack", "layer", "head")))
    order = np.argsort(known)
    head = order[np.searchsorted(known, codes, sorter=order)]
    names = columns["statistic"].dictionary.to_pylist()
    statistic = np.array([NAMES.index(name) for name in names])[_integers(columns["statistic"])]
    numbers, text = np.unique(_integers(columns["sentence"]), return_inverse=True)
    tokens = np.zeros(len(numbers), np.int64)
    tokens[text] = _integers(columns["tokens"])
    values = {}
    for name in _VALUES:
        laid_out = np.full((len(numbers), len(heads), len(NAMES)), np.nan, np.float32)
        laid_out[text, head, statistic] = columns[name].to_numpy()
        values[name] = torch.from_numpy(laid_out)
    return TextStatistics(
        numbers=tuple(numbers.tolist()),
        tokens=tuple(tokens.tolist()),
        differences=torch.tensor(about["differences"], dtype=torch.float64),
        compared=about["compared"],
        **values,
    )


def _code(stack: Any, layer: Any, head: Any) -> Any:
    """Return one number for a head, or for each of many."""
    return stack << 32 | layer << 16 | head


def _integers(column: Any) -> NDArray[np.int64]:
    """Return the integers of a column; of names, their indices in its dictionary."""
    indices = column.indices if isinstance(column, pa.DictionaryArray) else column
    return np.asarray(indices.to_numpy(), np.int64)


def _read_about(schema: pa.Schema) -> dict[str, Any]:
    """Return the metadata of a part; ValueError where it has none, or it is damaged."""
    about = json.loads((schema.metadata or {}).get(_ABOUT, b""))
    if not isinstance(about, dict) or about.pop("digest", None) != _digest(about):
        raise ValueError("not a part of a survey, or a damaged one")
    return about


def _digest(about: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _fingerprint(texts: Sequence[TokenizedText]) -> str:
    """Return the SHA-256 of some texts, their numbers and their tokens."""
    digest = hashlib.sha256()
    for text in texts:
        tokens = {name: list(values) for name, values in sorted(text.encoding.items())}
        digest.update(f"{text.number}\0{text.text}\0{tokens}\0".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
