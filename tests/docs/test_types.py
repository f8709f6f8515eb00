"""The Python blocks of the guides pass mypy in strict mode, as a user's program."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_readme import PAGES, ROOT

# What transformers, seaborn and matplotlib do not say of their own functions.
OF_OTHERS = re.compile(
    r'Module (has no attribute|"transformers" has)|Call to untyped function "from_config"'
    r'|stubs not installed for "seaborn"|"SubFigure" object is not iterable'
)


@pytest.mark.slow
def test_the_blocks_of_the_guides_pass_mypy(tmp_path):
    for page, text in PAGES.items():
        for number, code in enumerate(re.findall(r"```python[^\n]*\n(.*?)```", text, re.DOTALL)):
            name = f"{re.sub(r'[^a-z]', '_', Path(page).stem.lower())}_{number}.py"
            (tmp_path / name).write_text(code, encoding="utf-8")
    files = sorted(map(str, tmp_path.glob("*.py")))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert done.returncode in (0, 1), done.stderr
    assert len(files) > 40
    assert not [line for line in errors if not OF_OTHERS.search(line)]
