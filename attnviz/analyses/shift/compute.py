"""What moved a word's vector: from the static to the contextual vector, and by which words.

The text is compared with a reference in which the word can attend to less, or to other words. The
difference at the word is decomposed exactly (`deeplift`). Independently of that, each other word is
changed and the effect is measured (`interventions`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from typing import Literal

import torch
from torch import Tensor

from attnviz.agreement import check_hidden_states
from attnviz.analyses.senses.compute import expect_readable
from attnviz.analyses.senses.sentences import find_word
from attnviz.analyses.shift.deeplift import decompose_shift, trace_run
from attnviz.analyses.shift.interventions import (
    AttentionKnockout,
    TargetWord,
    available_interventions,
    intervene,
    last_vectors,
    patch_heads,
)
from attnviz.analyses.shift.methods import (
    AttributionInput,
    check_methods,
    compute_methods,
    raw_attention,
    rollout,
)
from attnviz.analyses.shift.residual_stream import decompose_residual_stream
from attnviz.analyses.shift.result import (
    ResidualStream,
    ShiftDecomposition,
    ShiftPlane,
    ShiftResult,
    numbered,
    sum_pieces,
)
from attnviz.capture import hidden_states, restoring
from attnviz.errors import AttnvizError, InputError, ModelError, did_you_mean, first_line
from attnviz.inputs import encode, expect_one_text, pieces_in, token_spans
from attnviz.pipeline.attend import Loadable, Model, load
from attnviz.results import AgreementReport, AnalysisCheck, AttentionResult
from attnviz.results.axis import TokenGroups, locate, token_groups
from attnviz.runtime.libraries import silence_logs
from attnviz.runtime.progress import part

# Completeness errors, as shares of the length of the shift: above rounding in float32, and in
# narrower types.
_EXACT, _ROUNDED = 1e-4, 0.05
_COMPLETE = 1e-3  # the largest completeness error of a verified shift
_BRACES = re.compile(r"\{([^{}]*\|[^{}]*)\}")
_ROUNDING = 1e-6  # of the length of vectors: closer ones are one point


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
        of all their tokens. The text itself is refused. By default the direction is that of the
        shift itself.
    reference : str, optional
        What the text is compared with. "gate", the default: the same text, where every token may
        attend only to itself and to special tokens. "mask": the same text, where all other words
        are masked. Otherwise a text with the same number of tokens, such as a minimal pair.
    verify_causally : bool, default False
        Whether to change each other word in four ways, and to patch every head in two: at the word
        alone (direct effect) and everywhere (total effect). "mask" replaces a word by [MASK];
        "replace" by eight common words of the vocabulary, averaged; "knock-out" lets no token
        attend to it; "delete" removes it from the text. By default each word is only masked, or
        knocked out if the model has no mask token, and heads are not patched.
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
        `residual_stream.error` are the completeness errors.

    Raises
    ------
    InputError
        The word is not in the text, the reference has another number of tokens or equals the text,
        `toward` has not exactly two regions or has the text itself, or a method is unknown.
    ModelError
        The blocks of the model cannot be traced.
    """
    for name, argument in (("word", word), ("text", text)):
        if not isinstance(argument, str):
            raise InputError(f"The {name} must be a string, not {type(argument).__name__}.")
    text, reference = parse_pair(text, reference)
    method_names = check_methods(methods)
    model = model if isinstance(model, Model) else load(model)
    target, groups, result = _find_target(model, word, text)
    compared = make_reference(target, reference)
    regions = None if toward is None else read_regions(model, word, toward, target.ids)
    axis = None if regions is None else regions.axis
    pair, rows, gate = compared.inputs, target.rows, compared.gate
    with _tracing(model):
        split = decompose_shift(model.module, pair, rows=rows, direction=axis, gate=gate)
        stream = decompose_residual_stream(model.module, target.inputs, rows=rows, direction=axis)
        _check_decomposition(model, word, split, stream)
        states = _mean_states(model, target.inputs, rows)
        plane = _find_plane(states, _reference_states(model, compared, rows), split, regions)
        with part(0, 3 if verify_causally else 1):
            causal = _causal(target, groups, split.direction, every=verify_causally)
        direct_effect = total_effect = None
        if verify_causally:
            with part(1, 3, "each head: direct effect"):
                direct_effect = _head_effects(model, compared, rows, split.direction, "direct")
            with part(2, 3, "each head: total effect"):
                total_effect = _head_effects(model, compared, rows, split.direction, "total")
        attribution_input = AttributionInput(
            model, target.inputs, rows, target.special, split.direction, result
        )
        attributions, left_out = compute_methods(method_names, attribution_input)
    index = groups.positions.index(rows)
    notes = [] if len(rows) == 1 else [f"“{groups.labels[index]}” is {len(rows)} pieces, averaged"]
    notes += [*compared.notes, *left_out]
    path = distances = None
    if regions is not None:
        path, distances = regions.place(states)
        notes += regions.notes
    by_word = partial(sum_pieces, positions=groups.positions)
    return ShiftResult(
        word=numbered(groups.labels)[index],
        at=index,
        words=groups.labels,
        positions=groups.positions,
        special=groups.special,
        tokens=result.records[0].query_axis.labels,
        reference=compared.description,
        decomposition=split,
        residual_stream=stream,
        causal=causal,
        direct_effect=direct_effect,
        raw_attention=by_word(raw_attention(attribution_input)).cpu(),
        rollout=by_word(rollout(attribution_input)).cpu(),
        methods={name: by_word(scores) for name, scores in attributions.items()},
        regions=() if regions is None else regions.names,
        path=path,
        distances=distances,
        notes=(*notes, *_incomplete(result.provenance.dtype, split, stream)),
        agreement=_verify(model, result.agreement, compared, rows, split, stream),
        provenance=result.provenance,
        total_effect=total_effect,
        replaced=compared.replaced(groups),
        plane=plane,
    )


