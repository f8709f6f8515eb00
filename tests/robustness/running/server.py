"""A process that imports torch and transformers once; a child is forked from it for each run.

A cold start takes five seconds, almost all of it imports, and the catalogue has hundreds of runs.
So the imports run once, in the fork server of multiprocessing, which imports this module, and each
child is in the state of `attnviz` just before it starts, with its own folder, environment, limits
and file descriptors, some of which are closed. It then runs `attnviz.__main__.main()`: the code,
exit codes, signals, streams and files are real. Caches that libraries fill at first use are shared
too, and for cases of what comes before or after it the model and the texts that were read. A cold
child is replaced by a new interpreter in the same setting, so nothing is shared. The process has
one thread only, because a fork would leave locks held.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import io
import os
import resource
import runpy
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn
from unittest.mock import patch

import commands
from one_run import Runs

import attnviz

_MODULES = (
    "torch", "transformers", "transformers.models.auto.modeling_auto", "matplotlib.pyplot",
    "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg", "seaborn", "scipy.stats",
    "matplotlib.backends.backend_pdf", "sklearn.metrics", "rich.console", "rich.progress",
    "rich.table", "typer", "attnviz.pipeline.attend", "attnviz.analyses.maps.compute",
    "attnviz.io.export",
    "attnviz.analyses.steps.compute", "attnviz.analyses.shift.compute",
    "attnviz.analyses.senses.compute", "attnviz.interactive.payload",
    "pydantic", "PIL.JpegImagePlugin", "PIL.GifImagePlugin",
    "attnviz.analyses.example.compute", "attnviz.app",
    "attnviz.analyses.maps.plot", "attnviz.interactive.serve", "attnviz.analyses.shift.plot",
    "attnviz.analyses.example.plot", "attnviz.analyses.senses.plot", "attnviz.analyses.steps.plot",
    "scipy.signal", "rich._emoji_codes",
)  # fmt: skip


def prepare(model: str) -> None:
    """Import what runs use, and read a model, in the process from which they are forked."""
    for module in _MODULES:
        importlib.import_module(module)
    warm_up(model)
    know(model)
    assert threading.active_count() == 1, "a thread is left"
    gc.freeze()


def warm_up(model: str) -> None:
    """Let the libraries fill their caches: auto-class tables, fonts and commands."""
    axes = attnviz.plot.heatmap(attnviz.attend("the train", model=model))
    for suffix in ("png", "svg", "pdf"):
        axes.figure.savefig(io.BytesIO(), format=suffix)
    attnviz.view(attnviz.attend("the train", model=model)).data()
    with contextlib.redirect_stdout(io.StringIO()):
        commands.run(["--version"])  # which makes the commands


_KNOWN: dict[str, Any] = {}
_TEXTS = ("the train left the station", "the train left", "the train", "train")


def know(model: str) -> None:
    """Read the model and these texts, for cases of what comes after."""
    attend, runs = sys.modules["attnviz.pipeline.attend"], Runs()
    load = attend.load_checkpoint
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        shutil.copytree(model, "tiny")
        checkpoint = load("tiny")

    def load_known(source: Any = None, **options: Any) -> Any:
        is_plain = source == "tiny" and {*options.values()} <= {None, "auto"}
        return checkpoint if is_plain else load(source, **options)

    _KNOWN.update(load_checkpoint=load_known, run=runs)
    with patch.multiple(attend, **_KNOWN):
        for text in _TEXTS:
            for options in ({}, {"mode": "full"}):
                attnviz.attend(text, model="tiny", **options)


def run_and_exit(**setting: Any) -> NoReturn:
    """Run and exit like Python, but skip the teardown of torch, which takes half a second."""
    try:
        code = run(**setting)
    except SystemExit as exit_request:
        code = int(exit_request.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            code = 120
    os._exit(code)


def run(
    *,
    folder: str,
    environment: dict[str, str],
    streams: list[str | None],
    limits: Mapping[str, int] = MappingProxyType({}),
    weak: bool = False,
    slow: bool = False,
    missing: Sequence[str] = (),
    cold: bool = False,
    known: bool = False,
    arguments: Sequence[str] = (),
    called: str | None = None,
) -> int:
    """Run the command or the call in its setting."""
    apply_setting(folder, environment, streams, limits)
    if weak:
        drop_capabilities()
    if slow:
        fsync = os.fsync
        os.fsync = lambda handle: (time.sleep(1), fsync(handle))[1]
    if cold:
        command = [sys.executable, "-P", "-m", "attnviz", *arguments]
        os.execve(sys.executable, command, environment)
    sys.stdin, sys.stdout, sys.stderr = map(open_stream, (0, 1, 2))
    sys.argv = ["attnviz", *arguments]
    sys.modules.update(dict.fromkeys(missing))  # type: ignore[arg-type]
    if known:
        vars(sys.modules["attnviz.pipeline.attend"]).update(_KNOWN)
    if called is not None:
        return call(called)
    runpy.run_module("attnviz", run_name="__main__")
    raise AssertionError("it does not exit")


def call(called: str) -> int:
    """Evaluate the expression with the usual modules as names; return the exit code."""
    import numpy as np
    import torch
    import transformers

    warnings.showwarning = show_warning
    names = {
        "attnviz": attnviz, "np": np, "torch": torch, "transformers": transformers, "Path": Path,
        "formula": importlib.import_module("attnviz.formula.attention"),
    }  # fmt: skip
    try:
        result = eval(called, names)
    except attnviz.AttnvizError as error:
        print(f"attnviz: {error}", file=sys.stderr)
        return error.exit_code
    agreement = getattr(result, "agreement", result)
    return 0 if getattr(agreement, "verdict", "verified") == "verified" else 5


def show_warning(
    message: Warning | str, category: type[Warning], filename: str, *rest: Any
) -> None:
    """Print an attnviz warning; print others as Python does, which no case allows."""
    if not issubclass(category, attnviz.AttnvizWarning):
        message = warnings.formatwarning(message, category, filename, *rest[:1])
    print(f"attnviz: {message}", file=sys.stderr)


def apply_setting(
    folder: str, environment: dict[str, str], streams: list[str | None], limits: Mapping[str, int]
) -> None:
    """Apply the folder, environment, streams and limits to this process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # a shell or nohup may have ignored it
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate(streams):
        if path is not None:
            opened = broken_pipe() if path == "|" else os.open(path, os.O_RDWR | os.O_NOCTTY)
            os.dup2(opened, number)
            os.close(opened)
    for number, path in enumerate(streams):
        if path is None:
            os.close(number)
    for name, limit in limits.items():
        resource.setrlimit(getattr(resource, name), (limit, limit))


def broken_pipe() -> int:
    """Return the write end of a pipe without a reader."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def drop_capabilities() -> None:
    """Drop the capabilities of root, so that a read-only folder is read-only."""
    version = ctypes.create_string_buffer((0x20080522).to_bytes(4, sys.byteorder) + bytes(4))
    ctypes.CDLL(None).capset(version, ctypes.create_string_buffer(24))


def open_stream(number: int) -> Any:
    """Open a standard stream as Python does at startup."""
    try:
        os.fstat(number)
    except OSError:
        return None
    errors = ("strict", "strict", "backslashreplace")[number]
    mode = "w" if number else "r"
    return open(number, mode, encoding="utf-8", errors=errors, closefd=False)


if "ATTNVIZ_FORKED" in os.environ:  # in the fork server
    prepare(os.environ["ATTNVIZ_FORKED"])
