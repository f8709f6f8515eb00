"""What moved a word's vector: from its static to its contextual place, and by which words.

The text is compared with a reference in which the word could read less, or other words. The
difference at the word is split exactly (attribution.secant), beside it stands what is lost where
each other word is changed (interventions): a measure that owes the split nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite

import torch
from torch import Tensor

from attnviz.attribution import ledger, rollout, secant
from attnviz.capture import hidden_states
from attnviz.capture.unchanged import unchanged
from attnviz.displacement.causes import along, lose, possible
from attnviz.displacement.references import read_pair, refer
from attnviz.displacement.regions import read_regions
from attnviz.errors import AttnvizError, InputError, ModelError
from attnviz.inputs import encode, expect_one_text, max_tokens, token_spans
from attnviz.interventions import Site, patch_heads
from attnviz.models import Loadable, Model, load
from attnviz.records import Ledger, Secant, ShiftResult, numbered
from attnviz.words import Units, locate, merge, units

__all__ = ["shift"]

# Of the length of the shift: far above rounding in float32, and in narrower types.
_EXACT, _ROUNDED = 1e-4, 0.05


def shift(
    word: str,
    text: str,
    *,
    toward: Mapping[str, str | Sequence[str]] | None = None,
    reference: str | None = None,
    verify_causally: bool = False,
    model: Model | Loadable | None = None,
) -> ShiftResult:
    """Split what moved the vector of a word over layers, heads and source words, exactly.

    Parameters
    ----------
    word : a word of the text; "the#2" is the second "the".
    text : where {mud|cash} stands in it, the first is the reference's, the second the text's.
    toward : two regions by name, each with texts: the direction is the axis from the second to the
        first, between the means of what the model makes of the texts (of the word where it stands
        in them, else of all their tokens). By default the direction is that of the shift itself.
    reference : what the text is compared with. "gate", the default: itself, where every token may
        read only itself and special tokens. "mask": itself, where all other words are masked. Else
        a text of as many tokens, such as a minimal pair.
    verify_causally : change each other word in four ways, and patch every head. "mask": [MASK] in
        its place. "replace": the mean over eight common words of the vocabulary in its place.
        "knock-out": no token may read it. "delete": the text without it. By default each word is
        only masked; where a model has no mask token, it is knocked out.
    model : from `load`, or what `load` takes; by default the bundled all-MiniLM-L6-v2.

    Returns
    -------
    The split (`secant`), the account from static to contextual (`ledger`), and what the word loses
    where others are changed (`causal`). `secant.error` and `ledger.error` say how nearly the parts
    add up.

    Raises
    ------
    InputError : the word is not in the text, the reference has another number of tokens or is the
        text, or there are not two regions.
    ModelError : a model whose blocks cannot be followed.
    """
    for name, given in (("word", word), ("text", text)):
        if not isinstance(given, str):
            raise InputError(f"Expected a {name}, got {type(given).__name__}. Give a string.")
    text, reference = read_pair(text, reference)
    model = model if isinstance(model, Model) else load(model)
    expect_one_text(model.checkpoint)
    _expect_short(model, text)
    result = model.attend(text)
    axis = result.records[0].query_axis
    side = units(axis)
    at = locate(word, side)
    pieces = side.positions[at]
    inputs = encode(model.checkpoint, [text]).inputs
    compared = refer(model, inputs, reference, rows=pieces, special=axis.special)
    regions = None if toward is None else read_regions(model, word, toward)
    axis_of_regions = None if regions is None else regions.axis
    with _following(model):
        both, rows, gate = compared.inputs, pieces, compared.gate
        split = secant(model.module, both, rows=rows, direction=axis_of_regions, gate=gate)
        account = ledger(model.module, inputs, rows=rows, direction=axis_of_regions)
        _expect_sound(model, side.labels[at], split, account)
        causal = _causal(model, inputs, side, at, split.direction, every=verify_causally)
        patched = None
        if verify_causally:
            moved = patch_heads(model.module, both, rows=rows, gate=gate)
            patched = moved.double().cpu() @ split.direction.double().cpu()
    states = None if regions is None else _states(model, inputs, pieces)
    return ShiftResult(
        word=numbered(side.labels)[at],
        at=at,
        words=side.labels,
        positions=side.positions,
        special=side.special,
        tokens=axis.labels,
        reference=compared.said,
        secant=split,
        ledger=account,
        causal=causal,
        patched=patched,
        raw_attention=merge(result.records[-1].weights().mean(0), side, side)[at].cpu(),
        rollout=merge(rollout(one.weights() for one in result.records), side, side)[at].cpu(),
        regions=() if regions is None else regions.names,
        path=None if regions is None or states is None else regions.path(states),
        distances=None if regions is None or states is None else regions.distances(states),
        notes=(
            *_pooled(side.labels[at], pieces),
            *compared.notes,
            *(() if regions is None else regions.notes),
            *_missed(result.provenance.dtype, split, account),
        ),
        agreement=result.agreement,
        provenance=result.provenance,
    )


def _expect_short(model: Model, text: str) -> None:
    """Refuse a text that the model cannot read whole: a part of it would be another text."""
    longest = max_tokens(model.module, model.tokenizer) if model.tokenizer else None
    if longest is not None and (count := len(token_spans(model.checkpoint, text))) > longest:
        raise InputError(
            f"Expected a text of at most {longest} tokens, the most that {model.name} can read, "
            f"got {count}. Shorten it."
        )


@contextmanager
def _following(model: Model) -> Iterator[None]:
    """Leave the model as it was; say in one line where its blocks cannot be followed."""
    try:
        with unchanged(model.module):
            yield
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        if isinstance(error, AttnvizError | torch.OutOfMemoryError):
            raise
        why = str(error).partition("\n")[0]
        raise ModelError(
            f"Expected a model whose blocks can be followed from start to end, but {model.name} "
            f"cannot: {why}. Choose one of another kind."
        ) from error


def _expect_sound(model: Model, word: str, split: Secant, account: Ledger) -> None:
    """Refuse parts that are no numbers, and a word that nothing moved."""
    if not all(isfinite(each) for each in (split.error, split.credit_error, account.error)):
        raise ModelError(
            f"Expected a model whose blocks can be followed, but parts of {model.name} come out as "
            "no numbers. Choose one of another kind."
        )
    if split.length <= torch.finfo(torch.float32).tiny:
        raise InputError(
            f"Expected a word that the context moves, but {word!r} is the same in the reference: "
            "it reads no other word, or reads them all there too. Choose another word or reference."
        )


def _pooled(word: str, pieces: Sequence[int]) -> Iterator[str]:
    if len(pieces) > 1:
        yield f"“{word}” is {len(pieces)} pieces, of which the mean is followed"


def _missed(dtype: str, split: Secant, account: Ledger) -> Iterator[str]:
    """Say where the parts do not add up, and what that means."""
    worst = max(split.error, split.credit_error, account.error)
    if worst > _EXACT:
        wide = dtype == "float32" or worst > _ROUNDED
        why = "some functions here have no exact rule" if wide else f"rounding in {dtype}"
        yield f"the parts miss the whole by {worst:.1%}: {why}"
    layers, found = len(account.attention), len(account.mlp)
    if found != layers:
        yield (
            f"the ledger knows {found} MLPs in {layers} layers: what others made stands under "
            "attention and own"
        )


def _causal(
    model: Model,
    inputs: Mapping[str, Tensor],
    side: Units,
    at: int,
    direction: Tensor,
    *,
    every: bool,
) -> dict[str, Tensor]:
    """Return what the word loses along the direction by each intervention, (W,)."""
    others = [i for i, special in enumerate(side.special) if not special and i != at]
    words = [side.positions[i] for i in others]
    ways = possible(model) if every else possible(model)[:1]
    lost = lose(model, Site.of(model.module, inputs, side.positions[at]), words, ways)
    return {
        way: along(vectors, direction, others, len(side.labels)) for way, vectors in lost.items()
    }


def _states(model: Model, inputs: Mapping[str, Tensor], pieces: Sequence[int]) -> Tensor:
    states = torch.stack(hidden_states(model.module, inputs)).double().cpu()
    return states[:, 0, list(pieces)].mean(1)
