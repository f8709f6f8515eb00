"""What moved a word's vector: from its static to its contextual place, and by which words.

The text is compared with a reference in which the word could read less, or other words. The
difference at the word is split exactly (attribution.secant), beside it stands what is lost where
each other word is changed (interventions): a measure that owes the split nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from attnviz.analyses.shift.decomposition import ResidualStream, ShiftDecomposition
from attnviz.analyses.shift.deeplift import secant
from attnviz.analyses.shift.interventions import Site, along, lose, patch_heads, possible
from attnviz.analyses.shift.reference import read_pair, read_regions, refer
from attnviz.analyses.shift.residual_stream import ledger
from attnviz.analyses.shift.result import ShiftResult, numbered
from attnviz.analyses.shift.rollout import rollout
from attnviz.capture import hidden_states
from attnviz.capture.restore import restoring
from attnviz.errors import AttnvizError, InputError, ModelError
from attnviz.inputs import (
    encode,
    expect_one_text,
    max_tokens,
    token_spans,
)
from attnviz.pipeline.attend import Loadable, Model, load
from attnviz.results import AttentionResult
from attnviz.results.words import (
    TokenGroups,
    locate,
    merge,
    token_groups,
)
from attnviz.runtime.libraries import silence_logs
from attnviz.runtime.progress import part

# Of the length of the shift: far above rounding in float32, and in narrower types.
_EXACT, _ROUNDED = 1e-4, 0.05


@silence_logs()
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
    The split (`decomposition`), what was added from the static to the contextual vector
    (`residual_stream`), and what the word loses where others are changed (`causal`).
    `decomposition.error` and `residual_stream.error` say how nearly the parts add up.

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
    found = _find(model, word, text)
    compared = refer(model, found.inputs, reference, rows=found.rows, special=found.special)
    regions = None if toward is None else read_regions(model, word, toward)
    axis = None if regions is None else regions.axis
    both, rows, gate = compared.inputs, found.rows, compared.gate
    with _following(model):
        split = secant(model.module, both, rows=rows, direction=axis, gate=gate)
        account = ledger(model.module, found.inputs, rows=rows, direction=axis)
        _expect_sound(model, found.label, split, account)
        with part(0, 1 + verify_causally):
            causal = _causal(model, found, split.direction, every=verify_causally)
        patched = None
        if verify_causally:
            with part(1, 2, "each head"):
                moved = patch_heads(model.module, both, rows=rows, gate=gate)
            patched = moved.double().cpu() @ split.direction.double().cpu()
    states = None if regions is None else _states(model, found)
    return ShiftResult(
        word=numbered(found.side.labels)[found.at],
        at=found.at,
        words=found.side.labels,
        positions=found.side.positions,
        special=found.side.special,
        tokens=found.result.records[0].query_axis.labels,
        reference=compared.said,
        decomposition=split,
        residual_stream=account,
        causal=causal,
        patched=patched,
        raw_attention=found.read(found.result.records[-1].weights().mean(0)),
        rollout=found.read(rollout(record.weights() for record in found.result)),
        regions=() if regions is None else regions.names,
        path=None if regions is None or states is None else regions.path(states),
        distances=None if regions is None or states is None else regions.distances(states),
        notes=(
            *found.notes,
            *compared.notes,
            *(() if regions is None else regions.notes),
            *_missed(found.result.provenance.dtype, split, account),
        ),
        agreement=found.result.agreement,
        provenance=found.result.provenance,
    )


@dataclass(frozen=True, eq=False)
class _Found:
    """A word in a text that was read: which of the words it is, and what the model takes."""

    result: AttentionResult
    side: TokenGroups
    at: int
    inputs: Mapping[str, Tensor]

    @property
    def rows(self) -> tuple[int, ...]:
        """The positions of its pieces."""
        return self.side.positions[self.at]

    @property
    def label(self) -> str:
        """The word as it is written."""
        return self.side.labels[self.at]

    @property
    def special(self) -> tuple[bool, ...]:
        """Which tokens are special."""
        return self.result.records[0].query_axis.special

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be said of its pieces."""
        count = len(self.rows)
        said = f"“{self.label}” is {count} pieces, of which the mean is followed"
        return (said,) if count > 1 else ()

    def read(self, weights: Tensor) -> Tensor:
        """Return its row of weights (T, T) between tokens, by word, (W,)."""
        return merge(weights, self.side, self.side)[self.at].cpu()


def _find(model: Model, word: str, text: str) -> _Found:
    """Read a text and find the word in it."""
    expect_one_text(model.checkpoint)
    _expect_short(model, text)
    result = model.attend(text, mode="full")
    side = token_groups(result.records[0].query_axis)
    return _Found(result, side, locate(word, side), encode(model.checkpoint, [text]).inputs)


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
        with restoring(model.module):
            yield
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        if isinstance(error, AttnvizError | torch.OutOfMemoryError):
            raise
        why = str(error).partition("\n")[0]
        raise ModelError(
            f"Expected a model whose blocks can be followed from start to end, but {model.name} "
            f"cannot: {why}. Choose one of another kind."
        ) from error


def _expect_sound(
    model: Model, word: str, split: ShiftDecomposition, account: ResidualStream
) -> None:
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


def _missed(dtype: str, split: ShiftDecomposition, account: ResidualStream) -> Iterator[str]:
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


def _causal(model: Model, found: _Found, direction: Tensor, *, every: bool) -> dict[str, Tensor]:
    """Return what the word loses along the direction by each intervention, (W,)."""
    side = found.side
    others = [i for i, special in enumerate(side.special) if not special and i != found.at]
    words = [side.positions[i] for i in others]
    ways = possible(model) if every else possible(model)[:1]
    lost = lose(model, Site.of(model.module, found.inputs, found.rows), words, ways)
    return {
        way: along(vectors, direction, others, len(side.labels)) for way, vectors in lost.items()
    }


def _states(model: Model, found: _Found) -> Tensor:
    """Return the word as it enters each layer and in the end, (L + 1, d)."""
    states = torch.stack(hidden_states(model.module, found.inputs)).double().cpu()
    return states[:, 0, list(found.rows)].mean(1)
