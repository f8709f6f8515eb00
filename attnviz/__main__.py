"""The command `attnviz`: one line on standard error and an exit code, whatever goes wrong."""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TextIO, TypeAlias

from attnviz.errors import OutputError

_SIGNALS = (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))
Handler: TypeAlias = Callable[[int, FrameType | None], None]
_PATIENCE = 1.0  # seconds in which further signals belong to the first: make, timeout send two
_DEAF = 3.0  # seconds after which a library in the main thread is taken not to come back soon


class Stopped(BaseException):
    """A signal asked the program to end; temporary files are removed on the way out."""


class ReaderGone(BaseException):
    """Nobody reads our output any more, as after `| head`; that is no error of ours."""


def main() -> int:
    """Run the command line and return its exit code."""
    received: list[int] = []
    stop = _listen(received)
    # Files are drawn, no window is opened; what a notebook or a desktop has set may not be there.
    os.environ["MPLBACKEND"] = "agg"
    if "--debug" not in sys.argv:
        # What torch says in C++ comes by no logger. An abort is still heard.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        os.environ.pop("TORCH_LOGS", None)  # if it is not as torch wants it, torch does not load
    _open_streams()
    _listen_beside(received, stop)
    try:
        Path.cwd()
    except OSError:
        said = "Expected a folder to work in, but the current one is gone. Go to another: cd."
        print(f"attnviz: {said}", file=sys.stderr)
        return OutputError.exit_code
    try:
        from attnviz.app import run

        code = run(sys.argv[1:])
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # all is done
    except (Stopped, ReaderGone):
        code = 0
    for stream in (sys.stdout, sys.stderr):
        _let_go(stream)
    if received:
        os._exit(128 + received[0])  # threads, such as those of a download, are not waited for
    return code


def _listen(received: list[int]) -> Handler:
    """Have signals end the program by an exception, raised by the handler that is returned.

    It is done before anything heavy is imported, so that Ctrl-C never prints a traceback.
    """
    first = 0.0

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if received:
            if time.monotonic() - first > _PATIENCE:
                os._exit(128 + received[0])  # whoever asks again does not want to wait
            return
        # Raised in the midst of torch's own beginnings an exception may abort, with much noise.
        torch = getattr(sys.modules.get("torch"), "__spec__", None)
        if getattr(torch, "_initializing", False):
            os._exit(128 + number)  # nothing is open yet
        received.append(number)
        first = time.monotonic()
        # What a library makes of being stopped in the middle of its import is no news.
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
        raise Stopped(number)

    for number in _SIGNALS:
        # `nohup` has a program ignore that its terminal is closed.
        if number in _SIGNALS[:2] or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stop)
    return stop


def _listen_beside(received: list[int], stop: Handler) -> None:
    """Have a signal end the program also while the main thread is deep in a library.

    Python's own handlers wait until it comes back, from the reading of a long text for minutes.
    """
    heard, written = os.pipe()
    os.set_blocking(written, False)
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)

    def listen() -> None:
        number, first = 0, 0.0
        while True:
            waits = number and not received
            if select.select([heard], [], [], _DEAF if waits else None)[0]:
                came = os.read(heard, 1)[0]
                if came not in _SIGNALS or signal.getsignal(came) is not stop:
                    continue  # a server has its own way to end
                number, first = number or came, first or time.monotonic()
                if time.monotonic() - first <= _PATIENCE:
                    continue
            elif received:
                continue
            os._exit(128 + number)

    threading.Thread(target=listen, daemon=True).start()


class _Output(io.TextIOWrapper):
    """Standard output, whose errors must not be taken for those of a file."""

    def write(self, text: str) -> int:
        with _told():
            return super().write(text)

    def flush(self) -> None:
        with _told():
            super().flush()


class _Aside(io.TextIOWrapper):
    """Standard error; where it cannot be written to, nobody can be told."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            super().flush()


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise ReaderGone from None
    except OSError as error:
        raise OutputError(
            f"Expected to write to standard output, but: {error.strerror}. Free some room, or "
            "write to another place."
        ) from error


def _open_streams() -> None:
    """Have somewhere to write to, and characters that the terminal's encoding lacks replaced."""
    # Were one of the first three closed by the caller, the next file would take its place, and
    # whatever a library prints would end up in that file.
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(handle)
    sys.stdout = _wrapped(sys.stdout, _Output, "replace")
    sys.stderr = _wrapped(sys.stderr, _Aside, "backslashreplace")


def _wrapped(stream: TextIO | None, kind: type[io.TextIOWrapper], errors: str) -> TextIO:
    if stream is None:  # closed by the caller
        return Path(os.devnull).open("w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    encoding, by_line, at_once = stream.encoding, stream.line_buffering, stream.write_through
    return kind(stream.detach(), encoding, errors, line_buffering=by_line, write_through=at_once)


def _let_go(stream: TextIO) -> None:
    """Write what is left. Python does so once more when it ends, and would complain."""
    try:
        stream.flush()
    except (ReaderGone, OSError, Stopped):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    sys.exit(main())
