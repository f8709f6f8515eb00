"""Text: token ids in a padded batch, and the axis of each text."""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attnviz.errors import AttnvizWarning, InputError, expect_unicode
from attnviz.inputs.tokens import Chat, TokenIds, encode_messages, read_ids
from attnviz.results import Axis
from attnviz.results.axis import Span, make_axis
from attnviz.runtime import libraries
from attnviz.runtime.libraries import MemoryBudget
from attnviz.runtime.stderr import silence_rust

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

    from attnviz.models.checkpoint import Checkpoint

TextPair = tuple[str, str | None]  # a text, and the second one of a pair

# A fast tokenizer stores 16 bytes for each byte of a text (its offsets). Tokens come on top: 105 to
# 165 bytes for each byte of English were measured.
_MEMORY_PER_BYTE = 16
_SEGMENTS = re.compile("token_type|seg")  # in the names of parameters
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_NORMALIZED = {"Mn", "Mc", "Me", "Cf", "Cc"}  # categories of characters that may be removed
_LISTED = 5  # control characters in a warning
_SMALL = 2**20  # bytes of text that always fit; asking for free memory takes longer


@contextmanager
def translate(checkpoint: Checkpoint) -> Iterator[None]:
    """Turn any exception of the checkpoint's tokenizer or processor into a one-line error."""
    message = f"The tokenizer or processor of {checkpoint.name} cannot read this input"
    ways = "Check its files, or pass another one (tokenizer=, processor=)."
    with libraries.translate(_input_memory(checkpoint), message, ways):
        yield


def _input_memory(checkpoint: Checkpoint) -> MemoryBudget:
    what = f"the input of {checkpoint.name}"
    return MemoryBudget(what, torch.device("cpu"), "Give a smaller one.")


def _tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase:
    tokenizer = checkpoint.tokenizer
    assert tokenizer is not None  # no model that reads text is loaded without one
    return tokenizer


def encode_texts(
    checkpoint: Checkpoint,
    pairs: Sequence[tuple[str | TokenIds | Chat, str | None]],
    *,
    truncate: bool,
    of_decoder: bool = False,
) -> tuple[dict[str, Tensor], tuple[Axis, ...], tuple[int | None, ...]]:
    """Tokenize texts, or pairs of them, and pad them on the right.

    Returns the tensors (N, T) by the name of the model's argument, the axis of each text, and how
    many tokens each text had before it was cut (None where it was not).
    """
    tokenizer = _tokenizer(checkpoint)
    longest = max_tokens(checkpoint.module, tokenizer, of_decoder=of_decoder)
    tokenized = []
    for number, pair in enumerate(pairs, start=1):
        try:
            tokenized.append(_read(checkpoint, pair, longest, truncate=truncate))
        except InputError as error:
            if len(pairs) == 1:
                raise
            raise InputError(f"In text {number:,} of {len(pairs):,}: {error}") from None
    encodings, cut_from, texts = zip(*tokenized, strict=True)
    inputs = pad_texts(checkpoint, encodings)
    length = inputs["input_ids"].shape[1]
    axes = tuple(
        text_axis(
            tokenizer,
            encoding["input_ids"],
            special=encoding["special_tokens_mask"],
            offsets=encoding.get("offset_mapping"),
            segments=_segments(encoding),
            texts=(text, second or ""),
            length=length,
        )
        for encoding, (text, second) in zip(encodings, texts, strict=True)
    )
    return inputs, axes, cut_from


def _read(
    checkpoint: Checkpoint,
    pair: tuple[str | TokenIds | Chat, str | None],
    longest: int | None,
    *,
    truncate: bool,
) -> tuple[Mapping[str, Any], int | None, TextPair]:
    """Return an encoded text, the number of its tokens before it was cut, and what it says."""
    source, second = pair
    if isinstance(source, str):
        encoding, cut_from = tokenize(checkpoint, (source, second), longest, truncate=truncate)
        return encoding, cut_from, (source, second)
    encoded, texts = _encode_source(checkpoint, source)
    length = len(encoded["input_ids"])
    if all(encoded["special_tokens_mask"]):
        raise InputError("The ids leave no token but special ones. Give those of a word.")
    if longest is None or length <= longest:
        return encoded, None, texts
    if not truncate:
        raise _too_long(checkpoint, length, longest)
    cut = {name: value and value[:longest] for name, value in encoded.items()}
    return cut, length, texts


def _encode_source(
    checkpoint: Checkpoint, source: TokenIds | Chat
) -> tuple[dict[str, Any], TextPair]:
    read = encode_messages if isinstance(source, Chat) else read_ids
    return read(_tokenizer(checkpoint), source, checkpoint.name)  # type: ignore[arg-type]


def spelled(checkpoint: Checkpoint, source: str | TokenIds | Chat) -> TextPair:
    """Return what a source says: the text, and the second one of a pair of ids."""
    return (source, None) if isinstance(source, str) else _encode_source(checkpoint, source)[1]


