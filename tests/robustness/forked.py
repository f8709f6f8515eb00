"""Trials in processes of their own: a crash, a hang and too much memory are outcomes too."""

import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("fork")  # what is imported stays imported


def tried(
    trial: Callable[[int], str],
    seeds: Iterable[int],
    *,
    seconds: float = 60,
    memory: int = 2**30,
    afresh: int = 1000,
) -> Iterator[tuple[int, str]]:
    """Yield each seed and the outcome of its trial.

    An outcome begins with FAULT where the process died, took longer than so many seconds, more than
    so many bytes beside what it had, or said something on standard output or error.
    """
    todo = [*seeds]
    while todo:
        part, todo = todo[:afresh], todo[afresh:]
        done = 0
        ours, theirs = _CONTEXT.Pipe()
        process = _CONTEXT.Process(target=_work, args=(theirs, trial, part, memory), daemon=True)
        process.start()
        theirs.close()
        try:
            while done < len(part):
                if not ours.poll(seconds):
                    yield part[done], f"FAULT: no end in {seconds} s"
                    break
                yield part[done], ours.recv()
                done += 1
        except EOFError:
            process.join()
            yield part[done], f"FAULT: the process died, exit code {process.exitcode}"
        process.kill()
        process.join()
        todo = part[done + 1 :] + todo


def _work(pipe: Any, trial: Callable[[int], str], seeds: list[int], memory: int) -> None:
    with tempfile.TemporaryFile() as said:
        for stream in (1, 2):
            os.dup2(said.fileno(), stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        had, most = _virtual(), 0
        resource.setrlimit(resource.RLIMIT_AS, (had + 2 * memory, had + 2 * memory))
        for seed in seeds:
            start = time.process_time()
            most = _highest()
            outcome = trial(seed)
            if (more := _highest() - most) > memory:
                outcome = f"FAULT: took {more / 2**20:.0f} MB ({outcome})"
            if said.tell() or os.fstat(said.fileno()).st_size:
                said.seek(0)
                outcome = f"FAULT: said {said.read()[:300]!r} ({outcome})"
                said.truncate(0)
                said.seek(0)
            if (took := time.process_time() - start) > 10:
                outcome = f"FAULT: took {took:.0f} s of the processor ({outcome})"
            pipe.send(outcome)
    with suppress(OSError):
        pipe.close()
    os._exit(0)


def _virtual() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _highest() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
