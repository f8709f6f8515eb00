"""The open_page fixture detects errors, so that no page test passes silently."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

INNER = "<iframe sandbox='allow-scripts' srcdoc=\"<script>{}</script>\"></iframe>"
REFUSED = "console: .*ERR_"  # Chromium's message for a request without an answer


def test_forbidden_actions_are_detected(open_page):
    cases = (
        ("<img src='http://127.0.0.1:9/a.png'>", "request: http://127.0.0.1:9/a.png"),
        ("<script src='https://cdn.example/d3.js'></script>", "request: .*d3.js"),
        ("<script>new WebSocket('ws://127.0.0.1:9')</script>", "websocket: ws:"),
        ("<script>console.error('said')</script>", "console: said"),
        ("<script>throw Error('outer')</script>", "error: .*outer"),
        ("<script>Promise.reject(Error('late'))</script>", "error: .*late"),
        (INNER.format("throw Error(1234)"), "error: .*1234"),
        (INNER.format("fetch(`http://a.example`)"), "request: http://a.example"),
        ("", "error: .*fetch"), ("", "console: .*WebSocket"), ("", REFUSED),
    )  # fmt: skip
    html, expects = zip(*cases, strict=True)
    open_page("".join(html), expects=expects)


def test_errors_fail_the_test_and_so_do_missing_expected_errors(tmp_path):
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = browser: ...\n")
    (tmp_path / "test_it.py").write_text(
        "import conftest\n"
        "conftest.PATIENCE = 0\n"
        "def test_trouble(open_page): open_page('<script>throw Error(1)</script>')\n"
        "def test_absent(open_page):\n"
        "    open_page('<p>', expects=['console: a']).evaluate('sessionStorage.a = 1')\n"
        "def test_quiet(open_page):\n"
        "    assert open_page('<p>').evaluate('sessionStorage.length') == 0\n"
    )
    command = [sys.executable, "-m", "pytest", "-rsE", "-p", "no:cacheprovider", "."]
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True)
    output = done.stdout
    assert "3 passed, 2 errors" in output
    assert "error: 1" in output
    assert "expected 'console: a', which did not come" in output
