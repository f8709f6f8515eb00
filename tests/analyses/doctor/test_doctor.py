"""`attnviz.doctor` and `attnviz doctor`: what is missing is found, with the command for it."""

import json
import os
import platform
import re
import sys
from html import unescape
from importlib.metadata import metadata, requires
from types import SimpleNamespace

import pytest
import torch
from commands import run

import attnviz

DEVELOPMENT = {"bench", "docs", "test"}  # extras for a clone


@pytest.fixture(scope="module")
def checkup():
    return attnviz.doctor()


@pytest.fixture
def known(monkeypatch, checkup):
    """Try the default model once."""
    found = checkup.devices, checkup.proof
    monkeypatch.setattr("attnviz.analyses.doctor._try_out", lambda: found)


def test_it_works_here(checkup):
    assert checkup.works
    assert checkup.headline == "attnviz works on this machine."
    assert checkup.versions["torch"] == metadata("torch")["Version"]
    assert checkup.versions["Python"].startswith(platform.python_version())
    assert f"of {os.cpu_count()} cores" in checkup.devices["cpu"]
    assert checkup.proof.startswith("verified: 72 heads recomputed in float64 differ")
    assert {*checkup.extras} == {*metadata("attnviz").get_all("Provides-Extra")} - DEVELOPMENT


def test_a_library_that_fails_is_seen(monkeypatch, capsys):
    def fail(*_, **__):
        raise ImportError("libcudart.so\nnot \x1b[2J there")

    monkeypatch.setattr("attnviz.verify", fail)
    result = attnviz.doctor()
    assert not result.works
    assert result.proof.startswith("the default model does not run: ImportError: libcudart.so")
    assert "cpu" in result.devices
    monkeypatch.setitem(sys.modules, "torch", None)
    assert attnviz.doctor().devices == {}
    assert run(["doctor"]) == 3
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert out.endswith("attnviz does not work on this machine: see the proof.\n")


@pytest.mark.parametrize("build", ["13.0", None])
def test_a_gpu_that_torch_does_not_use(build, monkeypatch, tmp_path):
    (tmp_path / "nvidia-smi").touch(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(torch.version, "cuda", build)
    found = attnviz.doctor().devices["cuda"]
    assert found.startswith(f"torch for {build or 'CPUs'} finds no GPU. Update the NVIDIA driver")


def test_each_gpu_has_its_memory(monkeypatch):
    gpu = SimpleNamespace(name="H100", total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    devices = attnviz.doctor().devices
    assert devices["cuda:0"] == devices["cuda:1"] == "H100, 80 GB"


def test_one_command_installs_what_is_missing(known, monkeypatch):
    """A package that is too old is no reason to stop."""
    listed = [
        "no-such-package>=2", "numpy>=999", "pandas>=1", "torch>=1; sys_platform == 'amiga'",
        "no-such-framework>=3; extra == 'large'", "numba>=999; extra == 'fast'",
        "no-such-thing; extra == 'triton' and sys_platform == 'amiga'",
    ]  # fmt: skip
    monkeypatch.setattr("attnviz.analyses.doctor.requires", lambda name: listed)
    result = attnviz.doctor()
    assert result.works
    assert result.install == "pip install 'no-such-package>=2' 'numpy>=999' 'attnviz[fast,large]'"
    assert result.versions["no-such-package"] == "(not installed)"
    assert "torch" not in result.versions
    assert {extra for extra, is_there in result.extras.items() if not is_there} == {"large", "fast"}
    assert "Install what is missing: pip install 'no-such-" in unescape(result._repr_html_())


def test_the_command_prints_what_the_function_returns(known, checkup, capsys):
    assert run(["doctor", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"schema": "attnviz/DoctorResult/1", **vars(checkup)}
    assert err == ""
    assert run(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "attnviz" in out
    assert out.endswith("attnviz works on this machine.\n")


def test_every_package_that_is_required_is_listed(checkup):
    base = [text for text in requires("attnviz") if "extra ==" not in text]
    required = {re.match(r"[\w-]+", text)[0] for text in base}
    assert {*checkup.versions} == required | {"attnviz", "Python"}
    assert all(package in checkup._repr_html_() for package in required)
