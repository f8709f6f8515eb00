"""Whether printed weights are a softmax of the scores at some other scale, or at none."""

from __future__ import annotations

import math
from itertools import combinations

import torch
from torch import Tensor

from attnviz.attention import masked_scores, softmax
from attnviz.records import ReplayedStage

_STEPS = 2001  # scales that are tried between the least and the most that a pair of cells asks for


def scale_note(
    stage: ReplayedStage, scores: Tensor, slack: Tensor, mask: Tensor | None, scale: float
) -> list[str]:
    """Say of weights that do not follow at which scale they would, or that none exists.

    In a softmax, log(a_ij / a_ik) = scale · (s_ij - s_ik) for every pair of cells of a row. Each
    pair leaves an interval of scales, as wide as rounding makes it; where two of them are apart,
    no scale at all makes the weights.

    scores : (m, n) before scaling. slack : how far rounding may have moved each.
    """
    follows = stage.from_inputs_follows if not stage.sources else stage.from_printed_follows
    if follows is None or stage.printed is None or stage.decimals is None or follows.all():
        return []
    unit = 0.5 * 10.0**-stage.decimals
    pairs = _intervals(stage.printed, unit, scores, slack, mask)
    if not pairs:
        return []
    least, most = max(pairs), min(pairs, key=lambda pair: pair[1])
    if least[0] > most[1]:
        best, missed = _closest(stage.printed, scores, mask, most[1], least[0])
        return [
            f"No scale makes these weights from the scores: {_pair(stage, least)} ask for "
            f"{least[0]:.2f} or more, {_pair(stage, most)} for {most[1]:.2f} or less; the closest, "
            f"{best:.2f}, still misses a cell by {missed:.{stage.decimals + 1}f}"
        ]
    middle, _ = _closest(stage.printed, scores, mask, least[0], most[1])
    for other in (1.0, middle):  # no scale at all is what is forgotten most
        ours = _softmax(other * scores, mask)
        loose = abs(other) * ours * (slack * (1 - 2 * ours) + (ours * slack).sum(-1, keepdim=True))
        if ((ours - stage.printed).abs() <= unit + loose + 1e-12).all():
            return [f"They would follow with the scale {other:.4g} instead of {scale:.4g}"]
    return []


Interval = tuple[float, float, int, int, int]  # of scales, and the row and two columns that ask


def _intervals(
    printed: Tensor, unit: float, scores: Tensor, slack: Tensor, mask: Tensor | None
) -> list[Interval]:
    found = []
    for i, (weights, row) in enumerate(zip(printed.tolist(), scores.tolist(), strict=True)):
        for j, k in combinations(range(len(row)), 2):
            hidden = mask is not None and bool(mask[i, [j, k]].any())
            if hidden or min(weights[j], weights[k]) <= unit:
                continue  # a weight that is printed as 0 may be as small as it likes
            apart, loose = row[j] - row[k], float(slack[i, j] + slack[i, k])
            if abs(apart) <= loose + 1e-12:
                continue
            ratios = [
                math.log((weights[j] + sign * unit) / (weights[k] - sign * unit))
                for sign in (-1, 1)
            ]
            ends = [ratio / (apart + give) for ratio in ratios for give in (-loose, loose)]
            found.append((min(ends), max(ends), i, j, k))
    return found


def _closest(
    printed: Tensor, scores: Tensor, mask: Tensor | None, least: float, most: float
) -> tuple[float, float]:
    """Return the scale between two whose softmax comes closest, and its largest difference."""
    tried = torch.linspace(least, most, _STEPS, dtype=scores.dtype)
    missed = (_softmax(tried[:, None, None] * scores, mask) - printed).abs().amax((-2, -1))
    return float(tried[missed.argmin()]), float(missed.min())


def _softmax(scaled: Tensor, mask: Tensor | None) -> Tensor:
    return softmax(scaled if mask is None else masked_scores(scaled, mask))


def _pair(stage: ReplayedStage, pair: Interval) -> str:
    _, _, i, j, k = pair
    return f"“{stage.columns[j]}” and “{stage.columns[k]}” in row “{stage.rows[i]}”"
