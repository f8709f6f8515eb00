"""`attnviz.doctor` and `attnviz doctor`: each thing that is missing is found, with its remedy."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import metadata, requires

import pytest
from commands import run

import attnviz

DEVELOPMENT = {"bench", "docs", "test"}  # extras for a clone


@pytest.fixture(scope="module")
def checkup():
    return attnviz.doctor()


TORCH = """
print("a warning")
class cuda:
    device_count, get_device_properties = lambda: {gpus}, lambda _: cuda
    name, total_memory = "H100", 85899345920
class version:
    cuda = {build!r}
def get_num_threads():
    return 1
"""


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Return a function that examines a machine with another torch and transformers."""
    known = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), known]))

    def examine(torch=TORCH, transformers="", gpus=0, build="13.0"):
        text = torch.format(gpus=gpus, build=build)
        (tmp_path / "torch.py").write_text(text, encoding="utf-8")
        (tmp_path / "transformers.py").write_text(transformers, encoding="utf-8")
        return attnviz.doctor()

    return examine


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
    extras = set(metadata("attnviz").get_all("Provides-Extra"))
    described = {finding.name for finding in checkup.findings if finding.group == "extras"}
    assert described == extras - DEVELOPMENT


def test_a_module_imports_neither_torch_nor_another_framework(machine):
    machine()
    code = (
        "import sys, attnviz; attnviz.doctor(); print({'torch', 'transformers'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("torch", "transformers", "name", "said"),
    [
        ("raise ImportError('libcudart.so')", "", "torch", "ImportError: libcudart.so"),
        ("import os; os.abort()", "", "torch", "code -6"),  # seen from outside
        (TORCH, "raise ImportError('no')", "transformers", "ImportError: no"),
    ],
)
def test_a_library_that_fails_is_named(torch, transformers, name, said, machine):
    result = machine(torch, transformers)
    assert one(result, name).is_broken
    assert said in one(result, name).found
    assert not result.works


@pytest.mark.parametrize("build", ["13.0", None])
def test_a_gpu_that_torch_does_not_use(build, machine, monkeypatch, tmp_path):
    (tmp_path / "nvidia-smi").touch(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = one(machine(build=build), "cuda")
    assert found.found == f"torch for {build or 'CPUs'} finds no GPU"
    assert found.remedy.startswith("Update the NVIDIA driver")


def test_each_gpu_has_its_memory(machine):
    result = machine(gpus=2)
    for name in ("cuda:0", "cuda:1"):
        assert (one(result, name).found, one(result, name).remedy) == ("H100, 80 GB", "")


def test_what_is_missing_is_named(machine, monkeypatch, tmp_path):
    """A package that is too old is no reason to stop."""
    requirements = "attnviz.analyses.doctor.requires"
    monkeypatch.setattr(requirements, lambda name: ["numpy>=999"])
    assert one(result := machine(), "required").remedy == "pip install 'numpy>=999'"
    assert result.works
    listed = [
        "no-such-package>=2", "numpy>=999", "pandas>=1", "torch>=1; sys_platform == 'amiga'",
        "no-such-framework>=3; extra == 'large'",
    ]  # fmt: skip
    monkeypatch.setattr(requirements, lambda name: listed)
    monkeypatch.setattr("attnviz.models.user_cache_path", lambda *_, **__: tmp_path)
    monkeypatch.setattr("attnviz.models.find_spec", lambda name: None)
    result = machine()
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


def test_the_command_prints_what_the_function_returns(machine, capsys):
    expected = machine().about()
    assert run(["doctor", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"schema": "attnviz/DoctorResult/1", **expected}
    assert err == ""
    assert run(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "attnviz" in out
    assert out.endswith("attnviz works on this machine.\n")


def test_exit_code_three_where_attnviz_cannot_work(machine, capsys):
    machine("raise ImportError('not\\x1b[2J there')")
    assert run(["doctor"]) == 3
    out = capsys.readouterr().out
    assert "→ Install it again: pip install --force-reinstall torch" in out
    assert "\x1b" not in out
    assert out.endswith("attnviz cannot work on this machine: see torch.\n")


def test_every_package_that_is_required_is_listed(checkup):
    base = [text for text in requires("attnviz") if "extra ==" not in text]
    required = {re.match(r"[\w-]+", text)[0] for text in base}
    listed = one(checkup, "required").found.split(", ")
    assert {text.split()[0] for text in listed} == required
    assert all(package in checkup._repr_html_() for package in required)
