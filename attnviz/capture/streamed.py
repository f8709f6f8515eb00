"""A long text: the map of every head is reduced while the model runs, and never stored.

The untouched model runs first, under its own fused attention. Fused attention never returns its
weights, but the model's own eager function computes them for a few rows, from the same queries and
keys; comparing the outputs of both shows that they compute the same. Then the model runs again with
our attention, which computes its output and reduces the weights. In both runs each attention is
passed on and released before the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.capture.attention_interface import AttentionCallArgs, MaskRuleCache
from attnviz.capture.projections.match import match_projections
from attnviz.capture.stacks import StackCounter
from attnviz.capture.tracing.provenance import Softmax
from attnviz.capture.tracing.tracer import SoftmaxCollector
from attnviz.capture.watch import (
    ModuleWatcher,
    RepeatedRun,
    minimal_run,
    model_lock,
    watch,
    weights_in_memory,
)
from attnviz.errors import InputError, ModelError
from attnviz.results import AttentionRecord, Axis, MapSummary, Reference
from attnviz.runtime.compat import SOFTMAX, outside_dispatch_modes, supports_fused_attention
from attnviz.runtime.progress import part
from attnviz.streaming import ScoreSpec, attend

_FUSED = ("scaled_dot_product", "flash_attention", "efficient_attention")  # torch's operators


@dataclass(frozen=True)
class ReductionOptions:
    """What to compute of each attention."""

    layers: Collection[int] | None = None  # None for all
    heads: Sequence[int] | None = None
    cells: int = 512  # as in `attnviz.streaming.summarise`, with top and marked
    top: int = 0
    marked: Tensor | None = None
    exact: Collection[int] = ()  # the layers whose records are stored too, for exact weights


@dataclass(frozen=True, eq=False)
class Sample:
    """Some rows of one attention, as the model computed them."""

    record: AttentionRecord  # all that its weights follow from, its mask as a rule
    # Weights and scores (H, R, n), head_output (H, R, d_v) and output (R, d_model) of R rows.
    reference: Reference
    gated: bool  # whether sinks gate the output, and are no column of the softmax


@dataclass(frozen=True, eq=False)
class AttentionTemplate:
    """An attention that a model executes: its record without tensors, which each text fills in."""

    record: AttentionRecord
    heads: int  # how many
    gated: bool  # as in `Sample`

    @classmethod
    def of(cls, sample: Sample) -> AttentionTemplate:
        """Return the template of a sample: nothing that grows with the text but its axes."""
        empty: dict[str, Any] = dict.fromkeys(
            ("capped_bias", "bias", "mask", "input", "rotation", "projection", "visible")
        ) | {name: torch.empty(0) for name in ("query", "key", "value")}
        return cls(replace(sample.record, **empty), sample.record.heads, sample.gated)


@dataclass(frozen=True, eq=False)
class ReducedAttention:
    """One attention of a run: all that its weights follow from, and their summary."""

    record: AttentionRecord
    attended: Tensor  # (H, m, d_v), the attention vectors of all heads
    summary: MapSummary  # the reduced maps of `heads`, in this order
    heads: tuple[int, ...]
    layers: int  # of its stack


def capture_streamed(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    axes: Mapping[str, Sequence[Axis]],
    rows: Tensor,
    options: ReductionOptions,
    on_sample: Callable[[Sample], None],
    on_reduced: Callable[[ReducedAttention], None],
) -> None:
    """Run `model` twice on one text, and pass on each attention when it is executed.

    rows : (R,), the queries whose weights the model itself computes, ascending. on_sample : takes
    them for each attention of the first run, outside the dispatch mode that monitors the model.
    on_reduced : takes each attention of the second run.
    """
    with model_lock:
        with part(0, 2, "the model reads"):
            templates = sample_rows(model, inputs, axes, rows, on_sample)
        layers = {template.record.layer for template in templates}
        heads = range(min(template.heads for template in templates))
        _expect_existing("layer", (*(options.layers or ()), *options.exact), layers)
        _expect_existing("head", options.heads or (), heads)
        with part(1, 2, "its maps are reduced"):
            stream_maps(model, inputs, templates, options, on_reduced)


def _expect_existing(kind: str, numbers: Collection[int], existing: Collection[int]) -> None:
    """Raise InputError for a layer or a head that the model does not have."""
    for number in numbers:
        if number not in existing:
            raise InputError(
                f"{kind.capitalize()} {number} is out of range: the model has {kind}s "
                f"0–{max(existing)}."
            )


def sample_rows(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    axes: Mapping[str, Sequence[Axis]],
    rows: Tensor,
    on_sample: Callable[[Sample], None],
) -> list[AttentionTemplate]:
    """Run the untouched model and pass on some rows of every attention; return the templates."""
    templates: list[AttentionTemplate] = []

    def pass_on(sample: Sample) -> None:
        templates.append(AttentionTemplate.of(sample))
        on_sample(sample)

    watch(
        model,
        minimal_run(model, inputs),
        lambda model: _RowSampler(model, axes, rows, pass_on),
        fused=supports_fused_attention(model),
    )
    return templates


def stream_maps(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    templates: Sequence[AttentionTemplate],
    options: ReductionOptions,
    on_reduced: Callable[[ReducedAttention], None],
) -> None:
    """Run a model with our attention instead of its own, and pass on the reduced maps."""
    rules = MaskRuleCache()
    stacks = Counter(template.record.stack for template in templates)

    def reduce(args: AttentionCallArgs, number: int) -> Any:
        template = templates[number]
        with part(number, len(templates)):
            if options.layers is not None and template.record.layer not in options.layers:
                return args.output(), None
            record = replace(template.record, **rules.terms(args))
            output, summary = _reduce(record, options)
            heads = range(record.heads) if options.heads is None else options.heads
            on_reduced(
                ReducedAttention(record, output, summary, tuple(heads), stacks[record.stack])
            )
        if template.gated:  # more enters the output than weights and values
            return args.output(), None
        return output.to(args.value).transpose(0, 1)[None].contiguous(), None

    paths = [template.record.path for template in templates]
    watch(
        model,
        minimal_run(model, inputs),
        lambda model: RepeatedRun(model, paths, reduce),
        fused=supports_fused_attention(model),
    )


def _reduce(record: AttentionRecord, options: ReductionOptions) -> tuple[Tensor, MapSummary]:
    """Return the attention vectors (H, m, d_v) of all heads, and the summary of some."""
    spec = ScoreSpec.of(record)
    marked = None if options.marked is None else options.marked.to(record.query.device)
    return attend(
        spec,
        record.value,
        heads=options.heads,
        cells=options.cells,
        top=options.top,
        marked=marked,
    )


# -------------------------------------------------------------------------- rows of the first run


class _CoverageMonitor(SoftmaxCollector):  # type: ignore[no-untyped-call]
    """Notices attention outside the interface: a whole softmax, or a fused operator."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length = length
        self.missed = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if self.is_collecting:
            return self.run_and_collect(func, args, kwargs)
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in SOFTMAX:
            whole = result.dim() > 2 and min(result.shape[-2:]) >= self._length
            self.missed = self.missed or whole
        elif any(operator in name for operator in _FUSED):
            self.missed = True
        return result


