"""Run a function for many names, each in a process of its own that may crash, hang or swell.

One process imports the heavy libraries once; every name is run in a copy of it.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
import traceback
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

PRELOADED = ["architectures.check"]


def run_each(
    names: Iterable[str], workers: int, seconds: float, gigabytes: float
) -> Iterator[dict[str, Any]]:
    """Yield a result per name as they are ready; a failure is a result with `reason`."""
    scripts = str(Path(__file__).parent.parent)  # the server finds what it preloads only by this
    os.environ["PYTHONPATH"] = os.pathsep.join([scripts, os.environ.get("PYTHONPATH", "")])
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    waiting, running = list(names), []
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(_Run(context, waiting.pop(0), seconds, gigabytes))
            wait([run.result for run in running], timeout=0.5)
            for run in list(running):
                found = run.poll()
                if found is not None:
                    running.remove(run)
                    yield found
    finally:
        for run in running:
            run.process.kill()


class _Run:
    """One process at work."""

    def __init__(self, context: Any, name: str, seconds: float, gigabytes: float) -> None:
        self.name, self.seconds, self.started = name, seconds, time.monotonic()
        self.result, sender = context.Pipe(duplex=False)
        self.process = context.Process(target=_work, args=(name, gigabytes, sender))
        self.process.start()
        sender.close()

    def poll(self) -> dict[str, Any] | None:
        """Return the result, or what went wrong, or None while it is at work."""
        took = round(time.monotonic() - self.started, 1)
        if self.result.poll():
            try:
                found = self.result.recv()
            except EOFError:
                self.process.join()
                code = self.process.exitcode
                found = {"reason": f"the process ended with code {code}"}
        elif took > self.seconds:
            self.process.kill()
            found = {"reason": f"still at work after {self.seconds:g} seconds"}
        else:
            return None
        self.process.join()
        self.result.close()
        return {"architecture": self.name} | found | {"seconds": took}


def _work(name: str, gigabytes: float, sender: Connection) -> None:
    limit = int(gigabytes * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    from architectures.check import check

    try:
        sender.send(check(name))
    except BaseException as error:
        sender.send({"reason": explain(error)})


def explain(error: BaseException) -> str:
    """Return an error as one line: its kind, its message and the place that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    message = " ".join(str(error).split())[:400]
    return f"{type(error).__name__}: {message} ({Path(last.filename).name}:{last.lineno})"
