"""The server of `attnviz serve`: routes, access control, the queue of work, and the answers.

A page elsewhere can make a browser send requests here. It cannot read a cookie that is HttpOnly and
SameSite=Strict, choose its own Origin or Host, or send JSON without a preflight request, which is
always refused. Answers have the data of a page, and for senses and shift also a figure.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import secrets
import socket
import sys
import threading
import traceback
import warnings
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.authentication import AuthenticationBackend, AuthenticationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from torch.overrides import TorchFunctionMode

from attnviz.analyses.explain.compute import explain_tokens
from attnviz.analyses.senses import bundled
from attnviz.analyses.senses.compute import senses
from attnviz.analyses.senses.result import SensesResult
from attnviz.analyses.shift.compute import parse_pair, shift
from attnviz.analyses.shift.result import ShiftResult
from attnviz.errors import AttnvizError, AttnvizWarning, InputError, expect_words
from attnviz.inputs import encode, expect_one_text
from attnviz.interactive import describe_explanation, static_file, view
from attnviz.models import BUNDLED
from attnviz.pipeline.attend import Model, attend
from attnviz.results.base import described, finite
from attnviz.results.text import raised
from attnviz.runtime import listening, part, track

T = TypeVar("T")
_PAGE = Path(__file__).with_name("serve.html").read_text("utf-8")
_CODES = {AuthenticationError: 403, InputError: 400}  # 422 for all others
_STATIC = {"attnviz.live.js": "text/javascript", "attnviz.live.css": "text/css"}
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
_MAX_OPEN = 128  # connections
_NAMES = ("127.0.0.1", "localhost")  # under which a browser reaches the server
Query: TypeAlias = Mapping[str, Any]  # the JSON object of a request
_MAX_SENTENCES = 64  # of a word
_MAX_TOLD = 60  # occurrences that are written out
MAX_GENERATED = 64  # tokens after a text
Work: TypeAlias = Callable[[], dict[str, Any]]


def run(
    models: Sequence[str],
    load: Callable[[str | None], Model],
    *,
    port: int,
    max_tokens: int,
    time_limit: float,
    open_browser: bool,
) -> None:
    """Serve these models (by default the bundled one, `load(None)`) until a signal ends it."""
    with _bind(port) as listener:
        handlers = Handlers(_load(models, load), max_tokens)
        jobs = JobQueue(max_waiting=32, time_limit=time_limit)
        site = Site(handlers, jobs, listener.getsockname()[1])
        with contextlib.suppress(OSError):  # standard output may be closed
            served = ", ".join(handlers.models)
            print(f"{served}: open this link. Ctrl-C stops the server.", flush=True)
            print(site.link(), flush=True)
        if open_browser:  # in a thread, as a terminal browser returns only when it is closed
            link = (site.link(once=True),)
            threading.Thread(target=webbrowser.open, args=link, daemon=True).start()
        _Server(site).run(sockets=[listener])


class Site(AuthenticationBackend):
    """The routes of one server, and access control."""

    def __init__(self, handlers: Handlers, jobs: JobQueue, port: int) -> None:
        self.handlers, self.jobs = handlers, jobs
        self.origins = [f"http://{name}:{port}" for name in _NAMES]
        self._cookie = f"attnviz-{port}"  # ports of a host share cookies
        self._token, self._token_once = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self._session = secrets.token_urlsafe(32)  # the value of the cookie

    def link(self, *, once: bool = False) -> str:
        """Return the link; `once` for the command line of a browser, which other users can read."""
        return f"{self.origins[0]}/?token={self._token_once if once else self._token}"

    def app(self) -> Starlette:
        """Return the application with all its middleware."""
        routes = [
            Route("/", self._page),
            Route("/about", self._about),
            Route("/turn/{ticket}", self._turn),
            *(
                Route(
                    f"/static/{name}", Response(static_file(name), media_type=kind), methods=["GET"]
                )
                for name, kind in _STATIC.items()
            ),
            *(
                Route(f"/{name}", self._endpoint(getattr(self.handlers, name)), methods=["POST"])
                for name in ("attention", "explain", "senses", "shift")
            ),
        ]
        app = Starlette(
            routes=routes,
            middleware=[
                Middleware(TrustedHostMiddleware, allowed_hosts=_NAMES, www_redirect=False),
                Middleware(AuthenticationMiddleware, backend=self, on_error=_refuse),
            ],
            exception_handlers={
                AttnvizError: _refuse,
                ClientDisconnect: _refuse,  # nobody reads it
                Exception: _refuse_internal,
            },
        )
        app.router.redirect_slashes = False
        return app

    async def authenticate(self, conn: HTTPConnection) -> None:
        """Refuse a request without our token or cookie, and a POST from another origin."""
        path = conn.scope["path"]
        is_read = conn.scope["method"] in ("GET", "HEAD")
        if not is_read and conn.headers.get("origin") not in self.origins:
            raise AuthenticationError(
                f"The request comes from another origin. Use the page at {self.origins[0]}."
            )
        if _equal(conn.cookies.get(self._cookie, ""), self._session):
            return
        is_page = path == "/" and conn.scope["method"] == "GET"
        token = conn.query_params.get("token", "") if is_page else ""
        if _equal(token, self._token_once):
            self._token_once = secrets.token_urlsafe(32)
        elif not _equal(token, self._token):
            raise AuthenticationError("The link is not valid. Open the one in the terminal.")

    async def _page(self, request: Request) -> Response:
        """Return the page; exchange a token in the address for the cookie."""
        if "token" not in request.query_params:
            return Response(_PAGE, media_type="text/html")
        response = RedirectResponse("/", 303)
        response.set_cookie(self._cookie, self._session, httponly=True, samesite="strict")
        return response

    async def _about(self, request: Request) -> Response:
        generating = [
            name for name, model in self.handlers.models.items() if model.module.can_generate()
        ]
        return JSONResponse(
            {
                "words": sorted(bundled()),
                "models": list(self.handlers.models),
                "generating": generating,
                "max_generated": MAX_GENERATED,
                "max_tokens": self.handlers.max_tokens,
                "jobs": len(self.jobs.jobs),
            }
        )

    async def _turn(self, request: Request) -> Response:
        """Return a job's place in the queue and its progress; null once it has ended."""
        turn = None
        if place := self.jobs.find(request.path_params["ticket"]):
            turn = {"ahead": place[0], "doing": place[1].step, "done": place[1].progress}
        return JSONResponse(turn)

    def _endpoint(self, handler: Callable[[Query], Work]) -> Callable[..., Any]:
        """Return the endpoint of a handler; if the client disconnects, its job is cancelled."""

        async def respond(request: Request) -> Response:
            query = await self._read_query(request)
            work = partial(answer, handler(query))
            job = asyncio.create_task(self.jobs.run(work, str(query.get("ticket", ""))))
            disconnected = asyncio.create_task(_wait_for_disconnect(request))
            try:
                await asyncio.wait({job, disconnected}, return_when=asyncio.FIRST_COMPLETED)
                if not job.done():
                    return Response(status_code=499)  # the client has closed the connection
                return Response(job.result(), media_type="application/json")
            finally:
                disconnected.cancel()
                job.cancel()

        return respond

    async def _read_query(self, request: Request) -> Query:
        """Return the JSON object of a request; stop reading once it is too long."""
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json":
            raise HTTPException(415, f"{content_type[:40]!r} is not read. Send application/json.")
        body, max_bytes = bytearray(), 2**16 + 16 * self.handlers.max_tokens
        async for chunk in request.stream():
            body += chunk
            if len(body) > max_bytes:
                message = f"The request has more than {max_bytes} bytes. Shorten the text."
                raise HTTPException(413, message)
        try:
            query = json.loads(body)
        except (ValueError, RecursionError):
            query = None
        if not isinstance(query, dict):
            raise InputError("The request is not a JSON object. Send one.")
        return query


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _refuse(_: HTTPConnection, error: Exception) -> Response:
    of_kind = (code for kind, code in _CODES.items() if isinstance(error, kind))
    return PlainTextResponse(str(error), next(of_kind, 422))