class _RowSampler(ModuleWatcher):
    """Samples some rows of every attention of a run, one attention at a time."""

    def __init__(
        self,
        model: nn.Module,
        axes: Mapping[str, Sequence[Axis]],
        rows: Tensor,
        on_sample: Callable[[Sample], None],
    ) -> None:
        super().__init__(model, texts=1)
        self._rows, self._on_sample = rows, on_sample
        self._length = len(axes["text"][0])
        self.mode = self._monitor = _CoverageMonitor(self._length)
        self._rules = MaskRuleCache()
        self._calls: Counter[str] = Counter()
        self._stacks = StackCounter({kind: text_axes[0] for kind, text_axes in axes.items()})
        self._pending: Sample | None = None
        # The sampled rows of the input and the output of W^O in the pending attention.
        self._output_rows: dict[nn.Module | None, tuple[Tensor | None, Tensor | None]] = {}

    def on_call(self, args: AttentionCallArgs) -> Any:
        """Call the model's own functions: the fused one for all rows, the eager one for some."""
        self._pass_on()
        self._rows = self._rows.to(args.query.device)
        path = self.paths[args.module]
        whole = args.query.shape[0] == 1 and args.query.shape[2] == self._length
        if not whole or args.arguments.get("indices") is not None:
            raise ModelError(
                f"{path} cuts or selects the {self._length:,} tokens of the text. Give a shorter "
                'text with mode="full", or choose another model.'
            )
        with part(self._calls.total(), max(1, len(self.modules))):
            with self._monitor.collect_softmaxes():
                output = args.output()
            with self._monitor.collect_softmaxes() as softmaxes:
                args.call_eager(self._rows)
        if len(softmaxes) != 1:
            raise ModelError(
                f"{path} computes {len(softmaxes)} softmaxes instead of one. Choose another "
                'model, or a shorter text with mode="full".'
            )
        self._pending = self._sample(path, args, softmaxes[0], output)
        return output, None

    def finish(self) -> None:
        """Pass on the last sample, or raise ModelError for an attention that was missed."""
        self._pass_on()
        if not self._calls or self._monitor.missed:
            raise ModelError(
                f"{type(self.model).__name__} computes some attention without transformers' "
                'attention interface. Give a shorter text with mode="full", or choose another '
                "model."
            )

    def on_output(self, module: nn.Module, merged_heads: Any, output: Any) -> None:
        """Note the sampled rows of the input and the output of W^O."""
        self._output_rows[module] = self._select_rows(merged_heads), self._select_rows(output)

    def _select_rows(self, hidden: Any) -> Tensor | None:
        """Return the sampled rows of (1, m, d) or (m, d)."""
        if not isinstance(hidden, Tensor) or hidden.shape[:-1].numel() != self._length:
            return None
        return hidden.reshape(self._length, -1)[self._rows].clone()

    def _sample(
        self, path: str, args: AttentionCallArgs, softmax: Softmax, output: Tensor
    ) -> Sample:
        n, sinks, inputs = args.shape[2], args.sinks, self.inputs_of(args.module)
        gated = sinks is not None and softmax.weights.shape[-1] == n
        # In blocks the output comes from the function that made the rows: no reference.
        independent = not gated and not args.in_blocks
        head_output = output[0, self._rows].transpose(0, 1) if independent else None
        weights, scores = softmax.weights[0, ..., :n], softmax.scores[0, ..., :n]
        causal = self._rules.is_causal(args)
        position = self._stacks.place(path, self._length, n, cross=False, causal=causal)
        rotation = inputs.rotation
        record = AttentionRecord(
            path=path,
            call=self._calls[path],
            **position,
            scale=args.scale,
            soft_cap=args.arguments.get("softcap"),
            sinks=None if gated or sinks is None else sinks.flatten(),
            input=None if inputs.input is None else inputs.input[0],
            rotation=None if rotation is None else (rotation[0][0], rotation[1][0]),
            **self._rules.terms(args),
        )
        self._calls[path] += 1
        return Sample(record, Reference(weights, scores, head_output, None), gated)

    def _pass_on(self) -> None:
        """Pass on the sample of the attention that ran last, with the output of its W^O."""
        if self._pending is None:
            return
        sample, self._pending = self._pending, None
        record, heads = sample.record, sample.reference.head_output
        with outside_dispatch_modes():
            merged, output = self._output_rows.pop(self.outputs[record.path], (None, None))
            if heads is None or merged is None or merged.numel() != heads.numel():
                merged, output = None, None
            else:
                merged = merged.reshape(len(self._rows), len(heads), -1).transpose(0, 1)
            # The sampled positions show how the module makes Q, K, V and its output.
            module = self.modules.get(record.path)
            with weights_in_memory([module]):
                matched = match_projections(record.at(self._rows), module, heads, merged)
            completed = replace(
                sample,
                record=replace(record, projection=matched.projection),
                reference=replace(sample.reference, output=output),
            )
            self._on_sample(completed)
