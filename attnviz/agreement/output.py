"""The output of the recorded run against that of the model as it was loaded.

A run is recorded under eager attention, in eval mode, with random numbers of its own. If the model
computes something else as it was loaded, its output differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import sqrt

import torch
from torch import Tensor

from attnviz.agreement.stages import SMALLEST
from attnviz.capture import Outputs
from attnviz.results import AgreementReport, AnalysisCheck, Axis, OutputCheck

# What rounding adds in a layer, relative to the norm of the output: at least 1e-5, and 8 rounding
# steps. In models of 3 layers with sharp attention, eager and fused attention differ by 1e-6 in
# float32, and by 4 steps in half precision. It adds up like a random walk.
_LEAST, _STEPS = 1e-5, 8
# Some models amplify rounding. Then this many times the effect of one step in every module passes.
_AMPLIFIED = 4


def check_output(
    outputs: Outputs, axes: Mapping[str, Sequence[Axis]], texts: int, layers: int
) -> list[OutputCheck | None]:
    """Compare the outputs of each of N texts; None where a model returns no real numbers."""
    if not outputs.loaded:
        return [None] * texts
    differences = _differences(outputs.recorded, outputs.loaded, axes, texts)
    eps = max(torch.finfo(tensor.dtype).eps for tensor in outputs.loaded)
    tolerance = sqrt(max(1, layers)) * max(_LEAST, _STEPS * eps)
    between = outputs.between_runs
    if between > tolerance:  # also where the output hides it; NaN has other reasons
        return [OutputCheck(between, tolerance, between, outputs.tokens)] * texts
    if all(difference <= tolerance for difference in differences):
        return [OutputCheck(d, tolerance, None, outputs.tokens) for d in differences]
    repeated = _differences(outputs.repeat(), outputs.loaded, axes, texts)
    if all(again <= tolerance for again in repeated):
        rounded = _differences(outputs.round_otherwise(), outputs.loaded, axes, texts)
        tolerance = max(tolerance, _AMPLIFIED * max(rounded))
    return [
        OutputCheck(difference, tolerance, again, outputs.tokens)
        for difference, again in zip(differences, repeated, strict=True)
    ]


def check_hidden_states(
    report: AgreementReport, ours: Tensor, loaded: Tensor, *, scale: float | None = None
) -> AgreementReport:
    """Return a report that compares hidden states (S, …) with those of the model as loaded.

    They may differ as much as its output, relative to their norm, or to `scale`.
    """
    if report.output is None:
        return report
    size = loaded.flatten(1).norm(dim=1) if scale is None else scale
    difference = (ours - loaded).flatten(1).norm(dim=1) / size
    check = AnalysisCheck("hidden states", difference.max().item(), report.output.tolerance)
    return replace(report, analysis=(*report.analysis, check))


def _differences(
    ours: Sequence[Tensor],
    theirs: Sequence[Tensor],
    axes: Mapping[str, Sequence[Axis]],
    texts: int,
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
    padding = _padding(y, axes, texts)
    if padding is not None:
        same |= padding.view(*padding.shape, *[1] * (y.dim() - 2))
    difference = torch.where(same, 0.0, x - y)
    if y.dim() == 0 or len(y) != texts:  # of all texts together
        difference, y = difference.reshape(1, -1), y.reshape(1, -1)
    else:
        difference, y = difference.reshape(texts, -1), y.reshape(texts, -1)
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
