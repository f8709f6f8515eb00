"""A process that has imported torch and transformers, and forks a child for each run.

A cold start costs five seconds, nearly all of it imports, and the catalogue has hundreds of runs.
So they are done once, here, and each child is what `attnviz` would be just before it begins: in a
folder, an environment and limits of its own, on file descriptors of its own, some of which are
closed. It then runs `attnviz.__main__.main()`: the same code, and exit codes, signals, streams and
files are the real ones. What libraries prepare at their first use is shared too. A child that is to
run cold becomes a new interpreter in the same setting, so that nothing is shared.

One thread only, or a fork would leave locks behind. It is asked by lines of JSON: the arguments of
`run` start a child and give its id; {"wait": id, "seconds": most} gives its exit code (negative for
a signal, null if it had to be killed) and its CPU time.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import io
import json
import os
import resource
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

_ROOMS = (
    "torch", "transformers", "transformers.models.auto.modeling_auto", "matplotlib.pyplot",
    "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg", "seaborn", "scipy.stats",
    "matplotlib.backends.backend_pdf", "sklearn.metrics", "rich.console", "rich.progress",
    "rich.table", "typer", "attnviz.pipeline.attend", "attnviz.analyses.maps.compute",
    "attnviz.analyses.maps.heads", "attnviz.io.export",
    "attnviz.analyses.steps.compute", "attnviz.analyses.shift.compute",
    "attnviz.analyses.senses.compute", "attnviz.interactive.payload",
    "pydantic", "PIL.JpegImagePlugin", "PIL.GifImagePlugin",
    "attnviz.analyses.example.compute", "attnviz.app", "calling",
    "attnviz.analyses.maps.overlay", "attnviz.interactive.serve.start",
)  # fmt: skip


def main() -> int:
    """Serve requests, one a line, until standard input ends."""
    for room in _ROOMS:
        importlib.import_module(room)
    warm_up(sys.argv[1])
    assert threading.active_count() == 1, "a thread is left"
    # Under other numbers, so that 0, 1 and 2 of a child are its own.
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    gc.freeze()
    for line in requests:
        request = json.loads(line)
        if "wait" in request:
            reply: Any = wait(request["wait"], request["seconds"])
        elif (reply := os.fork()) == 0:
            requests.close()
            replies.close()
            leave(run, request)
        print(json.dumps(reply), file=replies, flush=True)
    return 0


def warm_up(model: str) -> None:
    """Let the libraries do once what they prepare when first used: rules of loading, and fonts."""
    import attnviz

    axes = attnviz.plot.heatmap(attnviz.attend("the train", model=model))
    for suffix in ("png", "svg"):
        axes.figure.savefig(io.BytesIO(), format=suffix)
    attnviz.view(attnviz.attend("the train", model=model)).data()


def leave(run: Callable[..., int], request: dict[str, Any]) -> NoReturn:
    """Run, and end as Python does, but without taking torch down, which takes half a second."""
    try:
        code = run(**request)
    except SystemExit as asked:
        code = int(asked.code or 0)
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


def wait(child: int, seconds: float) -> tuple[int | None, float]:
    """Return how a child ended, and its CPU time in seconds; kill it if it does not end."""
    handle = os.pidfd_open(child)
    ended, _, _ = select.select([handle], [], [], seconds)
    os.close(handle)
    if not ended:
        os.kill(child, signal.SIGKILL)
    _, status, used = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if ended else None, used.ru_utime + used.ru_stime


def run(
    *,
    folder: str,
    environment: dict[str, str],
    streams: list[str | None],
    limits: dict[str, int],
    weak: bool,
    slow: bool,
    missing: list[str],
    cold: bool,
    arguments: list[str],
    called: str | None,
) -> int:
    """Be the command, or the call, in its setting."""
    enter(folder, environment, streams, limits)
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
    if called is not None:
        from calling import call

        return call(arguments, called)
    from attnviz.__main__ import main as attnviz

    return attnviz()


def enter(
    folder: str, environment: dict[str, str], streams: list[str | None], limits: dict[str, int]
) -> None:
    """Put this process into its folder, environment, streams and limits."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # a shell, or nohup, may have had it ignored
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
    for name, most in limits.items():
        resource.setrlimit(getattr(resource, name), (most, most))


def broken_pipe() -> int:
    """Return the end of a pipe that is written to, and that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def drop_capabilities() -> None:
    """Give up what root may do beyond others, so that a read-only folder is read-only."""
    version = ctypes.create_string_buffer((0x20080522).to_bytes(4, sys.byteorder) + bytes(4))
    ctypes.CDLL(None).capset(version, ctypes.create_string_buffer(24))


def open_stream(number: int) -> Any:
    """Return a standard stream as Python begins with it."""
    try:
        os.fstat(number)
    except OSError:
        return None
    errors = ("strict", "strict", "backslashreplace")[number]
    mode = "w" if number else "r"
    return open(number, mode, encoding="utf-8", errors=errors, closefd=False)


if __name__ == "__main__":
    sys.exit(main())
