"""Start the server of the interactive page: `attnviz serve`."""

from __future__ import annotations

import contextlib
import socket
import threading
import warnings
import webbrowser
from collections.abc import Sequence
from ipaddress import ip_address

import torch
import uvicorn

from attnviz.errors import AttnvizWarning, InputError
from attnviz.inputs import expect_one_text
from attnviz.interactive.serve.app import make_app
from attnviz.interactive.serve.auth import Auth
from attnviz.interactive.serve.handlers import Handlers
from attnviz.interactive.serve.queue import JobQueue
from attnviz.models.checkpoint import BUNDLED
from attnviz.pipeline.attend import Model, load

_MAX_WAITING = 32  # requests
_LOCAL = ("127.0.0.1", "localhost", "::1")
_SHUTDOWN_SECONDS = 3  # for the last responses to be sent


def run(
    models: Sequence[str],
    *,
    host: str,
    port: int,
    max_tokens: int,
    time_limit: float,
    open_browser: bool,
    device: str | torch.device,
    dtype: str | None,
) -> None:
    """Serve until a signal ends the process.

    Parameters
    ----------
    models : sequence of str
        Hub names or folders, the only models that a request may name; empty for the bundled one.
    host : str
        The address to listen at.
    port : int
        0 for any free port.
    max_tokens : int
        The most tokens of a text.
    time_limit : float
        The most seconds of a job.
    open_browser : bool
        Open the page in the browser.
    device, dtype
        As in `load`.

    Raises
    ------
    InputError
        The address is in use or not of this machine, or two models have the same name.
    ModelError
        A model cannot be loaded, or does not take a single text.
    """
    with _bind(host, port) as listener:
        port = listener.getsockname()[1]
        handlers = Handlers(_load(models, device, dtype), max_tokens)
        names = _names(host)
        if host not in _LOCAL:
            message = f"Whoever reaches {host} and has the link can use it."
            warnings.warn(message, AttnvizWarning, stacklevel=2)
        _show(f"{', '.join(handlers.models)}: each link opens the page once, Ctrl-C ends it.")
        auth = Auth(f"http://{_in_url(names[0])}:{port}", _show)
        jobs = JobQueue(_MAX_WAITING, time_limit)
        app = make_app(
            handlers,
            jobs,
            auth,
            hosts=[_in_url(name) for name in names],
            origins=[f"http://{_in_url(name)}:{port}" for name in names],
            max_bytes=2**16 + 16 * max_tokens,
        )
        if open_browser:  # in a thread, as a terminal browser returns only when it is closed
            threading.Thread(target=webbrowser.open, args=(auth.link,), daemon=True).start()
        _Server(app, jobs).run(sockets=[listener])


class _Server(uvicorn.Server):
    """A server without logs, which cancels all jobs when it shuts down."""

    def __init__(self, app: object, jobs: JobQueue) -> None:
        self._jobs = jobs
        super().__init__(
            uvicorn.Config(
                app,  # type: ignore[arg-type]
                http="h11",
                ws="none",
                loop="asyncio",
                lifespan="on",
                log_config=None,
                log_level="critical",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
            )
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._jobs.close()
        await super().shutdown(sockets)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except (OSError, UnicodeError) as error:
        why = (getattr(error, "strerror", None) or "there is no such host").partition(" (while")[0]
        raise InputError(
            f"The server cannot listen at {host}:{port}: {why}. Choose another --port (0 for any "
            "that is free) or --host."
        ) from None


def _load(names: Sequence[str], device: str | torch.device, dtype: str | None) -> dict[str, Model]:
    models: dict[str, Model] = {}
    for name in names or [BUNDLED]:
        model = load(None if name == BUNDLED else name, device=device, dtype=dtype)
        expect_one_text(model.checkpoint)
        if model.name in models:
            raise InputError(f"Expected each model once, got {model.name} twice. Leave one out.")
        models[model.name] = model
    return models


def _names(host: str) -> list[str]:
    """Return the host names under which a browser may reach the server; the link has the first."""
    if host in _LOCAL:
        return list(dict.fromkeys((host, *_LOCAL)))
    with contextlib.suppress(ValueError):
        if ip_address(host).is_unspecified:  # every address of this machine
            hostname = socket.gethostname().lower()
            addresses: set[str] = set()
            with contextlib.suppress(OSError):
                addresses = {str(info[4][0]) for info in socket.getaddrinfo(hostname, None)}
            return [hostname, *sorted(addresses), *_LOCAL]
    return [host.lower()]


def _in_url(name: str) -> str:
    return f"[{name}]" if ":" in name else name


def _show(line: str) -> None:
    with contextlib.suppress(OSError):  # standard output may be closed
        print(line, flush=True)
