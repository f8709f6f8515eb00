"""Text of an encoder or a decoder: token ids in a padded batch, and the axis of each text."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import BatchEncoding
from transformers import PreTrainedTokenizerBase as Tokenizer

from attnviz.errors import AttnvizError, InputError, expect_unicode
from attnviz.inputs.tokens import (
    Chat,
    TokenIds,
    align,
    covered,
    decode,
    read_labels,
    special_flags,
    special_ids,
    unknown_id,
)
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.pretrained import forward_parameters, has_text_decoder
from attnviz.results import Axis, InputCheck
from attnviz.results.axis import Span, join_axes, make_axis
from attnviz.results.text import counted, literal
from attnviz.runtime import libraries
from attnviz.runtime.compat import sought_tokens
from attnviz.runtime.libraries import MemoryBudget

Source = str | TokenIds | Chat  # what is read as one text
TextPair = tuple[str, str | None]  # a text, and the second one of a pair
SourcePair = tuple[Source, str | None]

_MEMORY_PER_BYTE = 16  # offsets of a fast tokenizer; of English, tokens take 105 to 165 on top
_SEGMENTS = re.compile("token_type|seg")  # in the names of parameters
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_LISTED = 5  # characters or words in a message
_SMALL = 2**20  # bytes of text that always fit; asking for free memory takes longer


def translate(checkpoint: Checkpoint) -> AbstractContextManager[None]:
    """Turn any exception of the checkpoint's tokenizer or processor into a one-line error."""
    message = f"The tokenizer or processor of {checkpoint.name} cannot read this input"
    ways = "Check its files, or pass another one (tokenizer=, processor=)."
    return libraries.translate(_input_memory(checkpoint), message, ways)


def _input_memory(checkpoint: Checkpoint) -> MemoryBudget:
    what = f"the input of {checkpoint.name}"
    return MemoryBudget(what, torch.device("cpu"), "Give a smaller one.")


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    """Return the tokenizer of a model that reads text, or that of its decoder."""
    checkpoint.expect_processors()
    tokenizer = checkpoint.target_tokenizer if checkpoint.decodes else checkpoint.tokenizer
    if tokenizer is None:
        raise InputError(
            f"The decoder of {checkpoint.name} has another vocabulary than its encoder. Pass its "
            "tokenizer (target_tokenizer=), or ids as the target."
        )
    return tokenizer


@dataclass(frozen=True, eq=False)
class EncodedInput:
    """One input of a batch, such as a text with its target, beside its tensors."""

    check: InputCheck | None = None  # against the call of its own tokenizer or processor
    notes: tuple[str, ...] = ()  # what was cut, assumed or not read; special tokens that were typed
    doubt: str | None = None  # why the labels may not be those of the tokens, if so
    cut_from: int | None = None  # how many tokens a text had before it was cut, if so
    texts: tuple[str | None, str | None] = (None, None)  # of a pair, both; or what ids say

    def __add__(self, other: EncodedInput) -> EncodedInput:
        """Return an input with its target."""
        check = self.check and other.check and InputCheck.joined([self.check, other.check])
        notes, doubt = self.notes + other.notes, self.doubt or other.doubt
        return replace(self, check=check, notes=notes, doubt=doubt)


@dataclass(frozen=True, eq=False)
class Encoded:
    """A text, or a pair, as its tokenizer encodes it."""

    fields: dict[str, list[int]]  # of each token by name, such as input_ids, and what else is given
    segments: list[int]  # 0, or 1 for the second text of a pair
    spans: list[Span]  # where each stands in its text; (0, 0) for a special one; empty if not known
    texts: TextPair  # the text, and the second one of a pair
    cut_from: int | None = None  # how many tokens there were before it was cut, if so

    @property
    def ids(self) -> list[int]:
        """The ids of the tokens."""
        return self.fields["input_ids"]

    @property
    def special(self) -> list[bool]:
        """Which tokens stand for no word of the text."""
        return [*map(bool, self.fields["special_tokens_mask"])]

    def axis(self, tokenizer: Tokenizer, length: int) -> Axis:
        """Return the axis of the tokens, padded on the right to `length`."""
        padding, unknown = length - len(self.ids), unknown_id(tokenizer)
        return make_axis(
            labels=[*read_labels(self.ids, tokenizer), *["[PAD]"] * padding],
            offsets=[*self.spans, *[(0, 0)] * padding] if self.spans else None,
            special=[*self.special, *[True] * padding],
            padding=[*[False] * len(self.ids), *[True] * padding],
            segments=[*self.segments, *[0] * padding],
            texts=(self.texts[0], self.texts[1] or ""),
            whole_words=_is_word_level(tokenizer),
            unknown=[*[token == unknown for token in self.ids], *[False] * padding],
        )


