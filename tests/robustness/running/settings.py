"""What a run may be put into: broken streams, a terminal, a full disk, signals, its own like."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from robustness.running.scene import Scene


def put(scene: Scene, within: str) -> None:
    """Change a scene as the words of a case say, separated by commas."""
    for word in filter(None, (each.strip() for each in within.split(","))):
        if "=" in word:
            name, _, value = word.partition("=")
            scene.environment[name] = value
        else:
            SETTINGS[word](scene)


def stream(number: int, path: str | None) -> Callable[[Scene], None]:
    """Return what puts a path, or nothing, in the place of a standard stream."""

    def change(scene: Scene) -> None:
        scene.streams[number] = path

    return change


def terminal(scene: Scene) -> None:
    """Let it write to a terminal, what is said there being kept."""
    ours, theirs = os.openpty()
    scene.environment["TERM"] = "xterm-256color"
    scene.streams[1] = os.ttyname(theirs)
    file = (scene.notes / "out0").open("wb")

    def read() -> None:
        while True:
            try:
                found = os.read(ours, 2**16)
            except OSError:  # nobody has it open any more
                return
            file.write(found.replace(b"\r\n", b"\n"))
            file.flush()

    reader = threading.Thread(target=read)
    reader.start()

    def end() -> None:
        os.close(theirs)
        reader.join()
        file.close()
        os.close(ours)

    scene.ending.append(end)


def room(size: int) -> Callable[[Scene], None]:
    """Return what lets no file grow beyond some bytes, as a disk does that is full."""

    def change(scene: Scene) -> None:
        scene.limits["RLIMIT_FSIZE"] = size

    return change


def yes(scene: Scene) -> None:
    """Answer yes to whatever is asked."""
    answers = scene.notes / "answers"
    answers.write_text("y\n" * 100)
    scene.streams[0] = str(answers)


def port(scene: Scene) -> None:
    """Listen at a port, which the command line names {taken}."""
    listener = socket.create_server(("127.0.0.1", 0))
    scene.places["{taken}"] = str(listener.getsockname()[1])
    scene.ending.append(listener.close)


def weak(scene: Scene) -> None:
    """Let it run as a user whom a read-only folder stops, also where that is root."""
    scene.weak = True


def without(name: str) -> Callable[[Scene], None]:
    """Return what takes a package away."""
    return lambda scene: scene.missing.append(name)


def at_once(copies: int) -> Callable[[Scene], None]:
    """Return what runs several at once."""

    def change(scene: Scene) -> None:
        scene.copies = copies

    return change


def sent(
    number: int, when: Callable[[Path, int], bool], *, slow: bool = False
) -> Callable[[Scene], None]:
    """Return what sends a signal as soon as something holds of the folder and the process.

    slow : whether the disk takes a while, so that the signal comes before all is written.
    """

    def during(folder: Path, process: int) -> None:
        until = time.monotonic() + 60
        while not when(folder, process) and time.monotonic() < until:
            time.sleep(0.005)
        if slow:
            time.sleep(0.2)  # well within the second that the disk takes
        os.kill(process, number)

    def change(scene: Scene) -> None:
        scene.during, scene.slow = during, slow

    return change


def running(_: Path, process: int) -> bool:
    """Wait a moment, and tell whether the program is ready for signals: it catches SIGTERM."""
    time.sleep(0.2)
    status = Path(f"/proc/{process}/status").read_text()
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught & 1 << (signal.SIGTERM - 1))


def importing(_: Path, process: int) -> bool:
    """Tell whether torch is being loaded, by a process that is no longer a fork of the server."""
    about = Path(f"/proc/{process}")
    begun = b"-m\0attnviz" in (about / "cmdline").read_bytes()
    return begun and "libtorch" in (about / "maps").read_text()


def writing(folder: Path, _: int) -> bool:
    """Tell whether a file is being written."""
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
    "600 bytes of room": room(600),
    "9000 bytes of room": room(9000),
    "no root": weak,
    "yes on stdin": yes,
    **{f"without {name}": without(name) for name in ("starlette", "pyarrow", "anywidget")},
    "a port in use": port,
    "2 at once": at_once(2),
    "8 at once": at_once(8),
    **{
        f"{name} {when}": sent(getattr(signal, name), condition, slow=condition is writing)
        for name in ("SIGINT", "SIGTERM", "SIGHUP")
        for when, condition in {
            "as it runs": running,
            "while importing": importing,
            "while writing": writing,
        }.items()
    },
}
