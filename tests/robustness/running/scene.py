"""The setting of a case: folder, streams, limits and signals; and the outcome of the run."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import shlex
import signal
import socket
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass, field
from html.parser import HTMLParser
from multiprocessing.process import BaseProcess as Process
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow.parquet as pq
from PIL import Image
from safetensors.torch import load_file

from robustness.catalogue import Case
from robustness.running.prepared import saved
from robustness.running.server import run_and_exit

ROOT = Path(__file__).parents[3]
SECONDS = 120  # a run that takes longer counts as hanging


class Server:
    """The process of `running.server`, from which runs are forked."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(ROOT), *sys.path])
        environment = {"PYTHONPATH": path, "ATTNVIZ_FORKED": str(saved("bert"))}
        with patch.dict(os.environ, base_environment() | environment):
            self._forks = multiprocessing.get_context("forkserver")
            self._forks.set_forkserver_preload(["robustness.running.server"])
            (first := self._forks.Process()).start()  # which starts the server
        first.join()

    def start(self, **setting: Any) -> Process:
        """Start a run in a setting; return its process."""
        setting = {"environment": base_environment(), **setting}
        process = self._forks.Process(target=run_and_exit, kwargs=setting)
        process.start()
        return process

    def wait(self, process: Process) -> int | None:
        """Return a run's exit code, negative for a signal, None if it was killed."""
        process.join(SECONDS)
        if process.exitcode is None:
            process.kill()
            return None
        return process.exitcode


def base_environment() -> dict[str, str]:
    """Return the base environment: this checkout, one thread, no hub, no terminal settings."""
    overridden = {
        "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM", "LC_ALL", "PYTHONIOENCODING",
    }  # fmt: skip
    inherited = {name: value for name, value in os.environ.items() if name not in overridden}
    return inherited | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "MPLBACKEND": "agg",
        "HF_ENDPOINT": "http://127.0.0.1:9",  # nothing listens there
        "LANG": "C.UTF-8",
    }


@dataclass
class Scene:
    """The setting of a run.

    setting : further arguments of `server.run`. streams : paths of standard input, output and
    error; None is closed, "|" a broken pipe. places : values for placeholders in the command line.
    during : called with the folder and the process id of a run.
    """

    folder: Path
    notes: Path
    setting: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=base_environment)
    streams: list[str | None] = field(default_factory=lambda: ["/dev/null", "", ""])
    places: dict[str, str] = field(default_factory=dict)
    copies: int = 1
    during: Callable[[Path, int], None] | None = None
    ending: list[Callable[[], None]] = field(default_factory=list)

    def apply(self, within: str) -> None:
        """Apply the comma-separated settings of a case."""
        for word in filter(None, (word.strip() for word in within.split(","))):
            name, is_variable, value = word.partition("=")
            first, _, rest = word.partition(" ")
            if is_variable:
                self.environment[name] = value
            elif rest in STREAMS:
                self.streams[("stdin", "stdout", "stderr").index(first)] = STREAMS[rest]
            elif rest == "bytes of room":  # as on a full disk
                self.setting["limits"] = {"RLIMIT_FSIZE": int(first)}
            elif first == "without":
                self.setting["missing"] = [rest]
            elif rest == "at once":
                self.copies = int(first)
            elif rest in MOMENTS:
                self.setting["slow"] = rest == "while writing"
                self.during = signal_at(getattr(signal, first), MOMENTS[rest])
            else:
                OTHERS[word](self)


STREAMS = {"closed": None, "full": "/dev/full", "not read": "|"}


def terminal(scene: Scene) -> None:
    """Write to a terminal, and record the output."""
    master, slave = os.openpty()
    scene.environment["TERM"] = "xterm-256color"
    scene.streams[1] = os.ttyname(slave)
    file = (scene.notes / "out0").open("wb")

    def read() -> None:
        while True:
            try:
                data = os.read(master, 2**16)
            except OSError:  # closed at the other end
                return
            file.write(data.replace(b"\r\n", b"\n"))
            file.flush()

    reader = threading.Thread(target=read)
    reader.start()

    def end() -> None:
        os.close(slave)
        reader.join()
        file.close()
        os.close(master)

    scene.ending.append(end)


