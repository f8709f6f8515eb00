"""Compute the stages of one head, from X to the output, and their agreement with the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Literal, TypeAlias, Unpack

from torch import Tensor

from attnviz import results
from attnviz.analyses.maps.compute import choose_head, choose_word
from attnviz.analyses.steps.result import Stage, StepsResult
from attnviz.errors import InputError, ModelError, whole_number
from attnviz.figures.claims import SIGNED
from attnviz.formula.attention import merge_heads, repeat_heads, scores
from attnviz.inputs.tokens import TextSource
from attnviz.pipeline.attend import Loadable, Model, OneInput, attended
from attnviz.results import AttentionRecord, AttentionResult, Axis
from attnviz.results.arguments import checked_scalars
from attnviz.results.axis import AxisGeometry, locate, locate_known, token_groups
from attnviz.results.projection import recompute

Side: TypeAlias = Literal["query", "key"]
_AS_MADE = "as the model made it"


@checked_scalars
def steps(
    result: AttentionResult | TextSource | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    word: str | int | None = None,
    model: Model | Loadable | None = None,
    **inputs: Unpack[OneInput],
) -> StepsResult:
    """Compute the stages of one head, and follow one word through them.

    Of linear attention, these are the arguments of the model's function (gates, decays, queries and
    keys), V, the matrix M as weights, and M V. Of softmax attention, everything is recomputed in
    float64 by the formula: Q, K and V from the input of the module, later stages from the Q, K and
    V of the model.

    Parameters
    ----------
    result : AttentionResult, or a text as in `attend`
        From `attend`; or what a model reads.
    layer, head : int, optional
        The layer or head, counted from 0. By default the head in which content words attend to each
        other most.
    word : str or int, optional
        The word to follow ("the#2" is the second "the"), or one of its pieces. By default the first
        content word.

        Or the position of a token.
    model, **inputs
        As in `attend`, for what is no result yet.

    Returns
    -------
    StepsResult
        The stages with their formulas, numbers and differences from the model.

    Raises
    ------
    InputError
        The layer, head or word does not exist, the model has no token for the word, or the maps of
        linear attention are pooled.
    ModelError
        Numbers that the model computes in this head are nan or infinite.

    Examples
    --------
    >>> import attnviz
    >>> result = attnviz.attend("the train left the station")
    >>> stages = attnviz.steps(result, layer=5, head=3, word="train")
    >>> stages["weights"].values.shape
    torch.Size([7, 7])
    >>> [stage.name for stage in stages]
    ['X', 'Q', 'K', 'V', 'scores', 'scaled scores', 'weights', 'A', 'heads', 'output']
    """
    result = attended(result, model, inputs)
    layer, (head,), reason = choose_head(result, layer, head)
    record = result.record(layer)
    row, label, notes = _find_query(record.query_axis, word)
    if isinstance(record, results.LinearAttention):
        if record.text is not None:
            raise InputError(
                "Steps need whole maps, but those of this long text are pooled. Give a shorter "
                'text, or ask for whole maps: attend(text, mode="full").'
            )
        linear = _LinearStages(result, record, head)
        stages: _HeadStages = linear
        notes += linear.notes()
    else:
        stages = _HeadStages(result, record, head)
    if record.sinks is not None:
        share = 1 - stages.numbers["weights"][head, row].sum().item()
        notes.append(f"{share:.0%} of the weight of this row goes to a sink, which is no key")
    axes = record.query_axis, record.key_axis
    queries, keys = (token_groups(axis, words=False) for axis in axes)
    sides = tuple(AxisGeometry(unknown=groups.side.unknown) for groups in (queries, keys))
    steps_result = StepsResult(
        stages=tuple(stages.all_stages()),
        queries=queries.shown,
        keys=keys.shown,
        row=stages.queries.index(row),
        word=label,
        stack=record.stack,
        layer=layer,
        head=head,
        heads=record.heads,
        notes=(*result.notes, *reason, *notes),
        agreement=result.checked_agreement,
        provenance=result.provenance,
        sides=sides if any(side.unknown for side in sides) else (),
    )
    if not steps_result.contributions.isfinite().all():
        raise ModelError(
            f"{result.provenance.model} computes nan or infinite numbers in layer {layer}. Choose "
            "another --dtype (dtype=), or another model."
        )
    return steps_result


def _find_query(axis: Axis, word: str | int | None) -> tuple[int, str, list[str]]:
    """Return the position of the query to follow, its label, and notes."""
    word = choose_word(axis) if word is None else word
    pieces, words = token_groups(axis, words=False), token_groups(axis)
    if not isinstance(word, str):
        place = whole_number(word, "a word, or the position of a token,")
        if not 0 <= place < len(axis) or axis.padding[place]:
            first, last = pieces.positions[0][0], pieces.positions[-1][0]
            raise InputError(f"token {place} is out of range: the text has tokens {first}–{last}.")
        return place, axis.unknown_label([place]) or axis.labels[place], []
    if word in pieces.labels and word not in words.labels:
        return pieces.positions[locate(word, pieces)][0], word, []
    index = locate_known(word, words, axis)
    positions, label = words.positions[index], words.labels[index]
    if len(positions) == 1:
        return positions[0], label, []
    labels = [axis.labels[place] for place in positions]
    note = f"“{label}” is {len(labels)} pieces, {', '.join(labels)}; the first is followed"
    return positions[0], labels[0], [note]


class _HeadStages:
    """The stages of one head of a record, without padding."""

    def __init__(self, result: AttentionResult, record: AttentionRecord, head: int) -> None:
        self.record, self.head = record, head
        self.numbers = {} if record.signed else recompute(record)
        self.queries, self.keys = (
            [position for position, padded in enumerate(axis.padding) if not padded]
            for axis in (record.query_axis, record.key_axis)
        )
        self.checks = {
            check.stage: check
            for check in result.agreement.checks
            if (check.path, check.stack, check.layer) == (record.path, record.stack, record.layer)
        }

    def all_stages(self) -> Iterator[Stage]:
        return chain(self.projected(), self.scored(), self.mixed())

    def projected(self) -> Iterator[Stage]:
        """Yield X, in cross-attention C, and Q, K and V: recomputed if projections are known."""
        record = self.record
        if record.input is not None:
            meaning = "what enters the attention of this layer"
            yield Stage("X", meaning, self._rows(record.input), why_not="given")
        if record.key_input is not None:
            meaning = "the other sequence, to which X attends"
            values = self._rows(record.key_input, "key")
            yield Stage("C", meaning, values, rows="key", why_not="given")
        for name, stage in (("Q", "query"), ("K", "key"), ("V", "value")):
            side: Side = "query" if stage == "query" else "key"
            recorded: Tensor = getattr(record, stage)
            number = self.head // (record.heads // len(recorded))  # K and V may be shared
            projection = getattr(record.projection, stage, None)
            values = self._rows(self.numbers.get(stage, recorded)[number], side)
            formula = _AS_MADE
            factors: tuple[tuple[int, int], ...] = ()
            if stage in self.numbers and projection is not None:
                other = stage != "query" and record.key_input is not None
                formula = _projection(projection, "C" if other else "X", name)
                # With latent vectors in between, there is no single product to show.
                if not projection.before and projection.beside is None:
                    d_in, width = projection.weight.shape[-2:]
                    factors = ((len(values), d_in), (d_in, width))
            yield Stage(name, formula, values, factors, rows=side, **self._agreement(stage, number))

    def scored(self) -> Iterator[Stage]:
        """Yield QKᵀ, the scaled scores, the full scores with bias and mask, and the weights."""
        record, head = self.record, self.head
        Q, K = record.query[head].double(), repeat_heads(record.key, record.heads)[head].double()
        raw, width = scores(Q, K), Q.shape[-1]
        terms, compared = self._terms(), self._agreement("scores", head)
        later = {"why_not": "compared with what is added to it"}
        checked = compared if terms is None else later
        unscaled = dict(checked)
        if "difference" in unscaled:
            unscaled["difference"] /= abs(record.scale)
        factors = ((len(self.queries), width), (width, len(self.keys)))
        yield self._square("scores", "Q Kᵀ", raw, factors=factors, **unscaled)
        is_standard = abs(record.scale * width**0.5 - 1) < 1e-6
        formula = f"scores / √{width}" if is_standard else f"scores · {record.scale:g}"
        yield self._square("scaled scores", formula, raw * record.scale, **checked)
        if terms is not None:
            yield self._square("full scores", terms, self.numbers["scores"][head], **compared)
        softmax_of = "scaled" if terms is None else "full"
        if record.sinks is not None:
            softmax_of += ", sink"
        weights, checked = self.numbers["weights"][head], self._agreement("weights", head)
        yield self._square("weights", f"softmax({softmax_of})", weights, **checked)

    def mixed(self) -> Iterator[Stage]:
        """Yield the attention vectors A, those of all heads side by side, and the output."""
        record, head = self.record, self.head
        heads = self.numbers["head output"]
        m, n, width = len(self.queries), len(self.keys), heads.shape[-1]
        checked = self._agreement("head output", head)
        yield Stage("A", "weights · V", self._rows(heads[head]), ((m, n), (n, width)), **checked)
        names = f"[A_0, …, A_{record.heads - 1}]" if record.heads > 1 else "A"
        columns = (head * width, (head + 1) * width)
        checked = self._agreement("head output", None)
        yield Stage("heads", names, self._rows(merge_heads(heads)), part=columns, **checked)
        if "output" in self.numbers and record.projection and record.projection.output:
            output = record.projection.output
            formula = _apply_steps(record.projection.before_output or (), "heads") + " W^O"
            if output.bias is not None:
                formula += " + b^O"
            d_in, d_out = output.weight.shape
            factors = ((m, d_in), (d_in, d_out))
            values = self._rows(self.numbers["output"][0])
            yield Stage("output", formula, values, factors, **self._agreement("output", 0))

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

    def _square(self, name: str, formula: str, values: Tensor, **others: Any) -> Stage:
        return Stage(name, formula, self._rows(values)[:, self.keys], over_keys=True, **others)

    def _rows(self, values: Tensor, side: Side = "query") -> Tensor:
        return values.double().cpu()[self.queries if side == "query" else self.keys]

    def _agreement(self, stage: str, head: int | None) -> dict[str, Any]:
        """Return the comparison of a stage with the model, of one head or (None) of all."""
        if (check := self.checks.get(stage)) is None:
            return {"why_not": "not compared"}
        if head is None:
            return {"difference": check.largest_difference, "passed": check.passed}
        return {"difference": check.differences[head], "passed": head not in check.failed_heads}


class _LinearStages(_HeadStages):
    record: results.LinearAttention

    def all_stages(self) -> Iterator[Stage]:
        """Yield the arguments of the function, V, M and M V."""
        record, head, why_not = self.record, self.head, "not compared by itself"
        for name in record.arguments:
            if (values := record.argument_of(name, head)) is not None:
                title = f"argument {name}" if name in ("V", "weights", "A") else name
                yield Stage(title, _AS_MADE, self._rows(values), why_not=why_not)
        M, V = record.weights(head).double(), record.value[head].double()
        yield Stage("V", _AS_MADE, self._rows(V, "key"), rows="key", why_not=why_not)
        yield self._square("weights", "signed weights", M, **self._agreement("weights", head))
        m, n, width = len(self.queries), len(self.keys), V.shape[-1]
        checked = self._agreement("head output", head)
        yield Stage("A", "M · V", self._rows(M @ V), ((m, n), (n, width)), **checked)

    def notes(self) -> list[str]:
        """Return what M is, what was compared, and what is not shown."""
        record = self.record
        notes = [SIGNED, f"M is that of {record.function}"]
        if (check := self.checks.get("arguments")) is not None:
            notes.append(
                "arguments and V are not compared by themselves; of a change by 1% of an argument "
                f"that would be noticed, at most {check.largest_difference:.0%} is in the "
                "difference of M V from the model's own"
            )
        rows = {name: record.argument_of(name, self.head) for name in record.arguments}
        if left_out := ", ".join(name for name, values in rows.items() if values is None):
            notes.append(f"not shown, because they have no row for each token: {left_out}")
        return notes


def _projection(projection: results.HeadProjection, X: str, name: str) -> str:
    """Return the formula of Q, K or V, such as "rotate(X W^Q + b^Q)"."""
    latent = X
    for step in projection.before:
        latent = f"{latent} W^D{name}" if isinstance(step, results.Linear) else f"norm({latent})"
    formula = f"{latent} W^{name}"
    if projection.bias is not None:
        formula += f" + b^{name}"
    if projection.beside is not None:  # computed from X itself
        formula = f"[{formula}, {X} W^R{name}]"
    return _apply_steps(projection.after, formula)


def _apply_steps(steps: Sequence[results.Step], formula: str) -> str:
    """Return a formula with steps applied to it, the first one innermost."""
    names = {
        results.Norm: "norm", results.Clip: "clip", results.Rotation: "rotate",
        results.Gate: "gate", results.Factor: "factor · ",
    }  # fmt: skip
    for step in steps:
        formula = f"{names[type(step)]}({formula})"
    return formula
