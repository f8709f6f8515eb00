"""How a map is cut into strips and tiles, and what all of them share."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnviz.streaming.buffers import Kept
from attnviz.streaming.scores import LOG2_E, NEVER, Scoring

SCORES = 2**18  # of a tile: what a core's cache can hold
ROWS = 128, 512  # of a strip, at least and at most: products want that many
_FAR = 2**40  # more than any distance


@lru_cache(maxsize=1)
def loops() -> ModuleType | None:
    """Return the loops, or None where numba is not installed, or finds no place to keep them."""
    try:
        from numba import config

        from attnviz.streaming.cpu import loops as compiled
    except (ImportError, OSError, RuntimeError):
        return None
    return None if config.DISABLE_JIT else compiled


class Plan:
    """What all strips of a map share.

    Attributes
    ----------
    rows, heads : of a strip, the most. step : keys of a tile. before, after, read, marks : as the
    loops have them. empty : (m,), which rows may read nothing. sinks : (H, m), in units of log₂.
    bent, factor : whether more than the product makes the scores; by what to multiply it.
    """

    def __init__(self, scoring: Scoring, kept: Kept, lse: Tensor | None) -> None:
        compiled = loops()
        assert compiled is not None
        self.scoring, self.kept, self.lse, self.loops = scoring, kept, lse, compiled
        rule, (H, self.m, self.n) = scoring.visible, scoring.shape
        least, most = ROWS
        if lse is None:  # long strips would hold much that a rule hides
            most = least if (rule.before, rule.after) != (None, None) else SCORES // self.n
        self.rows = min(self.m, ROWS[1], max(least, most))
        self.heads = max(1, SCORES // (self.rows * self.n))
        self.step = self.n if lse is None else max(1, SCORES // self.rows)
        self.before, self.after = (
            _FAR if far is None else far for far in (rule.before, rule.after)
        )
        self.read, self.marks = _flags(rule.keys), _flags(kept.marks)
        self.empty = rule.empty(self.m, self.n, scoring.query.device).numpy()
        sinks = torch.full((H, self.m), NEVER)
        if (by_row := scoring.sinks_by_row) is not None:
            sinks.copy_(by_row).mul_(LOG2_E)
            self.empty = np.zeros_like(self.empty)  # a sink is something
        self.sinks = sinks.numpy()
        self.bent = not scoring.plain or scoring.bias is not None
        self.factor = scoring.scale * (LOG2_E if scoring.plain else 1)

    def tiles(self, rows: slice) -> Iterator[slice]:
        """Yield the keys of each tile of some rows."""
        first, end = self.scoring.visible.columns(rows, self.n)
        for start in range(first, end, self.step):
            yield slice(start, min(start + self.step, end))


def _flags(each: Tensor | None) -> Any:
    """Return flags of keys as the loops take them; none where all are alike."""
    return np.zeros(0, bool) if each is None else each.numpy()
