"""Whether printed weights are a softmax of the scores at some other scale, or at none."""

from __future__ import annotations

import math
from itertools import combinations

from torch import Tensor

from attnviz.analyses.example.intervals import Rounded
from attnviz.analyses.example.result import ReplayedStage

Interval = tuple[float, float, str]  # of scales, and which pair asks for it


def scale_note(
    stage: ReplayedStage, scaled: Rounded, mask: Tensor | None, scale: float
) -> list[str]:
    """Say of weights that do not follow at which scale they would, or that none exists.

    In a softmax, log(w_ij / w_ik) = scale · (s_ij - s_ik) for every pair of cells of a row. Each
    pair leaves an interval of scales, as wide as rounding makes it; where two of them are apart,
    no scale at all makes the weights.
    """
    follows = stage.from_inputs_follows if not stage.sources else stage.from_printed_follows
    if follows is None or stage.printed is None or stage.decimals is None or follows.all():
        return []
    unit, scores = 0.5 * 10.0**-stage.decimals, scaled * (1 / scale)
    pairs = _intervals(stage, unit, scores, mask)
    if not pairs:
        return []
    least, most = max(pairs), min(pairs, key=lambda pair: pair[1])
    if least[0] > most[1]:
        return [
            f"No scale makes these weights from the scores: {least[2]} ask for {least[0]:.2f} or "
            f"more, {most[2]} for {most[1]:.2f} or less"
        ]
    for other in (1.0, (least[0] + most[1]) / 2):  # no scale at all is what is forgotten most
        ours = (scores * other).softmax(mask)
        if ((ours.value - stage.printed).abs() <= unit + ours.slack + 1e-12).all():
            return [f"They would follow with the scale {other:.4g} instead of {scale:.4g}"]
    return []


def _intervals(
    stage: ReplayedStage, unit: float, scores: Rounded, mask: Tensor | None
) -> list[Interval]:
    found = []
    slack, printed = scores.slack, [] if stage.printed is None else stage.printed.tolist()
    for i, (weights, row) in enumerate(zip(printed, scores.value.tolist(), strict=True)):
        for j, k in combinations(range(len(row)), 2):
            hidden = mask is not None and bool(mask[i, [j, k]].any())
            if hidden or min(weights[j], weights[k]) <= unit:
                continue  # a weight that is printed as 0 may be as small as it likes
            apart, loose = row[j] - row[k], float(slack[i, j] + slack[i, k])
            if abs(apart) <= loose + 1e-12:
                continue
            ends = [
                math.log((weights[j] + sign * unit) / (weights[k] - sign * unit)) / (apart + give)
                for sign in (-1, 1)
                for give in (-loose, loose)
            ]
            pair = f"“{stage.columns[j]}” and “{stage.columns[k]}” in row “{stage.rows[i]}”"
            found.append((min(ends), max(ends), pair))
    return found