def _too_long(checkpoint: Checkpoint, length: int, longest: int) -> InputError:
    return InputError(
        f"The text has {length} tokens, and {checkpoint.name} can read at most {longest}. "
        "Shorten the text, or cut it with --truncate (truncate=True)."
    )


def tokenize(
    checkpoint: Checkpoint, pair: TextPair, longest: int | None, *, truncate: bool
) -> tuple[BatchEncoding, int | None]:
    """Return the tokens of a text, or of a pair, and their number before they were cut.

    A text of more than `longest` tokens, from `max_tokens`, is cut or refused.
    """
    tokenizer = _tokenizer(checkpoint)
    size = sum(map(len, filter(None, pair)))
    if size > _SMALL:
        _input_memory(checkpoint).expect(_MEMORY_PER_BYTE * size)
    parse = checkpoint.special_tokens == "parse"
    encoding = _tokenize(tokenizer, *pair, parse=parse)
    if all(encoding["special_tokens_mask"]):
        raise InputError(f"The text {pair[0][:40]!r} leaves no token. Type at least one word.")
    _warn_of_dropped(checkpoint, pair, encoding["input_ids"])
    length = len(encoding["input_ids"])
    if longest is None or length <= longest:
        return encoding, None
    if not truncate:
        raise _too_long(checkpoint, length, longest)
    return _tokenize(tokenizer, *pair, longest, parse=parse), length


def _warn_of_dropped(checkpoint: Checkpoint, pair: TextPair, ids: list[int]) -> None:
    """Warn of control characters that no token holds; what is beside them may be joined."""
    controls = set(_CONTROLS.findall("".join(filter(None, pair))))
    if controls and (dropped := controls.difference(_tokenizer(checkpoint).decode(ids))):
        listed = ", ".join(f"U+{ord(control):04X}" for control in sorted(dropped)[:_LISTED])
        message = f"The tokenizer of {checkpoint.name} drops control characters of the text"
        warnings.warn(f"{message}: {listed}.", AttnvizWarning, stacklevel=2)


def pad_texts(
    checkpoint: Checkpoint, encodings: Sequence[Mapping[str, Sequence[int]]]
) -> dict[str, Tensor]:
    """Return encoded texts as the model's input tensors (N, T), padded on the right.

    Segments go only to a model with a table of them: GPT-2 would look them up among its words.
    """
    tokenizer = _tokenizer(checkpoint)
    names = ["input_ids", "attention_mask"]
    if any(_SEGMENTS.search(name) for name, _ in checkpoint.module.named_parameters()):
        names.append("token_type_ids")
    # Padding is masked, so any id does where a causal tokenizer has none.
    pad_ids = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    fill = {"input_ids": next(token_id for token_id in pad_ids if isinstance(token_id, int))}
    return {
        name: padded([encoding[name] for encoding in encodings], fill.get(name, 0)).to(
            checkpoint.device
        )
        for name in names
        if all(name in encoding for encoding in encodings)
    }


def padded(rows: Sequence[Sequence[int]], fill: int) -> Tensor:
    """Return rows of integers as one tensor (N, T), padded with `fill` on the right."""
    T = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (T - len(row))] for row in rows], device="cpu")


def max_tokens(
    module: nn.Module, tokenizer: PreTrainedTokenizerBase, *, of_decoder: bool = False
) -> int | None:
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


def _tokenize(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    pair: str | None,
    cut: int | None = None,
    *,
    parse: bool = False,
) -> BatchEncoding:
    for string in filter(None, (text, pair)):
        expect_unicode(string, "The text")
    with silence_rust():
        encoding: BatchEncoding = tokenizer(
            text,
            pair,
            truncation=cut is not None,
            max_length=cut,
            return_offsets_mapping=tokenizer.is_fast,
            return_special_tokens_mask=True,
            return_attention_mask=True,
            split_special_tokens=not parse,
            verbose=False,
        )
    return encoding


def token_spans(checkpoint: Checkpoint, text: str) -> list[Span]:
    """Return the span of characters of each token of a text; (0, 0) for special tokens."""
    tokenizer = _tokenizer(checkpoint)
    with translate(checkpoint):
        parse = checkpoint.special_tokens == "parse"
        encoding = _tokenize(tokenizer, text, None, parse=parse)
    spans: list[Span] | None = encoding.get("offset_mapping")
    if spans is None:
        raise InputError(
            f"The tokenizer of {checkpoint.name} does not report where its tokens are in the text. "
            "Load its fast version (tokenizer=…)."
        )
    return spans


