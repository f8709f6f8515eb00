"""Runs that are stopped, and clients that send no whole request and lock nobody out.

test_serving.py has the order of requests, clients that leave, and the end of the server.
"""

import asyncio
import socket
import threading
import time
from contextlib import suppress

import pytest
import uvicorn
from starlette.exceptions import HTTPException

from attnviz.interactive.serve import Connection, JobQueue
from attnviz.runtime import say


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


WHOLE = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
HALF = {
    "nothing": b"",
    "half a header": b"GET / HTTP/1.1\r\nHo",
    "half a body": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf",
    "half a second header": WHOLE + b"GET / HTTP/1.1\r\nHo",
}
MAX_SECONDS, MAX_OPEN = 0.5, 4


class Strict(Connection):
    max_seconds, max_open = MAX_SECONDS, MAX_OPEN


async def answer(scope, receive, send):
    """Answer at once to GET; wait for the path /slow; never read a body."""
    if scope["path"] == "/slow":
        await asyncio.sleep(2 * MAX_SECONDS)
    headers = [(b"content-length", b"4")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"done"})


def serve(client):
    """Run a coroutine with the port of a server whose limits are small."""

    async def main():
        config = uvicorn.Config(
            answer, http=Strict, ws="none", lifespan="off", log_config=None, timeout_keep_alive=60
        )
        server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            serving = asyncio.create_task(server.serve([listener]))
            while not server.started:
                await asyncio.sleep(0.01)
            await client(listener.getsockname()[1])
            server.should_exit = True
            await serving

    asyncio.run(asyncio.wait_for(main(), 20))


async def send(port, request):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    return reader, writer


async def read_all(reader):
    """Return what is sent until the connection is closed or reset."""
    received = b""
    with suppress(ConnectionResetError):
        while chunk := await reader.read(1000):
            received += chunk
    return received


def test_a_connection_without_a_whole_request_is_closed():
    async def client(port):
        opened = [await send(port, request) for request in HALF.values()]
        for reader, writer in opened:
            await asyncio.wait_for(read_all(reader), 3 * MAX_SECONDS)
            writer.close()

    serve(client)


def test_a_slow_answer_is_not_cut_off():
    async def client(port):
        reader, writer = await send(port, WHOLE.replace(b"/ ", b"/slow "))
        assert (await reader.readuntil(b"done")).startswith(b"HTTP/1.1 200")
        writer.write(WHOLE)  # the connection is kept open
        assert (await reader.readuntil(b"done")).startswith(b"HTTP/1.1 200")
        writer.close()

    serve(client)


def test_the_connection_that_waited_longest_is_closed():
    async def client(port):
        slow = await send(port, WHOLE.replace(b"/ ", b"/slow "))
        idle = [await send(port, HALF["half a header"]) for _ in range(MAX_OPEN - 1)]
        last = await send(port, WHOLE)
        await last[0].readuntil(b"done")
        assert await asyncio.wait_for(read_all(idle[0][0]), MAX_SECONDS / 2) == b""
        assert not idle[1][0].at_eof()
        await slow[0].readuntil(b"done")
        for _, writer in (slow, *idle, last):
            writer.close()

    serve(client)
