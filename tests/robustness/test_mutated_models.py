"""Spoilt checkpoints: a result, or one clear line, whatever is in the folder.

Each is loaded, and used on a short text or picture. Nothing else may happen: no other exception,
no crash, no hang, no gigabytes, no code that runs, no file outside the folder read or written, no
word on standard output or error, and never the fingerprint of the sound weights for other ones.
"""

import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

import attnviz
from attnviz.errors import AttnvizError
from tests.robustness.checkpoints import READS, Files, checkpoints
from tests.robustness.forked import tried
from tests.robustness.mutants import OUTSIDE, spoil, write

_LONGEST = 400  # letters of a message
# A part of a long run: which seeds.
_FIRST = int(os.environ.get("ATTNVIZ_SEED", "0"))
_COUNT = int(os.environ.get("ATTNVIZ_MUTANTS", "300"))


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """The files of sound checkpoints, the fingerprint of each, and a folder with room for more."""
    folder = tmp_path_factory.mktemp("models")
    made = checkpoints(folder)
    hashes = {}
    for name in made:
        model = attnviz.load(folder / name)
        result = model.attend(**READS[name.split()[0]])
        assert result.agreement.verdict == "verified"
        hashes[name] = result.provenance.weights_sha256
    shutil.copytree(folder / "bert", folder / OUTSIDE)
    return made, hashes, folder


@pytest.mark.parametrize(
    "count", [_COUNT, pytest.param(50_000, marks=pytest.mark.long)], ids=["some", "many"]
)
def test_spoilt_checkpoints_give_a_result_or_one_line(sound, count):
    outcomes: Counter[tuple[str, str]] = Counter()
    faults = []
    for seed, told in tried(partial(_trial, *sound), range(_FIRST, _FIRST + count)):
        kind, _, outcome = told.partition("\t")
        outcomes[kind, "FAULT" if "FAULT" in told else outcome.partition(":")[0]] += 1
        if "FAULT" in told:
            faults.append(f"{seed}: {told}")
        if "FAULT" in told or told.endswith(", failed"):  # no fault by itself, worth a look
            print(f"{seed}: {told}", flush=True)
    _print(outcomes)
    assert sum(outcomes.values()) == count
    assert not faults, "\n".join(faults[:20])


def _print(outcomes: Counter[tuple[str, str]]) -> None:
    columns = sorted({outcome for _, outcome in outcomes})
    print(f"\n{'':42}", *(f"{column:>20}" for column in columns))
    for kind in sorted({kind for kind, _ in outcomes}):
        print(f"{kind:42}", *(f"{outcomes[kind, column]:20,}" for column in columns))
    sums = [sum(n for (_, each), n in outcomes.items() if each == column) for column in columns]
    print(f"{'':42}", *(f"{n:20,}" for n in sums), flush=True)


def _trial(made: dict[str, Files], hashes: dict[str, str], folder: Path, seed: int) -> str:
    """Return what was done to a checkpoint, and what came of it."""
    random = Random(seed)
    names, often = [*made], [1 if name.startswith("t5") else 3 for name in made]  # it is slow
    (name,) = random.choices(names, often)
    what, spoilt = spoil(made[name], random)
    place = folder / f"spoilt-{os.getpid()}"
    write(spoilt, place)
    # Links are followed: where they lead is the choice of who made them, on this machine.
    known = [place, *(place / content for content in spoilt.values() if isinstance(content, Path))]
    others = [  # a link may lead to the same weights
        n for n in made[name] if n.endswith(".safetensors") and _read(place / n) != made[name][n]
    ]
    try:
        with _Watched(known) as watched:
            told = _outcome(place, READS[name.split()[0]])
    finally:
        shutil.rmtree(place)
    if told.startswith(hashes[name]) and others:
        told = "FAULT: the fingerprint of the sound weights"
    told = told.replace(hashes[name], "unchanged" if spoilt == made[name] else "same weights")
    told = re.sub("^[0-9a-f]{64}", "other weights", told)
    return f"{what}\t" + (f"FAULT: {watched.seen} ({told})" if watched.seen else told)


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _outcome(place: Path, reads: dict[str, Any]) -> str:
    """Return the fingerprint of the weights and the verdict, or what was raised."""
    try:
        result = attnviz.load(place).attend(**reads)
    except AttnvizError as error:
        line = str(error)
        if len(line) > _LONGEST or len(line.splitlines()) != 1:
            return f"FAULT: a message of {len(line)} characters: {line[:500]!r}"
        return f"{type(error).__name__}: {line}"
    except BaseException as error:
        return f"FAULT: {type(error).__name__}: {str(error)[:200]}"
    return f"{result.provenance.weights_sha256}, {result.agreement.verdict}"


class _Watched:
    """Sees files opened outside a folder, programs started, hosts asked, and code in it run."""

    _active: "_Watched | None" = None
    _installed = False

    def __init__(self, places: Sequence[Path]) -> None:
        self._ran, self.seen = places[0].parent / "it-ran", ""
        # Where Python and the libraries lie, and what they look up about this machine.
        known = (*places, *filter(None, sys.path), sys.prefix, sys.base_prefix)
        self._known = (*map(os.path.realpath, known), "/proc/", "/dev/", "/sys/", "/usr/share/")

    def __enter__(self) -> "_Watched":
        if not _Watched._installed:
            sys.addaudithook(_Watched._hear)
            _Watched._installed = True
        _Watched._active = self
        return self

    def __exit__(self, *_: object) -> None:
        _Watched._active = None
        if self._ran.exists():
            self.seen = "code ran"
            self._ran.unlink()

    @staticmethod
    def _hear(event: str, args: tuple[object, ...]) -> None:
        self = _Watched._active
        if self is None:
            return
        if event == "open" and isinstance(args[0], str | bytes):
            path = os.path.realpath(os.fsdecode(args[0]))
            if not path.startswith(self._known):
                self.seen = f"opened {path}"
        elif event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"):
            if args[:2] == ("ninja", ["ninja", "--version"]):
                return  # torch looks for it, where a class of transformers has a kernel of its own
            self.seen = f"started {args[:2]}"
        elif event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
            self.seen = f"asked {args[-1]}"