def encode_texts(
    checkpoint: Checkpoint, pairs: Sequence[SourcePair], *, truncate: bool
) -> tuple[dict[str, Tensor], tuple[Axis, ...], tuple[EncodedInput, ...]]:
    """Tokenize texts, or pairs of them, and pad them on the right.

    Returns the tensors (N, T) by the name of the model's argument, the axis of each text, and how
    the ids compare with those of the tokenizer's own call.
    """
    tokenizer = tokenizer_of(checkpoint)
    longest = max_tokens(checkpoint.module, tokenizer, of_decoder=checkpoint.decodes)
    encoded = []
    for number, pair in enumerate(pairs, start=1):
        try:
            encoded.append(tokenize(checkpoint, *pair, longest, truncate=truncate))
        except InputError as error:
            if len(pairs) == 1:
                raise
            raise InputError(f"In text {number:,} of {len(pairs):,}: {error}") from None
    inputs = pad_texts(checkpoint, [text.fields for text in encoded])
    length = inputs["input_ids"].shape[1]
    axes = tuple(text.axis(tokenizer, length) for text in encoded)
    rows = inputs["input_ids"].tolist()
    details = tuple(
        _check(checkpoint, pair, text, axis, row[: len(text.ids)])
        for pair, text, axis, row in zip(pairs, encoded, axes, rows, strict=True)
    )
    return inputs, axes, details


def tokenize(
    checkpoint: Checkpoint,
    source: Source,
    pair: str | None = None,
    longest: int | None = None,
    *,
    truncate: bool = False,
    may_be_empty: bool = False,
) -> Encoded:
    """Return the tokens of a text or of a pair: every text is read here.

    A text of more than `longest` tokens, from `max_tokens`, is cut or refused. Special tokens that
    are typed in a text are read as the tokenizer reads them, unless the checkpoint splits them.
    """
    tokenizer = tokenizer_of(checkpoint)
    if isinstance(source, TokenIds):
        size = len(tokenizer)
        if others := [token for token in source.ids if not 0 <= token < size]:
            raise InputError(
                f"{others[0]} is not a token id of {checkpoint.name}: its tokenizer has ids "
                f"0–{size - 1}."
            )
        encoded = encode_ids(tokenizer, source)
    elif isinstance(source, Chat):
        text = source.render(tokenizer, checkpoint.name)
        (encoded,) = _encode(tokenizer, [(text, None)], add_special_tokens=False)
    else:
        (encoded,) = _read(checkpoint, [(source, pair)])
    length = len(encoded.ids)
    if all(encoded.special) and not may_be_empty:
        what = f"text {source[:40]!r} leaves" if isinstance(source, str) else "ids leave"
        raise InputError(f"The {what} no token but special ones. Give at least one word.")
    if longest is None or length <= longest:
        return encoded
    if not truncate:
        raise InputError(
            f"The text has {length} tokens, and {checkpoint.name} can read at most {longest}. "
            "Shorten the text, or cut it with --truncate (truncate=True)."
        )
    if isinstance(source, str):
        (encoded,) = _read(checkpoint, [(source, pair)], cut=longest)
    fields = {name: values[:longest] for name, values in encoded.fields.items()}
    segments, spans = encoded.segments[:longest], encoded.spans[:longest]
    return Encoded(fields, segments, spans, encoded.texts, cut_from=length)


