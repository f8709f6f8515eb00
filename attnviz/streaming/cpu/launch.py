"""Which maps the loops go over, and how these are shared out among threads."""

from __future__ import annotations

from functools import partial
from threading import Event

import torch
from torch import Tensor

from attnviz.runtime.progress import track
from attnviz.streaming.buffers import Kept
from attnviz.streaming.cpu.plan import Plan, loops
from attnviz.streaming.cpu.strips import Strips
from attnviz.streaming.cpu.threads import on_threads
from attnviz.streaming.scores import NEVER, Scoring
from attnviz.streaming.tiles import alike

LEAST = 2**21  # scores for which it is worth while to load the loops


def serves(scoring: Scoring) -> bool:
    """Whether the loops can take this attention, and are worth it."""
    H, m, n = scoring.shape
    return scoring.query.device.type == "cpu" and H * m * n >= LEAST and loops() is not None


def go_over(scoring: Scoring, kept: Kept, lse: Tensor | None = None) -> bool:
    """Fill in what is kept, strip by strip; return False where a score is not finite.

    lse : (H, m), natural, where it is known: only then may a strip be cut into tiles.
    """
    H, m, _ = scoring.shape
    threads = torch.get_num_threads()
    plan = Plan(scoring, kept, lse)
    groups = alike(H, min(plan.heads, H // threads))
    kept.largest.fill_(NEVER)

    def whole(heads: slice, stop: Event) -> bool:
        return Strips(plan, heads).run(range(0, m, plan.rows), stop)

    if len(groups) >= threads:
        finite = all(on_threads([partial(whole, heads) for heads in groups]))
    else:
        shared = [_shared(Strips(plan, heads), threads) for heads in track(groups)]
        finite = all(shared)
    kept.largest.exp2_()
    return finite


def _shared(strips: Strips, threads: int) -> bool:
    """Go over the strips of some heads on all threads, each of which adds up by itself."""
    starts = range(0, strips.plan.m, strips.plan.rows)
    count = min(threads, len(starts))
    parts = [strips.apart() for _ in range(count)]
    finite = on_threads([partial(part.run, starts[at::count]) for at, part in enumerate(parts)])
    for part in parts:
        strips.own.add(part.own)
    return all(finite)
