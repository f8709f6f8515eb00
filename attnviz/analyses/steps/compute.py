"""Compute the stages of one head, from X to the output, with the agreement of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

from torch import Tensor

from attnviz.analyses.maps.heads import choose_head, choose_word
from attnviz.analyses.steps.result import Stage, StepsResult
from attnviz.errors import InputError, ModelError, whole_number
from attnviz.formula.attention import merge_heads, repeat_heads, scores
from attnviz.results import (
    AttentionRecord,
    AttentionResult,
    Axis,
    Clip,
    Factor,
    Gate,
    HeadProjection,
    Linear,
    Norm,
    Rotation,
    Step,
)
from attnviz.results.recompute import recompute, source
from attnviz.results.words import locate, token_groups

Side: TypeAlias = Literal["query", "key"]
Factors: TypeAlias = tuple[tuple[int, int], ...]


def steps(
    result: AttentionResult,
    *,
    layer: int | None = None,
    head: int | None = None,
    word: str | int | None = None,
) -> StepsResult:
    """Compute the stages of one head, and follow one word through them.

    Everything is recomputed in float64 by the formula: Q, K and V from the input of the module,
    later stages from the Q, K and V of the model.

    Parameters
    ----------
    result : AttentionResult
        From `attend`.
    layer, head : int, optional
        The head, both counted from 0. What is left out is chosen: the head in which content words
        attend to each other most (`rank_heads`).
    word : str or int, optional
        A word of the text ("the#2" is the second "the"), one of its pieces, or the position of a
        token. By default the first content word.

    Returns
    -------
    StepsResult
        The stages with their formulas, numbers and differences from the model.

    Raises
    ------
    InputError
        The layer, head or word does not exist.
    ModelError
        Numbers that the model computes in this head are nan or infinite.
    """
    layer, chosen, reason = choose_head(result, layer, head)
    if len(chosen) != 1:
        raise InputError(f"Expected one head, got {len(chosen)}. Choose one of them.")
    (head,) = chosen
    record = result.record(layer)
    row, name, word_notes = _find_query(
        record, choose_word(record.query_axis) if word is None else word
    )
    stages = _HeadStages(result, record, head)
    steps_result = StepsResult(
        stages=(*stages.inputs(), *stages.projected(), *stages.scored(), *stages.mixed()),
        queries=_labels(record.query_axis, stages.queries),
        keys=_labels(record.key_axis, stages.keys),
        row=stages.queries.index(row),
        word=name,
        stack=record.stack,
        layer=layer,
        head=head,
        heads=record.heads,
        notes=(*reason, *word_notes, *stages.missing(row)),
        agreement=result.agreement,
        provenance=result.provenance,
    )
    if not steps_result.contributions.isfinite().all():
        raise ModelError(
            f"Expected numbers to follow, but some that {result.provenance.model} computes in "
            f"layer {layer} are nan or infinite. Choose another --dtype (dtype=), or another model."
        )
    return steps_result


def _find_query(record: AttentionRecord, word: str | int) -> tuple[int, str, tuple[str, ...]]:
    """Return the position of the query to follow, its label, and notes."""
    axis = record.query_axis
    if not isinstance(word, str):
        word = whole_number(word, "a word, or the position of a token,")
    pieces, words = token_groups(axis, words=False), token_groups(axis)
    if isinstance(word, int):
        if not 0 <= word < len(axis) or axis.padding[word]:
            first, last = pieces.positions[0][0], pieces.positions[-1][0]
            raise InputError(f"Expected a position from {first} to {last}, got {word}.")
        return word, axis.labels[word], ()
    if word in pieces.labels and word not in words.labels:
        return pieces.positions[locate(word, pieces)][0], word, ()
    index = locate(word, words)
    positions, label = words.positions[index], words.labels[index]
    if len(positions) == 1:
        return positions[0], label, ()
    labels = [axis.labels[position] for position in positions]
    note = f"“{label}” is {len(labels)} pieces, {', '.join(labels)}; the first is followed"
    return positions[0], labels[0], (note,)


def _labels(axis: Axis, positions: Sequence[int]) -> tuple[str, ...]:
    return tuple(axis.labels[position] for position in positions)


class _HeadStages:
    """The stages of one head of a record, without padding."""

    def __init__(self, result: AttentionResult, record: AttentionRecord, head: int) -> None:
        self.record, self.head = record, head
        self.numbers = recompute(record)
        self.queries, self.keys = (
            [position for position, padded in enumerate(axis.padding) if not padded]
            for axis in (record.query_axis, record.key_axis)
        )
        self.checks = {
            check.stage: check
            for check in result.agreement.checks
            if (check.path, check.stack, check.layer) == (record.path, record.stack, record.layer)
        }

    def inputs(self) -> Iterator[Stage]:
        """Yield X, and in cross-attention the other sequence."""
        meaning = "what enters the attention of this layer"
        if self.record.input is not None:
            yield Stage("X", meaning, self._rows(self.record.input), why_not="given")
        if self.record.key_input is not None:
            other = "the other sequence, to which X attends"
            values = self._rows(self.record.key_input, "key")
            yield Stage("C", other, values, rows="key", why_not="given")

    def projected(self) -> Iterator[Stage]:
        """Yield Q, K and V: recomputed if their projections are known, else those of the model."""
        for name, stage in (("Q", "query"), ("K", "key"), ("V", "value")):
            side: Side = "query" if stage == "query" else "key"
            recorded: Tensor = getattr(self.record, stage)
            number = self.head // (self.record.heads // len(recorded))  # K and V may be shared
            part = getattr(self.record.projection, stage, None)
            X = source(self.record, stage)
            if stage in self.numbers and part is not None and X is not None:
                values = self._rows(self.numbers[stage][number], side)
                other = stage != "query" and self.record.key_input is not None
                # With latent vectors in between, there is no single product to show.
                d_in, width = part.weight.shape[-2:]
                is_single = not part.before and part.beside is None
                yield Stage(
                    name,
                    _projection(part, "C" if other else "X", name),
                    values,
                    ((len(values), d_in), (d_in, width)) if is_single else (),
                    rows=side,
                    **self._agreement(stage, number),
                )
            else:
                values = self._rows(recorded[number], side)
                formula = "as the model made it"
                yield Stage(name, formula, values, rows=side, **self._agreement(stage, number))

    def scored(self) -> Iterator[Stage]:
        """Yield QKᵀ, the scaled scores, the full scores with bias and mask, and the weights."""
        record, head = self.record, self.head
        Q, K = record.query[head].double(), repeat_heads(record.key, record.heads)[head].double()
        raw = scores(Q, K)
        width = Q.shape[-1]
        factors = ((len(self.queries), width), (width, len(self.keys)))
        later = {"why_not": "compared with what is added to it"}
        scale = f"/ √{width}" if abs(record.scale * width**0.5 - 1) < 1e-6 else None
        scaled = f"scores {scale or f'· {record.scale:g}'}"
        terms, compared = self._terms(), self._agreement("scores", head)
        before = compared if terms is None else later
        yield self._square("scores", "Q Kᵀ", raw, factors, **_unscaled(before, record.scale))
        yield self._square("scaled scores", scaled, raw * record.scale, **before)
        if terms is not None:
            yield self._square("full scores", terms, self.numbers["scores"][head], **compared)
        of = "scaled" if terms is None else "full"
        formula = f"softmax({of})" if record.sinks is None else f"softmax({of}, sink)"
        weights = self.numbers["weights"][head]
        yield self._square("weights", formula, weights, **self._agreement("weights", head))

    def mixed(self) -> Iterator[Stage]:
        """Yield the attention vectors A, those of all heads side by side, and the output."""
        record, head = self.record, self.head
        heads = self.numbers["head output"]
        width = heads.shape[-1]
        m, n = len(self.queries), len(self.keys)
        checked = self._agreement("head output", head)
        values = self._rows(heads[head])
        yield Stage("A", "weights · V", values, ((m, n), (n, width)), **checked)
        side_by_side = self._rows(merge_heads(heads))
        names = f"[A_0, …, A_{record.heads - 1}]" if record.heads > 1 else "A"
        part = (head * width, (head + 1) * width)
        checked = self._agreement("head output", None)
        yield Stage("heads", names, side_by_side, part=part, **checked)
        output = None if record.projection is None else record.projection.output
        if "output" in self.numbers and output is not None and record.projection is not None:
            before = _apply_steps(record.projection.before_output or (), "heads")
            bias = "" if output.bias is None else " + b^O"
            values = self._rows(self.numbers["output"][0])
            d_in, d_out = output.weight.shape
            factors = ((m, d_in), (d_in, d_out))
            checked = self._agreement("output", 0)
            yield Stage("output", f"{before} W^O{bias}", values, factors, **checked)

    def missing(self, row: int) -> tuple[str, ...]:
        """Return a note on the share of a row that goes to a sink."""
        if self.record.sinks is None:
            return ()
        share = 1 - self.numbers["weights"][self.head, row].sum().item()
        return (f"{share:.0%} of the weight of this row goes to a sink, which is no key",)

    def _terms(self) -> str | None:
        """Return the formula of the full scores; None if nothing is added to the scaled scores."""

        def adds(term: Tensor | None) -> bool:
            if term is None:
                return False
            values = term[self.head if len(term) > 1 else 0]
            return bool((values[self.queries][:, self.keys] != 0).any())

        record, formula = self.record, "scaled"
        if adds(record.capped_bias):
            formula += " + bias"
        if record.soft_cap is not None:
            formula = f"cap({formula}, {record.soft_cap:g})"
        if adds(record.bias):
            formula += " + bias"
        if adds(record.mask):
            formula += " + mask"
        return None if formula == "scaled" else formula

    def _square(
        self, name: str, formula: str, values: Tensor, factors: Factors = (), **checked: Any
    ) -> Stage:
        """Return a stage of (queries, keys)."""
        square = self._rows(values)[:, self.keys]
        return Stage(name, formula, square, factors, over_keys=True, **checked)

    def _rows(self, values: Tensor, side: Side = "query") -> Tensor:
        return values.double().cpu()[self.queries if side == "query" else self.keys]

    def _agreement(self, stage: str, head: int | None) -> dict[str, Any]:
        """Return the comparison of a stage with the model, of one head or (None) of all."""
        check = self.checks.get(stage)
        if check is None:
            return {"why_not": "not compared"}
        if head is None:
            return {"difference": check.largest_difference, "passed": check.passed}
        return {"difference": check.differences[head], "passed": head not in check.failed_heads}


def _unscaled(compared: dict[str, Any], scale: float) -> dict[str, Any]:
    """Return the comparison of scaled scores in units of unscaled scores."""
    if "difference" not in compared:
        return compared
    return compared | {"difference": compared["difference"] / abs(scale)}


def _projection(part: HeadProjection, X: str, name: str) -> str:
    """Return the formula of Q, K or V, such as "rotate(X W^Q + b^Q)"."""
    latent = X
    for step in part.before:
        latent = f"{latent} W^D{name}" if isinstance(step, Linear) else f"norm({latent})"
    formula = f"{latent} W^{name}"
    if part.bias is not None:
        formula += f" + b^{name}"
    if part.beside is not None:  # computed from X itself
        formula = f"[{formula}, {X} W^R{name}]"
    return _apply_steps(part.after, formula)


def _apply_steps(steps: Sequence[Step], formula: str) -> str:
    """Return a formula with steps applied to it, the first one innermost."""
    for step in steps:
        match step:
            case Norm():
                formula = f"norm({formula})"
            case Clip():
                formula = f"clip({formula})"
            case Rotation():
                formula = f"rotate({formula})"
            case Factor():
                formula = f"factor · ({formula})"
            case Gate():
                formula = f"gate({formula})"
    return formula
