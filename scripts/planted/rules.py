"""Four rules that decide whether two implementations of an attention agree, on the same numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity
from torch.testing import assert_close

from attnviz.agreement.compare import (
    Visible,
    compare,
    is_shifted,
    model_values,
)
from attnviz.agreement.verdict import dtypes
from attnviz.results import AttentionRecord, Reference
from attnviz.results.projection import STAGES, recompute

ATTNVIZ, COSINE, CLOSE, FLASH = RULES = (
    "attnviz",
    "cosine ≥ .9999",
    "assert_close",
    "FlashAttention's rule",
)
Accepted = dict[str, bool]  # by rule


@dataclass(frozen=True, eq=False)
class StageValues:
    """One stage of one attention, as all rules see it; 0 for padding and for hidden scores.

    ours : recomputed in float64. model : the model's own. run : recomputed in the model's
    precision, `dtype`.
    """

    ours: Tensor
    model: Tensor
    run: Tensor
    dtype: torch.dtype

    def accepted(self) -> Accepted:
        """Return which of the common rules accept the model's numbers."""
        error = (self.model - self.ours).abs().max()
        plain = (self.run - self.ours).abs().max()
        return {
            COSINE: _cosine(self.ours, self.model) >= 0.9999,
            CLOSE: _is_close(self.model.to(self.dtype), self.ours.to(self.dtype)),
            FLASH: bool(error <= 2 * plain),  # False for NaN
        }


def comparable_scores(
    triple: Sequence[Tensor], shifted: Tensor, hidden: Tensor | None, ignored: Tensor | None
) -> Iterator[Tensor]:
    """Yield scores that can be compared: 0 where hidden, and centered where the model shifts."""
    if hidden is not None and ignored is not None:
        hidden = hidden | ignored
    n = triple[0].shape[-1]
    shown = n if hidden is None else (~hidden).sum(-1, keepdim=True).clamp(min=1)
    for values in triple:  # what is hidden may be any number
        visible = values if hidden is None else values.masked_fill(hidden, 0.0)
        scores = visible - (visible.sum(-1, keepdim=True) / shown).where(shifted, 0.0)
        yield scores if hidden is None else scores.masked_fill_(hidden, 0.0)


def _cosine(x: Tensor, y: Tensor) -> float:
    return float(cosine_similarity(x.flatten(), y.flatten(), dim=0))


def _is_close(actual: Tensor, expected: Tensor) -> bool:
    try:
        assert_close(actual, expected)
    except AssertionError:
        return False
    return True


def values_of_stages(record: AttentionRecord, reference: Reference) -> dict[str, StageValues]:
    """Return the numbers of each stage that attnviz compares."""
    expected = model_values(record, reference)
    fine, coarse = dtypes(record)
    runs = {dtype: recompute(record, dtype) for dtype in (torch.float64, fine, coarse)}
    visible, stages = Visible.of([record], record.mask), {}
    for stage in STAGES:
        if stage not in expected or stage not in runs[torch.float64]:
            continue
        dtype = fine if stage in ("scores", "weights") else coarse
        of_each = (runs[torch.float64][stage], expected[stage], runs[dtype][stage])
        triple = [values.double() for values in of_each]
        ignored = visible.ignored(stage, len(triple[0]))
        if stage == "scores":
            shifted = is_shifted(record, triple[1], visible.hidden, 1)
            triple = [*comparable_scores(triple, shifted, visible.hidden, ignored)]
        elif ignored is not None:
            triple = [values.masked_fill(ignored, 0.0) for values in triple]
        stages[stage] = StageValues(*triple, dtype)
    return stages


def accepted_stages(
    record: AttentionRecord, reference: Reference, stages: Mapping[str, StageValues]
) -> dict[str, Accepted]:
    """Return which rules accept each stage of an attention."""
    checks = compare([(record, model_values(record, reference))])[0][0]
    passed = {check.stage: check.passed for check in checks}
    return {
        stage: {ATTNVIZ: passed[stage], **values.accepted()}
        for stage, values in stages.items()
        if stage in passed
    }