def parse_pair(text: str, reference: str | None) -> tuple[str, str]:
    """Return the text and its reference, "gate" by default. {mud|cash} in the text has both."""
    if not isinstance(reference, str | None):
        raise InputError(
            f"The reference must be gate, mask or a text, not {type(reference).__name__}."
        )
    alternatives = _BRACES.findall(text)
    if not alternatives:
        return text, "gate" if reference is None else reference
    for pair in alternatives:
        if pair.count("|") > 1 or not all(pair.split("|")):
            raise InputError(
                f"{{{pair}}} does not have two sides. Write {{mud|cash}}, for example."
            )
    if reference is not None:
        raise InputError(
            f"{{{alternatives[0]}}} in the text and a reference are given. Give one of them."
        )
    before = _BRACES.sub(lambda braces: braces[1].split("|")[0], text)
    return _BRACES.sub(lambda braces: braces[1].split("|")[1], text), before


def _find_target(
    model: Model, word: str, text: str
) -> tuple[TargetWord, TokenGroups, AttentionResult]:
    """Run the model on a text and find the word in it; return the words and the attention too."""
    expect_one_text(model.checkpoint)
    expect_readable(model, text, "The text")
    result = model.attend(text, mode="full")
    tokens = result.records[0].query_axis
    groups = token_groups(tokens)
    rows = groups.positions[locate(word, groups)]
    inputs = encode(model.checkpoint, [text]).inputs
    return TargetWord(model, inputs, rows, tokens.special), groups, result


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
        before, after = self.inputs["input_ids"]
        return tuple(
            ""
            if torch.equal(before[list(rows)], after[list(rows)])
            else " ".join(dict.fromkeys(self.words[row] for row in rows))
            for rows in groups.positions
        )


def make_reference(target: TargetWord, reference: str) -> Reference:
    """Return the reference of a text: "gate", "mask" or another text, as in `shift`."""
    model, inputs = target.model, target.inputs
    gate: Tensor | None = None
    notes: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    if reference == "gate":
        other = inputs
        gate = gate_of(target.special).to(model.checkpoint.device)
        description = "the same text, where every token may read only itself and special tokens"
    elif reference == "mask":
        other = {**inputs, "input_ids": target.masked_ids()}
        mask = getattr(model.tokenizer, "mask_token", "masked")
        description = f"the same text, where all other words are {mask}"
    else:
        batch = encode(model.checkpoint, [reference])
        other, tokens = batch.inputs, batch.axes["text"][0]
        _expect_comparable(other["input_ids"], target.ids, reference)
        rows = list(target.rows)
        if not torch.equal(other["input_ids"][:, rows], target.ids[:, rows]):
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


def gate_of(special: Sequence[bool]) -> Tensor:
    """Return which keys each query may attend to without context, (T, T): itself and special."""
    gate = torch.eye(len(special), dtype=torch.bool, device="cpu")
    gate[:, torch.tensor(special, dtype=torch.bool, device="cpu")] = True
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


