"""The folder of a survey: one long table in parts, so that a survey can be resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from attnviz.analyses.survey.corpus import CorpusText
from attnviz.analyses.survey.measure import TextStatistics
from attnviz.analyses.survey.result import HeadName
from attnviz.errors import InputError
from attnviz.io import atomic, translated

_VALUES = ("value", "even", "shuffled", "shuffled_keys")
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
_COMPRESSED: dict[str, Any] = {"compression": "zstd", "use_dictionary": _REPEATED}
_MANIFEST = "survey.json"
_ABOUT = b"attnviz"  # the key in the metadata of a part


@dataclass(frozen=True)
class Folder:
    """The parts of a survey on disk."""

    path: Path
    about: Mapping[str, object]  # the model, its weights, and the options that change a number
    heads: Sequence[HeadName]
    statistics: Sequence[str]

    def open(self, *, resume: bool, force: bool) -> None:
        """Create the folder, or continue or replace its survey; raise InputError otherwise."""
        manifest, parts = self.path / _MANIFEST, self.path / "parts"
        with translated(self.path, "written", "Choose another folder."):
            parts.mkdir(parents=True, exist_ok=True)
        if manifest.exists() and not resume:
            if not force:
                raise InputError(
                    f"{self.path} holds a survey. Continue it with --resume (resume=True), replace "
                    "it with --force (force=True), or choose another folder."
                )
            for path in [*parts.glob("*.parquet"), manifest]:
                path.unlink()
        content: Any = {**self.about}
        if manifest.exists() or any(parts.iterdir()):
            try:
                content = json.loads(manifest.read_text("utf-8"))
            except (OSError, ValueError, RecursionError):
                content = None
        if not isinstance(content, dict):
            raise InputError(
                f"{self.path} holds other parts and no valid {_MANIFEST}. Choose another folder."
            )
        for name, value in self.about.items():
            if name != "model" and content.get(name) != value:  # a model may be renamed
                raise InputError(
                    f"{self.path} holds a survey whose {name} is {content.get(name)}, not "
                    f"{value}. Choose another folder."
                )
        with atomic(manifest) as temporary:
            temporary.write_text(json.dumps(dict(self.about), indent=1), encoding="utf-8")

    def has(self, number: int, texts: Sequence[CorpusText]) -> bool:
        """Whether a part is there, undamaged; raise InputError if it is of other texts."""
        path = self._part(number)
        try:
            schema = pq.read_table(path, page_checksum_verification=True).schema
            about = json.loads((schema.metadata or {})[_ABOUT])
            is_whole = about.pop("digest") == _digest(about) and schema.names == _SCHEMA.names
        except (OSError, pa.ArrowException, ValueError, LookupError, AttributeError, TypeError):
            return False  # missing or damaged
        if not is_whole:
            return False
        if about["texts"] == _fingerprint(texts):
            return True
        raise InputError(
            f"{path} is of another corpus: its texts or their tokens differ. Choose another folder."
        )

    def write(self, number: int, texts: Sequence[CorpusText], statistics: TextStatistics) -> None:
        """Write a part."""
        about = {
            "texts": _fingerprint(texts),
            "compared": statistics.compared,
            "differences": statistics.differences.tolist(),
        }
        table = self._table(statistics)
        # Page checksums do not cover the metadata.
        metadata = json.dumps(about | {"digest": _digest(about)})
        table = table.replace_schema_metadata({_ABOUT: metadata})
        with atomic(self._part(number)) as temporary:
            pq.write_table(table, temporary, write_page_checksum=True, **_COMPRESSED)

    def _part(self, number: int) -> Path:
        return self.path / "parts" / f"{number:06}.parquet"

    def read(self, count: int) -> Iterator[TextStatistics]:
        """Yield the parts, in order; raise InputError if the folder holds others too."""
        paths = [self._part(number) for number in range(count)]
        if others := sorted({*(self.path / "parts").glob("*.parquet")} - {*paths}):
            raise InputError(
                f"The survey has {count} parts, but {others[0]} is another. Remove it, or choose "
                "another folder."
            )
        for path in paths:
            yield self._statistics_of(pq.read_table(path))

    def _table(self, statistics: TextStatistics) -> pa.Table:
        """Return one row for each sentence, head and statistic that a text has."""
        text, head, statistic = np.nonzero(~statistics.value.isnan().numpy())
        stacks = list(dict.fromkeys(name.stack for name in self.heads))
        stack_codes = np.array([stacks.index(name.stack) for name in self.heads], np.int8)
        columns: list[Any] = [
            np.array(statistics.numbers, np.int64)[text],
            np.array(statistics.tokens, np.int32)[text],
            pa.DictionaryArray.from_arrays(stack_codes[head], stacks),
            np.array([name.layer for name in self.heads], np.int16)[head],
            np.array([name.head for name in self.heads], np.int16)[head],
            pa.DictionaryArray.from_arrays(statistic.astype(np.int8), list(self.statistics)),
        ]
        for name in _VALUES:
            columns.append(getattr(statistics, name).numpy()[text, head, statistic])
        return pa.table(columns, schema=_SCHEMA)

    def _statistics_of(self, table: pa.Table) -> TextStatistics:
        frame = table.to_pandas()
        heads = [(name.stack, name.layer, name.head) for name in self.heads]
        keys = pd.MultiIndex.from_frame(frame[["stack", "layer", "head"]])
        head = pd.MultiIndex.from_tuples(heads).get_indexer(keys)
        statistic = pd.Index(self.statistics).get_indexer(frame["statistic"])
        numbers, first, text = np.unique(frame["sentence"], return_index=True, return_inverse=True)
        about = json.loads(table.schema.metadata[_ABOUT])
        values = {}
        for name in _VALUES:
            array = np.full((len(numbers), len(heads), len(self.statistics)), np.nan, np.float32)
            array[text, head, statistic] = frame[name]
            values[name] = torch.from_numpy(array)
        return TextStatistics(
            numbers=tuple(numbers.tolist()),
            tokens=tuple(frame["tokens"][first].tolist()),
            differences=torch.tensor(about["differences"], dtype=torch.float64, device="cpu"),
            compared=about["compared"],
            **values,
        )


def _digest(about: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _fingerprint(texts: Sequence[CorpusText]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        tokens = {name: list(values) for name, values in sorted(text.encoding.items())}
        digest.update(f"{text.number}\0{text.text}\0{tokens}\0".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