async def _refuse_internal(_: Request, error: Exception) -> Response:
    """Print the failing line of code on standard error, without any text that was typed."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(last.filename).name}:{last.lineno}"
    print(f"attnviz: {type(error).__name__} at {place}", file=sys.stderr, flush=True)
    return PlainTextResponse("The model failed. The terminal shows where.", 500)


def _equal(received: str, expected: str) -> bool:
    return secrets.compare_digest(received.encode("utf-8", "replace"), expected.encode())


class _Server(uvicorn.Server):
    """A server without logs, which cancels all jobs when it shuts down."""

    def __init__(self, site: Site) -> None:
        self._jobs = site.jobs
        super().__init__(
            uvicorn.Config(
                site.app(),
                limit_concurrency=_MAX_OPEN,
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                log_level="critical",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                headers=list(_HEADERS.items()),
                timeout_graceful_shutdown=3,  # seconds, for the last responses to be sent
            )
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._jobs.close()
        await super().shutdown(sockets)
        if not self.force_exit:
            await self._jobs.wait_closed()


def _bind(port: int) -> socket.socket:
    try:
        return socket.create_server((_NAMES[0], port))
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]
        raise InputError(
            f"The server cannot listen on port {port}: {reason}. Choose another --port (0 for any "
            "that is free)."
        ) from None


def _load(names: Sequence[str], load: Callable[[str | None], Model]) -> dict[str, Model]:
    models: dict[str, Model] = {}
    for name in names or [BUNDLED.name]:
        model = load(None if name == BUNDLED.name else name)
        expect_one_text(model.checkpoint)
        if model.name in models:
            raise InputError(f"--model names {model.name} twice. Leave one out.")
        models[model.name] = model
    return models


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
    """Runs jobs one after the other, first come, first served, `time_limit` seconds at most."""

    def __init__(self, max_waiting: int, time_limit: float) -> None:
        self.max_waiting, self.time_limit = max_waiting, time_limit
        self.jobs: list[Job] = []  # the one that runs, and those that wait
        self._lock = asyncio.Lock()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="attnviz")
        self._closing = False

    def find(self, ticket: str) -> tuple[int, Job] | None:
        """Return the number of jobs before that of a ticket, and the job; None if there is none."""
        return next((place for place in enumerate(self.jobs) if place[1].ticket == ticket), None)

    async def run(self, work: Callable[[], T], ticket: str = "") -> T:
        """Wait for the jobs before, do the work in a thread, and return its result.

        If the caller is cancelled or the time is up, the job is cancelled too; the next one starts
        when it has ended. HTTPException 503: too many jobs wait, or the server is shutting down.
        504: the time is up.
        """
        if len(self.jobs) > self.max_waiting:
            message = "Too many requests wait for the model. Try again in a few seconds."
            raise HTTPException(503, message)
        closing = HTTPException(503, "The server is shutting down. Start it again.")
        job = Job(ticket)
        self.jobs.append(job)
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
            return running.result()
        except Cancelled:
            raise closing from None
        finally:
            job.cancelled.set()
            self.jobs.remove(job)

    def _end(self, running: asyncio.Future[Any]) -> None:
        self._lock.release()
        if not running.cancelled():
            running.exception()  # marks it as retrieved where nobody waits for it

    def close(self) -> None:
        """Cancel all jobs."""
        self._closing = True
        for job in self.jobs:
            job.cancelled.set()

    async def wait_closed(self) -> None:
        """Wait until the last job has ended, once all are cancelled."""
        async with self._lock:
            self._worker.shutdown()


class Handlers:
    """Checks each request at once, and returns the work that answers it.

    A stranger's text is plain text: special tokens that are typed in it are split. The first model
    is the default.
    """

    def __init__(self, models: Mapping[str, Model], max_tokens: int) -> None:
        self.models = {name: Model(m.checkpoint.reading("split")) for name, m in models.items()}
        self.max_tokens = max_tokens

    def attention(self, query: Query) -> Work:
        """Show every attention on a text, or compare two texts."""
        names = ("text", "compare") if query.get("compare") else ("text",)
        model, texts = self._model(query), [_text(query, name) for name in names]
        generate = _count(query, "generate", MAX_GENERATED) if query.get("generate") else None
        if generate is not None and len(texts) > 1:
            raise InputError("Two texts are compared without generated tokens. Leave one out.")

        def work() -> dict[str, Any]:
            self._expect_short(model, texts)
            results = [
                attend(text, generate=generate, model=model)
                for text in track(texts, "the model reads")
            ]
            return view(results[0], compare=results[1] if len(results) > 1 else None).data()

        return work

    def explain(self, query: Query) -> Work:
        """Explain the token that the model generates at a position after a text."""
        model, text = self._model(query), _text(query, "text")
        position = _count(query, "position", self.max_tokens + MAX_GENERATED)

        def work() -> dict[str, Any]:
            self._expect_short(model, [text])
            number = position - len(encode(model.checkpoint, [text]).axes["text"][0])
            explained = explain_tokens(model, text, number + 1, only=number) if number >= 0 else []
            if not explained:
                raise InputError("The model generates no token there. Show the text again.")
            return describe_explanation(explained[0], position)

        return work

    def senses(self, query: Query) -> Work:
        """Draw in which layers the senses of a word separate."""
        model, word = self._model(query), _text(query, "word")
        sentences = _sentences(query, "sentences", "sense")
        if not sentences and word.strip().casefold() not in bundled():
            raise InputError(
                f"{word[:40]!r} has no bundled sentences. Type your own, or one of "
                f"{', '.join(bundled())}."
            )

        def work() -> dict[str, Any]:
            self._expect_short(model, [text for texts in sentences.values() for text in texts])
            return _figure(partial(senses, word, sentences or None, model=model), _threads)

        return work

    def shift(self, query: Query) -> Work:
        """Draw what moved the vector of a word; {mud|cash} in the text compares two texts."""
        model, word, text = self._model(query), _text(query, "word"), _text(query, "text")
        toward = _sentences(query, "toward", "region")
        texts = [*parse_pair(text, None), *itertools.chain(*toward.values())]

        def work() -> dict[str, Any]:
            self._expect_short(model, texts)
            compute = partial(shift, word, text, toward=toward or None, model=model)
            return _figure(compute, _bricks)

        return work

    def _model(self, query: Query) -> Model:
        name = query.get("model")
        name = next(iter(self.models)) if name is None else name
        if not isinstance(name, str) or name not in self.models:
            names = ", ".join(self.models)
            raise InputError(f"{str(name)[:80]!r} is not served. Choose one of {names}.")
        return self.models[name]

    def _expect_short(self, model: Model, texts: Sequence[str]) -> None:
        for text in texts:
            batch = encode(model.checkpoint, [text], truncate=True)
            readable = len(batch.axes["text"][0])
            count, limit = batch.details[0].cut_from or readable, min(self.max_tokens, readable)
            if count > limit:
                raise InputError(
                    f"The text has {count} tokens, and at most {limit} are read here. Shorten it."
                )


def answer(work: Work) -> bytes:
    """Do the work, and return its JSON.

    Warnings may quote the text: they are sent to the client and not logged.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = work()
    messages = [str(w.message) for w in caught if issubclass(w.category, AttnvizWarning)]
    return json.dumps({**data, "warnings": list(dict.fromkeys(messages))}).encode()


