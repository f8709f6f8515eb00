"""Run commands in an empty folder, without a network, with the default model loaded once."""

import contextlib
import inspect
import os
import pty
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from one_run import Runs

import attnviz.pipeline.attend
from attnviz.app import run


def succeeds(capsys, *arguments, code=0):
    """Run a command; return what it prints."""
    assert run(arguments) == code
    return capsys.readouterr()


def in_terminal(*arguments, interrupt=None, **environment):
    """Run a command in a terminal; return its exit code and all that is shown.

    interrupt : words that are shown, at which the command is interrupted.
    """
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "attnviz", *arguments]
    known = {**os.environ, "TERM": "xterm-256color", **environment}
    with subprocess.Popen(command, stdout=end, stderr=end, env=known) as process:
        os.close(end)
        shown = b""
        with contextlib.suppress(OSError):  # until the other end is closed
            while part := os.read(terminal, 4096):
                shown += part
                if interrupt and interrupt in shown:
                    process.send_signal(signal.SIGINT)
                    interrupt = None
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


@pytest.fixture(autouse=True)
def _empty_folder_without_network(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _default_model_loaded_once(model, monkeypatch):
    load = attnviz.pipeline.attend.load

    def load_once(name=None, **how):
        plain = name is None and how.get("device") in (None, "auto") and how.get("dtype") is None
        return model if plain else load(name, **how)

    monkeypatch.setattr(attnviz.pipeline.attend, "load", load_once)


_RUNS = Runs()


@pytest.fixture(autouse=True)
def _models_run_once(request, monkeypatch):
    """Run a model once on the same texts, except where a test changes something."""
    changes = "monkeypatch" in inspect.signature(request.function).parameters
    _RUNS.anew = changes or bool({"_scale_off", "noisy"} & {*request.fixturenames})
    monkeypatch.setattr(attnviz.pipeline.attend, "run", _RUNS)
