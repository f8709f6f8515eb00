"""Spoilt checkpoints: a result, or one clear line, whatever is in the folder.

Each is loaded, and used on a short text or picture. Nothing else may happen: no other exception,
no crash, no hang, no gigabytes, no code that runs, no file outside the folder read or written, no
word on standard output or error, and never the fingerprint of the sound weights for other ones.
"""

import os
import shutil
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random

import pytest

import attnviz
from attnviz.errors import AttnvizError
from tests.robustness.checkpoints import READS, Files, checkpoints
from tests.robustness.forked import tried
from tests.robustness.mutants import OUTSIDE, spoil, write

_LONGEST = 400


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
    "count",
    [pytest.param(int(os.environ.get("ATTNVIZ_COUNT", "300")), id="300"), pytest.param(50_000, id="50000", marks=pytest.mark.long)],
)
def test_spoilt_checkpoints_give_a_result_or_one_line(sound, count):
    first = int(os.environ.get("ATTNVIZ_SEED", "0"))
    outcomes: Counter[tuple[str, str]] = Counter()
    faults = []
    for seed, told in tried(partial(_trial, *sound), range(first, first + count)):
        kind, _, outcome = told.partition("\t")
        outcomes[kind, "FAULT" if "FAULT" in told else outcome.partition(":")[0]] += 1
        if "FAULT" in told:
            faults.append(f"{seed}: {told}")
            print(faults[-1], flush=True)
    _print(outcomes)
    assert sum(outcomes.values()) == count
    assert not faults, "\n".join(faults[:20])


def _print(outcomes: Counter[tuple[str, str]]) -> None:
    columns = sorted({outcome for _, outcome in outcomes})
    print(f"\n{'':42}", *(f"{column:>20}" for column in columns))
    for kind in sorted({kind for kind, _ in outcomes}):
        print(f"{kind:42}", *(f"{outcomes[kind, column]:20,}" for column in columns))
    sums = [sum(n for (_, each), n in outcomes.items() if each == column) for column in columns]
    print(f"{'':42}", *(f"{n:20,}" for n in sums))


def _trial(made: dict[str, Files], hashes: dict[str, str], folder: Path, seed: int) -> str:
    """Return what was done to a checkpoint, and what came of it."""
    random = Random(seed)
    name = random.choice([*made])
    what, spoilt = spoil(made[name], random)
    place = folder / f"spoilt-{os.getpid()}"
    write(spoilt, place)
    try:
        told = _outcome(place, name, hashes[name], spoilt == made[name], {
            file for file in made[name] if file.endswith(".safetensors")
            and spoilt.get(file) != made[name][file]
        })
    finally:
        shutil.rmtree(place)
    return f"{what}\t{told}"


def _outcome(place: Path, name: str, sound: str, same: bool, changed: set[str]) -> str:
    with _Watched(place) as watched:
        try:
            result = attnviz.load(place).attend(**READS[name.split()[0]])
        except AttnvizError as error:
            told, line = type(error).__name__, str(error)
            if len(line) > _LONGEST or len(line.splitlines()) != 1 or not line.isprintable():
                told = f"FAULT {told} of {len(line)} characters: {line[:500]!r}"
            else:
                told = f"{told}: {line}"
        except BaseException as error:
            told = f"FAULT {type(error).__name__}: {str(error)[:200]}"
        else:
            told = _of_result(result, sound, same, changed)
    return f"FAULT: {watched.seen} ({told})" if watched.seen else told


def _of_result(result: attnviz.AttentionResult, sound: str, same: bool, changed: set[str]) -> str:
    if same:
        return "unchanged"
    if (result.provenance.weights_sha256 == sound) and changed:
        return "FAULT: the fingerprint of the sound weights"
    told = "same weights" if result.provenance.weights_sha256 == sound else "other weights"
    return f"{told}, {result.agreement.verdict}"


class _Watched:
    """Sees files opened outside a folder, programs started, hosts asked, and code in it run."""

    _active: "_Watched | None" = None
    _installed = False

    def __init__(self, place: Path) -> None:
        self._place, self.seen = place, ""
        # Where Python and the libraries lie, and what they look up about this machine.
        known = (place, *filter(None, sys.path), sys.prefix, sys.base_prefix)
        self._known = (*map(os.path.realpath, known), "/proc/", "/dev/", "/sys/", "/usr/share/")

    def __enter__(self) -> "_Watched":
        if not _Watched._installed:
            sys.addaudithook(_Watched._hear)
            _Watched._installed = True
        _Watched._active = self
        return self

    def __exit__(self, *_: object) -> None:
        _Watched._active = None
        if (ran := self._place.parent / "it-ran").exists():
            self.seen = "code ran"
            ran.unlink()

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
            self.seen = f"started {args[:2]}"
        elif event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
            self.seen = f"asked {args[-1]}"
