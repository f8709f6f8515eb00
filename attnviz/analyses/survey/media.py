"""A corpus of images or sounds: its files, as a model reads them, and their sample."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from dataclasses import InitVar, dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from attnviz.analyses.survey.corpus import MEDIA_SUFFIXES, CorpusChanges, Kind, ending
from attnviz.analyses.survey.result import NOUNS
from attnviz.errors import InputError, refuse_given
from attnviz.inputs.audio import Sound, read_sound
from attnviz.inputs.batch import Batch, Inputs, encode
from attnviz.inputs.image import Picture, read_image
from attnviz.models.pretrained import has_text_decoder
from attnviz.pipeline.attend import Model, attend
from attnviz.pipeline.run import transcript_of
from attnviz.results import AttentionRecord, AttentionResult, Axis

POSITIONS = {"text": "tokens", "image": "patches and special tokens", "audio": "frames and tokens"}
_SAMPLE = {"image": 8, "audio": 2}  # on which all stages are verified; a sound has many frames


@dataclass(frozen=True, eq=False)
class Medium:
    """An image or a sound of a corpus, as the model reads it.

    number : of the file, counted from 0. source, target : what `attend` takes.
    """

    kind: Kind
    number: int
    name: str
    source: Any
    batch: Batch
    target: str | None = None

    @property
    def tokens(self) -> Axis | None:
        """The axis of the tokens of a transcript."""
        axes = self.batch.axes.get("target")
        return axes[0] if axes else None

    @property
    def ids(self) -> tuple[int, ...]:
        """The token ids of a transcript; empty without one."""
        has_one = self.tokens is not None
        return tuple(self.batch.inputs["decoder_input_ids"][0].tolist()) if has_one else ()

    def axes(self, record: AttentionRecord) -> tuple[Axis, Axis]:
        """Return the axes of queries and keys in an attention that is known from another medium."""
        return self._axis(record.query_axis), self._axis(record.key_axis)

    def _axis(self, known: Axis) -> Axis:
        if known.seconds is not None and "audio" in self.batch.axes:
            return self.batch.axes["audio"][0]
        if known.patches is None and self.tokens is not None:
            return self.tokens
        return known  # all pictures have the same patches


@dataclass(eq=False)
class MediaCorpus:
    """The images, or the sounds, that a model reads; a sound with its transcript.

    InputError for options that are only for texts. The other fields are as in `TextCorpus`.
    """

    model: Model
    kind: Kind
    source: Any
    column: InitVar[str]
    truncate: bool = False
    skip_bad: bool = False
    _targets: dict[int, str] = field(default_factory=dict)

    def __post_init__(self, column: str) -> None:
        """Refuse the options of texts."""
        cuts = self.truncate and self.kind == "image"
        why = f"{self.model.name} reads {NOUNS[self.kind]}. Leave it out."
        refuse_given(why, truncate=cuts, column=column != "text")
        self.changes = CorpusChanges(noun=self.kind)

    @cached_property
    def sources(self) -> list[Any]:
        """The files, or what was given in their place."""
        noun, source = NOUNS[self.kind], self.source
        if not isinstance(source, str | os.PathLike):
            return list(source)
        path, endings = Path(source), MEDIA_SUFFIXES[self.kind]
        if path.is_dir() or glob.has_magic(str(source)):
            names = path.rglob("*") if path.is_dir() else map(Path, glob.glob(str(source)))  # noqa: PTH207
            if files := sorted(name for name in names if ending(name) in endings):
                return files
            raise InputError(
                f"{source} has no {noun[:-1]} for {self.model.name}: name a folder of {noun} "
                f"({', '.join(endings[:3])}, …)."
            )
        if not path.is_file():
            raise InputError(f"There is no folder or file {path}. Check the name of the corpus.")
        if ending(path) in endings:
            return [path]
        if ending(path) == ".txt":
            lines = path.read_text("utf-8", errors="replace").splitlines()
            named = [line.strip() for line in lines if line.strip()]
            if named and (path.parent / named[0]).is_file():
                return [path.parent / name for name in named]
        raise InputError(
            f"{self.model.name} reads {noun}, and {path.name} is no list of them. Name a folder of "
            f"{noun}, or a .txt file with the name of one in each line."
        )

    @property
    def rows(self) -> int:
        """How many files there are."""
        return len(self.sources)

    def parts(self) -> Iterator[list[Medium]]:
        """Yield the media, each alone."""
        self.changes = CorpusChanges(noun=self.kind)
        return ([medium] for medium in self.some(range(self.rows)))

    def some(self, numbers: Iterable[int]) -> Iterator[Medium]:
        """Yield the media with these numbers."""
        for number in numbers:
            try:
                yield self._read(number)
            except InputError as error:
                message = f"{self.kind} {number + 1}: {error}"
                if not self.skip_bad:
                    raise InputError(f"{message} Or leave such files out (--skip-bad).") from None
                self.changes.leave_out(number + 1, message)

    def _read(self, number: int) -> Medium:
        checkpoint, source = self.model.checkpoint, self.sources[number]
        name = Path(source).name if isinstance(source, str | os.PathLike) else f"#{number + 1}"
        if self.kind == "image":
            picture: Picture = read_image(source)
            batch = encode(checkpoint, Inputs(pictures=[picture]))
            return Medium(self.kind, number, name, source, batch)
        sound: Sound = read_sound(source)
        target = None
        if has_text_decoder(self.model.module):
            if number not in self._targets:
                self._targets[number], _ = transcript_of(checkpoint, sound, truncate=self.truncate)
            target = self._targets[number]
        targets = None if target is None else [target]
        inputs = Inputs(targets=targets, sounds=[sound])
        batch = encode(checkpoint, inputs, truncate=self.truncate)
        return Medium(self.kind, number, name, source, batch, target)

    def open(self) -> tuple[list[Medium], list[AttentionResult], Iterator[list[Medium]]]:
        """Return a few media, evenly chosen, their verified results, and all media, each alone."""
        step = -(-self.rows // _SAMPLE[self.kind]) or 1
        media = list(islice(self.some(range(0, self.rows, step)), _SAMPLE[self.kind]))
        media = media or list(islice(self.some(range(self.rows)), 1))
        if not media:
            raise InputError(
                f"The corpus has no {self.kind} that can be read. Name a folder of "
                f"{NOUNS[self.kind]}."
            )
        results: list[AttentionResult] = []
        for medium in media:
            inputs: dict[str, Any] = {self.kind: medium.source, "target": medium.target}
            result = attend(**inputs, model=self.model, truncate=self.truncate)
            unnamed = replace(result.provenance, image=None, audio=None, target=None)
            results.append(replace(result, provenance=unnamed))
        return media, results, self.parts()
