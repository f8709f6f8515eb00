"""A corpus of images or sounds: its files, what each head does in them, and their sample."""

from __future__ import annotations

import glob
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from attnviz.analyses.survey.corpus import (
    Corpus,
    OnBad,
    check_corpus,
    check_corpus_name,
    load_reader,
)
from attnviz.analyses.survey.result import NOUNS
from attnviz.analyses.survey.statistics import (
    ROLES,
    SIGNED_STATISTICS,
    Heads,
    HeadStatistic,
    TextStatistics,
    key_order,
    largest_difference,
)
from attnviz.analyses.survey.statistics import TITLES as TITLES_OF_TEXTS
from attnviz.capture.batched import BatchedAttention, capture_batch
from attnviz.errors import InputError, ModelError, refuse_given
from attnviz.inputs.audio import Sound, read_sound
from attnviz.inputs.batch import Batch, Inputs, encode
from attnviz.inputs.image import Picture, read_image
from attnviz.models.checkpoint import SpecialTokens
from attnviz.models.pretrained import has_text_decoder
from attnviz.pipeline.attend import Loadable, Model, attend
from attnviz.pipeline.run import transcript_of
from attnviz.results import AttentionRecord, AttentionResult, Axis

T = TypeVar("T")
Kind: TypeAlias = Literal["text", "image", "audio"]
FILES = {
    "image": (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"),
    "audio": (".wav", ".flac", ".ogg", ".mp3"),
}
POSITIONS = {"text": "tokens", "image": "patches and special tokens", "audio": "frames and tokens"}
_SAMPLE = {"image": 8, "audio": 2}  # on which all stages are verified; a sound has many frames
_NEAR = 0.1  # seconds


# --- the files


def load_corpus_model(
    model: Model | Loadable | None, special_tokens: SpecialTokens | None
) -> tuple[Model, Kind]:
    """Return a model and what its corpus consists of; InputError for one that reads pairs."""
    model, kind = load_reader(model, ("text", "image", "audio"), "texts, images or sounds")
    return Model(model.checkpoint.reading(special_tokens)), cast("Kind", kind)


def is_of_media(source: Corpus) -> bool:
    """Whether a corpus is a folder, a pattern of names, or an image or a sound."""
    if not isinstance(source, str | os.PathLike):
        return False
    endings = tuple(ending for endings in FILES.values() for ending in endings)
    return Path(source).is_dir() or glob.has_magic(str(source)) or _ending(source) in endings


def expect_corpus(source: object, column: str) -> None:
    """Raise InputError for what is no corpus, as far as its name tells."""
    check_corpus(source, column)
    if isinstance(source, str | Path) and not is_of_media(source):
        check_corpus_name(source)


def _ending(path: Any) -> str:
    return Path(path).suffix.lower()


@dataclass(frozen=True, eq=False)
class Medium:
    """An image or a sound of a corpus, as the model reads it.

    number : of the file, counted from 0. axes : of queries and keys, for each attention; empty
    while these are not known. source, target : what `attend` takes.
    """

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

    on_bad : called with the number, from 1, and the error of each that cannot be read, which is
    then left out; by default the first such error is raised.
    """

    model: Model
    kind: Kind
    source: Any
    truncate: bool = False
    on_bad: OnBad | None = None
    _targets: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Model, kind: Kind, source: Any, truncate: bool, column: str) -> MediaCorpus:
        """Return a corpus; raise InputError for options that are only for texts."""
        cuts = truncate and kind == "image"
        why = f"{model.name} reads {NOUNS[kind]}. Leave it out."
        refuse_given(why, truncate=cuts, column=column != "text")
        return cls(model, kind, source, truncate)

    @cached_property
    def sources(self) -> list[Any]:
        """The files, or what was given in their place."""
        noun, source = NOUNS[self.kind], self.source
        if not isinstance(source, str | os.PathLike):
            return list(source)
        path, endings = Path(source), FILES[self.kind]
        if path.is_dir() or glob.has_magic(str(source)):
            names = path.rglob("*") if path.is_dir() else map(Path, glob.glob(str(source)))  # noqa: PTH207
            if files := sorted(name for name in names if _ending(name) in endings):
                return files
            raise InputError(
                f"{source} has no {noun[:-1]} for {self.model.name}: name a folder of {noun} "
                f"({', '.join(endings[:3])}, …)."
            )
        if not path.is_file():
            raise InputError(f"There is no folder or file {path}. Check the name of the corpus.")
        if _ending(path) in endings:
            return [path]
        if _ending(path) == ".txt":
            lines = path.read_text("utf-8", errors="replace").splitlines()
            named = [line.strip() for line in lines if line.strip()]
            if named and (path.parent / named[0]).is_file():
                return [path.parent / name for name in named]
        raise InputError(
            f"{self.model.name} reads {noun}, and {path.name} is no list of them. Name a folder of "
            f"{noun}, or a .txt file with the name of one in each line."
        )

    def __len__(self) -> int:
        return len(self.sources)

    def __iter__(self) -> Iterator[Medium]:
        return self.some(range(len(self)))

    def some(self, numbers: Iterable[int]) -> Iterator[Medium]:
        """Yield the media with these numbers."""
        for number in numbers:
            try:
                yield self._read(number)
            except InputError as error:
                message = f"{self.kind} {number + 1}: {error}"
                if self.on_bad is None:
                    raise InputError(f"{message} Or leave such files out (--skip-bad).") from None
                self.on_bad(number + 1, message)

    def _read(self, number: int) -> Medium:
        checkpoint, source = self.model.checkpoint, self.sources[number]
        name = Path(source).name if isinstance(source, str | os.PathLike) else f"#{number + 1}"
        if self.kind == "image":
            picture: Picture = read_image(source)
            return Medium(number, name, source, encode(checkpoint, Inputs(pictures=[picture])))
        sound: Sound = read_sound(source)
        target = None
        if has_text_decoder(self.model.module, self.model.module.config):
            if number not in self._targets:
                self._targets[number], _ = transcript_of(checkpoint, sound, truncate=self.truncate)
            target = self._targets[number]
        targets = None if target is None else [target]
        inputs = Inputs(targets=targets, sounds=[sound])
        batch = encode(checkpoint, inputs, truncate=self.truncate)
        return Medium(number, name, source, batch, target)

    def verified_sample(self) -> tuple[list[Medium], list[AttentionResult]]:
        """Return a few media, evenly chosen, and their verified results."""
        step = -(-len(self) // _SAMPLE[self.kind]) or 1
        media = list(islice(self.some(range(0, len(self), step)), _SAMPLE[self.kind]))
        media = media or list(islice(self, 1))
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
        return media, results

    def capture(
        self,
        medium: Medium,
        records: Sequence[AttentionRecord],
        on_attention: Callable[[BatchedAttention, Axis, Axis], None],
    ) -> None:
        """Run the model on a medium, and pass on each attention with its axes."""

        def pass_on(attention: BatchedAttention) -> None:
            queries, keys = medium.axes(attention.known)
            if (len(queries), len(keys)) != (attention.query.shape[2], attention.key.shape[2]):
                raise ModelError(
                    f"{attention.known.path} reads {attention.key.shape[2]} positions of "
                    f"{medium.name}, not {len(keys)}. Choose a model whose {NOUNS[self.kind]} all "
                    "have the same size."
                )
            on_attention(attention, queries, keys)

        capture_batch(self.model.module, medium.batch.inputs, records, pass_on)


# --- the statistics


class _NoMeaningError(Exception):
    """Some queries and keys do not have what a statistic measures."""


@dataclass(frozen=True, eq=False)
class AxisPairs:
    """All pairs of a query and a key, by their axes.

    What they do not have raises an error, and the statistic is left out.
    """

    queries: Axis
    keys: Axis

    def _expect(self, has_meaning: bool) -> None:
        if not has_meaning:
            raise _NoMeaningError

    @cached_property
    def rows(self) -> Tensor:
        """The queries that count: no special tokens, and no frames after the sound."""
        special = torch.tensor(self.queries.special, device="cpu")
        return (~special).nonzero().flatten()

    @cached_property
    def special(self) -> Tensor:
        """Whether a key is special, (n,)."""
        return torch.tensor(self.keys.special, device="cpu")

    @property
    def special_tokens(self) -> Tensor:
        """Whether a key is a special token, (1, n)."""
        self._expect(self.keys.seconds is None and bool(self.special.any()))
        return self.special[None]

    @property
    def silence(self) -> Tensor:
        """Whether a key is a frame after the sound, (1, n)."""
        self._expect(self.keys.seconds is not None)
        return self.special[None]

    @property
    def is_self(self) -> bool:
        """Whether queries and keys are the same positions."""
        return self.queries == self.keys

    @cached_property
    def offset(self) -> Tensor:
        """How many positions the key is before the query, (R, n); none in a cross-attention."""
        self._expect(self.is_self)
        return self.rows[:, None] - torch.arange(len(self.keys), device="cpu")

    @property
    def token(self) -> Tensor:
        """The position of the key, (1, n), where tokens attend to tokens."""
        self._expect(self.is_self and self.keys.patches is None and self.keys.seconds is None)
        return torch.arange(len(self.keys), device="cpu")[None]

    @cached_property
    def patches(self) -> tuple[Tensor, Tensor]:
        """How many rows and columns of patches a key is away, (R, n). NaN for a special token."""
        self._expect(self.keys.patches is not None and self.is_self)
        known = [(math.nan, math.nan) if p is None else p for p in self.keys.patches or ()]
        places = torch.tensor(known, device="cpu")
        rows, columns = (places[self.rows, None] - places).abs().unbind(-1)
        return rows, columns

    @cached_property
    def seconds(self) -> Tensor:
        """How many seconds a frame is away from another, (R, n)."""
        self._expect(self.keys.seconds is not None and self.is_self)
        seconds = [math.nan if second is None else second for second in self.keys.seconds or ()]
        times = torch.tensor(seconds, device="cpu")
        return (times[self.rows, None] - times).abs()


Measure: TypeAlias = Callable[[Tensor, AxisPairs], Tensor]


@dataclass(frozen=True)
class MediaStatistic(HeadStatistic):
    """One number of each head on each medium.

    measure : from the weights (H, R, n) of the queries that count to a number for each head, (H,).
    limit : the largest possible value; None for a share.
    """

    measure: Measure
    limit: Callable[[AxisPairs], float] | None = None


def _share(select: Callable[[AxisPairs], Tensor]) -> Measure:
    """Return a measure: the mean weight for some keys, over the queries that have such a key."""

    def measure(weights: Tensor, pairs: AxisPairs) -> Tensor:
        selected = select(pairs).expand(weights.shape[1:])
        used = selected.any(-1)
        return (weights * selected).sum(-1)[:, used].mean(-1)  # NaN without any

    return measure


def _mean_of(distance: Callable[[AxisPairs], Tensor]) -> Measure:
    """Return a measure: the mean distance of the keys, special tokens left out."""

    def measure(weights: Tensor, pairs: AxisPairs) -> Tensor:
        table = distance(pairs)
        kept = weights * (~table.isnan() & ~pairs.special)
        total = kept.sum(-1).clamp(min=1e-9)
        return ((kept * table.nan_to_num(0.0)).sum(-1) / total).mean(-1)

    return measure


def _within(pairs: AxisPairs, rows: int | None, columns: int | None) -> Tensor:
    """Return the other patches that are at most so many rows and columns away; None: any."""
    down, across = pairs.patches
    near = ~down.isnan() & ((down > 0) | (across > 0))
    for distance, most in ((down, rows), (across, columns)):
        near = near if most is None else near & (distance <= most)
    return near


def _in_order(weights: Tensor, pairs: AxisPairs) -> Tensor:
    """Return the chance that a later token reads a later frame, a tie counting one half, (H,)."""
    if pairs.keys.seconds is None or pairs.is_self:
        raise _NoMeaningError
    before = weights.cumsum(-1) - weights / 2
    later = before @ weights.mT  # of row j, the weight after what row i reads
    pairs_of_rows = torch.ones(later.shape[1:], dtype=torch.bool, device="cpu").triu(1)
    mean: Tensor = later[:, pairs_of_rows].mean(-1)
    return mean


_ITSELF = _share(lambda pairs: pairs.offset == 0)
_ANY = (
    MediaStatistic(
        "entropy", "entropy, nats",
        lambda weights, _: torch.special.entr(weights).sum(-1).mean(-1), even_baseline=False,
        limit=lambda pairs: math.log(len(pairs.keys)),
    ),
    MediaStatistic(
        "most read", "share of the position read most",
        lambda weights, pairs: weights.mean(1)[:, ~pairs.special].amax(-1), even_baseline=False,
    ),
)  # fmt: skip
STATISTICS_OF: Mapping[str, tuple[MediaStatistic, ...]] = {
    "image": (
        MediaStatistic(
            "patch distance", "mean distance, patches",
            _mean_of(lambda pairs: torch.hypot(*pairs.patches)),
            limit=lambda pairs: float(torch.hypot(*pairs.patches).nan_to_num(0.0).max()),
        ),
        MediaStatistic("self", "weight for itself", _ITSELF, role="own patch"),
        MediaStatistic(
            "neighbors", "for the 8 patches around", _share(lambda pairs: _within(pairs, 1, 1)),
            role="neighboring patches",
        ),
        MediaStatistic(
            "same row", "for other patches of the row",
            _share(lambda pairs: _within(pairs, 0, None)), role="same row",
        ),
        MediaStatistic(
            "same column", "for other patches of the column",
            _share(lambda pairs: _within(pairs, None, 0)), role="same column",
        ),
        MediaStatistic(
            "separators", "for special tokens", _share(lambda pairs: pairs.special_tokens),
            role="rests on special tokens", resting=True,
        ),
        *_ANY,
    ),
    "audio": (
        *_ANY,
        MediaStatistic(
            "time distance", "mean distance, seconds", _mean_of(lambda pairs: pairs.seconds),
            limit=lambda pairs: max(second or 0.0 for second in pairs.keys.seconds or (1.0,)),
        ),
        MediaStatistic("self", "weight for itself", _ITSELF, role="own position"),
        MediaStatistic(
            "nearby", "for other frames within 0.1 s", role="nearby frames",
            measure=_share(lambda pairs: (pairs.seconds > 0) & (pairs.seconds <= _NEAR + 1e-6)),
        ),
        MediaStatistic(
            "order", "chance that a later token reads a later frame", _in_order,
            role="follows the speech",
        ),
        MediaStatistic(
            "previous", "for the previous token", role="previous token",
            measure=_share(lambda p: (p.rows[:, None] - p.token == 1) & ~p.special),
        ),
        MediaStatistic(
            "first", "for the first token", _share(lambda pairs: pairs.token == 0),
            role="rests on the first token", resting=True,
        ),
        MediaStatistic(
            "silence", "for frames after the sound", _share(lambda pairs: pairs.silence),
            role="rests on the silence", resting=True,
        ),
    ),
}  # fmt: skip
"""The statistics of a kind of medium, in the order of every result."""
_OF_ROLES: Mapping[str, Sequence[HeadStatistic]] = {"text": [*ROLES.values()], **STATISTICS_OF}
_DECLARED = [one for several in _OF_ROLES.values() for one in several]
TITLES = {one.name: one.title for one in _DECLARED} | TITLES_OF_TEXTS
OWN_ROLES = {one.role for one in _DECLARED if one.name == "self"}
RESTING_ROLES = {one.role for one in _DECLARED if one.resting}


def statistics_of_roles(kind: str, *, signed: bool = False) -> dict[str, str]:
    """Return each role that heads get on texts, images or sounds, and its statistic, by name."""
    statistics = SIGNED_STATISTICS if signed else _OF_ROLES[kind]
    return {one.role: one.name for one in statistics if one.role}


def _known(function: Callable[..., T], *args: Any) -> T | None:
    """Return what a function measures; None where this has no meaning."""
    try:
        return function(*args)
    except _NoMeaningError:
        return None


@dataclass(frozen=True, eq=False)
class MediaHeads(Heads):
    """Measures the heads of a model on images or sounds.

    records : the attentions of any one medium. seed : of the shuffles.
    """

    corpus: MediaCorpus
    records: Sequence[AttentionRecord]
    seed: int = 0

    @property
    def statistics(self) -> tuple[MediaStatistic, ...]:
        """What is measured."""
        return STATISTICS_OF[self.corpus.kind]

    def measure(self, medium: Medium) -> TextStatistics:
        """Measure every head on a medium; each of its attentions is compared with the model's."""
        value, even, shuffled, differences = [], [], [], []
        orders: dict[tuple[int, int, bool], Tensor] = {}

        def add(attention: BatchedAttention, queries: Axis, keys: Axis) -> None:
            pairs, rows = AxisPairs(queries, keys), slice(None)
            weights = attention.weights(rows)[0].cpu()
            readable = attention.readable(rows)[:1].cpu()
            if (shape := (*weights.shape[1:], attention.causal)) not in orders:
                real = torch.ones(1, len(keys), dtype=torch.bool, device="cpu")
                rows_of = slice(0, len(queries))
                orders[shape] = key_order(readable, real, rows_of, [medium.number], self.seed)
            order = orders[shape].expand(weights.shape)
            uniform = readable / readable.sum(-1, keepdim=True).clamp(min=1)
            value.append(self._values(weights, pairs))
            even.append(self._values(uniform * weights.sum(-1, keepdim=True), pairs))
            shuffled.append(self._values(weights.gather(-1, order), pairs))
            of_model = attention.model_weights
            theirs = None if of_model is None else self._values(of_model(rows)[0].cpu(), pairs)
            limits = [(one.limit and _known(one.limit, pairs)) or 1.0 for one in self.statistics]
            largest = torch.tensor(limits, device="cpu").clamp(min=1.0)
            differences.append(largest_difference(value[-1], theirs, largest))

        self.corpus.capture(medium, self.records, add)
        values = torch.cat(value)[None]
        lengths = [len(axes[0]) for axes in medium.batch.axes.values()]
        return TextStatistics(
            numbers=(medium.number,),
            tokens=(sum(lengths) or self.records[0].query.shape[1],),
            value=values,
            shuffled=torch.full_like(values, torch.nan),  # its patches or frames have one order
            even=torch.cat(even)[None],
            shuffled_keys=torch.cat(shuffled)[None],
            differences=torch.cat(differences),
            compared=1,
        )

    def _values(self, weights: Tensor, pairs: AxisPairs) -> Tensor:
        """Return all statistics of some weights, (H, S); NaN where one has no meaning."""
        of_rows = weights.float()[:, pairs.rows]
        none = torch.full(weights.shape[:1], torch.nan, device="cpu")
        measured = [_known(one.measure, of_rows, pairs) for one in self.statistics]
        return torch.stack([none if one is None else one for one in measured], -1)
