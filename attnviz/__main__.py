"""The command `attnviz`: one line on standard error and an exit code, whatever goes wrong."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


class Stopped(BaseException):
    """A signal asked the program to end; temporary files are removed on the way out."""


def main() -> int:
    """Run the command line and return its exit code."""

    # Set before anything heavy is imported, so that Ctrl-C never prints a traceback.
    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise Stopped(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    os.environ.setdefault("MPLBACKEND", "agg")  # files are drawn, no window is opened
    try:
        from attnviz.cli import run

        code = run(sys.argv[1:])
        sys.stdout.flush()
    except Stopped as stopped:
        return 128 + int(stopped.args[0])
    except (BrokenPipeError, SystemExit):
        # The reader of our output has gone, as `| head` does; that is no error of ours. (Typer
        # and rich exit when they meet it.)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


if __name__ == "__main__":
    sys.exit(main())
