"""Other libraries at work: their exceptions become one line, and their logs are silenced.

To see the logs: `logging.getLogger("attnviz").setLevel("DEBUG")`.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from attnviz.errors import AttnvizError, ModelError, is_panic, one_line
from attnviz.runtime.memory import MemoryBudget, is_out_of_memory, requested_size

_LOGGERS = ("transformers", "huggingface_hub", "torch")
_stderr_lock = threading.RLock()


@contextmanager
def translate(memory: MemoryBudget, what: str | None = None, advice: str = "") -> Iterator[None]:
    """Turn the exceptions of libraries into one-line errors of attnviz.

    Parameters
    ----------
    memory : MemoryBudget
        Gives the error when memory runs out.
    what : str, optional
        What failed, such as "Expected …, but it fails"; the reason is added. Without it only
        memory errors are translated.
    advice : str
        What to do next.

    Raises
    ------
    ModelError
        A library raised an exception.
    """
    try:
        yield
    except AttnvizError:
        raise
    except BaseException as error:
        if isinstance(error, Exception) and is_out_of_memory(error):
            raise memory.shortage(requested_size(error)) from error
        if what is None or not (is_panic(error) or isinstance(error, Exception)):
            raise
        todo = "; install what is missing" if isinstance(error, ImportError) else advice
        raise ModelError(f"{what} ({one_line(error)}){todo}") from error


def debugging() -> bool:
    """Return whether the logs of libraries are to be shown."""
    return logging.getLogger("attnviz").isEnabledFor(logging.DEBUG)


@contextmanager
def silence_logs() -> Iterator[None]:
    """Keep what libraries log in this thread off the terminal, unless debugging.

    Log files and other threads still get everything, and no level is changed.
    """
    if debugging():
        yield
        return
    thread = threading.get_ident()

    def from_other_thread(record: logging.LogRecord) -> bool:
        return record.thread != thread

    handlers: list[logging.Handler] = [
        handler
        for name in _LOGGERS
        for handler in logging.getLogger(name).handlers
        if type(handler) is logging.StreamHandler  # not a subclass that writes to a file
    ]
    if logging.lastResort is not None:  # of libraries without a handler
        handlers.append(logging.lastResort)
    for handler in handlers:
        handler.addFilter(from_other_thread)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(from_other_thread)


@contextmanager
def silence_rust() -> Iterator[None]:
    """Keep the panic messages of libraries in Rust off standard error, unless debugging.

    No setting of tokenizers does this: its messages go to the file descriptor itself, which all
    threads share. So one thread at a time, and only around short calls.
    """
    if debugging():
        yield
        return
    with _stderr_lock:
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.flush()
        try:
            saved = os.dup(2)
        except OSError:  # standard error is closed
            yield
            return
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 2)
            os.close(null)
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
