"""Queue the work for the models: one job at a time, cancelled when nobody waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from torch.overrides import TorchFunctionMode

from attnviz.runtime.progress import listening

T = TypeVar("T")
_RETRY = {"Retry-After": "5"}  # seconds


class Cancelled(BaseException):
    """Raised inside a cancelled job; a BaseException, so that no `except Exception` stops it."""


class Job(TorchFunctionMode):
    """One job: the client's ticket for it, its current step, and its progress from 0 to 1."""

    def __init__(self, ticket: str) -> None:
        super().__init__()
        self.ticket, self.step, self.progress = ticket, "", 0.0
        self.cancelled, self._raised = threading.Event(), False

    def run(self, work: Callable[[], T]) -> T:
        """Do the work; once cancelled, it ends at its next call of torch or progress report."""
        with listening(self._report), self:
            self.check()
            return work()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func` unchanged, unless the job is cancelled."""
        self.check()
        return func(*args, **(kwargs or {}))

    def _report(self, step: str, progress: float) -> None:
        self.check()
        self.step, self.progress = step, progress

    def check(self) -> None:
        """Raise Cancelled if the job is cancelled; only once, so that cleanup code can run."""
        if self.cancelled.is_set() and not self._raised:
            self._raised = True
            raise Cancelled


class JobQueue:
    """Runs jobs one after the other, first come, first served.

    max_waiting : of jobs. time_limit : the most seconds that a job may run; waiting does not count.
    """

    def __init__(self, max_waiting: int, time_limit: float) -> None:
        self.max_waiting, self.time_limit = max_waiting, time_limit
        self.served = 0  # jobs that are done
        self._jobs: list[Job] = []
        self._lock = asyncio.Lock()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="attnviz")
        self._closing = False

    @property
    def running(self) -> int:
        """The number of jobs that run: 0 or 1."""
        return int(self._lock.locked())

    @property
    def waiting(self) -> int:
        """The number of jobs that wait."""
        return max(0, len(self._jobs) - self.running)

    def find(self, ticket: str) -> tuple[int, Job] | None:
        """Return the number of jobs before that of a ticket, and the job; None if there is none."""
        return next((place for place in enumerate(self._jobs) if place[1].ticket == ticket), None)

    async def run(self, work: Callable[[], T], ticket: str = "") -> T:
        """Wait for the jobs before, do the work in a thread, and return its result.

        If the caller is cancelled or the time is up, the job is cancelled too; the next one starts
        when it has ended. HTTPException 503: too many jobs wait, or the server is shutting down.
        504: the time is up.
        """
        if len(self._jobs) > self.max_waiting:
            message = "Too many requests wait for the model. Try again in a few seconds."
            raise HTTPException(503, message, _RETRY)
        closing = HTTPException(503, "The server is shutting down. Start it again.", _RETRY)
        job = Job(ticket)
        self._jobs.append(job)
        try:
            await self._lock.acquire()
            if self._closing:
                self._lock.release()
                raise closing
            running = asyncio.get_running_loop().run_in_executor(self._worker, job.run, work)
            running.add_done_callback(self._end)
            await asyncio.wait([running], timeout=self.time_limit)
            if not running.done():
                raise HTTPException(
                    504,
                    f"The answer is not ready within {self.time_limit:g} s. Shorten the text, or "
                    "start the server with a higher --time-limit.",
                )
            result = running.result()
            self.served += 1
            return result
        except Cancelled:
            raise closing from None
        finally:
            job.cancelled.set()
            self._jobs.remove(job)

    def _end(self, running: asyncio.Future[Any]) -> None:
        self._lock.release()
        if not running.cancelled():
            running.exception()  # marks it as retrieved where nobody waits for it

    def close(self) -> None:
        """Cancel all jobs."""
        self._closing = True
        for job in self._jobs:
            job.cancelled.set()

    async def wait_closed(self) -> None:
        """Cancel all jobs, and wait until the last one has ended."""
        self.close()
        async with self._lock:
            self._worker.shutdown()
