"""Where a case runs: in a folder with what it names, on streams, in limits; and what came of it."""

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
SECONDS = 120  # after which a run counts as one that hangs


class Server:
    """The process of `running.server`: it starts a run, and waits for its end."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("server.py")), str(saved("bert"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=base_environment(),
        )

    def start(self, **how: Any) -> int:
        """Start a run in a setting; return its process."""
        return self._ask(how)

    def wait(self, process: int) -> tuple[int | None, float]:
        """Return a run's exit code, None where it had to be killed, and its CPU time."""
        code, seconds = self._ask({"wait": process, "seconds": SECONDS})
        return code, seconds

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def stop(self) -> None:
        """Let it end."""
        self._process.communicate(timeout=30)


def base_environment() -> dict[str, str]:
    """Return what every run finds: this checkout, one thread, no hub, and no terminal's habits."""
    own = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM", "LC_ALL", "PYTHONIOENCODING")
    kept = {name: value for name, value in os.environ.items() if name not in own}
    return kept | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "MPLBACKEND": "agg",
        "HF_ENDPOINT": "http://127.0.0.1:9",  # where nobody listens
        "LANG": "C.UTF-8",
    }


@dataclass
class Scene:
    """What a run is put into.

    streams : paths of standard input, output and error; None is closed, "|" a broken pipe.
    places : what stands in the command line for something that is only known now.
    weak : without the rights of root. slow : on a disk that takes a while. missing : packages that
    count as not installed.
    copies : how many are run at once. during : called with the folder and the process of a run.
    """

    folder: Path
    notes: Path
    environment: dict[str, str] = field(default_factory=base_environment)
    streams: list[str | None] = field(default_factory=lambda: ["/dev/null", "", ""])
    limits: dict[str, int] = field(default_factory=dict)
    weak: bool = False
    slow: bool = False
    missing: list[str] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)
    copies: int = 1
    during: Callable[[Path, int], None] | None = None
    ending: list[Callable[[], None]] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """How a run ended, what it said, and the files before and after; `seconds` are CPU time."""

    code: int | None
    seconds: float
    out: str
    err: str
    folder: Path
    before: dict[str, str]
    after: dict[str, str]

    @property
    def written(self) -> set[str]:
        """The files that are new, or no longer what they were."""
        return {name for name, found in self.after.items() if self.before.get(name) != found}

    @property
    def lost(self) -> set[str]:
        """The files that are gone."""
        return set(self.before) - set(self.after)


def run(server: Server, case: Case, scene: Scene, *, called: bool) -> list[Outcome]:
    """Run a case as often at once as the scene says; return how each run ended."""
    before = look(scene.folder)
    processes = []
    for number in range(scene.copies):
        streams = [
            str(touched(scene.notes / f"{name}{number}")) if path == "" else path
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
            cold=case.cold and not called,
            arguments=shlex.split(typed),
            called=case.called if called else None,
        )
        processes.append(process)
        if scene.during is not None:
            scene.during(scene.folder, process)
    ended = [server.wait(process) for process in processes]
    for end in scene.ending:
        end()
    after = look(scene.folder)
    heard = [
        [said(scene.notes / f"{name}{n}") for name in ("out", "err")] for n in range(len(ended))
    ]
    return [
        Outcome(code, seconds, *heard[n], scene.folder, before, after)
        for n, (code, seconds) in enumerate(ended)
    ]


def touched(path: Path) -> Path:
    """Return the path of an empty file."""
    path.write_bytes(b"")
    return path


def said(path: Path) -> str:
    """Return what was written to a stream, nothing where it was none of ours."""
    return path.read_bytes().decode("utf-8", "surrogateescape") if path.exists() else ""


def look(folder: Path) -> dict[str, str]:
    """Return what is in a folder: of each file, link and folder, what it holds."""
    return {str(path.relative_to(folder)): seen(path) for path in sorted(folder.rglob("*"))}


def seen(path: Path) -> str:
    """Return what tells one state of a file from another."""
    if path.is_symlink():
        return f"link to {path.readlink()}"
    if not path.is_file():
        return "folder" if path.is_dir() else "device"
    if path.stat().st_size > 2**24:  # a hole
        return str(path.stat().st_size)
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except PermissionError:
        return "unreadable"


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Make a folder ours again, so that it can be removed."""
    try:
        yield
    finally:
        for path in folder.rglob("*"):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o700)
