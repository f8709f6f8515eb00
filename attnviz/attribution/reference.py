"""What a text is compared with, and the attention sink that stays readable in it."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnviz.attribution.target import (
    Readout,
    Stacks,
    Target,
    base_of,
    token_ids,
    unembedding_of,
    with_token_ids,
)
from attnviz.capture.watch import model_errors
from attnviz.errors import InputError, ModelError, did_you_mean
from attnviz.inputs import Batch, Inputs, encode, expect_one_text, parse_inputs
from attnviz.inputs.image import find_grid
from attnviz.inputs.text import spelled, tokenizer_of
from attnviz.inputs.tokens import TextSource, TokenIds, special_flags
from attnviz.models.pretrained import has_text_decoder
from attnviz.pipeline import AttendOptions, Unrecorded, run
from attnviz.pipeline.attend import Model
from attnviz.results import AttentionResult
from attnviz.results.axis import Axis, TokenGroups, join_axes, join_parts, place_words, token_groups
from attnviz.results.text import READ_WITH, UNMEASURED
from attnviz.runtime.libraries import silence_logs

_MOST_WINDOWS, _SHORTEST, _STEP = 24, 0.2, 0.05  # of a sound, and seconds of one
_MOST_TILES = 36  # of a picture
SAME_PIECES = "Replace words by words with the same number of pieces"


@dataclass(frozen=True, eq=False)
class Media:
    """A sound in windows of time, or a picture in tiles of patches.

    edges : of the windows, in seconds, or of the rows and the columns of tiles, in pixels.
    """

    batch: Batch
    edges: tuple[tuple[float, ...], ...]
    notes: tuple[str, ...] = ()  # what the model does not read

    @classmethod
    def of(cls, model: Model, batch: Batch, source: Inputs) -> Media:
        """Divide a sound into about 24 windows at most, or a picture into 36 tiles at most."""
        if source.sounds is not None:
            seconds = _seconds_read(model, batch, source)
            length = max(_SHORTEST, _STEP * math.ceil(seconds / _MOST_WINDOWS / _STEP))
            count = max(1, round(seconds / length))
            is_cut = seconds < source.sounds[0].seconds
            notes = (f"the sound is not read after {seconds:g} s: windows end there",) * is_cut
            return cls(batch, ((*(round(n * length, 2) for n in range(count)), seconds),), notes)
        pixels = batch.inputs.get("pixel_values")
        if pixels is None or pixels.dim() != 4 or len(pixels) > 1:
            raise InputError(
                f"{model.name} does not read one picture as pixel_values (1, 3, H, W), so it "
                "cannot be explained by tiles. Give one picture to a model such as ViT or Swin."
            )
        sizes = pixels.shape[-2:]
        grid = find_grid(model.module, batch.inputs) or sizes
        sides = range(1, max(grid) + 1)  # patches of a tile
        side = next(k for k in sides if math.prod(-(-n // k) for n in grid) <= _MOST_TILES)
        edges = [np.linspace(0, n, -(-n // side) + 1).round().tolist() for n in grid]
        pairs = zip(edges, sizes, grid, strict=True)
        return cls(batch, tuple(tuple(n * size / of for n in line) for line, size, of in pairs))

    @property
    def axis(self) -> Axis:
        """The windows, or the tiles row by row."""
        if len(self.edges) == 1:
            ends = [f"{round(edge, 2):g}" for edge in self.edges[0]]
            labels = [f"{begin}–{end} s" for begin, end in itertools.pairwise(ends)]
        else:
            rows, columns = (range(len(edges) - 1) for edges in self.edges)
            labels = [f"row {m}, column {n}" for m in rows for n in columns]
        return Axis.plain(labels, special=[False] * len(labels))

    def without(self, part: int, model: Model, source: Inputs) -> Mapping[str, Tensor]:
        """Return what the model reads with silence, or the mean color, in place of a part."""
        parts = [*itertools.product(*map(itertools.pairwise, self.edges))]
        (begin, end), *across = parts[part]
        if not across:
            return _encode_with(0, model, source, begin, end)
        pixels: Tensor = self.batch.inputs["pixel_values"]
        covered, (left, right) = pixels.clone(), map(round, across[0])
        covered[..., round(begin) : round(end), left:right] = pixels.mean((-2, -1), keepdim=True)
        return {**self.batch.inputs, "pixel_values": covered}


def _encode_with(
    samples: Any, model: Model, source: Inputs, begin: float, end: float
) -> Mapping[str, Tensor]:
    """Return what the model reads with other samples between two seconds of the sound."""
    (sound,) = source.sounds or []
    changed = sound.samples.copy()
    changed[round(begin * sound.rate) : round(end * sound.rate)] = samples
    changed_source = replace(source, sounds=[replace(sound, samples=changed)])
    return encode(model.checkpoint, changed_source, truncate=True).inputs


def _seconds_read(model: Model, batch: Batch, source: Inputs) -> float:
    """Return the end of what the model reads of a sound: noise after it changes no input."""
    (sound,) = source.sounds or []
    noise = np.random.default_rng(0).normal(size=sound.samples.shape)

    def is_unread(step: int) -> bool:
        begin = step * _STEP
        after = noise[round(begin * sound.rate) :]
        changed = _encode_with(after, model, source, begin, sound.seconds)
        return all(torch.equal(one, changed[name]) for name, one in batch.inputs.items())

    steps = range(math.ceil(max(0.0, sound.seconds - _SHORTEST) / _STEP) + 1)
    if not is_unread(steps[-1]):
        return sound.seconds
    return round(_STEP * bisect.bisect_left(steps, True, key=is_unread), 2)


@dataclass(frozen=True, eq=False)
class Reading:
    """A text as it is read for attribution, with its attention.

    In a causal model most tokens attend to the first one when they have nothing to look for (an
    attention sink). No reference and no intervention may take it away. A text without a special
    token at its beginning is therefore read with one before it (`first_token`). If the tokenizer
    has none, the first token stays readable, and its own contribution is not measured.

    Source: attention sinks (Xiao et al. 2023, arXiv:2309.17453).
    """

    inputs: Mapping[str, Tensor]  # of the model, (1, T) each
    result: AttentionResult | Unrecorded
    groups: TokenGroups  # its words
    bos: int | None  # the id of the token that is read before the text
    sink: int | None  # the position of an ordinary token that stays readable
    notes: tuple[str, ...]
    tokens: Axis  # its tokens
    stacks: Stacks  # of an encoder and a decoder
    source: Inputs  # the text as it was given
    media: Media | None = None  # in place of a text

    def target(self, model: Model, readout: Readout) -> Target:
        """Return the text with what is read off the output."""
        return Target(model, self.inputs, self.tokens.special, readout, self.sink)

    def again(self, model: Model) -> AttentionResult:
        """Return the attention of the text, of which nothing was recorded."""
        with silence_logs():
            source = _as_ids(self.source, self.inputs) if self.media is None else self.source
            (result,) = run(model.checkpoint, source, AttendOptions())
        return result

    def until(self, end: int) -> Reading:
        """Return the reading of the first `end` tokens, which later ones do not change."""
        inputs = {name: tensor[:, :end] for name, tensor in self.inputs.items()}
        tokens = self.tokens.at(range(end))
        return replace(self, inputs=inputs, groups=token_groups(tokens), tokens=tokens)

    def _text(self, *, second: bool = False) -> str:
        """Return the text as it was given, also of ids and messages; `second` : of a pair."""
        known, typed = self.result.provenance, [self.source.texts or (), self.source.pairs or ()]
        texts = [one for several in typed for one in several if isinstance(one, str)]
        texts = texts or [text for text in (known.text, known.pair) if text]
        return "\n\n".join(texts[-1:] if second else texts)

    def parts(self, by: str | Sequence[str], end: int, begin: int = 0) -> TokenGroups:
        """Return the parts of the text from position `begin` to `end`, as `join_parts`."""
        words, end = self.groups, min(end, self.stacks.source or end)  # a target is no part
        inside = [begin <= rows[0] and rows[-1] < end for rows in words.positions]
        words = words.at([n for n, flag in enumerate(inside) if flag])
        parts = join_parts(words, self._text(second=begin > 0), by)
        movable = (tuple(n for n in rows if n != self.sink) for rows in parts.positions)
        return replace(parts, positions=tuple(movable))

    def spelled(self, first: int, last: int) -> str:
        """Return the words from one position to another as they stand in the text."""
        text, words = self._text(), self.groups
        within = [first <= rows[-1] and rows[0] <= last for rows in words.positions]
        places = [*itertools.compress(place_words(words.labels, text), within)]
        if places[0] and places[-1]:
            return text[places[0].start : places[-1].stop]
        return " ".join(itertools.compress(words.labels, within))


def read(
    model: Model,
    text: Inputs | TextSource,
    *,
    more: Sequence[int] | None = None,
    truncate: bool = False,
    record: bool = True,
    **how: bool,
) -> Reading:
    """Run the model on a text, with a BOS token before it if a causal model needs one.

    text : of an encoder–decoder, with its target: the tokens of the target follow those of the
    source. more : the ids that follow the text, which is then read by its own ids. truncate : cut a
    text that is too long for the model. record : its attention, which needs some runs; that of an
    encoder–decoder in any case. how : as in `encode_begun`.
    """
    source = text if isinstance(text, Inputs) else parse_inputs(text)
    if source.pictures or source.sounds:
        batch = encode(model.checkpoint, source, truncate=truncate)
        media = Media.of(model, batch, source)
        known = Unrecorded.of(model.checkpoint, source, truncate=truncate)
        known = replace(known, provenance=replace(known.provenance, target=None))
        rest = (*batch.details[0].notes, *media.notes), media.axis, Stacks(), source, media
        return Reading(batch.inputs, known, token_groups(media.axis), None, None, *rest)
    inputs, batch, bos, sink, notes = encode_begun(model, source, more, truncate=truncate, **how)
    kinds = ["text"] if source.targets is None else batch.axes
    axes = [batch.axes[kind][0] for kind in kinds]
    tokens, stacks = join_axes(*axes), Stacks()
    result: Any = None
    if record or source.targets is not None:
        with silence_logs():
            (result,) = run(model.checkpoint, inputs, AttendOptions(truncate=truncate))
    if source.targets is not None:
        stacks = Stacks.of(result, *map(len, axes))
    elif record:
        result = result.without_linear("attribution needs")
        size = len(tokens), len(tokens)
        if not (records := tuple(one for one in result.records if one.size == size)):
            raise ModelError(
                f"The attention of {model.name} reads other positions than the tokens of a text. "
                "Choose another model, or draw the maps of this one."
            )
        result = replace(result, records=records)
    else:
        result = Unrecorded.of(model.checkpoint, source, truncate=truncate)
    groups = token_groups(tokens)
    return Reading(batch.inputs, result, groups, bos, sink, notes, tokens, stacks, source)


def encode_begun(
    model: Model,
    source: Inputs,
    more: Sequence[int] | None = None,
    *,
    truncate: bool = False,
    makes_target: bool = False,
    is_whole: bool = False,
) -> tuple[Inputs, Batch, int | None, int | None, tuple[str, ...]]:
    """Return a text as `read` reads it, the same encoded, and its `bos`, `sink` and `notes`.

    makes_target : whether the model may be an encoder–decoder that makes the text of its decoder
    itself, as classifiers do. is_whole : read the text as it is, as in the model's own call.
    """
    has_decoder = has_text_decoder(model.module)
    if source.targets is None and not (makes_target and has_decoder):
        expect_one_text(model.checkpoint)
    batch = encode(model.checkpoint, source, truncate=truncate)
    ids, axes = batch.inputs.get("input_ids"), batch.axes.get("text", ())
    if ids is None or len(axes) != 1 or ids.shape != (1, len(axes[0])):
        raise InputError(
            "Attributions are of one text, and these inputs are none. Give the ids of its tokens "
            "as input_ids (1, T), or a text."
        )
    bos = sink = None
    others = [text for text in source.texts or () if not isinstance(text, str)]
    notes = (*batch.details[0].notes, *(other.note for other in others))
    if source.targets is not None:
        if not any(axes[0].special):
            # The first token of the decoder is special, and stays readable. Without one in the
            # source, the cross-attention of a reference would have nothing to read.
            sink = 0
            notes = (*notes, f"the first source token stays readable{UNMEASURED}")
    elif not (axes[0].special[0] or has_decoder) and is_causal(model, batch.inputs):
        predicts = unembedding_of(model.module) is not None or base_of(model.module) is model.module
        begins = predicts and not is_whole and source.texts
        bos = first_token(model.tokenizer) if begins else None
        if bos is None:
            sink = 0
            notes = (*notes, f"the first token stays readable{UNMEASURED}")
        else:
            token = tokenizer_of(model.checkpoint).convert_ids_to_tokens(bos)
            notes = (*notes, f"{READ_WITH}{token} before it")
    if bos is not None or more is not None:
        source = _as_ids(source, batch.inputs, bos=bos, after=more or ())
        batch = encode(model.checkpoint, source, truncate=truncate)
    return source, batch, bos, sink, notes


def _as_ids(
    text: Inputs, inputs: Mapping[str, Tensor], *, bos: int | None = None, after: Sequence[int] = ()
) -> Inputs:
    """Return a text by its ids, (1, T), with a token before it, and others after it."""
    names = [name for name in ("input_ids", "token_type_ids") if name in inputs]
    ids, *types = (inputs[name][0].tolist() for name in names)
    before = () if bos is None else (bos,)
    segments = (*(0 for _ in before), *types[0], *(types[0][-1] for _ in after)) if types else None
    return replace(text, texts=[TokenIds((*before, *ids, *after), segments)], pairs=None)


def first_token(tokenizer: Any) -> int | None:
    """Return the id of the special token before which a text begins, or None without one.

    It is the BOS token, unless this begins each message of a chat: then a special token that no
    chat has, such as <|endoftext|>, separates texts.
    """
    bos: int | None = getattr(tokenizer, "bos_token_id", None)
    if bos is None or not getattr(tokenizer, "chat_template", None):
        return bos
    messages = [{"role": role, "content": "a"} for role in ("user", "assistant")]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False).input_ids
    except Exception:  # a template is code of the checkpoint, and may refuse messages
        return bos
    if ids.count(bos) < len(messages):
        return bos
    special = tokenizer.all_special_ids
    unused = {*ids, tokenizer.mask_token_id, tokenizer.pad_token_id}
    others = zip(special, special_flags(tokenizer, special), strict=True)
    return next((token for token, flag in others if flag and token not in unused), bos)


def encode_after(
    model: Model, text: Inputs | TextSource, bos: int | None, *, truncate: bool = False
) -> Batch:
    """Return an encoded text, with the token `bos` before it if there is one."""
    source = text if isinstance(text, Inputs) else parse_inputs(text)
    batch = encode(model.checkpoint, source, truncate=truncate)
    if bos is None:
        return batch
    return encode(model.checkpoint, _as_ids(source, batch.inputs, bos=bos), truncate=truncate)


@contextmanager
def in_other(what: str) -> Iterator[None]:
    """Say that an InputError is about another text, or `what`, than the one that is explained."""
    try:
        yield
    except InputError as error:
        raise InputError(f"In the other {what}: {error}") from None


def encode_like(
    model: Model, text: TextSource, reading: Reading, name: str, way: str = f"{SAME_PIECES}."
) -> Batch:
    """Return a text encoded like one that was read: with its pair, its target and its BOS token.

    InputError if it is the same, or has another number of tokens; name : what it is called there,
    way : what to do then.
    """
    with in_other("text"):
        parsed = parse_inputs(text, pair=reading.source.pairs)
    if parsed.several:
        raise InputError("The other text is a list of texts. Give one of them.")
    batch = encode_after(model, replace(reading.source, texts=parsed.texts), reading.bos)
    other, ids = batch.inputs["input_ids"], reading.inputs["input_ids"]
    if torch.equal(other, ids):
        raise InputError(f"{name} is the same as the text. Change a word.")
    if other.shape != ids.shape:
        counts = f"{other.shape[1]} tokens, but the text has {ids.shape[1]}"
        raise InputError(f"{name} has {counts}. {way}")
    return batch


def is_causal(model: Model, inputs: Mapping[str, Tensor]) -> bool:
    """Return whether changing the last token leaves the states of all earlier ones as they are."""
    size = inputs["input_ids"].shape[1]
    if all(tensor.dim() == 2 and tensor.shape[1] == size for tensor in inputs.values()):
        inputs = {name: tensor[:, :8] for name, tensor in inputs.items()}  # a few show it
    ids = inputs["input_ids"]
    other = ids.clone()
    other[0, -1] = next(token for token in range(2) if token != ids[0, -1])
    pair = {name: torch.cat([tensor, tensor]) for name, tensor in inputs.items()}
    with torch.no_grad(), model_errors(model.module):
        before, after = base_of(model.module)(**{**pair, "input_ids": torch.cat([ids, other])})[0]
    return bool(((before - after)[:-1].norm() <= 1e-3 * before[:-1].norm()).item())  # rounding


@dataclass(frozen=True, eq=False)
class Reference:
    """The two runs of a comparison."""

    inputs: Mapping[str, Tensor]  # of the model, (2, T) each: the reference, then the text
    gate: Tensor | None  # keys that each query may attend to in the reference, (T, T); None for all
    description: str  # the reference in words
    notes: tuple[str, ...] = ()  # for the caption
    replaced: tuple[str, ...] = ()  # what another text has in place of each word; "" for the same


def make_reference(
    target: Target, reference: TextSource, reading: Reading | None = None
) -> Reference:
    """Return the reference of a text: "gate", "mask" or another, which is read like `reading`."""
    model, inputs = target.model, target.inputs
    gate, stacks = None, target.readout.stacks
    notes: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    text = "source and target" if stacks else "text"
    named = reference if isinstance(reference, str) else None
    if named == "gate":
        other = inputs
        gate = gate_of(target.special, sink=target.sink).to(model.checkpoint.device)
        own = getattr(target.readout, "pieces", ())
        pieces = torch.tensor(own, dtype=torch.long, device=gate.device)
        gate[pieces[:, None], pieces] = True  # the pieces of a labeled word read each other
        kept = "special tokens" if target.sink is None else "the first token"
        if target.sink is not None and stacks:
            kept = "the first token of each"
        description = f"the same {text}, where every token may read only itself and {kept}"
    elif named == "mask":
        other = with_token_ids(inputs, target.masked_ids())
        mask = getattr(model.tokenizer, "mask_token", "masked")
        others = "words" if target.readout.is_pooled else "other words"
        description = f"the same {text}, where all {others} are {mask}"
    else:
        is_name = isinstance(reference, str) and " " not in reference.strip()
        hint = did_you_mean(str(reference), ("gate", "mask")) if is_name else ""
        way = f"{hint} {SAME_PIECES}, or use gate or mask."
        assert reading is not None  # "gate" and "mask" need none
        batch = encode_like(model, reference, reading, "The reference", way)
        other, tokens = batch.inputs, join_axes(*(batch.axes[kind][0] for kind in batch.axes))
        is_same = (token_ids(other) == target.ids)[0].tolist()
        if not all(is_same[row] for row in target.readout.positions):
            notes = (
                "the reference has another word in this place: the difference at the start counts "
                "too",
            )
        (written,) = parse_inputs(reference).texts or ("",)
        description = f"“{spelled(model.checkpoint, written)[0]}”"
        words = [
            tokens.unknown_label([n]) or (label if word is None else tokens.word_labels[word])
            for n, (label, word) in enumerate(zip(tokens.labels, tokens.words, strict=True))
        ]
        replaced = tuple(
            "" if all(is_same[n] for n in rows) else " ".join(dict.fromkeys(words[n] for n in rows))
            for rows in reading.groups.positions
        )
    pair = {name: torch.cat([other.get(name, tensor), tensor]) for name, tensor in inputs.items()}
    return Reference(pair, gate, description, notes, replaced)


def gate_of(special: Sequence[bool], *, sink: int | None = None) -> Tensor:
    """Return the keys visible without context, (T, T): the own token, special ones, and `sink`."""
    gate = torch.eye(len(special), dtype=torch.bool, device="cpu")
    gate[:, [n for n, is_special in enumerate(special) if is_special or n == sink]] = True
    return gate
