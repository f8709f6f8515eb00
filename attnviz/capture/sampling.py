"""One run of the untouched model under fast attention: some rows of every head.

Fast attention never shows its weights. But the model's own eager function computes them for any few
rows, and that it does what the fast one does, their outputs tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from attnviz.capture.interface import first, looking_on
from attnviz.capture.placing import Outline
from attnviz.capture.projections import find_holders, find_output
from attnviz.errors import ModelError
from attnviz.progress import part
from attnviz.records import Reference, Visible

_SCORES = 2**22  # of an eager attention that is computed by blocks of rows
_NO_FAST_WAY = ("softcap", "s_aux", "sinks")  # what torch's fused attention cannot do


@dataclass(frozen=True, eq=False)
class Sample:
    """Some rows of one attention, as the model computed them.

    reference : weights and scores (H, R, n), head_output (H, R, d_v), output (R, d_model) of R
    rows. given : (H, R, d_v), what W^O was given; None if it was not seen. gated : whether sinks
    are a gate on the output, and no column of the softmax.
    """

    path: str
    call: int
    outline: Outline
    reference: Reference
    given: Tensor | None
    gated: bool


@torch.no_grad()
def sample(model: nn.Module, run: Callable[[], object], rows: Tensor, length: int) -> list[Sample]:
    """Return some rows of every attention of a run on one text, in the order of execution.

    Parameters
    ----------
    rows : (R,), which of its `length` queries, in rising order.

    Raises
    ------
    ModelError : the model computes an attention that transformers' interface does not show.
    """
    sampler = _Sampler(model, rows, length)
    with looking_on(sampler.look), sampler.watch:
        run()
    return sampler.finish()


def expect_readable(path: str, query: Tensor, arguments: Mapping[str, Any], length: int) -> None:
    """Raise ModelError for an attention of which the arguments do not say all."""
    if query.shape[0] == 1 and query.shape[-2] == length and arguments.get("indices") is None:
        return
    raise ModelError(
        f"Expected {path} to attend over one text of {length:,} tokens, but it cuts or selects "
        'them. Give a shorter text with mode="full", or choose another model.'
    )


def is_ruled(module: nn.Module, mask: Tensor | None, arguments: Mapping[str, Any]) -> bool:
    """Return whether fast attention, given no mask, hides what comes later."""
    causal = arguments.get("is_causal")
    return mask is None and bool(getattr(module, "is_causal", True) if causal is None else causal)


class Rules:
    """Which keys the queries of each attention may read, found once for each mask."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, Visible | None]] = {}

    def of(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        mask: Tensor | None,
        arguments: Mapping[str, Any],
    ) -> Visible | None:
        """Return the rule that fast attention is called with; None for a mask that follows none."""
        if mask is None:
            after = 0 if is_ruled(module, mask, arguments) else None
            return Visible(after=after, offset=key.shape[-2] - query.shape[-2])
        if mask.shape[1] > 1:
            return None
        if id(mask) not in self._known:  # kept with its rule, so that no other gets its number
            self._known[id(mask)] = mask, Visible.of(mask[0, 0])
        return self._known[id(mask)][1]