def split_tokens_note(checkpoint: Checkpoint, *texts: str | None) -> tuple[str, ...]:
    """Return a note where special tokens of the model are spelled out in texts and were split."""
    if checkpoint.tokenizer is None or checkpoint.special_tokens == "parse":
        return ()
    tokens = dict.fromkeys(map(str, checkpoint.tokenizer.all_special_tokens))
    typed = [token for token in tokens if any(token in text for text in texts if text)]
    if not typed:
        return ()
    return (
        f"read as plain text, not as special tokens: {', '.join(typed)} "
        '(special_tokens="parse", --special-tokens parse)',
    )


def label_notes(checkpoint: Checkpoint, axis: Axis, ids: Sequence[int]) -> tuple[str, ...]:
    """Return notes where the labels of an axis may not be the tokens that the model reads."""
    notes = []
    if (misplaced := _misplaced(_tokenizer(checkpoint), axis, ids)) is not None:
        token, word = misplaced
        notes.append(
            "the tokenizer's offsets do not match its tokens: they place "
            f"{token!r:.40} at the word {word!r:.40}"
        )
    if checkpoint.fits_vocabulary is False:
        notes.append(
            "tokens that are spelled alike have unrelated embeddings: this may be the tokenizer of "
            "another model"
        )
    return tuple(notes)


def _misplaced(
    tokenizer: PreTrainedTokenizerBase, axis: Axis, ids: Sequence[int]
) -> tuple[str, str] | None:
    """Return the first tokens that are not spelled as the word at which their offsets are.

    A token may be a part of a word, or reach beyond it. Unknown tokens, and those that are parts of
    a character, have no spelling.
    """
    pieces: dict[int, list[int]] = {}
    for position, word in enumerate(axis.words):
        if word is not None:
            pieces.setdefault(word, []).append(position)
    for word, positions in pieces.items():
        token = "".join(axis.labels[position].removeprefix("##") for position in positions)
        written, expected = _spelling(token), _spelling(axis.word_labels[word])
        if written in expected or expected in written:
            continue
        tokens = [ids[position] for position in positions]
        if tokenizer.unk_token_id not in tokens and "\ufffd" not in tokenizer.decode(tokens):
            return token, axis.word_labels[word]
    return None


def _spelling(text: str) -> str:
    """Return a text without what normalizers change: case, marks, controls, compatible forms."""
    letters = unicodedata.normalize("NFKD", text.casefold())
    return "".join(c for c in letters if unicodedata.category(c) not in _NORMALIZED).strip()


def pieces_in(spans: Sequence[Span], region: Span) -> tuple[int, ...]:
    """Return the indices of the tokens in a region of the text; special tokens are in none.

    >>> pieces_in([(0, 0), (0, 2), (2, 6), (7, 9), (0, 0)], (0, 6))
    (1, 2)
    """
    start, end = region
    return tuple(n for n, (a, b) in enumerate(spans) if a < b and a < end and b > start)


def text_axis(
    tokenizer: PreTrainedTokenizerBase,
    ids: Sequence[int],
    *,
    special: Sequence[int],
    offsets: Sequence[Span] | None,
    segments: Sequence[int],
    texts: tuple[str, str],
    length: int,
) -> Axis:
    """Return the axis of an encoded text, padded on the right to `length`."""
    padding = length - len(ids)
    return make_axis(
        labels=[*read_labels(ids, tokenizer), *["[PAD]"] * padding],
        offsets=None if offsets is None else [*offsets, *[(0, 0)] * padding],
        special=[*map(bool, special), *[True] * padding],
        padding=[*[False] * len(ids), *[True] * padding],
        segments=[*segments, *[0] * padding],
        texts=texts,
        whole_words=_is_word_level(tokenizer),
    )


def _is_word_level(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether the vocabulary holds whole words, as its author delimits them."""
    from tokenizers.models import WordLevel

    backend = getattr(tokenizer, "backend_tokenizer", None)
    return isinstance(getattr(backend, "model", None), WordLevel)


def _segments(encoding: Mapping[str, Any]) -> list[int]:
    """Return 0 or 1 for every token; a special token belongs to the text before it."""
    if "segments" in encoding:
        return list(encoding["segments"])
    if not encoding.is_fast:  # type: ignore[attr-defined]
        return list(encoding.get("token_type_ids", [0] * len(encoding["input_ids"])))
    segment, segments = 0, []
    for sequence_id in encoding.sequence_ids(0):  # type: ignore[attr-defined]
        segment = segment if sequence_id is None else sequence_id
        segments.append(segment)
    return segments


def read_labels(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the text of each token, without the marks that stand for a space."""
    labels = []
    tokens: Sequence[str | None] = tokenizer.convert_ids_to_tokens(list(ids))
    for token_id, token in zip(ids, tokens, strict=True):
        if token is None:  # a row of the embedding beyond the vocabulary
            labels.append(f"[id {token_id}]")
            continue
        text = str(tokenizer.decode([token_id])).strip()
        # A token may be part of a character; then show its raw spelling.
        labels.append(token if not text or "\N{REPLACEMENT CHARACTER}" in text else text)
    return labels
