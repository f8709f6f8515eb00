"""Who may ask: the defences of a page that only the person at this machine should reach.

A page elsewhere can make a browser send requests here. It cannot read a cookie that is HttpOnly and
SameSite=Strict, choose its own Origin or Host, or send JSON without asking first, which nobody
allows. The link holds for one use, as the command line of a browser can be read by others.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FREE = "/health"  # needs no token: it tells nothing of what was read
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Headed:
    """Gives every answer, refusals too, the headers that tell a browser what it may do with it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""

        async def send_headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self.app(scope, receive, send_headed)


class Door:
    """The token that opens the page once, and the cookie that it is exchanged for.

    address : http://host:port. show : is given each new link, the first one too.
    """

    def __init__(self, address: str, show: Callable[[str], None]) -> None:
        self.address, self._show = address, show
        self._cookie = f"attnviz-{address.rpartition(':')[2]}"  # ports of a host share cookies
        self._session = secrets.token_urlsafe(32)
        self.link = ""
        self._renew()

    def _renew(self) -> None:
        self._token = secrets.token_urlsafe(32)
        self.link = f"{self.address}/?token={self._token}"
        self._show(self.link)

    def knows(self, scope: Scope) -> bool:
        """Whether a request carries the cookie."""
        return _same(HTTPConnection(scope).cookies.get(self._cookie, ""), self._session)

    def exchange(self, token: str) -> Response:
        """Return the cookie for the token, and send the reader on without it in the address."""
        if not _same(token, self._token):
            return refuse(403, "Expected the newest link that the terminal shows. Open that one.")
        self._renew()
        answer = RedirectResponse("/", 303)
        answer.set_cookie(self._cookie, self._session, httponly=True, samesite="strict")
        return answer


class Guard:
    """Lets through who has the cookie, and of posts only JSON that our own page sends.

    origins : of our page, with the port.
    """

    def __init__(self, app: ASGIApp, *, door: Door, origins: Sequence[str]) -> None:
        self.app, self.door, self.origins = app, door, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, exchange the token, or pass on."""
        refused = self._look(scope) if scope["type"] == "http" else None
        await (refused or self.app)(scope, receive, send)

    def _look(self, scope: Scope) -> Response | None:
        headers, method, path = Headers(scope=scope), scope["method"], scope["path"]
        reading = method in ("GET", "HEAD")
        if not reading and headers.get("origin") not in self.origins:
            return refuse(403, f"Expected a request of {self.door.address}, got one of elsewhere.")
        if path == FREE:
            return None
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [None])[0]
        known = self.door.knows(scope)
        if path == "/" and method == "GET" and token is not None:
            return RedirectResponse("/", 303) if known else self.door.exchange(token)
        if not known:
            return refuse(403, "Expected the link that the terminal shows. Open it, or reload.")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if not reading and kind != "application/json":
            return refuse(415, f"Expected application/json, got {kind[:40]!r}.")
        return None


def refuse(status: int, why: str, headers: dict[str, str] | None = None) -> Response:
    """Return an answer of one line that says what was expected."""
    return PlainTextResponse(why.encode("utf-8", "replace"), status, headers)


def _same(given: str, known: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "replace"), known.encode())
