"""What moved a word's vector: from the static to the contextual vector, and by which words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import isfinite
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from attnviz.agreement import check_hidden_states
from attnviz.analyses.senses import find_word
from attnviz.analyses.shift.result import ShiftResult
from attnviz.attribution.decomposition import (
    Decomposition,
    ResidualStream,
    check_sums,
    decompose,
    split_stream,
)
from attnviz.attribution.interventions import (
    FEW,
    AttentionKnockout,
    available_interventions,
    intervene,
    patch_heads,
)
from attnviz.attribution.methods import check_methods, compute_methods
from attnviz.attribution.methods.weights import raw_attention, rollout
from attnviz.attribution.ranking import spread, sum_pieces
from attnviz.attribution.reference import Reading, Reference, encode_after, make_reference, read
from attnviz.attribution.target import Readout, Target
from attnviz.attribution.tracing import trace_run, tracing
from attnviz.capture.capture import hidden_states
from attnviz.capture.watch import restoring
from attnviz.errors import InputError, ModelError, expect_words
from attnviz.inputs import Batch, Inputs
from attnviz.inputs.text import token_spans
from attnviz.inputs.tokens import TextSource, pieces_in
from attnviz.pipeline.attend import Loadable, Model, Source, parse_source
from attnviz.results import AgreementReport
from attnviz.results.arguments import checked_scalars
from attnviz.results.axis import is_content, locate_known, token_groups
from attnviz.results.text import numbered
from attnviz.runtime import part
from attnviz.runtime.libraries import silence_logs

_LISTED = 3  # words that a note names
_BRACES = re.compile(r"\{([^{}]*\|[^{}]*)\}")
_EFFECTS: tuple[Literal["direct", "total"], ...] = ("direct", "total")  # of patching a head
_ROUNDING = 1e-6  # of the length of vectors: closer ones are one point


@checked_scalars
@torch.inference_mode(False)
@silence_logs()
def shift(
    word: str,
    text: TextSource | None = None,
    *,
    toward: Mapping[str, str | Sequence[str]] | None = None,
    reference: TextSource | None = None,
    verify_causally: bool = False,
    methods: str | Sequence[str] = (),
    model: Model | Loadable | None = None,
    **inputs: Unpack[Source],
) -> ShiftResult:
    """Decompose the shift of a word's vector over layers, heads and source words, exactly.

    Parameters
    ----------
    word : str
        A word of the text. "the#2" is the second "the".
    text : str, ids, BatchEncoding or messages
        The text, as in `attend`. Where {mud|cash} stands in a string, the reference has the first,
        the text the second.
    toward : mapping of str to str or sequence of str, optional
        Two regions by name, each with texts: the direction is from the second region to the first,
        between the means of their vectors: of the word where it is in the texts, else of the
        content words that the texts of the other region do not have. By default the direction is
        that of the shift itself.

        The text itself is refused.
    reference : str, ids or messages, optional
        What the text is compared with. "gate", the default: the same text, where every token may
        attend only to itself and to special tokens. "mask": the same text, where all other words
        are masked. Otherwise a text with the same number of tokens, such as a minimal pair.

        A causal model reads the text with a BOS token before it, which stays readable; without one
        the first token does.
    verify_causally : bool, default False
        Patch every head at the word alone (direct effect) and everywhere (total effect), and change
        also the words of long texts in each way: "mask" replaces a word by [MASK]; "replace" by
        eight common words of the vocabulary, averaged; "knock-out" lets no token attend to it;
        "delete" removes it. By default, where there are more than 32 other words, each is only
        masked, or knocked out if the model has no mask token.
    methods : str or sequence of str, optional
        Attribution methods to compute beside the decomposition: "attention-value-norm",
        "direct-attribution", "ensemble", "gradient-attention", "gradient-input",
        "integrated-gradients", "late-rollout", "partial-split", "raw-attention", "rollout", "split"
        or "value-zeroing". A method that the model does not support is left out, with a note.
    model : Model, str, path or module, optional
        From `load`, or what `load` takes. By default the bundled all-MiniLM-L6-v2.
    **inputs
        Further inputs of `attend`: `pair`, `truncate`, `special_tokens`.

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
        `toward` has not exactly two regions or has the text itself, a method is unknown, or the
        input is no text.
    ModelError
        The blocks of the model cannot be traced.

    Examples
    --------
    >>> import attnviz
    >>> moved = attnviz.shift("bank", "We sat on the bank of the river.")
    >>> print(moved.headline)
    “river” moves “bank” most
    >>> moved.decomposition.credit_error < 1e-3  # the parts sum to the whole
    True
    """
    expect_words(word, "The word")
    text, reference = parse_pair(text, reference)
    method_names = check_methods(methods)
    model, source, truncate = parse_source("shift", model, text, inputs)
    reading, target = read_word(model, word, source, truncate=truncate)
    groups, result, readout = reading.groups, reading.result, target.readout
    compared = make_reference(target, reference, reading)
    regions = None if toward is None else read_regions(model, word, toward, target.ids, reading.bos)
    axis = None if regions is None else regions.axis
    rows = readout.rows
    with tracing(model):
        states = _mean_states(readout, target.inputs)
        split = decompose(readout, compared.inputs, direction=axis, gate=compared.gate)
        stream = split_stream(readout, target.inputs, direction=axis)
        errors = split.error, split.credit_error, stream.error
        if not isfinite(sum(errors)):
            raise ModelError(
                f"The shift cannot be decomposed: parts of {model.name} are nan or infinite. "
                "Choose another model or --dtype (dtype=)."
            )
        if split.length <= torch.finfo(torch.float32).tiny:
            raise InputError(
                f"Nothing moves {word!r}: it attends to no other word, or to the same words in the "
                "reference. Choose another word or reference."
            )
        gate = compared.gate
        with AttentionKnockout(gate):
            first = {name: both[:1] for name, both in compared.inputs.items()}
            without = _mean_states(readout, first)
        place, rails = _find_places(states, without, split, regions)
        along, ranked = split.direction.double().cpu(), target.ranked
        others = [n for n, rows in enumerate(groups.positions) if ranked.issuperset(rows)]
        is_few = verify_causally or len(others) <= FEW
        changes = available_interventions(model)[: None if is_few else 1]
        with part(0, 3 if verify_causally else 1):
            lost = intervene(target, [groups.positions[n] for n in others], changes)
        effects: dict[str, Tensor] = {}
        for number, effect in enumerate(_EFFECTS if verify_causally else (), start=1):
            with part(number, 3, f"each head: {effect} effect"):
                patched = patch_heads(target, compared.inputs, gate=gate, effect=effect)
                effects[effect] = patched.double().cpu() @ along
        score = split.score(target, result, gate)
        attributions, left_out = compute_methods(method_names, score)
    index = groups.positions.index(rows)
    notes = [] if len(rows) == 1 else [f"“{groups.labels[index]}” is {len(rows)} pieces, averaged"]
    notes += [*reading.notes, *compared.notes, *left_out]
    notes += [] if regions is None else regions.notes
    by_word = partial(sum_pieces, positions=groups.positions)
    by_source = partial(spread, words=others, count=len(groups.labels))
    return ShiftResult(
        word=numbered(groups.labels)[index],
        at=index,
        words=groups.shown,
        positions=groups.positions,
        special=groups.special,
        tokens=result.records[0].query_axis.labels,
        reference=compared.description,
        decomposition=split,
        residual_stream=stream,
        causal={name: by_source(of.mean(1) @ along) for name, of in lost.items()},
        direct_effect=effects.get("direct"),
        raw_attention=by_word(raw_attention(score)).cpu(),
        rollout=by_word(rollout(score)).cpu(),
        methods={name: by_word(scores) for name, scores in attributions.items()},
        regions=() if regions is None else regions.names,
        place=place,
        rails=rails,
        way=split.total if regions is None else float(regions.axis.norm()),
        size=states[-1].norm().item(),
        distances=None if regions is None else regions.distances(states),
        notes=(*notes, *_incomplete(result.provenance.dtype, max(errors), stream)),
        agreement=_verify(
            check_sums(result.agreement, max(errors)), target, compared, split, stream
        ),
        provenance=result.provenance,
        total_effect=effects.get("total"),
        replaced=compared.replaced,
        sink=next((n for n, rows in enumerate(groups.positions) if reading.sink in rows), None),
    )


def parse_pair(text: Any, reference: Any) -> tuple[Any, Any]:
    """Return the text and its reference, "gate" by default. {mud|cash} in the text has both."""
    pairs = _BRACES.findall(text) if isinstance(text, str) else []
    if not pairs:
        return text, "gate" if reference is None else reference
    for one in pairs:
        if one.count("|") > 1 or not all(one.split("|")):
            raise InputError(f"{{{one}}} does not have two sides. Write {{mud|cash}}, for example.")
    if reference is not None:
        raise InputError(f"{{{pairs[0]}}} in the text and a reference are given. Give one of them.")
    before = _BRACES.sub(lambda braces: braces[1].split("|")[0], text)
    return _BRACES.sub(lambda braces: braces[1].split("|")[1], text), before


def read_word(
    model: Model, word: str, text: Inputs | TextSource, *, truncate: bool = False
) -> tuple[Reading, Target]:
    """Read a text and find the word in it."""
    reading = read(model, text, truncate=truncate)
    rows = reading.groups.positions[locate_known(word, reading.groups, reading.tokens)]
    readout = Readout.word(model.module, rows)
    return reading, reading.target(model, readout)


@dataclass(frozen=True, eq=False)
class Regions:
    """Two regions of vectors, which span an axis."""

    names: tuple[str, ...]
    centers: Tensor  # their means as they enter each layer and at the end, (L + 1, 2, d)
    notes: list[str]  # on their texts

    @property
    def axis(self) -> Tensor:
        """The direction in the last hidden state, from the second region to the first, (d,)."""
        return self.centers[-1, 0] - self.centers[-1, 1]

    def distances(self, states: Tensor) -> Tensor:
        """Return the distances of states (L + 1, d) from the regions in each layer, (L + 1, 2).

        Their unit is the distance between the regions; NaN where the regions are one point.
        """
        gap = (self.centers[:, 0] - self.centers[:, 1]).norm(dim=-1)
        gap = gap.masked_fill(gap <= _ROUNDING * self.centers.norm(dim=-1).amax(1), torch.nan)
        distances: Tensor = (states[:, None] - self.centers).norm(dim=-1) / gap[:, None]
        return distances


def read_regions(
    model: Model, word: str, toward: Mapping[str, str | Sequence[str]], ids: Tensor, bos: int | None
) -> Regions:
    """Return the two regions of the vectors of some texts, as `shift` describes them.

    ids : those of the text that is explained, (1, T). bos : the id of a token that
    is read before every text.
    """
    if len(toward) != 2:
        raise InputError(
            f"An axis needs two regions, not {len(toward)}. Give tech and fruit, for example, "
            "each with texts."
        )
    name = word.rpartition("#")[0] if word.rpartition("#")[2].isdecimal() else word
    read: dict[str, list[tuple[str, Batch]]] = {}
    for region, texts in toward.items():
        expect_words(region, "The name of a region")
        is_one = isinstance(texts, str) or not isinstance(texts, Iterable)
        listed: list[str] = [texts] if is_one else list(texts)  # type: ignore[list-item]
        if not listed:
            raise InputError(f"The region {region!r} has no text. Give it one.")
        for number, text in enumerate(listed, start=1):
            expect_words(text, f"Text {number} of the region {region!r:.60}")
        batches = [encode_after(model, text, bos) for text in listed]
        if any(torch.equal(batch.inputs["input_ids"], ids) for batch in batches):
            raise InputError(
                f"The region {region!r} has the text itself, so “{name}” would be measured against "
                "itself. Give it other texts."
            )
        read[region] = list(zip(listed, batches, strict=True))
    centers, notes = [], []
    for region, other in zip(read, reversed(read), strict=True):
        axes = [batch.axes["text"][0] for _, batch in read[other]]
        written = {label.casefold() for axis in axes for label in token_groups(axis).labels}
        pairs = (_state(model, name, *pair, written) for pair in read[region])
        states, instead = zip(*pairs, strict=True)
        centers.append(torch.stack(states).mean(0))
        if missing := [words for words in instead if words]:
            absent, total = len(missing), len(states)
            where = "in no text" if absent == total else f"not in {absent} of {total} texts"
            found = dict.fromkeys(f"“{word}”" for words in missing for word in words)
            some = [*islice(found, _LISTED), *(["…"] if len(found) > _LISTED else [])]
            notes.append(f"“{name}” is {where} of {region}, where others count: {', '.join(some)}")
    regions = Regions(tuple(toward), torch.stack(centers, dim=1), notes)
    if regions.distances(regions.centers[:, 0])[-1].isnan().any():
        first, second = toward
        raise InputError(f"The regions {first!r} and {second!r} are one point. Change their texts.")
    return regions


def _state(
    model: Model, word: str, text: str, batch: Batch, written: Set[str]
) -> tuple[Tensor, tuple[str, ...]]:
    """Return the mean state of the word, and (); else that of other words, and these.

    written : the words of the other region in lower case. The content words that it does not have
    count; if it has all of them, each does.
    """
    spans = token_spans(model.checkpoint, text)
    special = batch.axes["text"][0].special
    before = len(special) - len(spans)  # a BOS token that is read before the text
    rows = [before + row for span in find_word(word, text) for row in pieces_in(spans, span)]
    names: tuple[str, ...] = ()
    if not rows:
        groups = token_groups(batch.axes["text"][0])
        labels = {n: one for n, one in enumerate(groups.labels) if not groups.special[n]}
        content = [n for n, label in labels.items() if is_content(label)] or [*labels]
        own = [n for n in content if labels[n].casefold() not in written] or content
        rows = [row for n in own for row in groups.positions[n]]
        names = tuple(groups.labels[n] for n in own)
    return _mean_states(Readout.word(model.module, rows), batch.inputs), names


def _mean_states(readout: Readout, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the mean vector of some tokens as it enters each layer and at the end, (L + 1, d)."""
    entering = [readout(state) for state in hidden_states(readout.module, inputs)[:-1]]
    # Some models return their last state before its norm.
    return torch.cat([*entering, readout.run(inputs)]).double().cpu()


