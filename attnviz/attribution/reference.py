"""What a text is compared with, and the attention sink that stays readable in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnviz.attribution.readout import base_of
from attnviz.attribution.stacks import Stacks, token_ids, with_token_ids
from attnviz.attribution.target import Target
from attnviz.errors import InputError, did_you_mean
from attnviz.inputs import encode
from attnviz.inputs.batch import Batch
from attnviz.inputs.tokens import TokenIds, special_flags
from attnviz.pipeline.attend import Model
from attnviz.results import AttentionResult
from attnviz.results.axis import READ_WITH, Axis, TokenGroups, join_axes, token_groups

_SAME = 1e-3  # of the norm of a state: a change that is rounding


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
    result: AttentionResult
    groups: TokenGroups  # its words
    bos: int | None  # the id of the token that is read before the text
    sink: int | None  # the position of an ordinary token that stays readable
    notes: tuple[str, ...]

    tokens: Axis  # its tokens
    stacks: Stacks | None = None  # of an encoder and a decoder

    @property
    def special(self) -> tuple[bool, ...]:
        """Which tokens are special."""
        return self.tokens.special

    def until(self, end: int) -> Reading:
        """Return the reading of the first `end` tokens, which later ones do not change."""
        inputs = {name: tensor[:, :end] for name, tensor in self.inputs.items()}
        tokens = self.tokens.at(range(end))
        return replace(self, inputs=inputs, groups=token_groups(tokens), tokens=tokens)


def read(model: Model, text: str, decoder: TokenIds | None = None) -> Reading:
    """Run the model on a text, with a BOS token before it if a causal model needs one.

    decoder : what the decoder of an encoder–decoder reads. The tokens of the text are then the
    source, and these the target, which follows it.
    """
    if decoder is not None:
        return _read_both(model, text, decoder)
    inputs, bos, sink, notes = encode_causal(model, text)
    ids: list[int] = inputs["input_ids"][0].tolist()
    result = model.attend(text if bos is None else ids, mode="full")
    result = result.without_linear("attribution needs")
    tokens = result.records[0].query_axis
    return Reading(inputs, result, token_groups(tokens), bos, sink, notes, tokens)


def _read_both(model: Model, text: str, decoder: TokenIds) -> Reading:
    """Run an encoder–decoder on its two texts.

    The decoder's first token is special, and stays readable. A source without a special token
    would leave the cross-attention of a reference nothing to read, so its first token does too.
    """
    batch = encode(model.checkpoint, [text], targets=[decoder])
    result = model.attend(text, target=decoder, mode="full")
    (source,), (target,) = batch.axes["text"], batch.axes["target"]
    tokens = join_axes(source, target)
    sink: int | None = None
    notes: tuple[str, ...] = ()
    if not any(source.special):
        sink, notes = 0, ("the first source token stays readable, so its part is not measured",)
    stacks = Stacks.of(result, len(source), len(target))
    groups = token_groups(tokens)
    return Reading(batch.inputs, result, groups, None, sink, notes, tokens, stacks)


def encode_causal(
    model: Model, text: str
) -> tuple[Mapping[str, Tensor], int | None, int | None, tuple[str, ...]]:
    """Return the inputs of a text, and the `bos`, `sink` and `notes` of its `Reading`."""
    batch = encode(model.checkpoint, [text])
    bos = sink = None
    notes: tuple[str, ...] = ()
    if not batch.axes["text"][0].special[0] and is_causal(model, batch.inputs):
        bos = first_token(model.tokenizer)
        if bos is None:
            sink, notes = 0, ("the first token stays readable, so its part is not measured",)
        else:
            assert model.tokenizer is not None  # it has tokenized the text
            token = model.tokenizer.convert_ids_to_tokens(bos)
            batch, notes = encode_after(model, text, bos), (f"{READ_WITH}{token} before it",)
    return batch.inputs, bos, sink, notes


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


def encode_after(model: Model, text: str, bos: int | None) -> Batch:
    """Return an encoded text, with the token `bos` before it if there is one."""
    batch = encode(model.checkpoint, [text])
    if bos is None:
        return batch
    ids = batch.inputs["input_ids"][0].tolist()
    return encode(model.checkpoint, [TokenIds((bos, *ids))])


def is_causal(model: Model, inputs: Mapping[str, Tensor]) -> bool:
    """Return whether changing the last token leaves the states of all earlier ones as they are."""
    ids = inputs["input_ids"]
    other = ids.clone()
    other[0, -1] = next(token for token in range(2) if token != ids[0, -1])
    pair = {name: torch.cat([tensor, tensor]) for name, tensor in inputs.items()}
    with torch.no_grad():
        before, after = base_of(model.module)(**{**pair, "input_ids": torch.cat([ids, other])})[0]
    return bool(((before - after)[:-1].norm() <= _SAME * before[:-1].norm()).item())


@dataclass(frozen=True, eq=False)
class Reference:
    """The two runs of a comparison."""

    inputs: Mapping[str, Tensor]  # of the model, (2, T) each: the reference, then the text
    gate: Tensor | None  # keys that each query may attend to in the reference, (T, T); None for all
    description: str  # the reference in words
    notes: tuple[str, ...] = ()  # for the caption
    words: tuple[str, ...] = ()  # of another text, for each token, (T,)

    def replaced(self, groups: TokenGroups) -> tuple[str, ...]:
        """Return what the other text has in place of each word; "" where both have the same."""
        if not self.words:
            return ()
        before, after = token_ids(self.inputs)
        return tuple(
            ""
            if torch.equal(before[list(rows)], after[list(rows)])
            else " ".join(dict.fromkeys(self.words[row] for row in rows))
            for rows in groups.positions
        )


def make_reference(target: Target, reference: str, bos: int | None = None) -> Reference:
    """Return the reference of a text: "gate", "mask" or another text, as in `shift`."""
    model, inputs = target.model, target.inputs
    gate: Tensor | None = None
    notes: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    stacks = target.readout.stacks
    text = "text" if stacks is None else "source and target"
    if reference == "gate":
        other = inputs
        gate = gate_of(target.special, sink=target.sink).to(model.checkpoint.device)
        kept = "special tokens" if target.sink is None else "the first token"
        if target.sink is not None and stacks is not None:
            kept = "the first token of each"
        description = f"the same {text}, where every token may read only itself and {kept}"
    elif reference == "mask":
        other = with_token_ids(inputs, target.masked_ids())
        mask = getattr(model.tokenizer, "mask_token", "masked")
        description = f"the same {text}, where all other words are {mask}"
    else:
        if stacks is None:
            batch = encode_after(model, reference, bos)
        else:  # another source with the same target
            written = TokenIds(tuple(inputs["decoder_input_ids"][0].tolist()), shifted=True)
            batch = encode(model.checkpoint, [reference], targets=[written])
        other, tokens = batch.inputs, join_axes(*(batch.axes[kind][0] for kind in batch.axes))
        _expect_comparable(other["input_ids"], inputs["input_ids"], reference)
        rows = list(target.readout.positions)
        if not torch.equal(token_ids(other)[:, rows], target.ids[:, rows]):
            notes = (
                "the reference has another word in this place: the difference at the start counts "
                "too",
            )
        description = f"“{reference}”"
        words = tuple(
            label if word is None else tokens.word_labels[word]
            for label, word in zip(tokens.labels, tokens.words, strict=True)
        )
    pair = {name: torch.cat([other[name], tensor]) for name, tensor in inputs.items()}
    return Reference(pair, gate, description, notes, words)


def gate_of(special: Sequence[bool], *, sink: int | None = None) -> Tensor:
    """Return which keys each query may attend to without context, (T, T).

    They are the token itself, special tokens, and the attention sink, the token at `sink`.
    """
    gate = torch.eye(len(special), dtype=torch.bool, device="cpu")
    gate[:, torch.tensor(special, dtype=torch.bool, device="cpu")] = True
    if sink is not None:
        gate[:, sink] = True
    return gate


def _expect_comparable(other: Tensor, ids: Tensor, reference: str) -> None:
    """Raise InputError for a reference that equals the text or has another number of tokens."""
    if torch.equal(other, ids):
        raise InputError("The reference is the same as the text. Change a word.")
    if other.shape != ids.shape:
        hint = did_you_mean(reference, ("gate", "mask")) if " " not in reference.strip() else ""
        raise InputError(
            f"The reference has {other.shape[1]} tokens, but the text has {ids.shape[1]}. {hint} "
            "Replace words by words with the same number of pieces, or use gate or mask."
        )
