"""The committed front-end bundle equals a fresh build of its sources, byte for byte."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import attnviz.interactive.page

ROOM = Path(attnviz.interactive.page.__file__).parent
FILES = (
    "attnviz.iife.js", "attnviz.css", "attnviz.es.js", "attnviz.live.js", "attnviz.live.css",
    "attnviz.explore.js", "attnviz.explore.css",
)  # fmt: skip


def test_the_committed_files_match_a_fresh_build(npm, tmp_path):
    copy = tmp_path / "frontend"
    shutil.copytree(ROOM / "frontend", copy, ignore=shutil.ignore_patterns("node_modules"))
    for command in (["ci", "--prefer-offline"], ["run", "check"], ["run", "build"]):
        done = subprocess.run([npm, *command], cwd=copy, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    for name in FILES:
        assert (tmp_path / "static" / name).read_bytes() == (ROOM / "static" / name).read_bytes()
        assert (ROOM / "static" / name).read_bytes().isascii()


def test_no_registry_is_recorded_and_versions_are_exact():
    lock = (ROOM / "frontend/package-lock.json").read_text()
    assert "resolved" not in lock
    assert "registry" not in lock
    package = json.loads((ROOM / "frontend/package.json").read_text())
    assert "dependencies" not in package
    for version in package["devDependencies"].values():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version)


def test_no_code_turns_text_into_markup_or_code():
    uses = [
        f"{file.name}: {word}"
        for file in (ROOM / "frontend/src").rglob("*.ts")
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "Function(", "style=")
        if word in file.read_text("utf-8")
    ]
    assert not uses