def tokenize_together(
    checkpoint: Checkpoint, pairs: Sequence[TextPair], longest: int | None
) -> list[Encoded | None]:
    """Return the tokens of texts or pairs, read in one call; None where `tokenize` must say why."""
    try:
        with translate(checkpoint):
            encoded = _read(checkpoint, pairs) if pairs else []
    except AttnvizError:  # of one of them
        return [None] * len(pairs)
    most = math.inf if longest is None else longest
    return [None if all(one.special) or len(one.ids) > most else one for one in encoded]


def _read(
    checkpoint: Checkpoint, pairs: Sequence[TextPair], cut: int | None = None
) -> list[Encoded]:
    """Return strings, or pairs of them, as encoded."""
    strings = [string for pair in pairs for string in pair if string]
    if (size := sum(map(len, strings))) > _SMALL:
        _input_memory(checkpoint).expect(_MEMORY_PER_BYTE * size)
    for string in strings:
        expect_unicode(string, "The text")
    options = {"of_decoder": checkpoint.decodes, "literal": checkpoint.special_tokens == "split"}
    return _encode(tokenizer_of(checkpoint), pairs, cut=cut, **options)


def _call(
    tokenizer: Tokenizer,
    pairs: Sequence[TextPair],
    *,
    of_decoder: bool = False,
    cut: int | None = None,
    **options: Any,
) -> BatchEncoding:
    """Call the tokenizer as documented, for a text or a batch (all pairs, or none)."""
    sources, seconds = (list(one) for one in zip(*pairs, strict=True))
    text: Any = sources if len(pairs) > 1 else sources[0]
    second: Any = seconds if len(pairs) > 1 and seconds[0] is not None else seconds[0]
    texts = {"text_target": text} if of_decoder else {"text": text, "text_pair": second}
    if cut is not None:
        options |= {"truncation": True, "max_length": cut}
    encoding: BatchEncoding = tokenizer(**texts, verbose=False, **options)
    return encoding


def _encode(
    tokenizer: Tokenizer, pairs: Sequence[TextPair], *, literal: bool = False, **options: Any
) -> list[Encoded]:
    """Return texts or pairs as encoded; literal : special tokens typed in them are plain text."""
    if literal and tokenizer.is_fast:
        options["split_special_tokens"] = True
    encoding = _call(
        _without_special(tokenizer) if literal and not tokenizer.is_fast else tokenizer,
        pairs,
        return_offsets_mapping=tokenizer.is_fast,
        return_special_tokens_mask=True,
        return_attention_mask=True,
        **options,
    )
    read, several, replaces = dict(encoding), len(pairs) > 1, literal and not tokenizer.is_fast
    special, unknown = special_ids(tokenizer), unknown_id(tokenizer)
    unknown_token = tokenizer.unk_token_id if replaces else None
    offsets = read.pop("offset_mapping", None)
    texts = []
    for number, (text, pair) in enumerate(pairs):
        fields = {name: list(row[number] if several else row) for name, row in read.items()}
        ids, added = fields["input_ids"], [*map(bool, fields["special_tokens_mask"])]
        if len(added) != len(ids):  # some classes count what they add in another way
            added = [token in special for token in ids]
        if unknown_token is not None:
            # A class may look a typed special token up in its vocabulary.
            for n, token in enumerate(ids):
                if token in tokenizer.all_special_ids and not added[n]:
                    ids[n] = unknown_token
        segments = [0] * len(ids) if pair is None else _segments(encoding, number, added)
        if offsets is None:
            spans = _aligned(tokenizer, ids, added, segments, (text, pair or ""))
        else:
            spans = [(int(a), int(b)) for a, b in (offsets[number] if several else offsets)]
        fields["special_tokens_mask"] = [
            int(is_added or (token in special and token != unknown))
            for token, is_added in zip(ids, added, strict=True)
        ]
        texts.append(Encoded(fields, segments, spans, (text, pair)))
    return texts


