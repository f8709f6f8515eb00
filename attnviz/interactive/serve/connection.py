"""One connection of the server, which is closed if its client sends no request in time."""

from __future__ import annotations

import asyncio
import math
from typing import ClassVar, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """A connection whose client must send each request, headers and body, within a time limit.

    If too many are open, the one that has waited longest for a request is closed, so that idle
    clients cannot lock out others.
    """

    max_seconds: ClassVar[float] = 12.0
    max_open: ClassVar[int] = 128

    _timer: asyncio.TimerHandle | None = None  # runs while a request is to arrive

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request; if too many connections are open, close one."""
        super().connection_made(transport)
        self._update_timer()
        all_connections = cast(set[Connection], self.connections)
        is_open = [other for other in all_connections if not other.transport.is_closing()]
        if len(is_open) > self.max_open:
            min(is_open, key=Connection._deadline).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Handle data, which may complete a request."""
        super().data_received(data)
        self._update_timer()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._update_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        super().connection_lost(exc)
        self._stop_timer()

    def _deadline(self) -> float:
        return math.inf if self._timer is None else self._timer.when()

    def _update_timer(self) -> None:
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_timer()
        elif self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(self.max_seconds, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