def yes(scene: Scene) -> None:
    """Answer yes to every question."""
    answers = scene.notes / "answers"
    answers.write_text("y\n" * 100)
    scene.streams[0] = str(answers)


def port(scene: Scene) -> None:
    """Occupy a port, named {taken} in the command line."""
    listener = socket.create_server(("127.0.0.1", 0))
    scene.places["{taken}"] = str(listener.getsockname()[1])
    scene.ending.append(listener.close)


OTHERS: dict[str, Callable[[Scene], object]] = {
    "a terminal": terminal,
    "yes on stdin": yes,
    "a port in use": port,
    "no root": lambda scene: scene.setting.update(weak=True),
}


def running(_: Path, process: int) -> bool:
    """Wait a moment, and return whether the program catches SIGTERM."""
    time.sleep(0.2)
    status = Path(f"/proc/{process}/status").read_text()
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught & 1 << (signal.SIGTERM - 1))


def importing(_: Path, process: int) -> bool:
    """Return whether torch is loading in a process that is no longer a fork of the server."""
    proc = Path(f"/proc/{process}")
    is_started = b"-m\0attnviz" in (proc / "cmdline").read_bytes()
    return is_started and "libtorch" in (proc / "maps").read_text()


def writing(folder: Path, _: int) -> bool:
    """Return whether a file is being written."""
    return any(folder.glob(".attnviz-*"))


MOMENTS = {"as it runs": running, "while importing": importing, "while writing": writing}


def signal_at(number: int, when: Callable[[Path, int], bool]) -> Callable[[Path, int], None]:
    """Return a function that sends a signal once a condition on folder and process holds."""

    def during(folder: Path, process: int) -> None:
        until = time.monotonic() + 60
        while not when(folder, process) and time.monotonic() < until:
            time.sleep(0.005)
        if when is writing:
            time.sleep(0.2)  # well within the second that a write takes on a slow disk
        os.kill(process, number)

    return during


@dataclass(frozen=True)
class Outcome:
    """The exit code, output and files of a run."""

    code: int | None
    out: str
    err: str
    folder: Path
    before: dict[str, str]
    after: dict[str, str]

    @property
    def written(self) -> set[str]:
        """The new or changed files."""
        return {name for name, state in self.after.items() if self.before.get(name) != state}

    @property
    def lost(self) -> set[str]:
        """The deleted files."""
        return set(self.before) - set(self.after)


def run(server: Server, case: Case, scene: Scene) -> list[Outcome]:
    """Run the copies of a case at the same time; return their outcomes."""
    before, processes = folder_state(scene.folder), []
    for number in range(scene.copies):
        streams = [
            str(scene.notes / f"{name}{number}") if path == "" else path
            for name, path in zip(("in", "out", "err"), scene.streams, strict=True)
        ]
        for path in filter(None, streams):
            if Path(path).parent == scene.notes:
                Path(path).touch()
        typed = case.typed or ""
        for place, value in {**scene.places, "{n}": str(number)}.items():
            typed = typed.replace(place, value)
        process = server.start(
            folder=str(scene.folder),
            environment=scene.environment,
            streams=streams,
            cold=case.cold,
            arguments=shlex.split(typed),
            called=case.called,
            **scene.setting,
        )
        processes.append(process)
        if scene.during is not None:
            scene.during(scene.folder, process.pid)
    codes = [server.wait(process) for process in processes]
    for end in scene.ending:
        end()
    after = folder_state(scene.folder)
    return [
        Outcome(
            code,
            *(read_output(scene.notes / f"{name}{number}") for name in ("out", "err")),
            scene.folder,
            before,
            after,
        )
        for number, code in enumerate(codes)
    ]


