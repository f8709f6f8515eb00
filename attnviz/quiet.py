"""What libraries log while attnviz uses them: for who debugs, not for who looks at attention."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LIBRARIES = ("transformers", "huggingface_hub", "torch")


@contextmanager
def unlogged() -> Iterator[None]:
    """Keep what libraries log in this thread off the terminal.

    No setting of the user's is changed, his files and other threads hear all. With attnviz's
    own logger at DEBUG so does the terminal: `logging.getLogger("attnviz").setLevel("DEBUG")`.
    """
    if logging.getLogger("attnviz").isEnabledFor(logging.DEBUG):
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
