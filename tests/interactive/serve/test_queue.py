"""Runs that are stopped, and clients that send no whole request and lock nobody out.

test_serving.py has the order of requests, clients that leave, and the end of the server.
"""

import asyncio
import socket
import threading
import time
from contextlib import suppress

import pytest
from starlette.exceptions import HTTPException

import attnviz
from attnviz.interactive.serve import Connection, JobQueue
from attnviz.runtime import say
from tests.interactive.serve.live_server import serving_in_thread
from tests.interactive.serve.test_serving import leaving


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


# --- connections


WHOLE = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF = {
    "nothing": b"",
    "half a header": b"GET / HTTP/1.1\r\nHo",
    "half a body": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nhalf",
    "half a second header": WHOLE + b"GET / HTTP/1.1\r\nHo",
}
MAX_SECONDS, MAX_OPEN = 0.5, 4


@pytest.fixture(scope="module")
def strict(small):
    """A server whose limits are small, and whose model takes longer."""
    model = attnviz.load(small)
    model.module.register_forward_pre_hook(lambda *_: time.sleep(MAX_SECONDS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "max_seconds", MAX_SECONDS)
        patch.setattr(Connection, "max_open", MAX_OPEN)
        with serving_in_thread(model) as served:
            yield served


@pytest.fixture
def slow(strict):
    """A connection whose answer takes longer than a request may take to arrive."""
    with strict.enter() as reader:
        connection = leaving(strict, reader, "/attention", {"text": "the train"})
    while not strict.site.jobs.running:  # until the server has read the request
        time.sleep(0.01)
    with connection:
        yield connection


def opened(served, request):
    connection = socket.create_connection(("127.0.0.1", served.port))
    connection.sendall(request)
    return connection


def read(connection, until=None):
    """Return what is sent until the connection is closed or reset, or up to these bytes."""
    connection.settimeout(120)
    received = b""
    with suppress(ConnectionResetError):
        while (until is None or until not in received) and (chunk := connection.recv(1000)):
            received += chunk
    return received


def test_a_connection_without_a_whole_request_is_closed(strict):
    several = [opened(strict, request) for request in HALF.values()]
    for connection in several:
        read(connection)
        connection.close()


def test_a_slow_answer_is_not_cut_off(slow):
    began = time.monotonic()
    assert read(slow, until=b"\r\n").startswith(b"HTTP/1.1 200")
    assert time.monotonic() - began > MAX_SECONDS
    slow.sendall(WHOLE)  # the connection is kept open
    assert b'"uptime_s"' in read(slow, until=b'"uptime_s"')


def test_the_connection_that_waited_longest_is_closed(strict, slow, monkeypatch):
    monkeypatch.setattr(Connection, "max_seconds", 600)  # none is closed because it is late
    idle = [opened(strict, HALF["half a header"]) for _ in range(MAX_OPEN - 1)]
    last = opened(strict, WHOLE)
    assert b'"uptime_s"' in read(last, until=b'"uptime_s"')
    assert read(idle[0]) == b""
    idle[1].setblocking(False)
    with pytest.raises(BlockingIOError):  # it is open
        idle[1].recv(1)
    assert read(slow, until=b"\r\n").startswith(b"HTTP/1.1 200")
    for connection in (*idle, last):
        connection.close()
