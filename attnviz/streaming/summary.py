"""One pass over a map, reducing it to what a person can look at."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from attnviz.errors import InputError, whole_number
from attnviz.results import MapSummary
from attnviz.streaming import (
    cpu,
    gpu,
    strips,
    sweep,
)
from attnviz.streaming.buffers import Kept
from attnviz.streaming.fused import fused
from attnviz.streaming.rooms import Rooms
from attnviz.streaming.scores import NEVER, Scoring
from attnviz.streaming.sweep import log_sum_exp


def attend(
    scoring: Scoring,
    value: Tensor,
    *,
    cells: int = 512,
    top: int = 0,
    marked: Tensor | None = None,
    rooms: Rooms | None = None,
) -> tuple[Tensor, MapSummary]:
    """Return the attention vectors, and the summary of the weights that they come from.

    Parameters
    ----------
    value : (G, n, d_v), for the same heads as the keys.
    cells, top, marked : as of `summarise`. rooms : of other maps, such as those of other layers,
        to use again.

    Returns
    -------
    tuple of Tensor (H, m, d_v), float32, 0 in rows that may read nothing, and MapSummary

    Raises
    ------
    InputError : cells or top are no such numbers.
    """
    long = scoring.shape[2] > strips.KEYS or gpu.serves(scoring)
    if long and (told := fused(scoring, value)) is not None:
        return told[0].float(), _reduced(scoring, cells, top, marked, lse=told[1])[1]
    kept, summary = _reduced(scoring, cells, top, marked, value, rooms=rooms)
    return kept.attended, summary


def summarise(
    scoring: Scoring,
    *,
    cells: int = 512,
    top: int = 0,
    lse: Tensor | None = None,
    marked: Tensor | None = None,
) -> MapSummary:
    """Reduce the weights of every head exactly, never more than a tile of them in memory.

    Parameters
    ----------
    cells : how many rows and columns the pooled maps have at most.
    top : of how many keys to keep the weight for each query.
    lse : (H, m), the log-sum-exp of each row, sinks among them, where a fast attention has told it;
        else a first pass finds it.
    marked : (n,), True for keys of which is to be told what each query gives to all of them.

    Raises
    ------
    InputError : cells or top are no such numbers.
    """
    return _reduced(scoring, cells, top, marked, lse=lse)[1]


@torch.no_grad()
def _reduced(
    scoring: Scoring,
    cells: int,
    top: int,
    marked: Tensor | None,
    value: Tensor | None = None,
    lse: Tensor | None = None,
    rooms: Rooms | None = None,
) -> tuple[Kept, MapSummary]:
    cells, top = whole_number(cells, "cells"), whole_number(top, "top")
    if cells < 1 or top < 0:
        raise InputError(
            f"Expected one cell or more and no less than 0 keys, got {cells} and {top}."
        )
    m, n = scoring.shape[1:]
    room = partial(Kept, scoring, cells, top, marked, value)
    kept, short = room(), n <= strips.KEYS
    if value is None and not top and gpu.serves(scoring):
        kept.lse = gpu.log_sum_exp_on_gpu(scoring) if lse is None else lse.float()
        gpu.go_over(scoring, kept)
    else:
        known = None if short else (log_sum_exp(scoring) if lse is None else lse.float())
        looped = cpu.serves(scoring)
        if looped and not cpu.go_over(scoring, kept, known):
            looped, kept = False, room()
        if not looped:
            if known is None:
                strips.go_over(scoring, kept, rooms or Rooms())
            else:
                kept.lse = known
                sweep.go_over(scoring, kept)
    empty = scoring.visible.empty(m, n, scoring.query.device)
    return kept, kept.summary(empty | (kept.lse == -torch.inf).all(0))


def crop(
    scoring: Scoring, *, rows: slice, columns: slice | None = None, lse: Tensor | None = None
) -> Tensor:
    """Return the exact weights of a part of the map, (H, rows, columns); of whole rows by default.

    Parameters
    ----------
    lse : (H, m), as in `summarise`; else that of these rows is found.
    """
    m, n = scoring.shape[1:]
    start, stop, _ = rows.indices(m)
    part = scoring.rows(slice(start, stop))
    first, end, _ = (columns or slice(None)).indices(n)
    lse = log_sum_exp(part) if lse is None else lse[:, start:stop]
    scores = part.scores(slice(0, max(0, stop - start)), slice(first, end))
    return (scores - lse.masked_fill(lse.isinf(), -NEVER)[..., None]).exp()
