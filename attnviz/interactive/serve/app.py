"""The pages: what is asked for, in its turn, and answers that tell no more than they must."""

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
from attnviz.interactive.serve.answers import Answers, Asked, Work
from attnviz.interactive.serve.auth import (
    FREE,
    Door,
    Guard,
    Headed,
    refuse,
)
from attnviz.interactive.serve.queue import (
    BusyError,
    ClosingError,
    SlowError,
    Turns,
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
_PATIENCE = 10.0  # seconds in which a request must have come


class Pages:
    """The pages of one server.

    most_bytes : of a request.
    """

    def __init__(self, answers: Answers, turns: Turns, most_bytes: int) -> None:
        self.answers, self.turns, self.most_bytes = answers, turns, most_bytes
        self._began = time.monotonic()
        static = files("attnviz").joinpath("interactive", "static")
        self._static = {name: static.joinpath(name).read_bytes() for name in _STATIC}

    def routes(self) -> list[Route]:
        """Return all there is."""
        return [
            Route("/", self.page, methods=["GET"]),
            Route("/static/{name}", self.static, methods=["GET"]),
            Route("/about", self.about, methods=["GET"]),
            Route("/turn/{ticket}", self.turn, methods=["GET"]),
            Route(FREE, self.health, methods=["GET"]),
            Route("/attention", self._answered(self.answers.attention), methods=["POST"]),
            Route("/senses", self._answered(self.answers.senses), methods=["POST"]),
            Route("/shift", self._answered(self.answers.shift), methods=["POST"]),
        ]

    async def page(self, request: Request) -> Response:
        """Show the page."""
        return Response(_PAGE, media_type="text/html")

    async def static(self, request: Request) -> Response:
        """Return one of the known files."""
        name = request.path_params["name"]
        if name not in _STATIC:
            raise HTTPException(404)
        return Response(self._static[name], media_type=_STATIC[name])

    async def about(self, request: Request) -> Response:
        """Say what may be asked."""
        words = sorted(bundled())
        return _json({"models": list(self.answers.models), "words": words, **self._limits()})

    async def turn(self, request: Request) -> Response:
        """Say how many come before a reader, and how far the reader's work is; null at its end."""
        found = self.turns.find(request.path_params["ticket"])
        if found is None:
            return _json(None)
        ahead, turn = found
        return _json({"ahead": ahead, "doing": turn.doing, "done": turn.done})

    async def health(self, request: Request) -> Response:
        """Say how the server is, and nothing of what was read."""
        return _json(
            {
                "status": "ok",
                "models": list(self.answers.models),
                "running": self.turns.running,
                "waiting": self.turns.waiting,
                "served": self.turns.served,
                "uptime_s": round(time.monotonic() - self._began, 1),
                "memory_mb": _memory(),
                **self._limits(),
            }
        )

    def _limits(self) -> dict[str, float]:
        return {"max_tokens": self.answers.most, "time_limit_s": self.turns.limit}

    def _answered(self, read: Callable[[Asked], Work]) -> Callable[..., Any]:
        async def answer(request: Request) -> Response:
            asked = await self._asked(request)
            ticket = asked.get("ticket")
            work = read(asked)
            taken = asyncio.create_task(
                self.turns.take(work, ticket if isinstance(ticket, str) else "")
            )
            left = asyncio.create_task(_left(request))
            try:
                await asyncio.wait({taken, left}, return_when=asyncio.FIRST_COMPLETED)
                if not taken.done():
                    return Response(status_code=499)  # nobody is there to read it
                return Response(taken.result(), media_type="application/json")
            finally:
                left.cancel()
                taken.cancel()

        return answer

    async def _asked(self, request: Request) -> Asked:
        """Return the object that a request holds, read no further than it may be long."""
        body = bytearray()
        try:
            async with asyncio.timeout(_PATIENCE):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > self.most_bytes:
                        raise HTTPException(
                            413, f"Expected at most {self.most_bytes} bytes. Shorten the text."
                        )
        except TimeoutError:
            raise HTTPException(408, "Expected the whole request sooner. Try again.") from None
        try:
            asked = json.loads(body)
        except (ValueError, RecursionError):
            raise InputError("Expected a JSON object, got what is no JSON.") from None
        if not isinstance(asked, dict):
            raise InputError(f"Expected a JSON object, got {type(asked).__name__}.")
        return asked


async def _left(request: Request) -> None:
    """Return when the reader has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def make_app(
    answers: Answers,
    turns: Turns,
    door: Door,
    *,
    hosts: Sequence[str],
    origins: Sequence[str],
    most_bytes: int,
) -> ASGIApp:
    """Return the whole application, with all its defences.

    Parameters
    ----------
    hosts : the names under which it may be asked, without a port. origins : of its own pages.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await turns.closed()

    app = Starlette(
        routes=Pages(answers, turns, most_bytes).routes(),
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False),
            Middleware(Guard, door=door, origins=list(origins)),
        ],
        exception_handlers={
            HTTPException: _refuse_http,
            AttnvizError: _refuse_wrong,
            BusyError: _refuse_busy,
            ClosingError: _refuse_closing,
            SlowError: _refuse_slow(turns.limit),
            Exception: _refuse_failed,
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return Headed(app)


async def _refuse_http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refuse(error.status_code, error.detail, dict(error.headers or {}))


async def _refuse_wrong(_: Request, error: Exception) -> Response:
    return refuse(400 if isinstance(error, InputError) else 422, str(error))


async def _refuse_busy(_: Request, error: Exception) -> Response:
    why = "Expected fewer to wait for the model. Try again in a few seconds."
    return refuse(503, why, {"Retry-After": "5"})


async def _refuse_closing(_: Request, error: Exception) -> Response:
    return refuse(503, "The server is being stopped. Start it again.", {"Retry-After": "5"})


def _refuse_slow(limit: float) -> Callable[[Request, Exception], Any]:
    async def refuse_slow(_: Request, error: Exception) -> Response:
        return refuse(
            504,
            f"Expected an answer within {limit:g} s, but it takes longer. Shorten the text, or "
            "start the server with a higher --time-limit.",
        )

    return refuse_slow


async def _refuse_failed(_: Request, error: Exception) -> Response:
    """Say on standard error where it failed, without a word of what was read."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(last.filename).name}:{last.lineno}"
    print(f"attnviz: {type(error).__name__} at {where}", file=sys.stderr, flush=True)
    return refuse(500, "Expected the model to run, but it failed. The terminal says where.")


def _json(data: dict[str, Any] | None) -> Response:
    return Response(json.dumps(data), media_type="application/json")


def _memory() -> int | None:
    """Return how much memory the process holds, in MB; None where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") // 10**6
