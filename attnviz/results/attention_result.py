"""All attentions of an input with their verification; of a long one, summaries of its maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text
from torch import Tensor

import attnviz
from attnviz.errors import InputError, expect_names, from_end, true_or_false, whole_number
from attnviz.results import base
from attnviz.results.agreement_report import AgreementReport
from attnviz.results.attention_record import Attention, AttentionRecord
from attnviz.results.axis import Axis, merge, token_groups
from attnviz.results.projection import STAGES
from attnviz.results.text import counted, listed, literal

if TYPE_CHECKING:
    import pandas as pd

Special = Literal["keep", "hide", "remove"]
_WEIGHTS = 2**22  # that are held at once
_TOO_LONG = (
    "Only summaries of the maps were kept for this text of {:,} tokens. Give a shorter text, or "
    'ask for whole maps: attend(text, mode="full"), or --mode full.'
)


@base.documented
class MapSummary(base.Savable):
    """A summary of the m × n weights of each of H heads.

    Examples
    --------
    >>> import attnviz
    >>> text = "the train left the station on time . " * 8
    >>> (attention, *_) = attnviz.attend(text, mode="streamed", cells=16).streamed
    >>> attention.summary
    MapSummary(12 heads, 66 × 66, cells of 5)
    """

    cell: int = base.doc("How many rows and columns a cell of the pooled maps joins, at most.")
    mean: Tensor = base.doc("(H, ⌈m / cell⌉, ⌈n / cell⌉), the mean weight in each cell.")
    largest: Tensor = base.doc("Of the same shape, the largest weight in each cell.")
    received: Tensor = base.doc("(H, n), the weight that all queries give to a key.")
    entropy: Tensor = base.doc("(H, m), of each row, in nats.")
    distance: Tensor = base.doc("(H, m), the mean distance from a query to its keys, in tokens.")
    itself: Tensor = base.doc("(H, m), the weight of a query for its own position.")
    previous: Tensor = base.doc("(H, m), for the position before.")
    first: Tensor = base.doc("(H, m), for the first position of the text.")
    marked: Tensor = base.doc("(H, m), for the keys that were marked; 0 where none were.")
    lse: Tensor = base.doc("(H, m), the log-sum-exp of each row of scores, sinks among them.")
    empty: Tensor = base.doc("(m,), queries that may read no key; their other numbers are 0.")
    top_keys: Tensor = base.doc(
        "(H, m, k), the keys with the largest weights, largest first; -1 where a row has fewer "
        "keys. k is 0 where none were asked for."
    )
    top_weights: Tensor = base.doc("(H, m, k), their weights; 0 where a row has fewer keys.")

    def __repr__(self) -> str:
        H, m = self.entropy.shape
        n = self.received.shape[-1]
        return f"MapSummary({H} heads, {m:,} × {n:,}, cells of {self.cell})"

    def _rules(self) -> base.Rules:
        H, m = self.entropy.shape if self.entropy.dim() == 2 else (0, 0)
        n = self.received.shape[-1] if self.received.dim() == 2 else 0
        yield "cells of one row or more, and something in them", min(self.cell, H, m, n) > 0
        yield "a number for each key", base.fits(self.received, {H}, {n})
        rows = (self.distance, self.itself, self.previous, self.first, self.marked, self.lse)
        yield "a number for each row", all(base.fits(numbers, {H}, {m}) for numbers in rows)
        cells = (H, -(-m // self.cell), -(-n // self.cell))
        yield "a number for each cell", self.mean.shape == self.largest.shape == cells
        yield "a flag for each row", base.fits(self.empty, {m})
        top = self.top_keys.shape
        is_complete = top[:2] == (H, m) and top == self.top_weights.shape
        yield "a weight for each of the top keys", is_complete

    def cpu(self) -> MapSummary:
        """Return the summary in the memory of the CPU: those of all layers would fill a GPU."""
        numbers = {name: number for name, number in vars(self).items() if name != "cell"}
        return replace(self, **{name: number.cpu() for name, number in numbers.items()})


def cell_sizes(length: int, cell: int) -> Tensor:
    """Return how many of `length` rows, or columns, each cell joins; the last may join fewer."""
    return (length - torch.arange(0, length, cell, device="cpu")).clamp(max=cell)


@base.documented
class StreamedAttention(Attention):
    """An attention of a long text: its maps, reduced while the model ran.

    Examples
    --------
    >>> import attnviz
    >>> text = "the train left the station on time . " * 8
    >>> result = attnviz.attend(text, mode="streamed", cells=16)
    >>> len(result.streamed), result.streamed[0].layer
    (6, 0)
    >>> axes = result.plot()
    """

    heads: int = base.doc("How many query heads it has.")
    layers: int = base.doc("How many layers its stack has.")
    kept: tuple[int, ...] = base.doc("The heads in `summary`, in this order.")
    summary: MapSummary = base.doc("The summary of the maps of these heads.")
    record: AttentionRecord | None = base.doc("The source of exact crops, if any.", default=None)

    def __repr__(self) -> str:
        (m, n), heads = self.size, len(self.kept)
        return f"StreamedAttention({self.place}, {heads} heads, {m:,} × {n:,}, {self.path})"

    def _rules(self) -> base.Rules:
        size, heads, record = self.size, self.heads, self.record
        shape = (*self.summary.entropy.shape, self.summary.received.shape[-1])
        yield "a summary of its shape", shape == (len(self.kept), *size)
        yield "heads that it has", all(0 <= head < heads for head in self.kept)
        if record is not None:
            yield "a record of its shape", (record.heads, record.size) == (heads, size)
            record.check()

    def of_head(self, head: int) -> int:
        """Return where a head stands in the summary; InputError if it was not kept."""
        if head in self.kept:
            return self.kept.index(head)
        heads = ", ".join(map(str, self.kept))
        raise InputError(
            f"head {head} of layer {self.layer} was not kept, only {heads}. "
            "Ask for it: attend(text, heads=[…])."
        )

    def crop(self, head: int, rows: slice, columns: slice) -> Tensor:
        """Return the exact weights of some queries for some keys, (rows, columns), float32.

        Rows and columns are tokens, counted from 0.

        Raises
        ------
        InputError : the layer was not kept for exact weights, or no such head or part.
        """
        self.of_head(head)
        if self.record is None:
            raise InputError(
                f"layer {self.layer} of this long text was not kept for exact weights. "
                f"Ask for it: attend(text, exact=[{self.layer}])."
            )
        start, stop, _ = rows.indices(len(self.query_axis))
        if start >= stop:
            raise InputError(f"{rows} selects none of the {len(self.query_axis):,} rows.")
        step = max(1, _WEIGHTS // len(self.key_axis))  # whole rows, because softmax needs them
        blocks = [
            self.record.weights(head, slice(first, min(first + step, stop)))[..., columns]
            for first in range(start, stop, step)
        ]
        return torch.cat(blocks)


_WHOLE = "provenance and attentions"  # the name of a digest, which no attention has


def digests_of(attentions: Sequence[Attention]) -> dict[str, str]:
    """Return a digest of each attention, by its module and call."""
    return digests_of_each([attentions])[0]


def digests_of_each(texts: Sequence[Sequence[Attention]]) -> list[dict[str, str]]:
    """Return the digests of each of some texts, which may share weights."""
    found = iter(
        base.digests([
            {name: value for name, value in vars(attention).items() if name != "layers"}
            for attentions in texts
            for attention in attentions
        ])
    )  # fmt: skip
    return [{f"{one.path} {one.call}": next(found) for one in attentions} for attentions in texts]


@base.documented(eq=True)
class Computation(base.Savable):
    """How a model computes, as it was loaded: what its name and its SHA-256 do not say.

    A path is that of a module: "" for the model itself, "*" for every module of the process.
    """

    attention: str = base.doc('The implementation, "sdpa" for example; several with commas.')
    training: bool = base.doc("Whether the model as a whole is in train mode.")
    hooks: tuple[tuple[str, str], ...] = base.doc("Path and function of each hook of the user.")
    forwards: tuple[tuple[str, str], ...] = base.doc("Likewise, of each replaced forward.")
    adapters: tuple[str, ...] = base.doc("The names of the adapters that are active or merged.")
    quantized: dict[str, int] = base.doc("How many layers of each kind are quantized.")
    config: dict[str, tuple[str, str]] = base.doc(
        "Of each field that differs from config.json, its value there and its value here."
    )
    buffers: tuple[str, ...] = base.doc(
        "The names of buffers, saved in no file, that differ from what their class computes.",
        default=(),
        later="0.2",
    )

    @property
    def changes(self) -> str:
        """What the plain model does not have: "1 adapter, 2 hooks"; empty for the plain model."""
        counts = {name: len(parts) for name, parts in self._groups().items()}
        counts["quantized layers"] = sum(self.quantized.values())
        parts = [f"{n} {name if n > 1 else name[:-1]}" for name, n in counts.items() if n]
        return ", ".join([*parts, *(["a changed config"] if self.config else [])])

    @property
    def summary(self) -> str:
        """All of it in one line: "sdpa attention; hooks: steering.add on layers.3"."""
        mode = ", in train mode" if self.training else ""
        config = [f"{name} {old} → {new}" for name, (old, new) in self.config.items()]
        groups = {**self._groups(), "changed config": config}
        parts = [f"{name}: {listed(entries, 80)}" for name, entries in groups.items() if entries]
        return "; ".join([f"{literal(self.attention, 80)} attention{mode}", *parts])

    def _groups(self) -> dict[str, Sequence[str]]:
        names = {"": "the model", "*": "every module"}
        hooks, forwards = (
            [f"{function} on {names.get(path, path)}" for path, function in placed]
            for placed in (self.hooks, self.forwards)
        )
        return {
            "adapters": self.adapters,
            "hooks": hooks,
            "replaced forwards": forwards,
            "quantized layers": [f"{count} {kind}" for kind, count in self.quantized.items()],
            "changed buffers": self.buffers,
        }


@base.documented(eq=True)
class Provenance(base.Savable):
    """Where a result comes from: the weights, the input, and how the model ran.

    What was not given is None.
    """

    model: str = base.doc("The name of the model.")
    weights_sha256: str = base.doc("The digest of its weights.")
    text: str | None = base.doc("The text that it read.")
    pair: str | None = base.doc("The second text of a pair.")
    dtype: str = base.doc("The precision of the model.")
    device: str = base.doc("Its device.")
    versions: dict[str, str] = base.doc("Of attnviz, torch and transformers.")
    target: str | None = base.doc("The text of the decoder of an encoder–decoder.", default=None)
    cut_from: int | None = base.doc("How many tokens a text had before it was cut.", default=None)
    image: str | None = base.doc("The name of an image, with its size.", default=None)
    audio: str | None = base.doc("The name of a sound, with its length.", default=None)
    generated: str | None = base.doc("The text that the model generated.", default=None)
    computation: Computation | None = base.doc("How it computed before the run.", default=None)
    inputs: str | None = base.doc("Arguments of forward, with shapes.", default=None, later="0.2")

    @property
    def model_name(self) -> str:
        """The name of the model as it can be printed: a very long one is clipped."""
        return literal(self.model, 80)

    @property
    def with_changes(self) -> str:
        """What ran beside the plain model, to follow its name: " with 1 hook"; else empty."""
        changes = "" if self.computation is None else self.computation.changes
        return changes and f" with {changes}"


@base.documented
class Waveform(base.Savable):
    """The outline of a sound."""

    seconds: float = base.doc("How long the sound is.")
    extremes: Tensor = base.doc("(B, 2) float32, least and largest sample of B equal parts each.")

    def _rules(self) -> base.Rules:
        yield "a duration", 0 < self.seconds < float("inf")
        yield "two samples of each part", self.extremes.dim() == 2 and self.extremes.shape[1] == 2
        yield "at least one part", len(self.extremes) > 0

    def _number_rules(self) -> base.Rules:
        yield "samples that are finite", bool(self.extremes.isfinite().all())


@base.documented
class NextTokens(base.Savable):
    """The K tokens that a causal language model finds most probable after each of T positions."""

    axis: Axis = base.doc("The positions.")
    ids: Tensor = base.doc("(T, K), the most probable first.")
    labels: tuple[tuple[str, ...], ...] = base.doc("Of the ids, in the tokenizer's vocabulary.")
    probabilities: Tensor = base.doc("(T, K) float32, softmax in float64 over the recorded logits.")

    def __repr__(self) -> str:
        last = zip(self.labels[-1], self.probabilities[-1].tolist(), strict=True)
        return f"NextTokens({', '.join(f'{label!r} {value:.2f}' for label, value in last)})"

    def _rules(self) -> base.Rules:
        shape = len(self.axis), len(self.labels[0]) if self.labels else 0
        yield "tokens for each position", self.ids.shape == shape and self.ids.numel() > 0
        yield "a label for each token", [len(row) for row in self.labels] == [shape[1]] * shape[0]
        yield "a probability for each token", self.probabilities.shape == shape

    def _number_rules(self) -> base.Rules:
        yield "probabilities", bool(((self.probabilities >= 0) & (self.probabilities <= 1)).all())


@base.documented
class AttentionResult(base.Savable):
    """Every attention of one model on one input, with the proof that it is the model's.

    Its numbers are those of `weights()`, of `numpy.asarray(result)`, and with labels of
    `to_frame()`. Where a model has several stacks, they are those of one (`stack`). Iterating gives
    the records in the order of execution. A text that is too long for whole maps has no records,
    but a summary of each attention.

    Examples
    --------
    >>> import attnviz
    >>> result = attnviz.attend("the train left")
    >>> result.layers
    (0, 1, 2, 3, 4, 5)
    >>> result.weights().shape  # layers × heads × queries × keys
    torch.Size([6, 12, 5, 5])
    """

    records: tuple[AttentionRecord, ...] = base.doc("Each attention that the model executed.")
    agreement: AgreementReport = base.doc("How far they are the model's.")
    provenance: Provenance = base.doc("The model and the input.")
    image: Tensor | None = base.doc("As the model saw it, (H, W, 3) uint8, if any.", default=None)
    streamed: tuple[StreamedAttention, ...] = base.doc("Summaries of a long text.", default=())
    notes: tuple[str, ...] = base.doc("On the model and its input.", default=())
    next_tokens: NextTokens | None = base.doc("What a language model predicts.", default=None)
    waveform: Waveform | None = base.doc("The outline of the sound, if any.", default=None)

    def __repr__(self) -> str:
        inputs = (self.provenance.text, self.provenance.image, self.provenance.audio)
        names = [*(repr(name[:40]) for name in inputs if name), self.provenance.model]
        parts = [*names, counted(len(self), "attention"), self.agreement.verdict]
        return f"AttentionResult({', '.join(parts)}{', streamed' if self.streamed else ''})"

    def __post_init__(self) -> None:
        """Check the fields, and bind a new agreement, which knows these attentions, to them."""
        super().__post_init__()
        if not (self.agreement.digests or self.agreement.given or self.agreement.altered):
            object.__setattr__(self, "agreement", replace(self.agreement, altered=True))
        if self.agreement.digests and _WHOLE not in self.agreement.digests:
            self._bind()

    def _bind(self) -> None:
        known = {**self.agreement.digests, _WHOLE: self._digest()}
        object.__setattr__(self, "agreement", replace(self.agreement, digests=known))

    def _digest(self) -> str:
        """Return a digest of where the result comes from, and of what it has beside attentions."""
        names = [(one.stack, one.layer, one.path) for one in self.attentions]
        values: dict[str, Any] = {"provenance": self.provenance, "attentions": names}
        if self.next_tokens is not None:  # older files have none
            values["next_tokens"] = self.next_tokens
        (digest,) = base.digests([values])
        return digest

    def _rules(self) -> base.Rules:
        yield "one attention or more", len(self) > 0
        yield "an image in colors", base.is_image(self.image)
        for part in (*self.records, *filter(None, [self.next_tokens, self.waveform])):
            part.check()

    def _number_rules(self) -> base.Rules:
        records = [*self.records, *(entry.record for entry in self.streamed if entry.record)]
        are_finite = self.agreement.verdict != "verified" or all(r.finite for r in records)
        yield "numbers where it says that they were verified", are_finite

    @property
    def checked_agreement(self) -> AgreementReport:
        """The agreement, which fails if an attention is not one that was checked."""
        checked = self.agreement.digests  # none in results of older versions
        current = {**digests_of(self.attentions), _WHOLE: self._digest()}
        is_altered = checked and any(checked.get(name) != current[name] for name in current)
        return replace(self.agreement, altered=True) if is_altered else self.agreement

    def about(self) -> dict[str, Any]:
        """Return the stacks, the provenance and the agreement, as types of JSON."""
        return {"stacks": list(self.stacks), **base.proof(self)}

    def plot(self, **keywords: Any) -> Any:
        """Draw the attention map of one head: see `attnviz.plot.heatmap`."""
        return attnviz.plot.heatmap(self, **keywords)

    def _repr_html_(self) -> str:
        return base.as_html(self, self.plot)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        def outcome(agrees: bool) -> Text:
            return Text("agrees", "green") if agrees else Text("differs", "bold red")

        agreement = self.checked_agreement
        if agreement.given:
            yield Text(f"{self.provenance.model}: {len(self)} layers", "bold")
            yield from (Text(line, "dim") for line in (agreement.summary(), *self.notes))
            return
        table = Table("stage", "compared", "largest difference", "of what passes", "", box=None)
        for stage in dict.fromkeys([*STAGES, *(check.stage for check in agreement.checks)]):
            if not (checks := [check for check in agreement.checks if check.stage == stage]):
                table.add_row(stage, "0", "not compared", "", "")
                continue
            table.add_row(
                stage,
                f"{sum(check.compared for check in checks):,}",
                f"{agreement.largest_difference(stage):.1e}",
                f"{max(check.strain for check in checks):.0%}",
                outcome(all(check.passed for check in checks)),
            )
        if (output := agreement.output) is not None:
            numbers = f"{output.difference:.1e} of its norm", f"{output.strain:.0%}"
            table.add_row("model output", "", *numbers, outcome(output.passed))
        if (positions := agreement.positions) is not None and positions.doubt is None:
            changed = ", ".join(f"{count} {units}" for units, count in positions.changed.items())
            if positions.layers > 1:
                changed += f", {positions.layers} layers"
            table.add_row("positions", changed, "", "", outcome(positions.passed))
        yield Text(f"{self.provenance.model}, {agreement.dtype}, {agreement.device}", "bold")
        yield table
        for reason in sorted({reason for _, _, reason in agreement.not_compared}):
            yield Text(f"not compared: {reason}")
        if agreement.saved is not None:
            others = [stage for stage in STAGES if stage not in agreement.recomputed]
            recomputed = ", ".join(agreement.recomputed) or "nothing"
            yield Text(
                f"recomputed from the file: {recomputed}; it does not hold the model's own "
                f"{', '.join(others)}, which were compared before it was saved"
            )
        yield from (Text(note, "dim") for note in self.notes)
        if (computation := self.provenance.computation) is not None:
            yield Text(f"model as loaded: {computation.summary}")
        caught = len(self) - len(agreement.unproven)
        yield Text(f"a scale 1 % off, planted on purpose: caught in {caught} of {len(self)} layers")

    def __iter__(self) -> Iterator[AttentionRecord]:
        return iter(one_result(self).records)

    def __len__(self) -> int:
        return len(self.attentions)

    @property
    def attentions(self) -> tuple[AttentionRecord, ...] | tuple[StreamedAttention, ...]:
        """The records, or the summaries of a long text."""
        return self.streamed or self.records

    @property
    def stacks(self) -> tuple[str, ...]:
        """The stacks of the model, in the order of execution: "encoder", "decoder", "cross"."""
        return tuple(dict.fromkeys(attention.stack for attention in self.attentions))

    def stack(self, name: str | None = None) -> AttentionResult:
        """Return the same result with the records of one stack.

        Parameters
        ----------
        name : str or None
            One of `stacks`; by default "cross" if there is one, since it relates the two texts of
            an encoder–decoder, else the first.

        Raises
        ------
        InputError
            There is no such stack.
        """
        if name is None:
            name = "cross" if "cross" in self.stacks else self.stacks[0]
        expect_names([name], self.stacks, f"a stack of {self.provenance.model}")
        if self.stacks == (name,):
            return self
        return self._part(lambda attention: attention.stack == name)

    def at(self, layers: Sequence[int]) -> AttentionResult:
        """Return the same result with some layers; InputError where one does not exist."""
        numbers = {self.layer(layer).layer for layer in layers}
        return self._part(lambda attention: attention.layer in numbers)

    def without_linear(self, what: str) -> AttentionResult:
        """Return the same result with the records of softmax attention only.

        what : needs a softmax, for the message, as in "steps need".
        InputError: the model has linear attention only.
        """
        signed = [record.signed for record in self.records]
        if not any(signed):
            return self
        if not all(signed):
            return self._part(lambda attention: not attention.signed)
        raise InputError(
            f"{what[0].upper()}{what[1:]} attention with a softmax, but {self.provenance.model} "
            "has linear attention only. Draw its maps with heatmap or heads."
        )

    def _part(self, keeps: Callable[[Any], bool]) -> AttentionResult:
        """Return the same result with some of its attentions, bound as this one is."""
        records, streamed = filter(keeps, self.records), filter(keeps, self.streamed)
        part = replace(self, records=tuple(records), streamed=tuple(streamed))
        if self.agreement.digests.get(_WHOLE) == self._digest():
            part._bind()
        return part

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers of the default stack, or those that were kept of a long text."""
        return tuple(attention.layer for attention in self.stack().attentions)

    def record(self, layer: int) -> AttentionRecord:
        """Return the record of a layer, of the default stack if there are several (`stack`).

        Raises
        ------
        InputError
            There is no such layer, or only its summary was kept.
        """
        if isinstance(attention := self.layer(layer), AttentionRecord):
            return attention
        raise InputError(_TOO_LONG.format(len(attention.query_axis)))

    def layer(self, layer: int) -> AttentionRecord | StreamedAttention:
        """Return the record of a layer, or its summary where the text is long; -1 is the last.

        Raises
        ------
        InputError
            There is no such layer.
        """
        attentions, layer = self.stack().attentions, whole_number(layer, "a layer")
        stack = attentions[0].stack
        checked = {check.layer for check in self.agreement.checks if check.stack == stack}
        numbers = sorted(checked.union(self.layers))
        layer = from_end(layer, numbers)
        for attention in attentions:
            if attention.layer == layer:
                return attention
        if layer in checked:
            layers = ", ".join(map(str, self.layers))
            raise InputError(
                f"layer {layer} was not kept, only {layers}. "
                f"Ask for it: attend(text, layers=[{layer}])."
            )
        last = len(numbers) - 1
        listed = f"0–{last}" if numbers == [*range(last + 1)] else ", ".join(map(str, numbers))
        raise InputError(
            f"layer {layer} is out of range: {self.provenance.model} has layers {listed}."
        )

    @property
    def heads(self) -> tuple[int, ...]:
        """The heads of the layers, counted from 0, or those that were kept of a long text."""
        return tuple(sorted({head for one in self.stack().attentions for head in one.kept}))

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens of the queries, without padding: the rows of `weights`."""
        return token_groups(self.stack().attentions[0].query_axis, words=False).labels

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the queries and the special tokens: the rows of a map of words."""
        return token_groups(self.stack().attentions[0].query_axis).labels

    def weights(self, layer: int | None = None, head: int | None = None) -> Tensor:
        """Return the weights between tokens, without padding, on the CPU.

        Parameters
        ----------
        layer : int or None
            One layer, -1 for the last; by default all.
        head : int or None
            One head; by default all.

        Returns
        -------
        Tensor
            (layers, heads, m, n), without the first two dimensions where a layer or a head is
            chosen.

        Raises
        ------
        InputError
            There is no such layer or head, the layers differ in shape and none is chosen, or only
            summaries were kept.
        """
        return self._labeled(layer, head, words=False)[1]

    def to_frame(
        self, *, layer: int | None = None, head: int | None = None, words: bool = True
    ) -> pd.DataFrame:
        """Return the weights as a table.

        Parameters
        ----------
        layer, head : int or None
            As in `weights`.
        words : bool, default True
            Whether to merge word pieces into words, as figures do; `weights` has tokens.

        Returns
        -------
        pandas.DataFrame
            Queries × keys where a layer and a head are chosen. Else a long table, one row for each
            weight: layer, head, query, key, weight, and the positions of query and key, since
            labels may be the same.
        """
        dimensions, weights = self._labeled(layer, head, words=true_or_false(words, "words"))
        if len(dimensions) == 2:
            return base.wide_table(weights, *dimensions.values())
        import pandas as pd

        return pd.DataFrame(base.stacked(dimensions, {"weight": weights}))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.weights().numpy(), dtype, copy=copy)

    def _labeled(
        self, layer: int | None, head: int | None, *, words: bool
    ) -> tuple[dict[str, Sequence[Any]], Tensor]:
        """Return the labels along each dimension of the weights, by its name, and the weights."""
        stack = one_result(self).stack()
        records = stack.records if layer is None else (stack.record(layer),)
        first = records[0]
        if len({(record.heads, record.size) for record in records}) > 1:
            raise InputError(
                "The layers differ in their heads or positions. Choose one: "
                f"layer={first.layer}, for example."
            )
        if head is not None:
            stack.check_head(first.layer, head)
        rows = token_groups(first.query_axis, words=words)
        columns = token_groups(first.key_axis, words=words)
        weights = torch.stack([merge(r.weights(head), rows, columns).cpu() for r in records])
        dimensions: dict[str, Sequence[Any]] = {"query": rows.labels, "key": columns.labels}
        if head is None:
            dimensions = {"head": range(first.heads), **dimensions}
        if layer is None:
            return {"layer": [record.layer for record in records], **dimensions}, weights
        return dimensions, weights[0]

    def check_head(self, layer: int, head: int) -> None:
        """Raise InputError unless the layer has this head."""
        attention, head = self.layer(layer), whole_number(head, "a head")
        if not 0 <= head < attention.heads:
            raise InputError(
                f"head {head} is out of range: layer {layer} of {self.provenance.model} has heads "
                f"0–{attention.heads - 1}."
            )
        if isinstance(attention, StreamedAttention):
            attention.of_head(head)


def one_result(value: object, *, streamed: bool = False) -> AttentionResult:
    """Return one result as it is, of a long text if `streamed`; InputError for anything else."""
    if isinstance(value, AttentionResult):
        if value.streamed and not streamed:
            raise InputError(_TOO_LONG.format(len(value.streamed[0].query_axis)))
        return value
    if isinstance(value, list):
        raise InputError(f"A list of {len(value)} is not one result. Choose one: results[0].")
    raise InputError(f"{type(value).__name__} is not a result of attend. Make one: attend(text).")
