"""Run a check for each name in a separate process, which may crash, hang or run out of memory.

A fork server imports the heavy libraries once; each process is forked from it.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
import traceback
from collections.abc import Iterable, Iterator
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

PRELOADED = ["architectures.check", "architectures.use", "matplotlib.pyplot", "sklearn.cluster",
             "attnviz.analyses.maps.plot", "attnviz.analyses.survey.compute",
             "attnviz.analyses.shift.compute", "attnviz.analyses.explain.compute"]  # fmt: skip


def run_each(
    names: Iterable[str], workers: int, seconds: float, gigabytes: float, task: str = "check"
) -> Iterator[dict[str, Any]]:
    """Yield results as they finish; a failure is a result with a `reason`.

    task : "check" or "use", the module and its function that gives the result of a name.
    """
    scripts = str(Path(__file__).parent.parent)  # lets the fork server find its preloads
    os.environ["PYTHONPATH"] = os.pathsep.join([scripts, os.environ.get("PYTHONPATH", "")])
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    waiting, running = list(names), []
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(_Run(context, waiting.pop(0), seconds, gigabytes, task))
            wait([run.result for run in running], timeout=0.5)
            for run in list(running):
                result = run.poll()
                if result is not None:
                    running.remove(run)
                    yield result
    finally:
        for run in running:
            run.process.kill()


class _Run:
    """One running process."""

    def __init__(
        self, context: Any, name: str, seconds: float, gigabytes: float, task: str
    ) -> None:
        self.name, self.seconds, self.started = name, seconds, time.monotonic()
        self.result, sender = context.Pipe(duplex=False)
        self.process = context.Process(target=_work, args=(name, gigabytes, sender, task))
        self.process.start()
        sender.close()

    def poll(self) -> dict[str, Any] | None:
        """Return the result or the reason of the failure; None while the process is running."""
        elapsed = round(time.monotonic() - self.started, 1)
        if self.result.poll():
            try:
                result = self.result.recv()
            except EOFError:
                self.process.join()
                code = self.process.exitcode
                result = {"reason": f"the process ended with code {code}"}
        elif elapsed > self.seconds:
            self.process.kill()
            result = {"reason": f"still running after {self.seconds:g} seconds"}
        else:
            return None
        self.process.join()
        self.result.close()
        return {"architecture": self.name} | result | {"seconds": elapsed}


def _work(name: str, gigabytes: float, sender: Connection, task: str) -> None:
    limit = int(gigabytes * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    run = getattr(import_module(f"architectures.{task}"), task)

    try:
        sender.send(run(name))
    except BaseException as error:
        sender.send({"reason": explain(error)})


def explain(error: BaseException) -> str:
    """Return an error as one line: its type, its message and the line that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    message = " ".join(str(error).split())[:400]
    return f"{type(error).__name__}: {message} ({Path(last.filename).name}:{last.lineno})"
