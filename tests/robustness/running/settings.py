"""Settings of a run: broken streams, a terminal, a full disk, signals, parallel runs."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from robustness.running.scene import Scene


def apply(scene: Scene, within: str) -> None:
    """Apply the comma-separated settings of a case to a scene."""
    for word in filter(None, (word.strip() for word in within.split(","))):
        if "=" in word:
            name, _, value = word.partition("=")
            scene.environment[name] = value
        else:
            SETTINGS[word](scene)


def stream(number: int, path: str | None) -> Callable[[Scene], None]:
    """Return a function that replaces a standard stream, or closes it."""

    def change(scene: Scene) -> None:
        scene.streams[number] = path

    return change


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


def limit_file_size(size: int) -> Callable[[Scene], None]:
    """Return a function that limits file sizes, as on a full disk."""

    def change(scene: Scene) -> None:
        scene.limits["RLIMIT_FSIZE"] = size

    return change


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


def weak(scene: Scene) -> None:
    """Run as a user without root privileges, so that read-only folders are read-only."""
    scene.weak = True


def without(name: str) -> Callable[[Scene], None]:
    """Return a function that hides a package."""
    return lambda scene: scene.missing.append(name)


def at_once(copies: int) -> Callable[[Scene], None]:
    """Return a function that runs several copies at once."""

    def change(scene: Scene) -> None:
        scene.copies = copies

    return change


def send_signal(
    number: int, when: Callable[[Path, int], bool], *, slow: bool = False
) -> Callable[[Scene], None]:
    """Return a function that sends a signal once a condition on folder and process holds.

    slow : simulate a slow disk, so that the signal arrives before the file is complete.
    """

    def during(folder: Path, process: int) -> None:
        until = time.monotonic() + 60
        while not when(folder, process) and time.monotonic() < until:
            time.sleep(0.005)
        if slow:
            time.sleep(0.2)  # well within the second that a write takes
        os.kill(process, number)

    def change(scene: Scene) -> None:
        scene.during, scene.slow = during, slow

    return change


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


SETTINGS: dict[str, Callable[[Scene], None]] = {
    "stdin closed": stream(0, None),
    "stdout closed": stream(1, None),
    "stderr closed": stream(2, None),
    "stdout full": stream(1, "/dev/full"),
    "stderr full": stream(2, "/dev/full"),
    "nobody reads stdout": stream(1, "|"),
    "nobody reads stderr": stream(2, "|"),
    "a terminal": terminal,
    "600 bytes of room": limit_file_size(600),
    "9000 bytes of room": limit_file_size(9000),
    "no root": weak,
    "yes on stdin": yes,
    **{f"without {name}": without(name) for name in ("starlette", "pyarrow", "anywidget")},
    "a port in use": port,
    "2 at once": at_once(2),
    "4 at once": at_once(4),
    "8 at once": at_once(8),
    **{
        f"{name} {when}": send_signal(getattr(signal, name), condition, slow=condition is writing)
        for name in ("SIGINT", "SIGTERM", "SIGHUP")
        for when, condition in {
            "as it runs": running,
            "while importing": importing,
            "while writing": writing,
        }.items()
    },
}
