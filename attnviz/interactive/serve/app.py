"""Build the web application: its routes, its middleware and its error responses."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from attnviz.analyses.senses.sentences import bundled
from attnviz.errors import AttnvizError, InputError
from attnviz.interactive.serve.auth import (
    PUBLIC_PATH,
    Auth,
    AuthMiddleware,
    SecurityHeaders,
    refuse,
)
from attnviz.interactive.serve.handlers import Handlers, Query, Work
from attnviz.interactive.serve.queue import (
    BusyError,
    ClosingError,
    JobQueue,
    SlowError,
)

_STATIC = {"attnviz.iife.js": "text/javascript", "attnviz.css": "text/css"}
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>attnviz</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="attnviz-live"><link rel="icon" href="data:,">
<link rel="stylesheet" href="/static/attnviz.css">
<script src="/static/attnviz.iife.js" defer></script></head>
<body><main id="attnviz"></main></body></html>
"""
_BODY_TIMEOUT = 10.0  # seconds


class Pages:
    """The routes of one server.

    Parameters
    ----------
    handlers : Handlers
        What answers the requests of the page.
    jobs : JobQueue
        Where their work runs.
    max_bytes : int
        The most bytes of a request.
    """

    def __init__(self, handlers: Handlers, jobs: JobQueue, max_bytes: int) -> None:
        self.handlers, self.jobs, self.max_bytes = handlers, jobs, max_bytes
        self._started = time.monotonic()
        static = files("attnviz").joinpath("interactive", "static")
        self._static = {name: static.joinpath(name).read_bytes() for name in _STATIC}

    def routes(self) -> list[Route]:
        """Return all routes."""
        return [
            Route("/", self.page, methods=["GET"]),
            Route("/static/{name}", self.static, methods=["GET"]),
            Route("/about", self.about, methods=["GET"]),
            Route("/turn/{ticket}", self.progress, methods=["GET"]),
            Route(PUBLIC_PATH, self.health, methods=["GET"]),
            Route("/attention", self._endpoint(self.handlers.attention), methods=["POST"]),
            Route("/senses", self._endpoint(self.handlers.senses), methods=["POST"]),
            Route("/shift", self._endpoint(self.handlers.shift), methods=["POST"]),
        ]

    async def page(self, request: Request) -> Response:
        """Return the page."""
        return Response(_PAGE, media_type="text/html")

    async def static(self, request: Request) -> Response:
        """Return the script or the styles."""
        name = request.path_params["name"]
        if name not in _STATIC:
            raise HTTPException(404)
        return Response(self._static[name], media_type=_STATIC[name])

    async def about(self, request: Request) -> Response:
        """Return the models, the words with sentences and the limits."""
        words = sorted(bundled())
        return _json({"models": list(self.handlers.models), "words": words, **self._limits()})

    async def progress(self, request: Request) -> Response:
        """Return a job's place in the queue and its progress; null once it has ended."""
        place = self.jobs.find(request.path_params["ticket"])
        if place is None:
            return _json(None)
        ahead, job = place
        return _json({"ahead": ahead, "doing": job.step, "done": job.progress})

    async def health(self, request: Request) -> Response:
        """Return the state of the server, without any text that was typed."""
        return _json(
            {
                "status": "ok",
                "models": list(self.handlers.models),
                "running": self.jobs.running,
                "waiting": self.jobs.waiting,
                "served": self.jobs.served,
                "uptime_s": round(time.monotonic() - self._started, 1),
                "memory_mb": _memory(),
                **self._limits(),
            }
        )

    def _limits(self) -> dict[str, float]:
        return {"max_tokens": self.handlers.max_tokens, "time_limit_s": self.jobs.time_limit}

    def _endpoint(self, handler: Callable[[Query], Work]) -> Callable[..., Any]:
        async def answer(request: Request) -> Response:
            query = await self._read_query(request)
            ticket = query.get("ticket")
            work = handler(query)
            job = asyncio.create_task(
                self.jobs.run(work, ticket if isinstance(ticket, str) else "")
            )
            disconnected = asyncio.create_task(_wait_for_disconnect(request))
            try:
                await asyncio.wait({job, disconnected}, return_when=asyncio.FIRST_COMPLETED)
                if not job.done():
                    return Response(status_code=499)  # the client has closed the connection
                return Response(job.result(), media_type="application/json")
            finally:
                disconnected.cancel()
                job.cancel()

        return answer

    async def _read_query(self, request: Request) -> Query:
        """Return the JSON object of a request; stop reading once it is too long."""
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_TIMEOUT):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > self.max_bytes:
                        raise HTTPException(
                            413, f"Expected at most {self.max_bytes} bytes. Shorten the text."
                        )
        except TimeoutError:
            raise HTTPException(408, "The request took too long to arrive. Try again.") from None
        try:
            query = json.loads(body)
        except (ValueError, RecursionError):
            raise InputError("Expected a JSON object, got text that is not JSON.") from None
        if not isinstance(query, dict):
            raise InputError(f"Expected a JSON object, got {type(query).__name__}.")
        return query


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def make_app(
    handlers: Handlers,
    jobs: JobQueue,
    auth: Auth,
    *,
    hosts: Sequence[str],
    origins: Sequence[str],
    max_bytes: int,
) -> ASGIApp:
    """Return the application with all its middleware.

    Parameters
    ----------
    handlers, jobs, max_bytes
        As in `Pages`.
    auth : Auth
        The token and the session.
    hosts : sequence of str
        The host names that a request may use, without a port.
    origins : sequence of str
        The origins of the server's own pages.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await jobs.wait_closed()

    app = Starlette(
        routes=Pages(handlers, jobs, max_bytes).routes(),
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False),
            Middleware(AuthMiddleware, auth=auth, origins=list(origins)),
        ],
        exception_handlers={
            HTTPException: _refuse_http,
            AttnvizError: _refuse_input,
            BusyError: _refuse_busy,
            ClosingError: _refuse_closing,
            SlowError: _refuse_slow(jobs.time_limit),
            Exception: _refuse_internal,
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return SecurityHeaders(app)


async def _refuse_http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refuse(error.status_code, error.detail, dict(error.headers or {}))


async def _refuse_input(_: Request, error: Exception) -> Response:
    return refuse(400 if isinstance(error, InputError) else 422, str(error))


async def _refuse_busy(_: Request, error: Exception) -> Response:
    message = "Too many requests wait for the model. Try again in a few seconds."
    return refuse(503, message, {"Retry-After": "5"})


async def _refuse_closing(_: Request, error: Exception) -> Response:
    return refuse(503, "The server is shutting down. Start it again.", {"Retry-After": "5"})


def _refuse_slow(limit: float) -> Callable[[Request, Exception], Any]:
    async def refuse_slow(_: Request, error: Exception) -> Response:
        return refuse(
            504,
            f"The answer is not ready within {limit:g} s. Shorten the text, or start the server "
            "with a higher --time-limit.",
        )

    return refuse_slow


async def _refuse_internal(_: Request, error: Exception) -> Response:
    """Print where it failed on standard error, without any text that was typed."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(last.filename).name}:{last.lineno}"
    print(f"attnviz: {type(error).__name__} at {where}", file=sys.stderr, flush=True)
    return refuse(500, "The model failed. The terminal shows where.")


def _json(data: dict[str, Any] | None) -> Response:
    return Response(json.dumps(data), media_type="application/json")


def _memory() -> int | None:
    """Return the memory of the process in MB; None where the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") // 10**6