def _without_special(tokenizer: Any) -> Any:
    """Return a tokenizer written in Python that finds its added tokens, but no special ones."""
    plain = copy.copy(tokenizer)
    plain.tokens_trie = type(tokenizer.tokens_trie)(
        set(sought_tokens(tokenizer)).difference(tokenizer.all_special_tokens)
    )
    return plain


def _segments(encoding: BatchEncoding, number: int, added: Sequence[bool]) -> list[int]:
    """Return 0 or 1 for every token of a pair; a special token belongs to the text before it."""
    if not encoding.is_fast:  # the second text follows the first added token after the first text
        end = next((n for n, flag in enumerate(added) if flag and not all(added[:n])), len(added))
        return [int(n > end) for n in range(len(added))]
    segment, segments = 0, []
    for of_token in encoding.sequence_ids(number):
        segment = segment if of_token is None else of_token
        segments.append(segment)
    return segments


def _aligned(
    tokenizer: Tokenizer,
    ids: Sequence[int],
    added: Sequence[bool],
    segments: Sequence[int],
    texts: tuple[str, str],
) -> list[Span]:
    """Return the spans of tokens in their texts, for a tokenizer that does not report them."""
    spans: list[Span] = [(0, 0)] * len(ids)
    for segment, text in enumerate(texts):
        places = [n for n in range(len(ids)) if not added[n] and segments[n] == segment]
        found = align(tokenizer, [ids[n] for n in places], text)
        for place, span in zip(places, found, strict=True):
            spans[place] = span
    return spans


def encode_ids(tokenizer: Tokenizer, source: TokenIds) -> Encoded:
    """Return token ids as a tokenizer encodes a text, with the text or the pair that they spell."""
    special, types = special_flags(tokenizer, source.ids), source.segments or (0,) * len(source.ids)
    # Of a pair, the second text has the type 1, and none is larger.
    segments = [int(number == max(types) == 1) for number in types]
    texts = [
        decode(
            tokenizer,
            [source.ids[n] for n, flag in enumerate(special) if not flag and segments[n] == number],
        )
        for number in (0, 1)
    ]
    fields = {
        "input_ids": list(source.ids),
        "attention_mask": [1] * len(source.ids),
        "token_type_ids": list(types),
        "special_tokens_mask": [*map(int, special)],
    }
    spans = _aligned(tokenizer, source.ids, special, segments, (texts[0], texts[1]))
    return Encoded(fields, segments, spans, (texts[0], texts[1] if any(segments) else None))


