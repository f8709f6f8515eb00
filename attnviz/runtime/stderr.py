"""Standard error, to which libraries in Rust print by themselves."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.RLock()
_is_ours = False


@contextmanager
def own_stderr(*, ours: bool) -> Iterator[None]:
    """Set whether only attnviz prints on standard error: on the command line, if not debugging."""
    global _is_ours
    before, _is_ours = _is_ours, ours
    try:
        yield
    finally:
        _is_ours = before


@contextmanager
def silence_rust() -> Iterator[None]:
    """Keep the panic messages of tokenizers off standard error, if only attnviz prints there.

    They go to the file descriptor itself, which all threads share. In a program that uses attnviz
    as a library, other threads may print meanwhile, so nothing is redirected.
    """
    if not _is_ours:
        yield
        return
    with _lock:
        try:
            saved = os.dup(2)
        except OSError:  # standard error is closed
            yield
            return
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, 2)
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            os.close(null)
