"""What libraries say while attnviz uses them: for who debugs, not for who looks at attention.

Whoever debugs sets attnviz's own logger to DEBUG: `logging.getLogger("attnviz").setLevel("DEBUG")`.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

_LIBRARIES = ("transformers", "huggingface_hub", "torch")
_one_at_a_time = threading.RLock()


def debugging() -> bool:
    """Tell whether all that libraries say is to be heard."""
    return logging.getLogger("attnviz").isEnabledFor(logging.DEBUG)


@contextmanager
def unlogged() -> Iterator[None]:
    """Keep what libraries log in this thread off the terminal.

    No setting of the user's is changed; log files and other threads hear all.
    """
    if debugging():
        yield
        return
    here = threading.get_ident()

    def elsewhere(record: logging.LogRecord) -> bool:
        return record.thread != here

    every = [each for name in _LIBRARIES for each in logging.getLogger(name).handlers]
    # No file is one, and the last speaks for libraries that have no handler.
    handlers = [
        *(each for each in every if type(each) is logging.StreamHandler),
        logging.lastResort,
    ]
    terminals = [each for each in handlers if each is not None]
    for handler in terminals:
        handler.addFilter(elsewhere)
    try:
        yield
    finally:
        for handler in terminals:
            handler.removeFilter(elsewhere)


@contextmanager
def hushed() -> Iterator[None]:
    """Keep what Rust prints, of its panics above all, off standard output and error.

    It does so past Python, by descriptors that all threads share: so one thread at a time, and
    around few calls.
    """
    if debugging():
        yield
        return
    with _one_at_a_time, ExitStack() as stack:
        for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
            with suppress(OSError):  # closed by the caller
                kept = os.dup(number)
                stack.callback(os.close, kept)
                stack.callback(os.dup2, kept, number)
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, number)
                os.close(nowhere)
        yield
