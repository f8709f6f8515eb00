"""The package stays within its budget of lines and files. An issue lowers it; nothing raises it."""

from pathlib import Path

FILES = 138
LINES = 44_380
PACKAGE = Path(__file__).parents[1] / "attnviz"


def test_the_package_stays_within_its_budget():
    files = [path for path in PACKAGE.rglob("*.py") if "node_modules" not in path.parts]
    lines = sum(path.read_bytes().count(b"\n") for path in files)
    assert lines <= LINES, "pay for new lines by what they replace"
    assert len(files) <= FILES, "pay for new files by what they replace"
