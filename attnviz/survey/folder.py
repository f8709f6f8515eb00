"""The folder that a survey is written to: whose it is, and what of it is there already."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from attnviz.errors import InputError, OutputError
from attnviz.files import atomic
from attnviz.survey.corpus import Text
from attnviz.survey.parts import part_path

_MANIFEST = "survey.json"
_TEXTS = "texts"  # under which a part says of which texts it is


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
            (self.path / "parts").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"Expected to write in {self.path}, but: {error.strerror}. Choose another folder."
            ) from None
        there = any((self.path / "parts").iterdir())
        if manifest.exists() or there:
            self._expect_own(manifest)
            if not resume:
                raise InputError(
                    f"Expected an empty folder, but {self.path} holds a survey. Go on with it by "
                    "--resume, or choose another folder."
                )
        with atomic(manifest) as temporary:
            temporary.write_text(json.dumps(dict(self.about), indent=1), encoding="utf-8")

    def _expect_own(self, manifest: Path) -> None:
        try:
            found = json.loads(manifest.read_text("utf-8"))
        except (OSError, ValueError):
            found = None
        if not isinstance(found, dict):
            raise InputError(
                f"Expected a folder for a survey, but {self.path} holds other parts and no sound "
                f"{_MANIFEST}. Choose another folder."
            )
        for name, value in self.about.items():
            if found.get(name) != value:
                raise InputError(
                    f"Expected to go on with a survey of the same {name}, {value}, but "
                    f"{self.path} holds one of {found.get(name)}. Choose another folder."
                )

    def has(self, number: int, texts: Sequence[Text]) -> bool:
        """Whether a part is there, whole.

        Raises
        ------
        InputError : it is of other texts.
        """
        path = part_path(self.path, number)
        try:
            metadata = pq.read_schema(path).metadata or {}
        except (OSError, pa.ArrowException):  # none, or a damaged one, which is written anew
            return False
        if metadata.get(_TEXTS.encode()) == fingerprint(texts).encode():
            return True
        raise InputError(
            f"Expected {path} to be of the same corpus, but it is of other texts. Choose another "
            "folder, or the corpus that it was begun with."
        )

    def note(self, texts: Sequence[Text], differences: Sequence[float]) -> dict[str, str]:
        """Return what a part says of itself."""
        return {_TEXTS: fingerprint(texts), "difference": repr(max(differences, default=0.0))}


def fingerprint(texts: Sequence[Text]) -> str:
    """Return the SHA-256 of some texts and their numbers."""
    digest = hashlib.sha256()
    for each in texts:
        digest.update(f"{each.number}\0{each.text}\0".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
