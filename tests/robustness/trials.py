"""Run trials in separate processes, where crashes, hangs and memory limits are outcomes."""

import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

_CONTEXT = multiprocessing.get_context("fork")  # imports stay loaded in a fork


def run_trials(
    trial: Callable[[int], str],
    seeds: Iterable[int],
    *,
    seconds: float = 60,
    memory: int = 2**30,
    afresh: int = 1000,
) -> Iterator[tuple[int, str]]:
    """Yield each seed and the outcome of its trial.

    An outcome begins with FAULT if the process died, exceeded the `seconds` or `memory` limit (in
    bytes, beyond what it already used), or wrote to standard output or error.
    """
    todo = [*seeds]
    while todo:
        batch, todo = todo[:afresh], todo[afresh:]
        count = 0
        receiver, sender = _CONTEXT.Pipe()
        process = _CONTEXT.Process(target=_work, args=(sender, trial, batch, memory), daemon=True)
        process.start()
        sender.close()
        try:
            while count < len(batch):
                if not receiver.poll(seconds):
                    yield batch[count], f"FAULT: no end in {seconds} s"
                    break
                yield batch[count], receiver.recv()
                count += 1
        except EOFError:
            process.join()
            yield batch[count], f"FAULT: the process died, exit code {process.exitcode}"
        process.kill()
        process.join()
        todo = batch[count + 1 :] + todo


def _work(pipe: Any, trial: Callable[[int], str], seeds: list[int], memory: int) -> None:
    with tempfile.TemporaryFile() as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        torch.set_num_threads(1)  # the threads of the parent are not in a fork
        used, baseline = _virtual(), 0
        resource.setrlimit(resource.RLIMIT_AS, (used + 2 * memory, used + 2 * memory))
        for seed in seeds:
            start = time.process_time()
            baseline = _peak_memory()
            outcome = trial(seed)
            if (growth := _peak_memory() - baseline) > memory:
                outcome = f"FAULT: took {growth / 2**20:.0f} MB ({outcome})"
            if output.tell() or os.fstat(output.fileno()).st_size:
                output.seek(0)
                outcome = f"FAULT: said {output.read()[:300]!r} ({outcome})"
                output.truncate(0)
                output.seek(0)
            if (elapsed := time.process_time() - start) > 10:
                outcome = f"FAULT: took {elapsed:.0f} s of the processor ({outcome})"
            pipe.send(outcome)
    with suppress(OSError):
        pipe.close()
    os._exit(0)


def _virtual() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
