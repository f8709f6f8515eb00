"""What libraries raise over what they are given, told in one line of ours.

A checkpoint is a stranger's, and so is the code that reads it: whatever its tokenizer, its
processor or the model raises is a fault of the files or a lack of memory, and is said as such.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from attnviz.errors import (
    AttnvizError,
    ModelError,
    is_panic,
    one_line,
)
from attnviz.runtime.memory import Room

_NO_MEMORY = re.compile(r"allocate memory|out of memory|bad_alloc|bad alloc", re.IGNORECASE)
_SIZE = re.compile(r"allocate ([\d.]+) ?(bytes|KiB|MiB|GiB|TiB)")
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@contextmanager
def translated(what: str, ways: str, room: Room) -> Iterator[None]:
    """Turn whatever is raised inside into one line.

    Parameters
    ----------
    what : "Expected …, but it fails", to which the reason is added. ways : what to do next.
    room : what to say where memory is not enough.

    Raises
    ------
    ModelError : what a library raised. The error of `room` : it found no memory.
    """
    with lacking(room):
        try:
            yield
        except AttnvizError:
            raise
        except BaseException as error:
            if is_out_of_memory(error) or not (is_panic(error) or isinstance(error, Exception)):
                raise
            todo = "; install what is missing" if isinstance(error, ImportError) else ways
            raise ModelError(f"{what} ({one_line(error)}){todo}") from error


@contextmanager
def lacking(room: Room) -> Iterator[None]:
    """Say in one line that there was no memory; all else passes."""
    try:
        yield
    except AttnvizError:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise room.lack(_size(error)) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether something failed since there was no memory left."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return bool(_NO_MEMORY.search(str(error)))


def _size(error: BaseException) -> int | None:
    """Return how many bytes were asked for in vain, as far as the error says so."""
    found = _SIZE.search(str(error))
    return None if found is None else int(float(found[1]) * _UNITS[found[2]])
