"""One run of the untouched model under fused attention: some rows of every head.

Fused attention never returns its weights. But the model's own eager function computes them for a
few rows, from the same queries and keys; and comparing the outputs of both shows that they compute
the same.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.capture.attention_interface import (
    AttentionCallArgs,
    MaskRuleCache,
    intercept_attention,
)
from attnviz.capture.projections import (
    find_attention_modules,
    find_output,
    match_projections,
    read_inputs,
)
from attnviz.capture.restore import weights_in_memory
from attnviz.capture.stacks import AttentionOutline, place
from attnviz.capture.tracing import SoftmaxCollector
from attnviz.errors import ModelError
from attnviz.results import AttentionRecord, Axis, Reference
from attnviz.runtime.compat import SOFTMAX, outside_dispatch_modes
from attnviz.runtime.progress import part


@dataclass(frozen=True, eq=False)
class Sample:
    """Some rows of one attention, as the model computed them.

    Attributes
    ----------
    record : AttentionRecord
        All that its weights follow from, its mask as a rule.
    reference : Reference
        Weights and scores (H, R, n), head_output (H, R, d_v) and output (R, d_model) of R rows.
    gated : bool
        Whether sinks gate the output, and are no column of the softmax.
    """

    record: AttentionRecord
    reference: Reference
    gated: bool


@torch.no_grad()
def sample(
    model: nn.Module,
    run: Callable[[], object],
    axes: Mapping[str, Sequence[Axis]],
    rows: Tensor,
    on_sample: Callable[[Sample], None],
    *,
    fused: bool,
) -> None:
    """Pass on some rows of every attention of a run on one text, in the order of execution.

    Parameters
    ----------
    model, axes
        As in `capture`.
    run : callable
        Runs the model.
    rows : Tensor
        (R,), the indices of the sampled queries, ascending.
    on_sample : callable
        Takes each sample, while the next attention waits. It runs outside the dispatch mode that
        monitors the model.
    fused : bool
        As in `AttentionCallArgs`.

    Raises
    ------
    ModelError
        The model computes an attention that transformers' interface does not show.
    """
    sampler = _Sampler(model, axes, rows, on_sample)
    with intercept_attention(sampler.on_call, sampler.paths, fused=fused), sampler.monitor:
        run()
    sampler.finish()


_FUSED = ("scaled_dot_product", "flash_attention", "efficient_attention")  # torch's operators


class _CoverageMonitor(SoftmaxCollector):  # type: ignore[no-untyped-call]
    """Dispatch mode that notices attention outside the interface: a whole softmax, or a fused one.

    length : the number of tokens of the text.
    """

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


class _Sampler:
    """Takes the samples of a run, one attention at a time."""

    def __init__(
        self,
        model: nn.Module,
        axes: Mapping[str, Sequence[Axis]],
        rows: Tensor,
        on_sample: Callable[[Sample], None],
    ) -> None:
        self._model, self._rows = model, rows
        self._on_sample = on_sample
        self._length = len(axes["text"][0])
        self.monitor = _CoverageMonitor(self._length)
        self.paths = {module: path for path, module in model.named_modules()}
        self._modules = find_attention_modules(model)
        self._rules = MaskRuleCache()
        self._calls: Counter[str] = Counter()
        self._outlines: deque[AttentionOutline] = deque()
        self._places = place(iter(self._outlines.popleft, None), 0, axes)
        self._pending: Sample | None = None
        self._inputs: dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        # The sampled rows of the input and the output of W^O in the pending attention.
        self._output_rows: dict[nn.Module, tuple[Tensor | None, Tensor | None]] = {}
        self._outputs = {path: find_output(model, path) for path in self.paths.values()}
        for module in model.modules():
            module.register_forward_pre_hook(self._enter, with_kwargs=True)
            module.register_forward_hook(self._leave)
        for module in {module for module in self._outputs.values() if module is not None}:
            module.register_forward_hook(self._leave_output)

    def on_call(self, args: AttentionCallArgs) -> Any:
        """Call the model's own functions: the fused one for all rows, the eager one for some."""
        self._pass_on()
        self._rows = self._rows.to(args.query.device)
        path = self.paths[args.module]
        args.expect_readable(path, self._length)
        with part(self._calls.total(), max(1, len(self._modules))):
            with self.monitor.collect_softmaxes():
                output = args.output()
            with self.monitor.collect_softmaxes() as softmaxes:
                args.eager_rows(self._rows)
        if len(softmaxes) != 1:
            raise ModelError(
                f"Expected {path} to compute one softmax, but it computes {len(softmaxes)}. "
                'Choose another model, or a shorter text with mode="full".'
            )
        self._pending = self._sample(path, args, softmaxes[0].scores, softmaxes[0].weights, output)
        return output, None

    def finish(self) -> None:
        """Pass on the last sample, or raise ModelError for an attention that was missed."""
        self._pass_on()
        if not self._calls or self.monitor.missed:
            raise ModelError(
                f"Expected {type(self._model).__name__} to fetch its attention from transformers, "
                "but it computes some by itself, whole. Give a shorter text with "
                'mode="full", or choose another model.'
            )

    def _sample(
        self, path: str, args: AttentionCallArgs, scores: Tensor, weights: Tensor, output: Tensor
    ) -> Sample:
        n = args.shape[2]
        gated = args.sinks is not None and weights.shape[-1] == n
        # In blocks the output comes from the function that made the rows: no reference.
        independent = not gated and not args.in_blocks
        head_output = output[0, self._rows].transpose(0, 1) if independent else None
        reference = Reference(weights[0, ..., :n], scores[0, ..., :n], head_output, None)
        causal = self._rules.is_causal(args)
        self._outlines.append(AttentionOutline(path, self._length, n, cross=False, causal=causal))
        position, call = next(self._places), self._calls[path]
        self._calls[path] += 1
        inputs = read_inputs(args.module, *self._inputs[args.module], 1)
        rotation = inputs.rotation
        record = AttentionRecord(
            path=path,
            call=call,
            layer=position.layer,
            stack=position.stack,
            query_axis=position.query_axis,
            key_axis=position.key_axis,
            scale=args.scale,
            soft_cap=args.arguments.get("softcap"),
            sinks=None if gated else args.sinks,
            input=None if inputs.input is None else inputs.input[0],
            rotation=None if rotation is None else (rotation[0][0], rotation[1][0]),
            **self._rules.terms(args),
        )
        return Sample(record, reference, gated)

    def _pass_on(self) -> None:
        """Pass on the sample of the attention that ran last, with the output of its W^O."""
        if self._pending is None:
            return
        sample, self._pending = self._pending, None
        with outside_dispatch_modes():
            self._on_sample(self._completed(sample))

    def _completed(self, sample: Sample) -> Sample:
        record, reference = sample.record, sample.reference
        module, heads = self._outputs[record.path], reference.head_output
        merged, output = self._output_rows.pop(module, (None, None)) if module else (None, None)
        if heads is None or merged is None or merged.numel() != heads.numel():
            merged, output = None, None
        if merged is not None and heads is not None:
            merged = merged.reshape(len(self._rows), len(heads), -1).transpose(0, 1)
        # The sampled positions show how the module makes Q, K, V and its output.
        attention_module = self._modules.get(record.path)
        with weights_in_memory([attention_module]):
            matched = match_projections(
                record.at(self._rows), attention_module, reference.head_output, merged
            )
        return replace(
            sample,
            record=replace(record, projection=matched.projection),
            reference=replace(reference, output=output),
        )

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._inputs[module] = args, kwargs

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._inputs.pop(module, None)

    def _leave_output(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        merged = self._sampled_rows(args[0] if args else None)
        self._output_rows[module] = merged, self._sampled_rows(output)

    def _sampled_rows(self, hidden: Any) -> Tensor | None:
        """Return the sampled rows of (1, m, d) or (m, d)."""
        if not isinstance(hidden, Tensor) or hidden.shape[:-1].numel() != self._length:
            return None
        return hidden.reshape(self._length, -1)[self._rows].clone()