def read_output(path: Path) -> str:
    """Return the output of a stream, or "" if it was not captured."""
    return path.read_bytes().decode("utf-8", "surrogateescape") if path.exists() else ""


def folder_state(folder: Path) -> dict[str, str]:
    """Return the state of each file, link and folder in a folder."""
    return {str(path.relative_to(folder)): fingerprint(path) for path in sorted(folder.rglob("*"))}


def fingerprint(path: Path) -> str:
    """Return a fingerprint of a file."""
    if path.is_symlink():
        return f"link to {path.readlink()}"
    if not path.is_file():
        return "folder" if path.is_dir() else "device"
    if path.stat().st_size > 2**24:  # a sparse file
        return str(path.stat().st_size)
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except PermissionError:
        return "unreadable"


# --- checks of every run


LONGEST = 400  # maximum length of an error line
FAILED = (2, 3, 4)
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_LIBRARIES = re.compile(r"Traceback|Warning\b|site-packages|Exception ignored|\bINFO\b|%\|")


def check(case: Case, outcome: Outcome) -> None:
    """Check one run: its exit code, its output, and its files."""
    details = f"{outcome.code}\n{outcome.out[-2000:]}\n{outcome.err[-4000:]}"
    assert outcome.code is not None, f"it hung for {SECONDS} s\n{details}"
    assert not _LIBRARIES.search(outcome.err), details
    assert not _CONTROL.search(outcome.err), details
    out = _COLOR.sub("", outcome.out) if "a terminal" in case.within else outcome.out
    assert not _CONTROL.search(out), details
    assert outcome.code == case.code, details
    if outcome.code in FAILED:
        _check_line(case, outcome, details)
        assert len(outcome.err) <= LONGEST, f"{len(outcome.err)} characters\n{details}"
    else:
        assert case.said in outcome.out + outcome.err, details
    printed = case.typed is not None and "stdout" not in case.within
    if outcome.code in (0, 5) and "--json" in (case.typed or "") and printed:
        json.loads(outcome.out)
    assert outcome.written == set(case.leaves), details
    assert not outcome.lost, outcome.lost
    for name in case.leaves:
        check_file(outcome.folder / name)


def _check_line(case: Case, outcome: Outcome, details: str) -> None:
    """Check the single error line; there is none if stderr is broken."""
    assert outcome.out == "", details
    if "stderr" in case.within:
        return
    assert outcome.err.startswith("attnviz: "), details
    assert outcome.err.count("\n") == 1, details
    assert outcome.err.endswith("\n"), details
    assert case.said in outcome.err, details


def check_file(path: Path) -> None:
    """Check that a file is complete by opening it with a reader of its format."""
    assert path.stat().st_size, path
    OPEN[path.suffix.lower()](path)


def _open_pdf(path: Path) -> None:
    data = path.read_bytes()
    assert data.startswith(b"%PDF-")
    assert data.rstrip().endswith(b"%%EOF")


def _open_page(path: Path) -> None:
    elements: list[str] = []
    page = HTMLParser()
    page.handle_starttag = lambda tag, attrs: elements.append(tag)  # type: ignore[method-assign]
    page.feed(text := path.read_text("utf-8"))
    page.close()
    assert text.rstrip().endswith("</html>")
    assert elements[:2] == ["html", "head"]


OPEN: dict[str, Callable[[Path], Any]] = {
    ".png": lambda path: Image.open(path).load(),
    ".svg": ET.parse,
    ".pdf": _open_pdf,
    ".html": _open_page,
    ".json": lambda path: dict(json.loads(path.read_text("utf-8"))),
    ".npz": lambda path: dict(np.load(path, allow_pickle=False)),
    ".safetensors": load_file,
    ".parquet": pq.read_table,
}
