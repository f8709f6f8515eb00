"""The setting of a case: folder, streams and limits; and the outcome of the run."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robustness.catalogue.case import Case
from robustness.running.families import saved

ROOT = Path(__file__).parents[3]
SECONDS = 120  # a run that takes longer counts as hanging


class Server:
    """The process of `running.server`, which starts runs and waits for them."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("server.py")), str(saved("bert"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=base_environment(),
        )

    def start(self, **setting: Any) -> int:
        """Start a run in a setting; return its process id."""
        return self._ask(setting)

    def wait(self, process: int) -> tuple[int | None, float]:
        """Return a run's exit code (None if it was killed) and its CPU time."""
        code, seconds = self._ask({"wait": process, "seconds": SECONDS})
        return code, seconds

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def stop(self) -> None:
        """Stop the server."""
        self._process.communicate(timeout=30)


def base_environment() -> dict[str, str]:
    """Return the base environment: this checkout, one thread, no hub, no terminal settings."""
    overridden = (
        "COLUMNS",
        "LINES",
        "NO_COLOR",
        "FORCE_COLOR",
        "TERM",
        "LC_ALL",
        "PYTHONIOENCODING",
    )
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

    streams : paths of standard input, output and error; None is closed, "|" a broken pipe.
    places : values for placeholders in the command line that are known only at run time.
    weak : drop root privileges.
    slow : simulate a slow disk.
    missing : packages that appear to be not installed.
    known : the model and its texts were read before.
    copies : number of simultaneous runs.
    during : called with the folder and the process id of a run.
    """

    folder: Path
    notes: Path
    environment: dict[str, str] = field(default_factory=base_environment)
    streams: list[str | None] = field(default_factory=lambda: ["/dev/null", "", ""])
    limits: dict[str, int] = field(default_factory=dict)
    weak: bool = False
    slow: bool = False
    missing: list[str] = field(default_factory=list)
    known: bool = False
    places: dict[str, str] = field(default_factory=dict)
    copies: int = 1
    during: Callable[[Path, int], None] | None = None
    ending: list[Callable[[], None]] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """The exit code, output and files of a run; `seconds` are CPU time."""

    code: int | None
    seconds: float
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
    before = folder_state(scene.folder)
    processes = []
    for number in range(scene.copies):
        streams = [
            str(create_empty(scene.notes / f"{name}{number}")) if path == "" else path
            for name, path in zip(("in", "out", "err"), scene.streams, strict=True)
        ]
        typed = case.typed or ""
        for place, value in {**scene.places, "{n}": str(number)}.items():
            typed = typed.replace(place, value)
        process = server.start(
            folder=str(scene.folder),
            environment=scene.environment,
            streams=streams,
            limits=scene.limits,
            weak=scene.weak,
            slow=scene.slow,
            missing=scene.missing,
            cold=case.cold,
            known=scene.known,
            arguments=shlex.split(typed),
            called=case.called,
        )
        processes.append(process)
        if scene.during is not None:
            scene.during(scene.folder, process)
    results = [server.wait(process) for process in processes]
    for end in scene.ending:
        end()
    after = folder_state(scene.folder)
    outputs = [
        [read_output(scene.notes / f"{name}{n}") for name in ("out", "err")]
        for n in range(len(results))
    ]
    return [
        Outcome(code, seconds, *outputs[n], scene.folder, before, after)
        for n, (code, seconds) in enumerate(results)
    ]


def create_empty(path: Path) -> Path:
    """Create an empty file and return its path."""
    path.write_bytes(b"")
    return path


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


@contextmanager
def restore_permissions(folder: Path) -> Iterator[None]:
    """Restore folder permissions afterwards, so that the folder can be removed."""
    try:
        yield
    finally:
        for path in folder.rglob("*"):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o700)
