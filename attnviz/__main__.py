"""The command `attnviz`: at most one line on standard error, and an exit code."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from attnviz.errors import OutputError

_SIGNALS = (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))
_SAME = 1.0  # seconds in which further signals count as the first one: `timeout` sends two


class Interrupted(BaseException):
    """A signal asked the program to end; temporary files are removed on the way out."""


def main() -> int:
    """Run the command line and return its exit code."""
    received: list[tuple[int, float]] = []
    _handle_signals(received)
    # Replace characters that the terminal's encoding lacks; discard output of closed streams.
    for name, errors in (("stdout", "replace"), ("stderr", "backslashreplace")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)
    os.environ["MPLBACKEND"] = "agg"  # figures are saved; no window is opened
    if "--debug" not in sys.argv:
        os.environ |= {"TORCH_CPP_LOG_LEVEL": "ERROR", "KINETO_LOG_LEVEL": "99"}
        os.environ.pop("TORCH_LOGS", None)
    try:
        Path.cwd()
    except OSError:
        print("attnviz: the current folder is gone. Go to another one: cd.", file=sys.stderr)
        return OutputError.exit_code
    code = 0
    with contextlib.suppress(Interrupted, BrokenPipeError):  # of a pipe, as after `| head`
        from attnviz.app import run

        code = run(sys.argv[1:])
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, Interrupted):  # Python flushes again at exit, and would complain
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if received:
        os._exit(128 + received[0][0])  # without waiting for threads, such as those of a download
    return code


def _handle_signals(received: list[tuple[int, float]]) -> None:
    """Raise `Interrupted` at the first signal; end at once at a later one."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        if received:
            if time.monotonic() - received[0][1] > _SAME:
                os._exit(128 + number)
            return
        # An exception while torch loads may abort the process. No file is open yet.
        if getattr(getattr(sys.modules.get("torch"), "__spec__", None), "_initializing", False):
            os._exit(128 + number)
        received.append((number, time.monotonic()))
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  libraries print what was interrupted
        raise Interrupted

    for number in _SIGNALS:
        # `nohup` makes a program ignore SIGHUP.
        if number in _SIGNALS[:2] or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)


if __name__ == "__main__":
    sys.exit(main())