def _check(
    checkpoint: Checkpoint, pair: SourcePair, encoded: Encoded, axis: Axis, row: Sequence[int]
) -> EncodedInput:
    """Compare the ids that the model reads with those of the tokenizer's own call."""
    tokenizer, (source, second) = tokenizer_of(checkpoint), pair
    most = len(encoded.ids) if encoded.cut_from else None
    differs, notes, uncovered, doubt = list[str](), list[str](), list[str](), None
    if most is not None:
        kind = "target" if checkpoint.decodes else "text"
        differs.append(f"{kind} cut from {encoded.cut_from} to {most} tokens")
    is_split = checkpoint.special_tokens == "split"
    if is_split and not isinstance(source, str) and any(encoded.special):
        notes.append("special tokens of token ids and chats are kept, not split")
    if isinstance(source, TokenIds):  # their text is made of them
        if source.padding:
            differs.append(f"left out {counted(source.padding, 'padding token')} before the text")
        takes_segments = "token_type_ids" in forward_parameters(checkpoint.module)
        matters = source.segments and (takes_segments or any(source.segments))
        if matters and not _reads_segments(checkpoint.module):
            differs.append("token_type_ids left out: the model has no table of segments")
        check = InputCheck(row == list(source.ids[:most]), (*differs,))
        return EncodedInput(check, (*differs, *notes), None, encoded.cut_from, encoded.texts)
    for number, text in enumerate(filter(None, encoded.texts)):
        places = [
            n
            for n, (start, end) in enumerate(encoded.spans)
            if encoded.segments[n] == number and (start < end or not encoded.special[n])
        ]
        ids, spans = [encoded.ids[n] for n in places], [encoded.spans[n] for n in places]
        misplaced, dropped = covered(tokenizer, ids, spans, text, cut=most is not None)
        uncovered += dropped
        if misplaced is not None:
            doubt = doubt or (
                "the tokenizer's offsets do not match its tokens: they place "
                f"{misplaced[0]!r:.40} at {misplaced[1]!r:.40}"
            )
    if isinstance(source, Chat):
        own = source.render(tokenizer, checkpoint.name, ids=True)[:most]
    else:
        called = _call(tokenizer, [(source, second)], of_decoder=checkpoint.decodes, cut=most)
        own = list(called["input_ids"])
        read = set(tokenizer.convert_ids_to_tokens(list(row)))
        typed = [
            token
            for token in dict.fromkeys(map(str, tokenizer.all_special_tokens))
            if any(token in text for text in (source, second) if text)
        ]
        if is_split:
            differs += _listed("read as plain text, not as special tokens", typed, "parse")
        else:
            typed = [token for token in typed if token in read]
            notes += _listed("read as special tokens, not as plain text", typed, "split")
    unknown = tuple(word for word in axis.unknown_words() if word != str(tokenizer.unk_token))
    words = f"{len(unknown)} of {len(axis.word_labels)} words"
    notes += _listed(
        f"the model has no token for {words}: it read {tokenizer.unk_token} for them", unknown
    )
    notes += _listed("no token holds a part of the text", uncovered)
    written = "".join(filter(None, encoded.texts))
    lost = set(_CONTROLS.findall(written)).difference(decode(tokenizer, encoded.ids))
    codes = [f"U+{ord(control):04X}" for control in sorted(lost)]
    notes += _listed("the tokenizer drops control characters of the text", codes)
    equal = own == list(row)
    if not equal and not differs:
        differs.append("the ids are not those of the tokenizer's own call")
    check = InputCheck(equal, tuple(differs), unknown, tuple(uncovered), len(axis.word_labels))
    return EncodedInput(check, (*differs, *notes), doubt, encoded.cut_from, encoded.texts)


def _listed(what: str, parts: Collection[str], option: str = "") -> list[str]:
    """Return a note that lists parts of a text, and the option that reads them in another way."""
    more = ["…"] if len(parts) > _LISTED else []
    way = f' (special_tokens="{option}", --special-tokens {option})' if option else ""
    listed = [*map(literal, list(parts)[:_LISTED]), *more]
    return [f"{what}: {', '.join(listed)}{way}"] if parts else []


def pad_texts(
    checkpoint: Checkpoint, encodings: Sequence[Mapping[str, Sequence[int]]]
) -> dict[str, Tensor]:
    """Return encoded texts as the model's input tensors (N, T), padded on the right.

    Segments go only to a model with a table of them: GPT-2 would look them up among its words.
    """
    tokenizer, module = tokenizer_of(checkpoint), checkpoint.module
    arguments = {*forward_parameters(module), "input_ids", "attention_mask", "token_type_ids"}
    names = arguments.intersection(*encodings)
    if not _reads_segments(module):
        names.discard("token_type_ids")
    # Padding is masked, so any id does where a causal tokenizer has none.
    pad_ids = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    fill = {"input_ids": next(token_id for token_id in pad_ids if isinstance(token_id, int))}
    return {
        name: padded([encoding[name] for encoding in encodings], fill.get(name, 0))
        for name in sorted(names)
    }


def _reads_segments(module: nn.Module) -> bool:
    return any(_SEGMENTS.search(name) for name, _ in module.named_parameters())


def padded(rows: Sequence[Sequence[int]], fill: int) -> Tensor:
    """Return rows of integers as one tensor (N, T), padded with `fill` on the right."""
    T = max(map(len, rows))
    lists = [[*row, *[fill] * (T - len(row))] for row in rows]
    return torch.from_numpy(np.array(lists, np.int64))  # much faster than torch.tensor


