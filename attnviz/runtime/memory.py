"""How much memory is free, and one error message for too little of it.

Linux rarely refuses memory: it kills the process that uses it. So what certainly does not fit is
refused in advance; an allocation that fails anyway gets the same message (`libraries.translate`).
"""

from __future__ import annotations

import ctypes
import errno
import re
from contextlib import suppress
from dataclasses import dataclass

import psutil
import torch

from attnviz.errors import AttnvizError, InputError

_OUT_OF_MEMORY = re.compile(r"allocate memory|out of memory|bad_alloc|bad alloc", re.IGNORECASE)
_REQUESTED = re.compile(r"allocate ([\d.]+) ?(bytes|KiB|MiB|GiB|TiB)")
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def free(device: torch.device) -> int | None:
    """Return how many bytes this process can still allocate on a device; None if unknown."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    if device.type != "cpu":
        return None
    available = int(psutil.virtual_memory().available + psutil.swap_memory().free)
    if psutil.LINUX:  # a limit set by `ulimit -v`
        process = psutil.Process()
        limit = process.rlimit(psutil.RLIMIT_AS)[0]
        if limit != psutil.RLIM_INFINITY:
            available = min(available, limit - process.memory_info().vms)
    return available


@dataclass(frozen=True)
class MemoryBudget:
    """The memory that something needs on a device.

    Attributes
    ----------
    what : str
        What needs it.
    device : torch.device
        Where.
    advice : str
        How to need less.
    error : type
        The exception to raise if there is too little.
    """

    what: str
    device: torch.device
    advice: str
    error: type[AttnvizError] = InputError

    def expect(self, size: int) -> None:
        """Raise the error if `size` bytes are certainly more than there are."""
        left = free(self.device)
        if left is not None and size > left:
            raise self.shortage(size, left)

    def shortage(self, size: int | None = None, left: int | None = None) -> AttnvizError:
        """Return the error: what was needed, what there is, and how to need less."""
        left = free(self.device) if left is None else left
        need = "more memory" if size is None else f"{_readable(size)} or more"
        # What is left may be unknown, or enough but fragmented.
        unclear = left is None or (size is not None and size <= left)
        rest = "not enough" if left is None or unclear else _readable(max(left, 0))
        return self.error(
            f"Expected {need} for {self.what}, but {rest} is left on {self.device}. {self.advice}"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether something failed because no memory was left."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return bool(_OUT_OF_MEMORY.search(str(error)))


def requested_size(error: BaseException) -> int | None:
    """Return how many bytes could not be allocated, if the error names a number."""
    match = _REQUESTED.search(str(error))
    return None if match is None else int(float(match[1]) * _UNITS[match[2]])


def release_unused() -> None:
    """Return free memory to the system where malloc would keep it (glibc).

    Batches of many shapes leave gaps that fit none of the next, so a long run would keep growing.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _readable(size: int) -> str:
    """Return a size in MB or GB.

    >>> _readable(3 * 2**29), _readable(5 * 2**20)
    ('1.5 GB', '5 MB')
    """
    return f"{size / 2**30:,.1f} GB" if size >= 2**30 else f"{size / 2**20:.0f} MB"
