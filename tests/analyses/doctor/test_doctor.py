"""`attnviz.doctor` and `attnviz doctor`: each thing that is missing is found, with its remedy."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import metadata, requires
from types import SimpleNamespace

import pytest
import torch
from commands import run

import attnviz
from attnviz import models
from attnviz.analyses import doctor
from attnviz.analyses.doctor import DoctorResult, Finding

DEVELOPMENT = {"bench", "docs", "test"}  # extras for a clone


@pytest.fixture(scope="module")
def checkup():
    return attnviz.doctor()


@pytest.fixture
def without_torch(monkeypatch):
    """Load no torch, which takes seconds."""
    monkeypatch.setattr(doctor, "_devices", list)


def one(result, name):
    (found,) = (finding for finding in result.findings if finding.name == name)
    return found


def test_it_works_here(checkup):
    assert checkup.works
    assert checkup.headline == "attnviz works on this machine."
    assert [*dict.fromkeys(finding.group for finding in checkup.findings)] == [
        "packages", "device", "models", "extras",
    ]  # fmt: skip
    assert f"torch {metadata('torch')['Version']}, " in one(checkup, "required").found
    assert f"of {os.cpu_count()} cores" in one(checkup, "cpu").found
    assert one(checkup, "all-MiniLM-L6-v2").found.startswith("in ")
    assert repr(checkup).startswith("DoctorResult('attnviz works")


def test_every_extra_for_users_is_described():
    extras = set(metadata("attnviz").get_all("Provides-Extra"))
    assert set(doctor._EXTRAS) == extras - DEVELOPMENT


def test_a_module_imports_neither_torch_nor_another_framework():
    code = (
        "import sys, attnviz; attnviz.doctor(); print({'torch', 'transformers'} & {*sys.modules})"
    )
    code = f"from attnviz.analyses import doctor; doctor._devices = list; {code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("code", "out", "err", "expected"),
    [
        (1, "", "Traceback\nImportError: libcudart.so", ("torch", True, "libcudart.so")),
        (1, '{"cpu": ["1 of 1 cores", ""]}\n', "ImportError: no",
         ("transformers", True, "ImportError: no")),
        (0, 'a warning\n{"cuda:0": ["H100", ""]}\n', "", ("cuda:0", False, "H100")),
    ],
)  # fmt: skip
def test_devices_and_a_torch_that_fails(code, out, err, expected, monkeypatch):
    done = SimpleNamespace(returncode=code, stdout=out, stderr=err)
    monkeypatch.setattr(doctor.subprocess, "run", lambda *_, **__: done)
    name, is_broken, said = expected
    result = DoctorResult(tuple(doctor._devices()))
    found = one(result, name)
    assert found.is_broken is is_broken
    assert said in found.found
    assert result.works is not is_broken


def devices(capsys):
    doctor._print_devices()
    return json.loads(capsys.readouterr().out)


def test_a_gpu_that_torch_does_not_use(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: name)
    for build in ("13.0", None):
        monkeypatch.setattr(torch.version, "cuda", build)
        found, remedy = devices(capsys)["cuda"]
        assert found == f"torch for {build or 'CPUs'} finds no GPU"
        assert remedy.startswith("Update the NVIDIA driver")


def test_each_gpu_has_its_memory(monkeypatch, capsys):
    gpu = SimpleNamespace(name="H100", total_memory=85899345920)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    found = devices(capsys)
    assert found["cuda:0"] == found["cuda:1"] == ["H100, 80 GB", ""]


def test_a_torch_that_crashes_is_seen_from_outside(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("import os; os.abort()", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (found,) = doctor._devices()
    assert (found.name, found.is_broken) == ("torch", True)
    assert "code -6" in found.found


@pytest.mark.usefixtures("without_torch")
def test_what_is_missing_is_named(monkeypatch, tmp_path):
    """A package that is too old is no reason to stop."""
    monkeypatch.setattr(doctor, "requires", lambda name: ["numpy>=999"])
    assert one(result := doctor.doctor(), "required").remedy == "pip install 'numpy>=999'"
    assert result.works
    requirements = [
        "no-such-package>=2", "numpy>=999", "pandas>=1", "torch>=1; sys_platform == 'amiga'",
        "no-such-framework>=3; extra == 'large'",
    ]  # fmt: skip
    monkeypatch.setattr(doctor, "requires", lambda name: requirements)
    monkeypatch.setattr(models, "user_cache_path", lambda *_, **__: tmp_path)
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    result = doctor.doctor()
    assert [one.name for one in result.findings if one.is_broken] == [
        "required",
        "all-MiniLM-L6-v2",
    ]
    assert not result.works
    assert one(result, "required").remedy == "pip install 'no-such-package>=2' 'numpy>=999'"
    assert "torch" not in one(result, "required").found
    assert one(result, "large").remedy == "pip install 'attnviz[large]'"
    assert one(result, "triton").found.endswith("(not for this system)")
    assert one(result, "smollm2").remedy.startswith(
        "Run 'python scripts/fetch_models.py --again smollm2'"
    )


@pytest.mark.usefixtures("without_torch")
def test_the_command_prints_what_the_function_returns(capsys):
    assert run(["doctor", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == attnviz.doctor().about()
    assert err == ""
    assert run(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "attnviz" in out
    assert out.endswith("attnviz works on this machine.\n")


def test_exit_code_three_where_attnviz_cannot_work(monkeypatch, capsys):
    broken = Finding("models", "default", "not\x1b[2J there", "Get it.", is_broken=True)
    monkeypatch.setattr(attnviz, "doctor", lambda: DoctorResult((broken,)))
    assert run(["doctor"]) == 3
    out = capsys.readouterr().out
    assert "→ Get it." in out
    assert "\x1b" not in out
    assert out.endswith("attnviz cannot work on this machine: see default.\n")


def test_every_package_that_is_required_is_listed(checkup):
    base = [text for text in requires("attnviz") if "extra ==" not in text]
    required = {re.match(r"[\w-]+", text)[0] for text in base}
    listed = one(checkup, "required").found.split(", ")
    assert {text.split()[0] for text in listed} == required
    assert all(package in checkup._repr_html_() for package in required)
