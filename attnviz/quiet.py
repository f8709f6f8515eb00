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

    No setting of the user's is changed, and what other threads log is heard. With attnviz's own
    logger at DEBUG all is: `logging.getLogger("attnviz").setLevel("DEBUG")`.
    """
    if logging.getLogger("attnviz").isEnabledFor(logging.DEBUG):
        yield
        return
    here = threading.get_ident()

    def elsewhere(record: logging.LogRecord) -> bool:
        return record.thread != here

    # The last is what speaks for libraries that have no handler.
    handlers = [each for name in _LIBRARIES for each in logging.getLogger(name).handlers]
    handlers += [logging.lastResort] if logging.lastResort else []
    for handler in handlers:
        handler.addFilter(elsewhere)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(elsewhere)
