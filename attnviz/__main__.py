"""The command `attnviz`: one line on standard error and an exit code, whatever goes wrong."""

from __future__ import annotations

import io
import os
import signal
import sys
from pathlib import Path
from types import FrameType


class Stopped(BaseException):
    """A signal asked the program to end; temporary files are removed on the way out."""


def main() -> int:
    """Run the command line and return its exit code."""
    received: list[int] = []

    # Set before anything heavy is imported, so that Ctrl-C never prints a traceback.
    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        # Raised in the midst of torch's own beginnings an exception may abort, with much noise.
        torch = getattr(sys.modules.get("torch"), "__spec__", None)
        if getattr(torch, "_initializing", False):
            os._exit(128 + number)  # nothing is open yet
        received.append(number)
        # What a library makes of being stopped in the middle of its import is no news.
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
        raise Stopped(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    os.environ.setdefault("MPLBACKEND", "agg")  # files are drawn, no window is opened
    _open_streams()
    try:
        from attnviz.cli import run

        code = run(sys.argv[1:])
        sys.stdout.flush()
    except Stopped:
        code = 0
    except (BrokenPipeError, SystemExit):
        # The reader of our output has gone, as `| head` does; that is no error of ours. (Typer
        # and rich exit when they meet it.)
        _discard_output()
        code = 0
    except OSError as error:  # everything else that is written is guarded by itself
        print(
            f"attnviz: Expected to write to standard output, but: {error.strerror}. "
            "Free some room, or write to another place.",
            file=sys.stderr,
        )
        _discard_output()
        code = 4
    return 128 + received[0] if received else code


def _open_streams() -> None:
    """Have somewhere to write to, and characters that the terminal's encoding lacks replaced."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _discard_output() -> None:
    # Python flushes once more when it ends, and would complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
