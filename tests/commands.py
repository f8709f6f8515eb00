"""Run commands in this process, or in a terminal, and take what they print."""

import contextlib
import os
import pty
import subprocess
import sys
from pathlib import Path

from attnviz.app import app, run  # noqa: F401


def succeeds(capsys, *arguments, code=0):
    """Run a command; return what it prints."""
    assert run(arguments) == code
    return capsys.readouterr()


def in_terminal(*arguments, **environment):
    """Run a command in a terminal; return its exit code and all that is shown."""
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "attnviz", *arguments]
    known = {**os.environ, "TERM": "xterm-256color", **environment}
    with subprocess.Popen(command, stdout=end, stderr=end, env=known) as process:
        os.close(end)
        shown = b""
        with contextlib.suppress(OSError):  # until the other end is closed
            while part := os.read(terminal, 4096):
                shown += part
    os.close(terminal)
    return process.returncode, shown


def refused(capsys, *arguments, code=2):
    """Run a command that must fail and write nothing; return its single error line."""
    before = sorted(Path().rglob("*"))
    assert run(arguments) == code
    out, err = capsys.readouterr()
    assert sorted(Path().rglob("*")) == before, "a file was written"
    assert out == ""
    assert err.startswith("attnviz: ")
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    return err
