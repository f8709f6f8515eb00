"""The output of the recorded run against that of the model as it was loaded.

A run is recorded under eager attention, in eval mode, with random numbers of its own. If the model
computes something else as it was loaded, its output differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import sqrt
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnviz.agreement.verdict import SMALLEST
from attnviz.results import AgreementReport, AnalysisCheck, Axis, OutputCheck

if TYPE_CHECKING:
    from attnviz.capture.watch import Output, Outputs

# What rounding adds in a layer, relative to the norm of the output: at least 1e-5, and 8 rounding
# steps. In models of 3 layers with sharp attention, eager and fused attention differ by 1e-6 in
# float32, and by 4 steps in half precision. It adds up like a random walk.
_LEAST, _STEPS = 1e-5, 8
# Some models amplify rounding. Then this many times the effect of one step in every module passes.
_AMPLIFIED = 4


def check_output(
    outputs: Outputs, axes: Mapping[str, Sequence[Axis]], texts: int, layers: int
) -> list[OutputCheck | None]:
    """Compare the outputs of each of N texts; None where a model returns no real numbers.

    The output of the first attention is compared too, where no rounding has added up yet. Its check
    is returned if it alone fails.
    """
    if not outputs.loaded.model:
        return [None] * texts
    eps = max(torch.finfo(tensor.dtype).eps for tensor in outputs.loaded.model)
    in_a_layer = max(_LEAST, _STEPS * eps)
    of_all = sqrt(max(1, layers)) * in_a_layer
    between = outputs.between_runs
    if between > of_all:  # also where the output hides it; the stages report NaN
        return [OutputCheck(between, of_all, between, outputs.tokens)] * texts
    moved = outputs.moved
    blind = tuple(path for path, share in moved.items() if share <= SMALLEST)
    canary = min(moved.values(), default=None), blind
    again, rounded = cache(outputs.repeat), cache(outputs.round_otherwise)
    eager = outputs.under_eager and cache(outputs.under_eager)

    def check(part: Callable[[Output], tuple[Tensor, ...]], tolerance: float) -> list[OutputCheck]:
        def difference(run: Output, other: Output = outputs.loaded) -> list[float]:
            return _differences(part(run), part(other), axes, texts)

        differences = difference(outputs.recorded)
        repeated: list[Any] = [None] * texts
        is_eager = False
        if not all(value <= tolerance for value in differences):
            repeated = difference(again())
            if all(value <= tolerance for value in repeated):
                tolerance = max(tolerance, _AMPLIFIED * max(difference(rounded())))
                if eager is not None and not max(differences) <= tolerance:
                    is_eager = max(difference(eager(), outputs.recorded)) <= tolerance
        return [
            OutputCheck(value, tolerance, other, outputs.tokens, *canary, is_eager)
            for value, other in zip(differences, repeated, strict=True)
        ]

    of_model = check(attrgetter("model"), of_all)
    if not (outputs.recorded.attention and outputs.loaded.attention):
        return [*of_model]
    of_attention = check(attrgetter("attention"), in_a_layer)
    return [
        first if not first.passed and whole.passed else whole
        for whole, first in zip(of_model, of_attention, strict=True)
    ]


def check_hidden_states(
    report: AgreementReport,
    ours: Tensor,
    loaded: Tensor,
    *,
    name: str = "hidden states",
    scale: float | None = None,
) -> AgreementReport:
    """Return a report that compares hidden states (S, …) with those of the model as loaded.

    They may differ as much as its output, relative to their norm, or to `scale`.
    """
    if report.output is None:
        return report
    size = loaded.flatten(1).norm(dim=1) if scale is None else scale
    difference = (ours - loaded).flatten(1).norm(dim=1) / size
    check = AnalysisCheck(name, difference.max().item(), report.output.tolerance)
    return replace(report, analysis=(*report.analysis, check))


def _differences(
    ours: Sequence[Tensor], theirs: Sequence[Tensor], axes: Mapping[str, Sequence[Axis]], texts: int
) -> list[float]:
    """Return the largest relative difference of each text; infinite for other shapes."""
    if [tensor.shape for tensor in ours] != [tensor.shape for tensor in theirs]:
        return [float("inf")] * texts
    pairs = zip(ours, theirs, strict=True)
    by_tensor = [_relative(x, y, axes, texts) for x, y in pairs if x.numel()]
    return torch.stack(by_tensor).amax(0).tolist() if by_tensor else [0.0] * texts


def _relative(x: Tensor, y: Tensor, axes: Mapping[str, Sequence[Axis]], texts: int) -> Tensor:
    """Return the norm of x - y relative to that of y, for each text (N,)."""
    x, y = x.double(), y.double()
    same = (x == y) | (x.isnan() & y.isnan())
    if (padding := _padding(y, axes, texts)) is not None:
        same |= padding.view(*padding.shape, *[1] * (y.dim() - 2))
    difference = torch.where(same, 0.0, x - y)
    rows = 1 if y.dim() == 0 or len(y) != texts else texts  # 1 : of all texts together
    difference, y = difference.reshape(rows, -1), y.reshape(rows, -1)
    norms = y.nan_to_num(0.0, 0.0, 0.0).norm(dim=1).clamp(min=SMALLEST)
    relative: Tensor = (difference.norm(dim=1) / norms).nan_to_num(torch.inf, torch.inf)
    return relative.expand(texts).cpu()


def _padding(y: Tensor, axes: Mapping[str, Sequence[Axis]], texts: int) -> Tensor | None:
    """Return which positions of an output (N, T, …) only fill up the batch, (N, T)."""
    if y.dim() < 2 or len(y) != texts:
        return None
    for of_texts in axes.values():
        if len(of_texts) == texts and all(len(axis) == y.shape[1] for axis in of_texts):
            return torch.tensor([axis.padding for axis in of_texts], device=y.device)
    return None