def max_tokens(module: nn.Module, tokenizer: Tokenizer, *, of_decoder: bool = False) -> int | None:
    """Return the most tokens that the model can read, special ones included; None if unlimited."""
    limits, model_max_length = [10**9], tokenizer.model_max_length
    if isinstance(model_max_length, int | float) and model_max_length > 0:
        limits.append(int(model_max_length))
    config = getattr(module, "config", None)
    names = ("max_position_embeddings", *(["max_target_positions"] if of_decoder else []))
    for settings in (config, getattr(config, "text_config", None)):
        for positions in (getattr(settings, name, None) for name in names):
            if isinstance(positions, int) and positions > 0:  # -1 stands for "unlimited"
                limits.append(positions)
    for name, table in module.named_modules():
        # Some tables of positions start after the padding index.
        if name.endswith("position_embeddings") and isinstance(table, nn.Embedding):
            start = 0 if table.padding_idx is None else table.padding_idx + 1
            limits.append(table.num_embeddings - start)
    limit = min(limits)
    return limit if limit < 10**9 else None


def spelled(checkpoint: Checkpoint, source: Source) -> TextPair:
    """Return the text of a source, or both of a pair; "" of ids without a tokenizer."""
    if isinstance(source, str):
        return source, None
    if checkpoint.decodes and checkpoint.target_tokenizer is None:
        return "", None
    return tokenize(checkpoint, source, may_be_empty=True).texts


def token_spans(checkpoint: Checkpoint, text: str) -> list[Span]:
    """Return the span of characters of each token of a text; (0, 0) for special tokens."""
    with translate(checkpoint):
        return tokenize(checkpoint, text).spans


def _is_word_level(tokenizer: Tokenizer) -> bool:
    """Return whether the vocabulary holds whole words, as its author delimits them."""
    from tokenizers.models import WordLevel

    # A class written in Python looks for these tokens as they are: all those of a protein model.
    sought = sought_tokens(tokenizer)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return isinstance(getattr(backend, "model", None), WordLevel) or (
        len(sought) >= len(tokenizer) and set(sought) >= set(tokenizer.get_vocab())
    )


def encode_target(
    checkpoint: Checkpoint, targets: Sequence[str | TokenIds], *, truncate: bool
) -> tuple[dict[str, Tensor], tuple[Axis, ...], tuple[EncodedInput, ...]]:
    """Tokenize the decoder's targets and shift them right: each position predicts the next token.

    The tensors are (N, T), by the name of the model's argument; the axes are those of the targets,
    and the checks compare their ids with the tokenizer's own call. Ids that are shifted already are
    read alone, as they are.
    """
    module, tokenizer = checkpoint.module, checkpoint.target_tokenizer
    alone = [
        one for one in targets if isinstance(one, TokenIds) and (one.shifted or tokenizer is None)
    ]
    if len(alone) == len(targets):
        if len({*map(len, (one.ids for one in alone))}) > 1:
            raise InputError(
                "The targets differ in length. Give one at a time, or the decoder's tokenizer "
                "(target_tokenizer=)."
            )
        rows = [(torch.tensor([one.ids], device=checkpoint.device), one.shifted) for one in alone]
        ids = torch.cat([row if shifted else _shift(module, row) for row, shifted in rows])
        if not ids.numel():
            raise InputError(
                "The target has the decoder's first token only. Give at least one more."
            )
        inputs = {"decoder_input_ids": ids, "decoder_attention_mask": torch.ones_like(ids)}
        axes = tuple(continue_axis(tokenizer, None, row) for row in ids)
        last = "the last id of the target is predicted, not read"
        notes = [() if one.shifted else (last,) for one in alone]
        return inputs, axes, tuple(EncodedInput(notes=note) for note in notes)
    decoder, texts = replace(checkpoint, decodes=True), [(text, None) for text in targets]
    labels, axes, details = encode_texts(decoder, texts, truncate=truncate)
    mask, shifted = labels["attention_mask"], _shift(module, labels["input_ids"])
    axes = tuple(axis.at(range(len(axis) - 1)) for axis in axes)
    if shifted.shape[1] < mask.shape[1]:  # the tokenizer itself writes the decoder's first token
        mask = mask[:, :-1]
    else:
        start = Axis.plain(read_labels(shifted[0, :1].tolist(), tokenizer), special=[True])
        axes = tuple(join_axes(start, axis) for axis in axes)
        mask = torch.cat([torch.ones_like(mask[:, :1]), mask[:, :-1]], dim=1)
    return {"decoder_input_ids": shifted, "decoder_attention_mask": mask}, axes, details


