"""Authenticate requests, so that only the person at this machine reaches the page.

A page elsewhere can make a browser send requests here. It cannot read a cookie that is HttpOnly and
SameSite=Strict, choose its own Origin or Host, or send JSON without a preflight request, which is
always refused. A link works once, as other users can read the command line of a browser.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PUBLIC_PATH = "/health"  # needs no token: its answer contains nothing that was typed
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


class SecurityHeaders:
    """Middleware that adds the security headers to every response, also to refusals."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self.app(scope, receive, send_with_headers)


class Auth:
    """The token of the newest link, and the session cookie that it is exchanged for.

    Parameters
    ----------
    address : str
        http://host:port.
    show : callable
        Called with each new link, also the first.
    """

    def __init__(self, address: str, show: Callable[[str], None]) -> None:
        self.address, self._show = address, show
        self._cookie = f"attnviz-{address.rpartition(':')[2]}"  # ports of a host share cookies
        self._session = secrets.token_urlsafe(32)
        self._renew_link()

    def _renew_link(self) -> None:
        self._token = secrets.token_urlsafe(32)
        self.link = f"{self.address}/?token={self._token}"
        self._show(self.link)

    def has_session(self, scope: Scope) -> bool:
        """Return whether a request carries the session cookie."""
        return _equal(HTTPConnection(scope).cookies.get(self._cookie, ""), self._session)

    def exchange(self, token: str) -> Response:
        """Return a response that sets the cookie and removes the token from the address."""
        if not _equal(token, self._token):
            return refuse(403, "Expected the newest link that the terminal shows. Open that one.")
        self._renew_link()
        response = RedirectResponse("/", 303)
        response.set_cookie(self._cookie, self._session, httponly=True, samesite="strict")
        return response


class AuthMiddleware:
    """Middleware that requires the cookie, and for a POST also JSON from one of our own pages.

    Parameters
    ----------
    app : ASGIApp
        The application to protect.
    auth : Auth
        The token and the session.
    origins : sequence of str
        The origins of our pages, with the port.
    """

    def __init__(self, app: ASGIApp, *, auth: Auth, origins: Sequence[str]) -> None:
        self.app, self.auth, self.origins = app, auth, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, exchange its token, or pass it on."""
        response = self._check(scope) if scope["type"] == "http" else None
        await (response or self.app)(scope, receive, send)

    def _check(self, scope: Scope) -> Response | None:
        """Return a response that is not the application's; None to pass the request on."""
        headers, method, path = Headers(scope=scope), scope["method"], scope["path"]
        is_read = method in ("GET", "HEAD")
        if not is_read and headers.get("origin") not in self.origins:
            return refuse(403, f"Expected a request from {self.auth.address}, got another origin.")
        if path == PUBLIC_PATH:
            return None
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [None])[0]
        has_session = self.auth.has_session(scope)
        if path == "/" and method == "GET" and token is not None:
            return RedirectResponse("/", 303) if has_session else self.auth.exchange(token)
        if not has_session:
            return refuse(403, "Expected the link that the terminal shows. Open it, or reload.")
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if not is_read and content_type != "application/json":
            return refuse(415, f"Expected application/json, got {content_type[:40]!r}.")
        return None


def refuse(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """Return a response with an error message of one line."""
    return PlainTextResponse(message.encode("utf-8", "replace"), status, headers)


def _equal(received: str, expected: str) -> bool:
    return secrets.compare_digest(received.encode("utf-8", "replace"), expected.encode())