def attention_output(
    function: Callable[..., Any],
    eager: Callable[..., Any],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    arguments: Mapping[str, Any],
) -> Any:
    """Call the model's fast attention, or its eager one by blocks where there is no fast way."""
    if first(arguments, *_NO_FAST_WAY) is None:
        return function(module, query, key, value, mask, **arguments)
    m = query.shape[-2]
    step = max(1, _SCORES // (query.shape[1] * key.shape[-2]))
    blocks = torch.split(torch.arange(m, device=query.device), step)
    outputs = [eager_rows(eager, module, query, key, value, mask, arguments, b) for b in blocks]
    return torch.cat(outputs, dim=1), None


def eager_rows(
    eager: Callable[..., Any],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    arguments: Mapping[str, Any],
    rows: Tensor,
) -> Tensor:
    """Return the output of some rows, (1, R, H, d_v), by the model's own eager function."""
    seen = arguments
    if (bias := arguments.get("position_bias")) is not None:
        seen = {**arguments, "position_bias": bias[:, :, rows]}
    hidden = None
    if is_ruled(module, mask, arguments):
        m, n = query.shape[-2], key.shape[-2]
        j = torch.arange(n, device=query.device)
        hidden = (j > rows[:, None] + n - m)[None, None]
    elif mask is not None and mask.dtype == torch.bool:
        hidden = ~mask[:, :, rows]
    part = None if mask is None else mask[:, :, rows]
    if hidden is not None:
        low = torch.finfo(query.dtype).min
        part = torch.zeros(hidden.shape, dtype=query.dtype, device=query.device)
        part = part.masked_fill(hidden, low)
    output: Tensor = eager(module, query[:, :, rows], key, value, part, **seen)[0]
    return output


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
        if func.overloadpacket.__name__ in ("_softmax", "_safe_softmax"):
            if self._inside is not None:
                self._inside.append((args[0], result))
            elif result.dim() > 2 and min(result.shape[-2:]) >= self._length:
                self.missed = True
        return result


class _Sampler:
    """Collects the samples of a run."""

    def __init__(self, model: nn.Module, rows: Tensor, length: int) -> None:
        self.watch = _Watch(length)
        self._model, self._rows, self._length = model, rows, length
        self._paths = {module: path for path, module in model.named_modules()}
        self._samples: list[Sample] = []
        self._expected = max(1, len(find_holders(model)))
        self._rules = Rules()
        self._outputs = {path: find_output(model, path) for path in self._paths.values()}
        # By the module W^O: rows of what entered it and what it made of them, at every call.
        self._left: dict[nn.Module, list[tuple[Tensor | None, Tensor | None]]] = {
            module: [] for module in self._outputs.values() if module is not None
        }
        for module in self._left:
            module.register_forward_hook(self._leave)

    def look(
        self,
        function: Callable[..., Any],
        eager: Callable[..., Any],
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        **arguments: Any,
    ) -> Any:
        """Have the model's own functions compute: the fast one all, the eager one some rows."""
        path, n = self._paths[module], key.shape[-2]
        given = module, query, key, value, mask, arguments
        expect_readable(path, query, arguments, self._length)
        with part(len(self._samples), self._expected):
            with self.watch.inside():
                result = attention_output(function, eager, *given)
            with self.watch.inside() as softmaxes:
                eager_rows(eager, *given, self._rows)
        if len(softmaxes) != 1:
            raise ModelError(
                f"Expected {path} to compute one softmax, but it computes {len(softmaxes)}. "
                'Choose another model, or a shorter text with mode="full".'
            )
        scores, weights = softmaxes[0]
        sinks = first(arguments, "s_aux", "sinks") is not None
        gated = sinks and weights.shape[-1] == n
        rule = self._rules.of(module, query, key, mask, arguments)
        causal = rule is not None and rule.after == 0
        self._samples.append(
            Sample(
                path,
                sum(each.path == path for each in self._samples),
                Outline(path, self._length, n, crossing=False, causal=causal),
                Reference(
                    weights[0, ..., :n],
                    scores[0, ..., :n],
                    None if gated else result[0][0, self._rows].transpose(0, 1),
                    None,
                ),
                None,
                gated,
            )
        )
        return result

    def finish(self) -> list[Sample]:
        """Return all samples with what W^O made of them, or raise for what was missed."""
        if not self._samples or self.watch.missed:
            raise ModelError(
                f"Expected {type(self._model).__name__} to fetch its attention from transformers, "
                "but it computes some by itself, whole. Give a shorter text with "
                'mode="full", or choose another model.'
            )
        return [self._completed(each) for each in self._samples]

    def _completed(self, sample: Sample) -> Sample:
        module = self._outputs[sample.path]
        left = self._left.get(module, []) if module is not None else []
        heads = sample.reference.head_output
        if sample.call >= len(left) or heads is None:
            return sample
        given, output = left[sample.call]
        if given is None or given.numel() != heads.numel():
            return sample
        H, R, _ = heads.shape
        return replace(
            sample,
            reference=replace(sample.reference, output=output),
            given=given.reshape(R, H, -1).transpose(0, 1),
        )

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._left[module].append((self._some(args[0] if args else None), self._some(output)))

    def _some(self, whole: Any) -> Tensor | None:
        """Return the sampled rows of (1, m, d) or (m, d)."""
        if not isinstance(whole, Tensor) or whole.shape[:-1].numel() != self._length:
            return None
        return whole.reshape(self._length, -1)[self._rows].clone()