def _find_places(
    states: Tensor, reference: Tensor, split: Decomposition, regions: Regions | None
) -> tuple[Tensor, Tensor | None]:
    """Return the places of states (L + 1, d) in both runs, and of the regions, (2, L + 1) each."""
    runs = torch.stack([states, reference])
    if regions is None:
        along = (runs - reference) @ split.direction.double() / reference.norm(dim=1)
        return along / along[0, -1], None
    # No layer is measured by how long its vectors are: those of a decoder grow.
    size = regions.centers.norm(dim=-1, keepdim=True).mean(1, keepdim=True)
    centers = regions.centers * (size[-1] / size)
    axes = centers[:, 0] - centers[:, 1]
    gap = axes.norm(dim=1)
    is_point = gap <= _ROUNDING * size[-1, 0]
    units = (axes / gap[:, None]).masked_fill(is_point[:, None], 0.0)
    off = runs * (size[-1] / size)[:, 0] - centers.mean(1)
    return 0.5 + (off * units).sum(-1) / gap[-1], 0.5 + torch.stack([gap, -gap]) / 2 / gap[-1]


def _verify(
    report: AgreementReport,
    target: Target,
    compared: Reference,
    split: Decomposition,
    stream: ResidualStream,
) -> AgreementReport:
    """Return a report that covers the runs that are split.

    The model as loaded runs on the text, and on the reference if this is a text too. A gated
    reference is a run of its own, which no other run confirms.
    """
    with restoring(target.model.module, None, seed=2):
        (start,), end = trace_run(target.readout, compared.inputs, nullcontext())
    static = target.readout(start).reshape(len(start), -1, start.shape[-1]).mean(1)
    first, last = (state.detach().double().cpu() for state in (static, end))
    lengths = [(stream.total, float((last[1] - first[1]) @ stream.direction.double()))]
    if compared.gate is None:
        lengths.append((split.total, float((last[1] - last[0]) @ split.direction.double())))
    ours, loaded = torch.tensor([lengths], dtype=torch.float64, device="cpu").unbind(-1)
    size = last.norm(dim=1).max().item()
    return check_hidden_states(report, ours, loaded, name="lengths of the shift", scale=size)


def _incomplete(dtype: str, worst: float, stream: ResidualStream) -> Iterator[str]:
    """Yield notes where the parts do not add up, with the reason."""
    if worst > 1e-4:  # above rounding
        why = f"rounding in {dtype}; use float32"
        if dtype == "float32" or worst > 0.05:
            why = "some functions here have no exact rule"
        yield f"the parts miss the whole by {worst:.1%}: {why}"
    layers, mlps = len(stream.attention), len(stream.mlp)
    if mlps != layers:
        yield (
            f"only {mlps} MLPs were found in {layers} layers: what the others add counts as "
            "attention and own"
        )
