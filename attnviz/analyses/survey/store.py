"""The folder of a survey: the long table in parts, each of which is there whole or not at all.

A part holds the texts from one number of the corpus to the next, so that what is missing can be
told, and a part that is written twice is the same twice.
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

from attnviz.analyses.survey.measure import Measured, Read
from attnviz.analyses.survey.table import SCHEMA, VALUES, long_table
from attnviz.errors import InputError, OutputError
from attnviz.io.files import atomic

_MANIFEST = "survey.json"
_PARTS = "parts"
_REPEATED = [name for name in SCHEMA.names if name not in VALUES]
_ABOUT = b"attnviz"  # under which a part says of which texts it is, and what was compared


@dataclass(frozen=True)
class Folder:
    """Where the parts lie, and what they have in common.

    about : the model, its weights, and the options that change a number.
    """

    path: Path
    about: Mapping[str, object]

    def open(self, *, resume: bool) -> None:
        """Begin here, or go on.

        Raises
        ------
        InputError : another survey's parts are here, or parts of this one and `resume` is not set.
        OutputError : the folder cannot be made.
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
            self._expect_own(manifest)
        with atomic(manifest) as temporary:
            temporary.write_text(json.dumps(dict(self.about), indent=1), encoding="utf-8")

    def _expect_own(self, manifest: Path) -> None:
        try:
            found = json.loads(manifest.read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise InputError(
                f"Expected a folder for a survey, but {self.path} holds other parts and no sound "
                f"{_MANIFEST}. Choose another folder."
            )
        for name, value in self.about.items():
            if name != "model" and found.get(name) != value:  # what it is called may change
                raise InputError(
                    f"Expected to go on with a survey of the same {name}, {value}, but "
                    f"{self.path} holds one of {found.get(name)}. Choose another folder."
                )

    def has(self, number: int, texts: Sequence[Read]) -> bool:
        """Whether a part is there, and as it was written.

        Raises
        ------
        InputError : it is of other texts.
        """
        path = self._part(number)
        try:
            schema = pq.read_table(path, page_checksum_verification=True).schema
            about = _about(schema)
        except (OSError, pa.ArrowException, ValueError):  # none, or damaged: it is written anew
            return False
        if schema.names != SCHEMA.names:
            return False
        if about["texts"] == _fingerprint(texts):
            return True
        raise InputError(
            f"Expected {path} to be of the same corpus, but it is of other texts, or their "
            "tokens are others. Choose another folder."
        )

    def write(self, number: int, texts: Sequence[Read], measured: Measured) -> None:
        """Write a part, whole or not at all."""
        about = {
            "texts": _fingerprint(texts),
            "compared": measured.compared,
            "differences": measured.differences.tolist(),
        }
        text = json.dumps(about | {"digest": _digest(about)})
        table = long_table(measured).replace_schema_metadata({_ABOUT: text})
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

    def read(self, count: int) -> Iterator[pa.Table]:
        """Yield the tables of the parts, in order.

        Raises
        ------
        InputError : there are others too, or one is none of ours.
        """
        paths = dict.fromkeys(self._part(number) for number in range(count))
        for path in sorted((self.path / _PARTS).glob("*.parquet")):
            if path not in paths:
                raise InputError(
                    f"Expected {count} parts of a survey, but {path} is another. Take it away, or "
                    "choose another folder."
                )
        for path in paths:
            table = pq.read_table(path)
            if table.schema.names != SCHEMA.names:
                raise InputError(
                    f"Expected {path} to be a part of a survey, got other columns. Take it away."
                )
            yield table

    def compared(self, count: int) -> tuple[int, np.ndarray]:
        """Return how many texts were compared, and the largest difference of each head, (K,)."""
        of_parts = [_about(pq.read_schema(self._part(number))) for number in range(count)]
        differences = np.array([each["differences"] for each in of_parts])
        return sum(each["compared"] for each in of_parts), differences.max(0)


def _about(schema: pa.Schema) -> dict[str, Any]:
    """Return what a part says of itself; ValueError where it says nothing."""
    found = json.loads((schema.metadata or {}).get(_ABOUT, b""))
    if not isinstance(found, dict) or found.pop("digest", None) != _digest(found):
        raise ValueError("no part of a survey, or a damaged one")
    return found


def _digest(about: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _fingerprint(texts: Sequence[Read]) -> str:
    """Return the SHA-256 of some texts, their numbers, and what a tokenizer made of them."""
    digest = hashlib.sha256()
    for each in texts:
        tokens = {name: list(values) for name, values in sorted(each.encoding.items())}
        digest.update(f"{each.number}\0{each.text}\0{tokens}\0".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
