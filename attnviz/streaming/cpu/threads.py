"""Works on several threads at once, each of which computes by itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from threading import Barrier, Event, Lock
from typing import TypeVar

import torch

from attnviz.runtime.progress import track

T = TypeVar("T")
_making = Lock()
_PATIENCE = 60.0  # seconds for threads to begin


def on_threads(works: Sequence[Callable[[Event], T]]) -> list[T]:
    """Return what each work returns; as many at once as torch has threads.

    A work is given what tells it to stop: another has failed, or nobody waits for it any more.
    """
    count, stop = torch.get_num_threads(), Event()
    if min(count, len(works)) == 1:
        with torch.no_grad():
            return [work(stop) for work in track(works)]
    alike = torch.is_inference_mode_enabled()

    def begin(work: Callable[[Event], T]) -> T:
        with torch.inference_mode(alike), torch.no_grad():
            return work(stop)

    with _making:
        pool = _pool(count)
    futures = [pool.submit(begin, work) for work in works]
    try:
        return [future.result() for future in track(futures)]
    finally:
        stop.set()
        for future in futures:
            future.cancel()
        wait(futures)


@lru_cache(maxsize=1)
def _pool(count: int) -> ThreadPoolExecutor:
    """Return so many threads, in each of which torch computes with one."""
    started = Barrier(count + 1)

    def begin() -> None:
        torch.set_num_threads(1)  # of this thread, and of those that ask from now on: so this one
        torch.get_num_threads()  # asks, before it is set again
        started.wait(_PATIENCE)

    pool = ThreadPoolExecutor(count, "attnviz", begin)
    for _ in range(count):
        pool.submit(lambda: None)
    started.wait(_PATIENCE)
    torch.set_num_threads(count)
    return pool


if hasattr(os, "register_at_fork"):  # a fork has none of the threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