@dataclass(frozen=True, eq=False)
class Regions:
    """Two regions of vectors, which span an axis."""

    names: tuple[str, ...]
    centers: Tensor  # their means as they enter each layer and at the end, (L + 1, 2, d)
    ends: tuple[Tensor, ...]  # the last vector of each text, (n, d) for each region
    notes: list[str]  # on their texts

    @property
    def axis(self) -> Tensor:
        """The direction in the last hidden state, from the second region to the first, (d,)."""
        axis: Tensor = self.centers[-1, 0] - self.centers[-1, 1]
        return axis

    def place(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the place of states (L + 1, d) on the axis, and their distances from the regions.

        The place is 0 at the second region and 1 at the first, (L + 1,). Distances are in units of
        that of the regions, (L + 1, 2). Both are NaN where the regions are one point.
        """
        first, second = self.centers.unbind(1)
        line = first - second
        gap = line.norm(dim=-1)
        gap = gap.masked_fill(gap <= _ROUNDING * self.centers.norm(dim=-1).amax(1), torch.nan)
        path = ((states - second) * line).sum(-1) / gap**2
        return path, (states[:, None] - self.centers).norm(dim=-1) / gap[:, None]


def read_regions(
    model: Model, word: str, toward: Mapping[str, str | Sequence[str]], ids: Tensor
) -> Regions:
    """Return the two regions of the vectors of some texts.

    In a text with the word, in any case and regular inflection, its vector counts. In another text
    it is the mean over all tokens.
    ids : those of the text that is explained, (1, T). No region may have it.
    """
    if len(toward) != 2:
        raise InputError(
            f"An axis needs two regions, not {len(toward)}. Give tech and fruit, for example, "
            "each with texts."
        )
    name = word.rpartition("#")[0] if word.rpartition("#")[2].isdecimal() else word
    centers, ends, missing = [], [], []
    for region, texts in toward.items():
        listed = [texts] if isinstance(texts, str) else texts
        if not listed or not all(isinstance(text, str) and text.strip() for text in listed):
            raise InputError(f"The region {region!r} has no text or an empty one. Give it texts.")
        if any(torch.equal(encode(model.checkpoint, [t]).inputs["input_ids"], ids) for t in listed):
            raise InputError(
                f"The region {region!r} has the text itself, so “{name}” would be measured against "
                "itself. Give it other texts."
            )
        states, has_word = zip(*(_state(model, name, text) for text in listed), strict=True)
        centers.append(torch.stack(states).mean(0))
        ends.append(torch.stack(states)[:, -1])
        missing.append(has_word.count(False))
    notes = [
        f"“{name}” is not in {absent} of {len(texts)} texts of {region}: the mean of all their "
        "tokens counts there"
        for region, texts, absent in zip(toward, ends, missing, strict=True)
        if absent and (absent < len(texts) or not all(missing))
    ]
    regions = Regions(tuple(toward), torch.stack(centers, dim=1), tuple(ends), notes)
    path, _ = regions.place(regions.centers[:, 0])
    if path[-1].isnan():
        first, second = toward
        raise InputError(f"The regions {first!r} and {second!r} are one point. Change their texts.")
    return regions


def _state(model: Model, word: str, text: str) -> tuple[Tensor, bool]:
    """Return the mean state of the word, else of all tokens, and whether the text has the word."""
    batch = encode(model.checkpoint, [text])
    spans = token_spans(model.checkpoint, text)
    rows = [row for span in find_word(word, text) for row in pieces_in(spans, span)]
    special = batch.axes["text"][0].special
    ordinary = [row for row, is_special in enumerate(special) if not is_special]
    return _mean_states(model, batch.inputs, rows or ordinary), bool(rows)


def _mean_states(model: Model, inputs: Mapping[str, Tensor], rows: Sequence[int]) -> Tensor:
    """Return the mean vector of some tokens as it enters each layer and at the end, (L + 1, d)."""
    entering = [state[:, list(rows)].mean(1) for state in hidden_states(model.module, inputs)[:-1]]
    # Some models return their last state before its norm.
    states = [*entering, last_vectors(model.module, inputs, rows)]
    return torch.cat(states).double().cpu()


def _reference_states(model: Model, compared: Reference, rows: Sequence[int]) -> Tensor:
    """Return the same of the reference, (L + 1, d)."""
    inputs = {name: tensor[:1] for name, tensor in compared.inputs.items()}
    if compared.gate is None:
        return _mean_states(model, inputs, rows)
    with AttentionKnockout(compared.gate[None, None]):
        return _mean_states(model, inputs, rows)


def _find_plane(
    states: Tensor, reference: Tensor, split: ShiftDecomposition, regions: Regions | None
) -> ShiftPlane:
    """Return the paths in the plane of the direction and the main direction orthogonal to it.

    states, reference : the word in the text and in the reference, (L + 1, d) each.
    """
    across = split.direction.double()
    paths = torch.cat([states, reference])
    others = paths - (paths @ across)[:, None] * across
    _, spread, directions = torch.linalg.svd(others - others.mean(0), full_matrices=False)
    upwards = directions[0] if (states[-1] - states[0]) @ directions[0] >= 0 else -directions[0]
    if regions is None:
        zero, way = reference[-1], split.length
    else:
        zero, way = regions.centers[-1, 1], float(regions.axis.norm())
    frame = torch.stack([across, upwards], dim=1) / way
    origin = torch.stack([zero @ frame[:, 0], states[0] @ frame[:, 1]])
    return ShiftPlane(
        path=states @ frame - origin,
        reference_path=reference @ frame - origin,
        region_ends=tuple(ends @ frame - origin for ends in (regions.ends if regions else ())),
        way=way,
        size=states[-1].norm().item(),
        explained=(spread[0] ** 2 / (spread**2).sum().clamp(min=1e-300)).item(),
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
        raise ModelError(
            f"The blocks of {model.name} cannot be traced: {first_line(error)}. "
            "Choose another kind of model."
        ) from error


def _check_decomposition(
    model: Model, word: str, split: ShiftDecomposition, stream: ResidualStream
) -> None:
    """Raise for parts that are nan or infinite, and for a word that nothing moved."""
    if not all(isfinite(error) for error in (split.error, split.credit_error, stream.error)):
        raise ModelError(
            f"The shift cannot be decomposed: parts of {model.name} are nan or infinite. "
            "Choose another model or --dtype (dtype=)."
        )
    if split.length <= torch.finfo(torch.float32).tiny:
        raise InputError(
            f"Nothing moves {word!r}: it attends to no other word, or to the same words in the "
            "reference. Choose another word or reference."
        )


def _verify(
    model: Model,
    report: AgreementReport,
    compared: Reference,
    rows: Sequence[int],
    split: ShiftDecomposition,
    stream: ResidualStream,
) -> AgreementReport:
    """Return a report that covers the split: its sums, and the runs that it splits.

    The model as loaded runs on the text, and on the reference if this is a text too. A gated
    reference is a run of its own, which no other run confirms.
    """
    worst = max(split.error, split.credit_error, stream.error)
    report = replace(
        report, analysis=(*report.analysis, AnalysisCheck("sums of the parts", worst, _COMPLETE))
    )
    with restoring(model.module, None, seed=2):
        states = trace_run(model.module, compared.inputs, nullcontext())
    first, last = (state.detach()[:, list(rows)].mean(1).double().cpu() for state in states)
    lengths = [(stream.total, (last[1] - first[1]) @ stream.direction.double())]
    if compared.gate is None:
        lengths.append((split.total, (last[1] - last[0]) @ split.direction.double()))
    ours, loaded = (
        torch.tensor([numbers], dtype=torch.float64, device="cpu")
        for numbers in zip(*((length, float(other)) for length, other in lengths), strict=True)
    )
    size = last.norm(dim=1).max().item()
    return check_hidden_states(report, ours, loaded, name="lengths of the shift", scale=size)


def _incomplete(dtype: str, split: ShiftDecomposition, stream: ResidualStream) -> Iterator[str]:
    """Yield notes where the parts do not add up, with the reason."""
    worst = max(split.error, split.credit_error, stream.error)
    if worst > _EXACT:
        inexact = dtype == "float32" or worst > _ROUNDED
        why = (
            "some functions here have no exact rule"
            if inexact
            else f"rounding in {dtype}; use float32"
        )
        yield f"the parts miss the whole by {worst:.1%}: {why}"
    layers, mlps = len(stream.attention), len(stream.mlp)
    if mlps != layers:
        yield (
            f"only {mlps} MLPs were found in {layers} layers: what the others add counts as "
            "attention and own"
        )


def _head_effects(
    model: Model,
    compared: Reference,
    rows: tuple[int, ...],
    direction: Tensor,
    effect: Literal["direct", "total"],
) -> Tensor:
    """Return what the word loses along the direction by each patched head, (L, H)."""
    effects = patch_heads(
        model.module, compared.inputs, rows=rows, gate=compared.gate, effect=effect
    )
    return effects.double().cpu() @ direction.double().cpu()


def _causal(
    target: TargetWord, groups: TokenGroups, direction: Tensor, *, every: bool
) -> dict[str, Tensor]:
    """Return what the word loses along the direction by each intervention, (W,).

    NaN for special tokens and for the word itself.
    """
    others = [
        index
        for index, (rows, special) in enumerate(zip(groups.positions, groups.special, strict=True))
        if not special and rows != target.rows
    ]
    interventions = available_interventions(target.model)[: None if every else 1]
    effects = {}
    positions = [groups.positions[index] for index in others]
    for name, vectors in intervene(target, positions, interventions).items():
        effects[name] = torch.full(
            (len(groups.labels),), torch.nan, dtype=torch.float64, device="cpu"
        )
        effects[name][others] = vectors @ direction.double().cpu()
    return effects
