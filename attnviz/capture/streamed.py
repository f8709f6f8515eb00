"""A long text: the map of every head is reduced while the model runs, and never stored.

The untouched model runs once, under its own fused attention, which never returns its weights. From
the same queries, keys and values the model's own eager function computes the weights of a few rows,
and our engine reduces the whole maps. Each attention is passed on and released before the next.

Linear attention has pooled maps, from calls with the same value in many positions. A column is what
comes out where the values of one cell of tokens are 1 and all others 0. So neither M nor a row of
it is stored. Which functions are linear is learned from the first tokens of the text.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.capture import watch
from attnviz.capture.attention_interface import AttentionCallArgs, from_arguments
from attnviz.capture.calls import FunctionCall, watching_functions
from attnviz.capture.capture import of_text, to_linear_record, to_record, without_memory_of
from attnviz.capture.linear import LinearCalls, LinearMixing, notes_on_unshown
from attnviz.capture.positions import StackCounter
from attnviz.capture.projections.match import Executed, match_projections, reproduced
from attnviz.capture.recorder import AttentionCall
from attnviz.capture.search import plan_for, record_runs
from attnviz.capture.tracing.provenance import Softmax
from attnviz.capture.tracing.tracer import SoftmaxCollector
from attnviz.errors import InputError, ModelError
from attnviz.formula.attention import HIDDEN, additive_mask
from attnviz.results import (
    AttentionRecord,
    Axis,
    LinearAttention,
    LinearReference,
    MapSummary,
    MaskRule,
    Reference,
)
from attnviz.runtime import compat, part
from attnviz.streaming import ScoreSpec, attend

_LINEAR_START = 64  # tokens, from which is learned what is linear
_START = 256  # tokens, for which the output is compared with that of the model as loaded
_FUSED = ("scaled_dot_product", "flash_attention", "efficient_attention")  # torch's operators


@dataclass(frozen=True)
class ReductionOptions:
    """What to compute of each attention."""

    layers: Collection[int] | None = None  # None for all
    heads: Sequence[int] | None = None
    cells: int = 512  # as in `attnviz.streaming.attend`, with top and marked
    top: int = 0
    marked: Tensor | None = None
    exact: Collection[int] = ()  # the layers whose records are stored too, for exact weights


@dataclass(frozen=True, eq=False)
class Sample:
    """One attention of a run, and some of its rows as the model computed them."""

    record: AttentionRecord  # all that its weights follow from, its mask as a rule
    part: AttentionRecord  # Q, K, V and inputs of R positions, which show the projections
    # Weights and scores (H, R, n), head_output (H, R, d_v) and output (R, d_model) of R rows.
    reference: Reference


@dataclass(frozen=True, eq=False)
class ReducedAttention(Sample):
    """A sampled attention, and the reduced maps of some of its heads."""

    heads: tuple[int, ...]
    summary: MapSummary  # in the order of the heads
    signed_sums: Tensor  # (heads, m), the features of our attention vectors with random signs
    model_sums: Tensor | None  # of the model's own; None if not only weights and values enter it
    longest: Tensor  # (heads,), the norm of the model's longest attention vector
    fused: bool  # whether the model's scores were not rounded to its precision


def capture_streamed(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    axes: Mapping[str, Sequence[Axis]],
    rows: Tensor,
    options: ReductionOptions,
    on_attention: Callable[[Sample], None],
) -> None:
    """Run the untouched `model` on one text, and pass on each attention when it was executed.

    rows : (R,), the queries whose weights the model itself computes, ascending. on_attention :
    takes each attention, a `ReducedAttention` if its layer is to be reduced, outside the dispatch
    mode that monitors the model.
    """
    with part(0, 1, "the model reads"):
        watcher = watch.watch(
            model,
            watch.minimal_run(model, inputs),
            lambda model: _StreamedRun(model, axes, rows, options, on_attention),
            fused=compat.supports_fused_attention(model),
        )
    _expect_existing("layer", (*(options.layers or ()), *options.exact), watcher.layers)


def outputs_of_start(model: nn.Module, inputs: Mapping[str, Tensor]) -> watch.Outputs:
    """Return the outputs for the first tokens of a long text, read as in `capture_streamed`."""
    start = {name: tensor[:, :_START] for name, tensor in inputs.items()}
    tokens = max(tensor.shape[1] for tensor in start.values())
    run = watch.minimal_run(model, start)
    fused = compat.supports_fused_attention(model)
    restoring = watch.restoring(model, "sdpa" if fused else "eager")
    with torch.no_grad(), restoring, watch.model_errors(model):
        recorded = watch.output_of(model, run)
    return replace(watch.outputs_beside(model, run, recorded), tokens=tokens)


def _expect_existing(kind: str, numbers: Collection[int], existing: Collection[int]) -> None:
    for number in numbers:
        if number not in existing:
            raise InputError(
                f"{kind.capitalize()} {number} is out of range: the model has {kind}s "
                f"0–{max(existing)}."
            )


class _CoverageMonitor(SoftmaxCollector):  # type: ignore[no-untyped-call]
    """Notices attention outside the interface: a whole softmax, or a fused operator."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length = length
        self.missed = False
        # Of each fused operator in an attention function on a GPU: its arguments and its results.
        self.fused: list[tuple[dict[str, Any], Tensor, Tensor]] = []

    def attend(self, func: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if not (name.startswith(compat.FUSED_ATTENTION) and args[0].is_cuda):
            return super().attend(func, name, args, kwargs)
        given = compat.arguments_of(func, args, kwargs)
        given |= dict.fromkeys({"compute_log_sumexp"} & given.keys(), True)
        result = func(**given)
        self.fused.append((given, result[0], result[1]))
        return result

    def known(self, args: AttentionCallArgs) -> tuple[Tensor, Tensor] | None:
        """Return the vectors (H, m, d_v) and log-sum-exp (H, m) of the one operator for `args`.

        None if it did not read the queries themselves. What else it read, the sums of all rows and
        the sampled rows show.
        """
        if len(self.fused) != 1:
            return None
        ((given, output, lse),), (H, m, _) = self.fused, args.shape
        read, own = ((x.data_ptr(), x.shape, x.stride()) for x in (given["query"], args.query))
        if read != own or given.get("dropout_p"):
            return None
        return output[0], lse.reshape(H, -1)[:, :m]

    def run(self, func: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if name in compat.SOFTMAX:
            self.missed |= result.dim() > 2 and min(result.shape[-2:]) >= self._length
        self.missed |= any(operator in name for operator in _FUSED)
        return result


class _StreamedRun(watch.ModuleWatcher):
    """Samples some rows of every attention of a run and reduces its maps, one at a time."""

    def __init__(
        self,
        model: nn.Module,
        axes: Mapping[str, Sequence[Axis]],
        rows: Tensor,
        options: ReductionOptions,
        on_attention: Callable[[Sample], None],
    ) -> None:
        super().__init__(model, texts=1)
        self.layers: set[int] = set()
        self._rows, self._options, self._on_attention = rows, options, on_attention
        self._length = len(axes["text"][0])
        self.mode = self._monitor = _CoverageMonitor(self._length)
        # Which keys the queries may read, computed once for each mask, which is stored too, so that
        # its id stays its own.
        self._rules: dict[object, tuple[Tensor | None, MaskRule | None]] = {}
        self._calls: Counter[str] = Counter()
        self._stacks = StackCounter({kind: text_axes[0] for kind, text_axes in axes.items()})
        self._pending: Sample | None = None
        # By the class of a module, the stages whose form reproduced an earlier layer.
        self._reproduced: defaultdict[type | None, set[str]] = defaultdict(set)
        # The sampled rows of the input and the output of W^O in the pending attention.
        self._output_rows: dict[nn.Module | None, tuple[Tensor | None, Tensor | None]] = {}

    def on_call(self, args: AttentionCallArgs) -> Any:
        self._pass_on()
        self._rows = self._rows.to(args.query.device)
        path = self.paths[args.module]
        whole = args.query.shape[0] == 1 and args.query.shape[2] == self._length
        if not whole or args.arguments.get("indices") is not None:
            raise ModelError(
                f"{path} cuts or selects the {self._length:,} tokens of the text. Give a shorter "
                'text with mode="full", or choose another model.'
            )
        _expect_existing("head", self._options.heads or (), range(args.shape[0]))
        with part(self._calls.total(), max(1, len(self.modules))):
            self._monitor.fused.clear()
            with self._monitor.collect_softmaxes():
                output = args.output()
            with self._monitor.collect_softmaxes() as softmaxes:
                args.call_eager(self._rows)
            if len(softmaxes) != 1:
                raise ModelError(
                    f"{path} computes {len(softmaxes)} softmaxes instead of one. Choose another "
                    'model, or a shorter text with mode="full".'
                )
            with compat.outside_dispatch_modes():
                self._pending = self._take(path, args, softmaxes[0], output)
        return output, None

    def finish(self) -> None:
        self._monitor.missed |= not self._calls
        self._pass_on()

    def on_output(self, module: nn.Module, merged_heads: Any, output: Any) -> None:
        self._output_rows[module] = self._select_rows(merged_heads), self._select_rows(output)

    def _select_rows(self, hidden: Any) -> Tensor | None:
        """Return the sampled rows of (1, m, d) or (m, d)."""
        if not isinstance(hidden, Tensor) or hidden.shape[:-1].numel() != self._length:
            return None
        return hidden.reshape(self._length, -1)[self._rows].clone()

    def _take(self, path: str, args: AttentionCallArgs, softmax: Softmax, output: Tensor) -> Sample:
        """Return some rows of an attention, output (1, m, H, d_v), maybe with its reduced maps."""
        n, rule, inputs = args.shape[2], self._rule_of(args), self.inputs_of(args.module)
        attention = from_arguments(args, softmax, output)
        gated = attention.head_output is None
        # In blocks the output comes from the function that made the rows: no reference.
        vectors = None if args.in_blocks else attention.head_output
        vectors = None if vectors is None else vectors[:, :, self._rows]
        mask = None if rule or attention.mask is None else attention.mask
        mask = None if mask is None else additive_mask(mask, args.query.dtype)
        is_later = mask is not None and (mask > HIDDEN).triu(1 + n - self._length).any()
        causal = not is_later if rule is None else rule.after == 0
        attention = replace(attention, mask=mask, head_output=vectors)
        inputs = replace(inputs, key_input=None)
        call = AttentionCall(path, self._calls[path], attention, inputs, None, True, None, None)
        one: AttentionCall = of_text(call, 0)
        record = replace(to_record(one, self._stacks, is_causal=causal), visible=rule)
        self._calls[path] += 1
        self.layers.add(record.layer)
        part = replace(record, mask=None, visible=None, bias=None).at(self._rows)
        values = one.attention.weights, one.attention.scores, one.attention.head_output
        sample = Sample(record, part, Reference(*values, None))
        if self._options.layers is not None and record.layer not in self._options.layers:
            return sample
        return self._reduce(sample, args, output, gated=gated)

    def _reduce(
        self, sample: Sample, args: AttentionCallArgs, output: Tensor, *, gated: bool
    ) -> ReducedAttention:
        """Reduce the maps of an attention; `output` (1, m, H, d_v) is the model's own."""
        record, options, known = sample.record, self._options, self._monitor.known(args)
        heads = tuple(options.heads or range(record.heads))
        spec, value = ScoreSpec.of(record), record.value
        if options.heads is not None:
            spec, value = spec.select_heads(heads), spec.of_heads(value, heads)
            known = known and (known[0][list(heads)], known[1][list(heads)])
        device, width = value.device, value.shape[-1]
        chance = torch.Generator("cpu").manual_seed(record.layer)
        signs = 2.0 * torch.randint(2, (width, 1), generator=chance, device="cpu") - 1
        signs = signs.to(device)
        vectors, lse = known or (None, None)
        sums, summary = attend(
            spec,
            value.float() @ signs if vectors is None else None,  # at a fraction of all features
            cells=options.cells,
            top=options.top,
            marked=None if options.marked is None else options.marked.to(device),
            lse=lse,
        )
        own = output[0].transpose(0, 1)[list(heads)].float()
        return ReducedAttention(
            record,
            sample.part,
            sample.reference,
            heads,
            summary,
            signed_sums=(sums if vectors is None else vectors.float() @ signs)[..., 0],
            model_sums=None if gated else (own @ signs)[..., 0],
            longest=own.norm(dim=-1).amax(1),
            fused=args.fused and not args.in_blocks,
        )

    def _rule_of(self, args: AttentionCallArgs) -> MaskRule | None:
        """Return the rule that an attention follows, or None for a mask that follows none."""
        mask, expanded, (_, m, n) = args.mask, args.expanded_mask, args.shape
        if mask is None or expanded is None:
            rule = MaskRule(after=0 if args.is_causal else None, offset=n - m)
            return self._rules.setdefault((rule.after, rule.offset), (None, rule))[1]
        if mask.shape[1] > 1:
            return None
        if id(mask) not in self._rules:
            self._rules[id(mask)] = mask, MaskRule.of(expanded[0, 0])
        return self._rules[id(mask)][1]

    def _pass_on(self) -> None:
        """Complete the pending attention; raise ModelError where another one was missed."""
        if self._monitor.missed:
            raise ModelError(
                f"{type(self.model).__name__} computes some attention without transformers' "
                'attention interface. Give a shorter text with mode="full", or choose another '
                "model."
            )
        if self._pending is None:
            return
        sample, self._pending = self._pending, None
        record, heads = sample.record, sample.reference.head_output
        with compat.outside_dispatch_modes():
            merged, output = self._output_rows.pop(self.outputs[record.path], (None, None))
            if heads is None or merged is None or merged.numel() != heads.numel():
                merged, output = None, None
            else:
                merged = merged.reshape(len(self._rows), len(heads), -1).transpose(0, 1)
            # The sampled positions show how the module makes Q, K, V and its output.
            module = self.modules.get(record.path)
            with watch.weights_in_memory([module]):
                batch = record.input, record.key_input
                kind = None if module is None else type(module.module)
                known = self._reproduced[kind] & (frozenset() if module is None else module.known)
                executed = Executed(sample.part, module, heads, merged, batch, known)
                (matched,) = match_projections([executed])
                self._reproduced[kind] |= reproduced(matched)
            completed = replace(
                sample,
                part=matched,
                record=replace(record, projection=matched.projection),
                reference=replace(sample.reference, output=output),
            )
            self._on_attention(completed)


@dataclass(frozen=True, eq=False)
class LinearLayers:
    """The linear attention of a model, as its run on the first tokens of a text shows it."""

    calls: LinearCalls  # which calls are linear in their values
    modules: tuple[str, ...]  # the class of each layer's module
    heads: int  # of all layers together
    is_all: bool  # whether the model has no softmax attention
    notes: tuple[str, ...]  # on layers that are neither


def linear_calls(model: nn.Module, inputs: Mapping[str, Tensor]) -> LinearLayers | None:
    """Return what is linear attention in a model; None if its first tokens show no attention.

    The first long text of a model shows it.
    """
    start = {name: tensor[:, :_LINEAR_START] for name, tensor in inputs.items()}
    known: dict[object, LinearLayers] = plan_for(model).linear
    shapes = tuple((name, tensor.shape) for name, tensor in start.items())
    if shapes in known:
        return known[shapes]
    run = watch.minimal_run(model, start)
    try:
        (recording,) = record_runs(model, 1, run)
    except ModelError:
        return None
    shown = {one.path for one in recording.calls} | {one.path for one in recording.linear}
    known[shapes] = LinearLayers(
        recording.linear_calls,
        modules=tuple(mixing.module for mixing in recording.linear),
        heads=sum(mixing.values.shape[1] for mixing in recording.linear),
        is_all=not (recording.calls or compat.supports_fused_attention(model)),
        notes=notes_on_unshown(model, run, shown),
    )
    return known[shapes]


def capture_pooled(
    model: nn.Module, inputs: Mapping[str, Tensor], axis: Axis, known: LinearCalls, cell: int
) -> tuple[tuple[LinearAttention, ...], tuple[LinearReference, ...]]:
    """Run the untouched `model` twice on one text, and return the pooled maps of every layer.

    The records are from the first run, the references from the second.

    axis : the tokens. known : those of `linear_calls`. cell : how many tokens are pooled.
    """
    run, pooled = watch.minimal_run(model, inputs), partial(_PooledRun, known=known, cell=cell)
    first, second = (
        watch.watch(model, run, partial(pooled, is_first=seed == 0), seed=seed).mixtures
        for seed in (0, 1)
    )
    watch.expect_same(
        model, *([f"{one.path} {one.function}" for one in run] for run in (second, first))
    )
    starts = range(0, len(axis), cell)
    cells = Axis.plain(
        [axis.labels[start] for start in starts],
        special=[all(axis.special[start : start + cell]) for start in starts],
    )
    stacks, own = StackCounter({"text": cells}), without_memory_of(model)
    records = tuple(
        replace(to_linear_record(mixing, 0, stacks), text=axis, cell=cell) for mixing in first
    )
    references = tuple(of_text(one.reference, 0) for one in second)
    return own(records), own(references)


class _PooledRun(watch.ModuleWatcher):
    """Reads the pooled maps of one run, or what they are compared with."""

    def __init__(self, model: nn.Module, known: LinearCalls, cell: int, *, is_first: bool) -> None:
        super().__init__(model, texts=1)
        self._known, self._cell, self._is_first = known, cell, is_first
        self.mixtures: list[LinearMixing] = []
        self.mode = watching_functions(model, lambda: len(self.mixtures), self._on_function)

    def on_call(self, args: AttentionCallArgs) -> tuple[Tensor, Tensor | None]:
        raise ModelError(
            f"{self.paths[args.module]} attends by a softmax in a long text only. Give a shorter "
            'text with mode="full", or choose another model.'
        )

    def _on_function(self, call: FunctionCall, result: Tensor, before: int) -> None:
        """Read a call that mixes values linearly, in place of those that it made itself."""
        if not self.running or result.dim() < 3:
            return
        with compat.outside_dispatch_modes():
            layout = self._known.layout(call, result, self.lengths())
            if layout is None:
                return
            module = self.innermost_module()
            if not torch.equal(call.again(), result):
                raise ModelError(
                    f"{call.name} in {self.paths[module]} computes something else when it is "
                    "called again. Choose another model."
                )
            del self.mixtures[before:]
            of_call = self.paths[module], module, call, layout, result
            mixing = self._known.read(*of_call, with_matrix=self._is_first, cell=self._cell)
            self.mixtures.append(mixing)
