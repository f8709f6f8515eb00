"""How much memory there is, and what to say where it is not enough.

Linux rarely refuses memory: it ends the program that uses it. So what certainly does not fit is
refused before; what fails nevertheless is told in the same words (failures.py).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from attnviz.errors import AttnvizError, InputError

_CGROUPS = Path("/sys/fs/cgroup")
_FILES = (("memory.max", "anon"), ("memory.limit_in_bytes", "total_rss"))  # version 2, version 1


def free(device: torch.device) -> int | None:
    """Return how many bytes this process can still have on a device; None where nobody tells.

    Of a CPU the least of what the machine, the control groups (containers) and the limits of the
    process (ulimit) leave; it is known on Linux only.
    """
    if device.type == "cuda":
        here = torch.cuda.mem_get_info(device)[0]
        return here + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(_on_cpu(), default=None) if device.type == "cpu" else None


@dataclass(frozen=True)
class Room:
    """Room in memory that something needs.

    what : which that is. device : where. ways : how less would do. error : what to raise.
    """

    what: str
    device: torch.device
    ways: str
    error: type[AttnvizError] = InputError

    def expect(self, size: int) -> None:
        """Raise the error if so many bytes are certainly more than there are."""
        left = free(self.device)
        if left is not None and size > left:
            raise self.lack(size, left)

    def lack(self, size: int | None = None, left: int | None = None) -> AttnvizError:
        """Return the error: what was needed, what there was, the way out."""
        left = free(self.device) if left is None else left
        need = "more memory" if size is None else f"{_amount(size)} or more"
        # Nobody tells how much is left; or it is enough, but not in one piece.
        unknown = left is None or (size is not None and size <= left)
        there = "not enough" if left is None or unknown else _amount(max(left, 0))
        return self.error(
            f"Expected {need} for {self.what}, but {there} is left on {self.device}. {self.ways}"
        )


def give_back() -> None:
    """Give the system what is free, where malloc would keep it (glibc).

    Batches of many shapes leave holes that none of the next fits, so a long run would grow by more
    than it uses.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _on_cpu() -> Iterator[int]:
    with suppress(ImportError, OSError, ValueError, KeyError):
        import resource  # not on Windows

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            yield limit - pages * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError, KeyError):
        told = _table(Path("/proc/meminfo"))
        yield 1024 * (told["MemAvailable:"] + told["SwapFree:"])
    with suppress(OSError, ValueError):
        yield from _in_groups()


def _in_groups() -> Iterator[int]:
    """Yield what each control group leaves that the process is in; what files take can be freed."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        place = _CGROUPS / controllers / path.strip("/")
        for group in (place, *place.parents):
            for limit, used in _FILES:
                with suppress(OSError, ValueError, KeyError):
                    most = int((group / limit).read_text())  # "max" where there is no limit
                    yield most - _table(group / "memory.stat")[used]
            if group == _CGROUPS:
                break


def _table(path: Path) -> dict[str, int]:
    """Return the numbers of a file by the word before each."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1}


def _amount(size: int) -> str:
    """Return a size as people say it.

    >>> _amount(3 * 2**29), _amount(5 * 2**20)
    ('1.5 GB', '5 MB')
    """
    return f"{size / 2**30:,.1f} GB" if size >= 2**30 else f"{size / 2**20:.0f} MB"