def _sentences(query: Query, name: str, group: str) -> dict[str, list[str]]:
    """Return the sentences of each group, typed as "group: sentence" on a line each."""
    typed = query.get(name) or ""
    if not isinstance(typed, str):
        raise InputError(f"The sentences must be a string, not {type(typed).__name__}. Type some.")
    sentences: dict[str, list[str]] = {}
    for number, line in enumerate(filter(str.strip, typed.splitlines()), 1):
        sense, colon, sentence = line.partition(":")
        if not (sense.strip() and colon and sentence.strip()):
            raise InputError(
                f"Sentence {number} has no {group}. Type the {group} and a colon before it, as in "
                "“river: We sat on the bank.”"
            )
        sentences.setdefault(sense.strip(), []).append(sentence.strip())
    if (count := sum(map(len, sentences.values()))) > _MAX_SENTENCES:
        raise InputError(f"{count} sentences are too many here. Type at most {_MAX_SENTENCES}.")
    return sentences


def _count(query: Query, name: str, most: int) -> int:
    value = str(query.get(name))
    if not value.isdecimal() or len(value) > len(str(most)) or not 1 <= int(value) <= most:
        raise InputError(f"The {name} must be a whole number from 1 to {most}. Type one.")
    return int(value)


def _threads(result: SensesResult) -> dict[str, Any]:
    """Return the sentences, and how much nearer each is to one sense than another by state."""
    occurrences = [
        {**described(o, "sentence start end attends_to"), "sense": result.senses.index(o.sense)}
        for o in result.occurrences
    ]
    shown = described(result, "word senses headline details notes chance claimed is_causal")
    shown |= described(result, "hesitating alike strips") | {"occurrences": occurrences}
    own = torch.tensor([[one["sense"]] for one in occurrences]).expand(*result.right.shape, 1)
    nearest = result.cosines.nan_to_num(-2).scatter(-1, own, -3).argmax(-1)
    numbers = {"heights": result.heights, "right": result.right[-1], "nearest": nearest}
    shown |= {name: finite(some.tolist(), 5) for name, some in numbers.items()}
    shown["scores"] = [described(score, "accuracy low high") for score in result.scores]
    return {"threads": {**shown, "told": sorted(result.sample(_MAX_TOLD))}}


