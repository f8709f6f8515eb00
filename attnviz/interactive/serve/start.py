"""A page on this machine where sentences are typed and shown at once: `attnviz serve`."""

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
from attnviz.interactive.serve.answers import Answers
from attnviz.interactive.serve.app import make_app
from attnviz.interactive.serve.auth import Door
from attnviz.interactive.serve.queue import Turns
from attnviz.models.checkpoint import BUNDLED
from attnviz.pipeline.attend import Model, load

_WAITING = 32  # readers
_LOCAL = ("127.0.0.1", "localhost", "::1")
_PATIENCE = 3  # seconds for the last answers to be sent


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
    """Serve until a signal comes.

    Parameters
    ----------
    models : hub names or folders, the only models that a reader may ask; none for the bundled one.
    host, port : where; 0 for any free port. max_tokens : of a text. time_limit : of a run, in s.

    Raises
    ------
    InputError : the address is in use or not ours, or two models have one name.
    ModelError : a model cannot be loaded, or does not read one text.
    """
    with _bind(host, port) as listener:
        port = listener.getsockname()[1]
        answers = Answers(_load(models, device, dtype), max_tokens)
        names = _names(host)
        if host not in _LOCAL:
            open_to_all = f"Whoever reaches {host} and has the link can use it."
            warnings.warn(open_to_all, AttnvizWarning, stacklevel=2)
        _show(f"{', '.join(answers.models)}: each link opens the page once, Ctrl-C ends it.")
        door = Door(f"http://{_in_url(names[0])}:{port}", _show)
        turns = Turns(_WAITING, time_limit)
        app = make_app(
            answers,
            turns,
            door,
            hosts=[_in_url(name) for name in names],
            origins=[f"http://{_in_url(name)}:{port}" for name in names],
            most_bytes=2**16 + 16 * max_tokens,
        )
        if open_browser:  # in a thread, as one of a terminal returns only when it is left
            threading.Thread(target=webbrowser.open, args=(door.link,), daemon=True).start()
        _Server(app, turns).run(sockets=[listener])


class _Server(uvicorn.Server):
    """A server that logs nothing, and that stops what it computes as soon as it is to end."""

    def __init__(self, app: object, turns: Turns) -> None:
        self._turns = turns
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
                timeout_graceful_shutdown=_PATIENCE,
            )
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._turns.close()
        await super().shutdown(sockets)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except (OSError, UnicodeError) as error:
        why = (getattr(error, "strerror", None) or "there is no such host").partition(" (while")[0]
        raise InputError(
            f"Expected to listen at {host}:{port}, but: {why}. Choose another --port (0 for any "
            "that is free) or --host."
        ) from None


def _load(names: Sequence[str], device: str | torch.device, dtype: str | None) -> dict[str, Model]:
    found: dict[str, Model] = {}
    for name in names or [BUNDLED]:
        model = load(None if name == BUNDLED else name, device=device, dtype=dtype)
        expect_one_text(model.checkpoint)
        if model.name in found:
            raise InputError(f"Expected each model once, got {model.name} twice. Leave one out.")
        found[model.name] = model
    return found


def _names(host: str) -> list[str]:
    """Return under which names a browser may reach us; the first is shown."""
    if host in _LOCAL:
        return list(dict.fromkeys((host, *_LOCAL)))
    with contextlib.suppress(ValueError):
        if ip_address(host).is_unspecified:  # every address of this machine
            own = socket.gethostname().lower()
            with contextlib.suppress(OSError):
                found = {str(each[4][0]) for each in socket.getaddrinfo(own, None)}
                return [own, *sorted(found), *_LOCAL]
            return [own, *_LOCAL]
    return [host.lower()]


def _in_url(name: str) -> str:
    return f"[{name}]" if ":" in name else name


def _show(line: str) -> None:
    with contextlib.suppress(OSError):  # nobody may read it any more
        print(line, flush=True)