def encode_prefix(checkpoint: Checkpoint, text: str) -> TokenIds:
    """Return what a decoder reads before the token after a text, without the one that ends it."""
    encoded = tokenize(replace(checkpoint, decodes=True), text, may_be_empty=True)
    is_added = bool(encoded.ids) and encoded.special[-1] and encoded.spans[-1] == (0, 0)
    ids = encoded.ids[:-1] if is_added else encoded.ids
    # The shift drops the last label, whatever it is.
    labels = torch.tensor([[*ids, 0]], device=checkpoint.device)
    return TokenIds(tuple(_shift(checkpoint.module, labels)[0].tolist()), shifted=True)


def _shift(module: Any, ids: Tensor) -> Tensor:
    """Return what a decoder reads of labels (N, T): shifted right, or all but the last if so."""
    owners = (module.config, module, getattr(module.config, "text_config", None))
    starts = (getattr(owner, "decoder_start_token_id", None) for owner in owners)
    start = next((start for start in starts if start is not None), None)
    if start is not None and bool((ids[:, 0] == start).all()):
        return ids[:, :-1]
    if hasattr(module, "prepare_decoder_input_ids_from_labels"):
        shifted: Tensor = module.prepare_decoder_input_ids_from_labels(ids)
        return shifted
    if start is None:
        raise InputError(
            f"The config of {type(module).__name__} has no decoder_start_token_id, the token with "
            "which its decoder begins. Set it."
        )
    return torch.cat([torch.full_like(ids[:, :1], start), ids[:, :-1]], dim=1)


def own_decoder_ids(module: Any, inputs: Mapping[str, Any]) -> Tensor | None:
    """Return the ids (N, T) that a model makes for its decoder, up to which it runs; else None."""
    found: list[Tensor] = []

    def keep(_: Any, args: Any, kwargs: Any) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        found.extend([ids] if isinstance(ids, Tensor) else [])
        raise RuntimeError("The decoder begins here.")

    keeping = module.get_decoder().register_forward_pre_hook(keep, with_kwargs=True)
    with keeping, torch.no_grad(), suppress(Exception):  # fails without them, or ends in `keep`
        module(**inputs)
    return found[0] if found else None


def continue_axis(tokenizer: Tokenizer | None, axis: Axis | None, ids: Tensor) -> Axis:
    """Return the axis of `ids` (T,), whose first positions `axis` describes already."""
    if axis is None:  # the token with which a decoder begins
        axis = Axis.plain(read_labels(ids[:1].tolist(), tokenizer), special=[True])
    new: list[int] = ids[len(axis) :].tolist()
    if tokenizer is None:
        return join_axes(axis, Axis.plain(read_labels(new, None), special=[False] * len(new)))
    return join_axes(axis, encode_ids(tokenizer, TokenIds(tuple(new))).axis(tokenizer, len(new)))


def expect_tokens_left(checkpoint: Checkpoint, length: int, tokens: int) -> None:
    """Raise InputError if the model cannot read `tokens` more after an input of this length."""
    module = checkpoint.module
    of_decoder = has_text_decoder(module)
    tokenizer = checkpoint.target_tokenizer if of_decoder else checkpoint.tokenizer
    if tokenizer is None:
        return
    longest = max_tokens(module, tokenizer, of_decoder=of_decoder)
    # The last token is generated and never read.
    if longest is not None and length + tokens - 1 > longest:
        raise InputError(
            f"{checkpoint.name} can read {longest} tokens: after these {length} it can generate at "
            f"most {max(longest - length + 1, 0)}, not {tokens}. Ask for fewer, or give a shorter "
            "text."
        )
