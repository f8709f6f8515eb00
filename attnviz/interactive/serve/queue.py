"""Turns at the models: one run at a time, few waiting, each of them stopped when nobody waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch.overrides import TorchFunctionMode

from attnviz.runtime.progress import listening

T = TypeVar("T")


class BusyError(Exception):
    """As many wait as may."""


class SlowError(Exception):
    """The work took longer than it may."""


class ClosingError(Exception):
    """The server is about to end."""


class Left(BaseException):
    """Raised within work for which nobody waits any more; no `except Exception` stops it."""


@dataclass(eq=False)
class Turn:
    """One piece of work, and how far it has come.

    ticket : what the reader calls it. doing, done : what is being done, and which share of the
    whole is done, 0 to 1.
    """

    ticket: str
    doing: str = ""
    done: float = 0.0
    stopped: threading.Event = field(default_factory=threading.Event)
    _left: bool = False

    def do(self, work: Callable[[], T]) -> T:
        """Do the work; once stopped, it ends at its next call of torch or word of progress."""
        with listening(self._hear), _Looking(self.look):
            self.look()
            return work()

    def _hear(self, name: str, done: float) -> None:
        self.look()
        self.doing, self.done = name, done

    def look(self) -> None:
        """Raise Left where the work is to stop; once, so that it can put back what it changed."""
        if self.stopped.is_set() and not self._left:
            self._left = True
            raise Left


class _Looking(TorchFunctionMode):
    """Looks up at each call of torch, in the thread that it is entered in."""

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__()
        self._look = look

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call `func` as it is."""
        self._look()
        return func(*args, **(kwargs or {}))


class Turns:
    """Who runs, and who waits, first come, first served.

    most : how many may wait. limit : seconds that a run may take; waiting does not count.
    """

    def __init__(self, most: int, limit: float) -> None:
        self.most, self.limit = most, limit
        self.served = 0
        self._turns: list[Turn] = []
        self._free = asyncio.Lock()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="attnviz")
        self._closing = False

    @property
    def running(self) -> int:
        """How many run: 0 or 1."""
        return int(self._free.locked())

    @property
    def waiting(self) -> int:
        """How many wait."""
        return max(0, len(self._turns) - self.running)

    def find(self, ticket: str) -> tuple[int, Turn] | None:
        """Return the turn of a ticket, and how many come before it; None if there is none."""
        return next((at for at in enumerate(self._turns) if at[1].ticket == ticket), None)

    async def take(self, work: Callable[[], T], ticket: str = "") -> T:
        """Wait for a turn, do the work in a thread, and return what comes of it.

        Where the caller is cancelled, or the time is up, the work is dropped or stopped; the next
        one starts when it has ended.

        Raises
        ------
        BusyError : too many wait. SlowError : the time is up. ClosingError : the server ends.
        """
        if len(self._turns) > self.most:
            raise BusyError
        turn = Turn(ticket)
        self._turns.append(turn)
        try:
            await self._free.acquire()
            if self._closing:
                self._free.release()
                raise ClosingError
            running = asyncio.get_running_loop().run_in_executor(self._worker, turn.do, work)
            running.add_done_callback(self._ended)
            await asyncio.wait([running], timeout=self.limit)
            if not running.done():
                raise SlowError
            found = running.result()
            self.served += 1
            return found
        except Left:
            raise ClosingError from None
        finally:
            turn.stopped.set()
            self._turns.remove(turn)

    def _ended(self, running: asyncio.Future[Any]) -> None:
        self._free.release()
        if not running.cancelled():
            running.exception()  # seen, also where nobody waits for it

    def close(self) -> None:
        """Stop what runs, and send away all who wait."""
        self._closing = True
        for turn in self._turns:
            turn.stopped.set()

    async def closed(self) -> None:
        """Wait until the last run has ended."""
        self.close()
        async with self._free:
            self._worker.shutdown()
