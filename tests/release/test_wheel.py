"""The wheel and the sdist hold what they should, and nothing else."""

import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import attnviz

pytest.importorskip("hatchling", reason="needs hatchling, which builds the wheel")
pytest.importorskip("hatch_fancy_pypi_readme", reason="needs hatch-fancy-pypi-readme")

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
INFO = f"attnviz-{PROJECT['version']}.dist-info"


def build(kind, source, out):
    """Build a wheel or an sdist of a source folder, without a network; return its file."""
    code = f"import sys; from hatchling.build import build_{kind}; print(build_{kind}(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(out)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out / done.stdout.split()[-1]


def contents(wheel):
    with zipfile.ZipFile(wheel) as file:
        return {name: file.read(name) for name in file.namelist()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Return the contents of the wheel by name."""
    return contents(build("wheel", ROOT, tmp_path_factory.mktemp("wheel")))


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    package = {
        file.relative_to(ROOT).as_posix()
        for file in (ROOT / "attnviz").rglob("*")
        if file.is_file() and not {"frontend", "__pycache__"} & {*file.parts}
    }
    info = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
    info.add("licenses/THIRD_PARTY.md")
    assert {*wheel} == package | {f"{INFO}/{name}" for name in info}


@pytest.mark.parametrize(
    "name",
    [
        "attnviz/py.typed",
        "attnviz/__init__.pyi",
        "attnviz/plot.pyi",
        "attnviz/interactive/page.jinja",
        "attnviz/interactive/static/attnviz.iife.js",
        "attnviz/models/architectures.json",
    ],
)
def test_the_wheel_holds_what_is_no_module(name, wheel):
    assert wheel[name] == (ROOT / name).read_bytes()


def test_the_sdist_builds_the_same_wheel(wheel, tmp_path):
    with tarfile.open(build("sdist", ROOT, tmp_path)) as file:
        file.extractall(tmp_path, filter="data")
    source = tmp_path / f"attnviz-{PROJECT['version']}"
    assert contents(build("wheel", source, tmp_path)) == wheel
    for name in ("LICENSE", "tests/conftest.py", "attnviz/interactive/frontend/package.json"):
        assert (source / name).is_file()


def test_the_page_on_pypi_has_no_link_that_leads_nowhere(wheel):
    page = Parser().parsestr(wheel[f"{INFO}/METADATA"].decode()).get_payload()
    targets = re.findall(r"\]\(([^)]*)\)", page)
    assert targets
    assert all(target.startswith("https://") for target in targets)
    assert "pip install attnviz\n" in page
    assert "clone of this repository" not in page
    assert "-e ." not in page
    headings = re.findall(r"^## (.*)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M)
    assert re.findall(r"^## (.*)$", page, re.M) == [
        heading for heading in headings if heading not in ("Guides", "Develop")
    ]


# --- the version and what repeats facts of pyproject.toml


def test_the_version_is_the_same_everywhere():
    version = PROJECT["version"]
    assert attnviz.__version__ == version
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.*)$", citation, re.M)[1] == version
    assert re.search(r"^license: (.*)$", citation, re.M)[1] == PROJECT["license"]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    latest, date = re.search(r"^## (\S+) – (.*)$", changes, re.M).groups()
    assert latest == version
    assert re.fullmatch(r"unreleased|\d{4}-\d{2}-\d{2}", date)
    released = re.search(r"^date-released: (.*)$", citation, re.M)
    assert (released[1] if released else "unreleased") == date
    repository = re.search(r'^repository-code: "(.*)"$', citation, re.M)
    if released:  # the owner has named the addresses, here and there
        assert not any("OWNER" in address for address in PROJECT["urls"].values())
        assert repository[1] == PROJECT["urls"]["Repository"]


def test_the_owner_fills_in_one_place():
    files = ("README.md", "SECURITY.md", "CITATION.cff", "STABILITY.md", "CODE_OF_CONDUCT.md")
    for name in files:
        assert "OWNER" not in (ROOT / name).read_text(encoding="utf-8"), name


@pytest.mark.parametrize(
    ("badge", "fact"),
    [("python", PROJECT["requires-python"].replace(">=", "≥ ")), ("license", PROJECT["license"])],
)
def test_a_badge_says_what_the_project_says(badge, fact):
    picture = (ROOT / "gallery" / "badges" / f"{badge}.svg").read_text(encoding="utf-8")
    assert picture.count(f": {fact}") == 2
    assert f">{fact}</text>" in picture
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", "")


def test_the_page_bundles_no_package_of_others():
    """What is built into the page's script would need its license in the wheel."""
    frontend = ROOT / "attnviz" / "interactive" / "frontend"
    package = json.loads((frontend / "package.json").read_text(encoding="utf-8"))
    assert "dependencies" not in package
    imported = {
        target
        for source in (frontend / "src").rglob("*.ts")
        for target in re.findall(r'from "([^"]+)"', source.read_text(encoding="utf-8"))
    }
    assert imported
    assert all(target.startswith(".") for target in imported)
