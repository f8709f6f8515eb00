"""Runs that are stopped; more connections than the server holds.

test_serving.py has the order of requests, clients that leave, and the end of the server.
"""

import asyncio
import socket
import threading
import time
from contextlib import ExitStack

import pytest
from starlette.exceptions import HTTPException

from attnviz.interactive.serve import JobQueue
from attnviz.runtime import say
from tests.interactive.serve.test_serving import until


def test_the_time_limit_applies_to_runs_not_to_waiting():
    ended = threading.Event()

    def work():
        try:
            while True:
                say("", 0.5)
                time.sleep(0.002)
        finally:
            ended.set()

    async def main():
        jobs = JobQueue(4, 0.2)
        slow = asyncio.create_task(jobs.run(work))
        slow_too = asyncio.create_task(jobs.run(work))
        quick = asyncio.create_task(jobs.run(lambda: "done"))
        for each in (slow, slow_too):
            with pytest.raises(HTTPException, match=r"504: .* not ready within 0\.2 s"):
                await each
        assert await quick == "done"  # it waited 0.4 s and ran for less
        assert ended.is_set()

    asyncio.run(main())


def test_more_connections_than_are_held_are_refused_at_once(server, reader):
    with ExitStack() as opened:
        for _ in range(130):
            opened.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        assert " 503 " in server.raw(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").splitlines()[0]
    until(lambda: reader.get("/about").status_code == 200)  # once it knows that they are closed
