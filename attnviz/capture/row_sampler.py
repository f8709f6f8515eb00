"""One run of the untouched model under fast attention: some rows of every head.

Fast attention never shows its weights. But the model's own eager function computes them for any few
rows, from the same queries and keys; and that it does what the fast one does, their outputs tell.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from attnviz.capture.attention_interface import looking_on
from attnviz.capture.fused_attention import Called, Rules, seeing
from attnviz.capture.projections import (
    Arrived,
    arrived,
    find_holders,
    find_output,
    understood,
)
from attnviz.capture.restore import readable
from attnviz.capture.stacks import Outline, place
from attnviz.errors import ModelError
from attnviz.results import AttentionRecord, Axis, Reference
from attnviz.runtime.progress import part


@dataclass(frozen=True, eq=False)
class Sample:
    """Some rows of one attention, as the model computed them.

    record : all that its weights follow from, its mask as a rule. reference : weights and scores
    (H, R, n), head_output (H, R, d_v), output (R, d_model) of R rows. gated : whether sinks are a
    gate on the output, and no column of the softmax.
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
    fast: bool,
) -> None:
    """Hand on some rows of every attention of a run on one text, in the order of execution.

    Parameters
    ----------
    axes : as in `capture`. rows : (R,), which of its queries, in rising order. fast : as in
        `Called`.

    Raises
    ------
    ModelError : the model computes an attention that transformers' interface does not show.
    """
    sampler = _Sampler(model, axes, rows, on_sample)
    with looking_on(seeing(sampler.look, sampler.paths, fast=fast)), sampler.watch:
        run()
    sampler.finish()


_FUSED = ("scaled_dot_product", "flash_attention", "efficient_attention")  # torch's operators


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the softmaxes inside an attention function, and whether there are whole ones outside.

    length : of the text.
    """

    def __init__(self, length: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._length = length
        self._inside: list[tuple[Tensor, Tensor]] | None = None
        self.missed = False

    @contextmanager
    def inside(self) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """Collect the softmaxes of what is called here, as (scores, weights)."""
        found: list[tuple[Tensor, Tensor]] = []
        self._inside = found
        try:
            yield found
        finally:
            self._inside = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("_softmax", "_safe_softmax"):
            if self._inside is not None:
                self._inside.append((args[0], result))
            elif result.dim() > 2 and min(result.shape[-2:]) >= self._length:
                self.missed = True
        elif self._inside is None and any(each in name for each in _FUSED):
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
        self.watch = _Watch(self._length)
        self.paths = {module: path for path, module in model.named_modules()}
        self._holders = find_holders(model)
        self._rules = Rules()
        self._calls: Counter[str] = Counter()
        self._coming: deque[Outline] = deque()
        self._places = place(iter(self._coming.popleft, None), 0, axes)
        self._pending: Sample | None = None
        self._entered: dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        # What entered W^O of the attention at work, and what it made of that: some rows of both.
        self._left: dict[nn.Module, tuple[Tensor | None, Tensor | None]] = {}
        self._outputs = {path: find_output(model, path) for path in self.paths.values()}
        for module in model.modules():
            module.register_forward_pre_hook(self._enter, with_kwargs=True)
            module.register_forward_hook(self._forget)
        for module in {each for each in self._outputs.values() if each is not None}:
            module.register_forward_hook(self._leave)

    def look(self, called: Called) -> Tensor:
        """Have the model's own functions compute: the fast one all, the eager one some rows."""
        self._hand_on()
        self._rows = self._rows.to(called.query.device)
        path = self.paths[called.module]
        called.expect_readable(path, self._length)
        with part(self._calls.total(), max(1, len(self._holders))):
            with self.watch.inside():
                output = called.output()
            with self.watch.inside() as softmaxes:
                called.eager_rows(self._rows)
        if len(softmaxes) != 1:
            raise ModelError(
                f"Expected {path} to compute one softmax, but it computes {len(softmaxes)}. "
                'Choose another model, or a shorter text with mode="full".'
            )
        self._pending = self._sample(path, called, *softmaxes[0], output)
        return output

    def finish(self) -> None:
        """Hand on the last sample, or raise for what was missed."""
        self._hand_on()
        if not self._calls or self.watch.missed:
            raise ModelError(
                f"Expected {type(self._model).__name__} to fetch its attention from transformers, "
                "but it computes some by itself, whole. Give a shorter text with "
                'mode="full", or choose another model.'
            )

    def _sample(
        self, path: str, called: Called, scores: Tensor, weights: Tensor, output: Tensor
    ) -> Sample:
        n = called.shape[2]
        gated = called.sinks is not None and weights.shape[-1] == n
        # By blocks it is made by what the rows are made by: no reference of its own.
        known = not gated and not called.by_blocks
        head_output = output[0, self._rows].transpose(0, 1) if known else None
        weights, scores = weights[0, ..., :n], scores[0, ..., :n]
        reference = Reference(weights, scores, head_output, None)
        causal = self._rules.is_causal(called)
        self._coming.append(Outline(path, self._length, n, crossing=False, causal=causal))
        where, call = next(self._places), self._calls[path]
        self._calls[path] += 1
        scale = called.arguments.get("scaling")
        entered = arrived(called.module, *self._entered[called.module], 1)
        record = AttentionRecord(
            path=path,
            call=call,
            layer=where.layer,
            stack=where.stack,
            query_axis=where.query_axis,
            key_axis=where.key_axis,
            scale=called.query.shape[-1] ** -0.5 if scale is None else float(scale),
            soft_cap=called.arguments.get("softcap"),
            sinks=None if gated else called.sinks,
            input=None if entered.input is None else entered.input[0],
            rotation=_of_one(entered),
            **self._rules.terms(called),
        )
        return Sample(record, reference, gated)

    def _hand_on(self) -> None:
        """Hand on the sample of the attention that ran last, with what W^O made of it."""
        if self._pending is None:
            return
        sample, self._pending = self._pending, None
        record, reference = sample.record, sample.reference
        module, heads = self._outputs[record.path], reference.head_output
        given, output = self._left.pop(module, (None, None)) if module else (None, None)
        if heads is None or given is None or given.numel() != heads.numel():
            given, output = None, None
        if given is not None and heads is not None:
            given = given.reshape(len(self._rows), len(heads), -1).transpose(0, 1)
        # How the module makes Q, K, V and its output is found out from these positions.
        holder = self._holders.get(record.path)
        with readable([holder]):
            some = understood(record.at(self._rows), holder, reference.head_output, given)
        self._on_sample(
            replace(
                sample,
                record=replace(record, projection=some.projection),
                reference=replace(reference, output=output),
            )
        )

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._entered[module] = args, kwargs

    def _forget(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._entered.pop(module, None)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._left[module] = self._some(args[0] if args else None), self._some(output)

    def _some(self, whole: Any) -> Tensor | None:
        """Return the sampled rows of (1, m, d) or (m, d)."""
        if not isinstance(whole, Tensor) or whole.shape[:-1].numel() != self._length:
            return None
        return whole.reshape(self._length, -1)[self._rows].clone()


def _of_one(entered: Arrived) -> tuple[Tensor, Tensor] | None:
    if entered.rotation is None:
        return None
    return entered.rotation[0][0], entered.rotation[1][0]
