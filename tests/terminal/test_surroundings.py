"""What stands around a run: signals while a library is busy, a folder that is gone, settings."""

import signal
import subprocess
import sys
import time

import pytest

# The program, with something in the place of its commands.
PROGRAM = """
import hashlib, os, sys
import attnviz.app
from attnviz import __main__ as program

def run(arguments):
    {run}
    return 0

attnviz.app.run = run
program._DEAF, program._PATIENCE = {deaf}, 0.2
sys.exit(program.main())
"""
# As a tokenizer does: a library that works for minutes and lets other threads go on.
BUSY = "os.write(1, b'busy'); hashlib.pbkdf2_hmac('sha256', b'a', b'b', 10**9)"


def program(run, deaf=60):
    return [sys.executable, "-c", PROGRAM.format(run=run, deaf=deaf)]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize(("deaf", "times"), [(0.3, 1), (60, 2)])
def test_a_signal_ends_a_run_that_is_deep_in_a_library(number, code, deaf, times):
    with subprocess.Popen(program(BUSY, deaf), stdout=subprocess.PIPE) as process:
        try:
            process.stdout.read(4)
            time.sleep(0.3)
            for _ in range(times):
                process.send_signal(number)
                time.sleep(0.3)
            assert process.wait(timeout=5) == code
        finally:
            process.kill()


def test_a_folder_that_is_gone(tmp_path):
    (gone := tmp_path / "gone").mkdir()
    leave = f"import os; os.rmdir({str(gone)!r}); os.execv({sys.executable!r}, {{}})"
    command = [sys.executable, "-P", "-m", "attnviz", "verify", "the train"]
    done = subprocess.run(
        [sys.executable, "-c", leave.format(command)],
        cwd=gone, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 4
    assert done.stderr == (
        "attnviz: Expected a folder to work in, but the current one is gone. Go to another: cd.\n"
    )


def test_what_torch_is_to_log_is_heard_only_to_debug(monkeypatch):
    monkeypatch.setenv("TORCH_LOGS", "nonesuch")
    said = "print(os.environ.get('TORCH_LOGS'))"
    for more, expected in ([], "None\n"), (["--debug"], "nonesuch\n"):
        assert subprocess.check_output([*program(said), *more], text=True) == expected


def test_a_matplotlibrc_that_is_no_utf_8(tmp_path):
    (tmp_path / "matplotlibrc").write_bytes("# é".encode("latin-1"))
    done = subprocess.run(
        [sys.executable, "-m", "attnviz", "example", "cat", "-o", "x.png"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("attnviz: Expected a matplotlibrc in UTF-8, got one that is none")
    assert done.stderr.count("\n") == 1