def _bricks(result: ShiftResult) -> dict[str, Any]:
    """Return the paths of the word, and what each word adds to the gap between their ends."""
    adds, takes = result.along(result.parts), result.along(result.tested)
    words = [
        {
            "text": text,
            "name": raised(result.names[n]),
            "kind": "special" if special else "explained" if n == result.at else "other",
            "is_source": n in result.sources,
            "is_unread": n in result.unread,
            "adds": finite(adds[n], 5),
            "takes": finite(takes[n], 5),
        }
        for n, (text, special) in enumerate(zip(result.words, result.special, strict=True))
    ]
    shown = described(result, "headline details notes without regions sign credited changing")
    shown |= {"claimed": result.strongest, "changed": next(iter(result.changed), None)}
    rails = None if result.rails is None else finite(result.rails.tolist(), 5)
    shown |= {"place": finite(result.place.tolist(), 5), "rails": rails, "words": words}
    return {"moved": {**shown, "gap": abs(result.share(result.decomposition.total))}}


def _figure(compute: Callable[[], Any], more: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """Return the figure of a result as SVG, its verdict, and `more` of the result."""
    import matplotlib.pyplot as plt

    from attnviz.figures.layout import render

    with part(0, 2, "the model reads"):
        result = compute()
    plt.switch_backend("agg")  # this thread has no window
    try:
        with part(1, 2, "its figure is drawn"):
            svg = render(result.plot(), ".svg").decode()
    finally:
        plt.close("all")  # also the figures of a cancelled job
    return {
        "svg": svg,
        "verdict": result.agreement.verdict,
        "summary": result.agreement.summary(),
        **more(result),
    }


def _text(query: Query, name: str) -> str:
    return expect_words(query.get(name), f"The {name}")
