"""What moved a word's vector: from the static to the contextual vector, and by which words.

The text is compared with a reference in which the word can attend to less, or to other words. The
difference at the word is decomposed exactly (`deeplift`). Independently of that, each other word is
changed and the effect is measured (`interventions`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from attnviz.analyses.shift.decomposition import ResidualStream, ShiftDecomposition
from attnviz.analyses.shift.deeplift import decompose_shift
from attnviz.analyses.shift.interventions import (
    TargetWord,
    available_interventions,
    intervene,
    patch_heads,
)
from attnviz.analyses.shift.methods import (
    AttributionInput,
    check_methods,
    compute_methods,
    raw_attention,
    rollout,
)
from attnviz.analyses.shift.reference import make_reference, parse_pair, read_regions
from attnviz.analyses.shift.residual_stream import decompose_residual_stream
from attnviz.analyses.shift.result import ShiftResult, numbered
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
    token_groups,
)
from attnviz.runtime.libraries import silence_logs
from attnviz.runtime.progress import part

# Completeness errors, as shares of the length of the shift: above rounding in float32, and in
# narrower types.
_EXACT, _ROUNDED = 1e-4, 0.05


@silence_logs()
def shift(
    word: str,
    text: str,
    *,
    toward: Mapping[str, str | Sequence[str]] | None = None,
    reference: str | None = None,
    verify_causally: bool = False,
    methods: str | Sequence[str] = (),
    model: Model | Loadable | None = None,
) -> ShiftResult:
    """Decompose the shift of a word's vector over layers, heads and source words, exactly.

    Parameters
    ----------
    word : str
        A word of the text. "the#2" is the second "the".
    text : str
        The text. Where {mud|cash} stands in it, the reference has the first, the text the second.
    toward : mapping of str to str or sequence of str, optional
        Two regions by name, each with texts. The direction is then the axis from the second region
        to the first, between the means of their vectors: of the word where it is in the texts, else
        of all their tokens. By default the direction is that of the shift itself.
    reference : str, optional
        What the text is compared with. "gate", the default: the same text, where every token may
        attend only to itself and to special tokens. "mask": the same text, where all other words
        are masked. Otherwise a text of as many tokens, such as a minimal pair.
    verify_causally : bool, default False
        Whether to change each other word in four ways, and to patch every head. "mask" replaces a
        word by [MASK]; "replace" by eight common words of the vocabulary, averaged; "knock-out"
        lets no token attend to it; "delete" removes it from the text. By default each word is only
        masked, or knocked out if the model has no mask token.
    methods : str or sequence of str, optional
        Attribution methods to compute beside the decomposition: "gradient-attention",
        "integrated-gradients", "raw-attention" or "rollout". A method that the model does not
        support is left out, with a note.
    model : Model, str, path or module, optional
        From `load`, or what `load` takes. By default the bundled all-MiniLM-L6-v2.

    Returns
    -------
    ShiftResult
        The decomposition, what each layer added to the residual stream, the effects of the
        interventions (`causal`), and the attributions of `methods`. `decomposition.error` and
        `residual_stream.error` say how far the parts are from adding up.

    Raises
    ------
    InputError
        The word is not in the text, the reference has another number of tokens or equals the text,
        `toward` has not exactly two regions, or a method is unknown.
    ModelError
        The blocks of the model cannot be traced.
    """
    for name, argument in (("word", word), ("text", text)):
        if not isinstance(argument, str):
            raise InputError(f"Expected a {name}, got {type(argument).__name__}. Give a string.")
    text, reference = parse_pair(text, reference)
    method_names = check_methods(methods)
    model = model if isinstance(model, Model) else load(model)
    target = _find_target(model, word, text)
    compared = make_reference(
        model, target.inputs, reference, rows=target.rows, special=target.special
    )
    regions = None if toward is None else read_regions(model, word, toward)
    axis = None if regions is None else regions.axis
    pair, rows, gate = compared.inputs, target.rows, compared.gate
    with _tracing(model):
        split = decompose_shift(model.module, pair, rows=rows, direction=axis, gate=gate)
        stream = decompose_residual_stream(model.module, target.inputs, rows=rows, direction=axis)
        _check_decomposition(model, target.label, split, stream)
        with part(0, 1 + verify_causally):
            causal = _causal(model, target, split.direction, every=verify_causally)
        patched = None
        if verify_causally:
            with part(1, 2, "each head"):
                effects = patch_heads(model.module, pair, rows=rows, gate=gate)
            patched = effects.double().cpu() @ split.direction.double().cpu()
        attribution_input = AttributionInput(
            model, target.inputs, rows, target.special, split.direction, target.result
        )
        attributions, left_out = compute_methods(method_names, attribution_input)
    states = None if regions is None else _states(model, target)
    return ShiftResult(
        word=numbered(target.groups.labels)[target.index],
        at=target.index,
        words=target.groups.labels,
        positions=target.groups.positions,
        special=target.groups.special,
        tokens=target.result.records[0].query_axis.labels,
        reference=compared.description,
        decomposition=split,
        residual_stream=stream,
        causal=causal,
        patched=patched,
        raw_attention=target.by_word(raw_attention(attribution_input)),
        rollout=target.by_word(rollout(attribution_input)),
        methods={name: target.by_word(scores) for name, scores in attributions.items()},
        regions=() if regions is None else regions.names,
        path=None if regions is None or states is None else regions.path(states),
        distances=None if regions is None or states is None else regions.distances(states),
        notes=(
            *target.notes,
            *compared.notes,
            *left_out,
            *(() if regions is None else regions.notes),
            *_incomplete(target.result.provenance.dtype, split, stream),
        ),
        agreement=target.result.agreement,
        provenance=target.result.provenance,
    )


@dataclass(frozen=True, eq=False)
class _Target:
    """The word to explain: the text as the model read it, and which of its words it is."""

    result: AttentionResult
    groups: TokenGroups
    index: int
    inputs: Mapping[str, Tensor]

    @property
    def rows(self) -> tuple[int, ...]:
        """The positions of its pieces."""
        return self.groups.positions[self.index]

    @property
    def label(self) -> str:
        """The word as it is written."""
        return self.groups.labels[self.index]

    @property
    def special(self) -> tuple[bool, ...]:
        """Which tokens are special."""
        return self.result.records[0].query_axis.special

    @property
    def notes(self) -> tuple[str, ...]:
        """A note where the word has several pieces."""
        count = len(self.rows)
        note = f"“{self.label}” is {count} pieces, of which the mean is followed"
        return (note,) if count > 1 else ()

    def by_word(self, attribution: Tensor) -> Tensor:
        """Sum an attribution (T,) over the pieces of each word, (W,)."""
        positions = self.groups.positions
        return torch.stack([attribution[list(pieces)].sum() for pieces in positions]).cpu()


def _find_target(model: Model, word: str, text: str) -> _Target:
    """Run the model on a text and find the word in it."""
    expect_one_text(model.checkpoint)
    _check_length(model, text)
    result = model.attend(text, mode="full")
    groups = token_groups(result.records[0].query_axis)
    return _Target(result, groups, locate(word, groups), encode(model.checkpoint, [text]).inputs)


def _check_length(model: Model, text: str) -> None:
    """Raise InputError for a text that the model would truncate."""
    longest = max_tokens(model.module, model.tokenizer) if model.tokenizer else None
    if longest is not None and (count := len(token_spans(model.checkpoint, text))) > longest:
        raise InputError(
            f"Expected a text of at most {longest} tokens, the most that {model.name} can read, "
            f"got {count}. Shorten it."
        )


@contextmanager
def _tracing(model: Model) -> Iterator[None]:
    """Restore the model afterwards, and raise one clear error if its blocks cannot be traced."""
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


def _check_decomposition(
    model: Model, word: str, split: ShiftDecomposition, stream: ResidualStream
) -> None:
    """Raise for parts that are nan or infinite, and for a word that nothing moved."""
    if not all(isfinite(error) for error in (split.error, split.credit_error, stream.error)):
        raise ModelError(
            f"Expected a model whose blocks can be followed, but parts of {model.name} are nan or "
            "infinite. Choose one of another kind."
        )
    if split.length <= torch.finfo(torch.float32).tiny:
        raise InputError(
            f"Expected a word that the context moves, but {word!r} is the same in the reference: "
            "it attends to no other word, or attends to the same words there. Choose another word "
            "or reference."
        )


def _incomplete(dtype: str, split: ShiftDecomposition, stream: ResidualStream) -> Iterator[str]:
    """Yield notes where the parts do not add up, with the reason."""
    worst = max(split.error, split.credit_error, stream.error)
    if worst > _EXACT:
        inexact = dtype == "float32" or worst > _ROUNDED
        why = "some functions here have no exact rule" if inexact else f"rounding in {dtype}"
        yield f"the parts miss the whole by {worst:.1%}: {why}"
    layers, mlps = len(stream.attention), len(stream.mlp)
    if mlps != layers:
        yield (
            f"only {mlps} MLPs were found in {layers} layers: what the others add counts as "
            "attention and own"
        )


def _causal(model: Model, target: _Target, direction: Tensor, *, every: bool) -> dict[str, Tensor]:
    """Return what the word loses along the direction by each intervention, (W,).

    NaN for special tokens and for the word itself.
    """
    groups = target.groups
    others = [
        index
        for index, special in enumerate(groups.special)
        if not special and index != target.index
    ]
    positions = [groups.positions[index] for index in others]
    interventions = available_interventions(model)
    if not every:
        interventions = interventions[:1]
    word = TargetWord.of(model.module, target.inputs, target.rows)
    effects = {}
    for name, vectors in intervene(model, word, positions, interventions).items():
        effects[name] = torch.full((len(groups.labels),), torch.nan, dtype=torch.float64)
        effects[name][others] = vectors @ direction.double().cpu()
    return effects


def _states(model: Model, target: _Target) -> Tensor:
    """Return the word's vector as it enters each layer and at the end, (L + 1, d)."""
    states = torch.stack(hidden_states(model.module, target.inputs)).double().cpu()
    return states[:, 0, list(target.rows)].mean(1)
