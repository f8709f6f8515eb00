"""`attnviz.doctor` and `attnviz doctor`: each thing that is missing is found, with its remedy."""

import json
import re
import subprocess
import sys
import webbrowser
from importlib.metadata import metadata, requires

import pytest

import attnviz
from attnviz.analyses.doctor import compute
from attnviz.analyses.doctor.compute import doctor
from attnviz.analyses.doctor.result import DoctorResult, Finding
from attnviz.app import run
from attnviz.models import named

DEVELOPMENT = {"bench", "docs", "test"}  # extras for a clone


@pytest.fixture(scope="module")
def checkup():
    return attnviz.doctor()


@pytest.fixture
def without_torch(monkeypatch):
    """Load no torch, which takes seconds."""
    found = {"threads": 2, "build": None, "cuda": [], "mps": False}
    monkeypatch.setattr(compute, "_load_torch", lambda: (0, json.dumps(found) + "\n{}", ""))


def one(result, name):
    (found,) = (finding for finding in result.findings if finding.name == name)
    return found


def test_it_works_here(checkup):
    assert checkup.works
    assert checkup.headline == "attnviz works on this machine."
    assert [*dict.fromkeys(finding.group for finding in checkup.findings)] == [
        "packages", "device", "models", "fonts", "pages", "extras",
    ]  # fmt: skip
    assert one(checkup, "torch").found == metadata("torch")["Version"]
    assert "of memory available" in one(checkup, "cpu").found
    assert one(checkup, "default").state == "ok"


def test_everything_that_is_not_there_has_a_remedy(checkup):
    assert all((finding.state == "ok") is not bool(finding.remedy) for finding in checkup.findings)


def test_a_table_and_a_page_of_it(checkup):
    frame = checkup.to_frame()
    assert [*frame.columns] == ["group", "name", "state", "found", "remedy"]
    assert len(frame) == len(checkup.findings)
    assert "transformers" in checkup._repr_html_()
    assert repr(checkup).startswith("DoctorResult('attnviz works")


def test_every_extra_for_users_is_described():
    extras = set(metadata("attnviz").get_all("Provides-Extra"))
    assert set(compute._EXTRAS) == extras - DEVELOPMENT


def test_a_module_imports_neither_torch_nor_another_framework():
    code = (
        "import sys, attnviz; attnviz.doctor(); print({'torch', 'transformers'} & {*sys.modules})"
    )
    code = f"from attnviz.analyses.doctor import compute; compute._load_torch = int; {code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("code", "out", "err", "expected"),
    [
        (1, "", "Traceback\nImportError: libcudart.so", ("torch", "broken", "libcudart.so")),
        (-11, "", "", ("torch", "broken", "code -11")),
        (1, '{"threads": 1, "build": null, "cuda": [], "mps": false}\n', "ImportError: no",
         ("transformers", "broken", "ImportError: no")),
        (None, "", "", ("torch", "advice", "did not load")),
        (0, '{"threads": 1, "build": null, "cuda": [], "mps": true}\n{}\n', "",
         ("mps", "ok", "no float64")),
        (0, '{"threads": 1, "build": "13.0", "cuda": [{"error": "no kernel"}], "mps": false}', "",
         ("cuda:0", "advice", "no kernel")),
        (0, '{"threads": 1, "build": "13.0", "mps": false, '
         '"cuda": [{"name": "H100", "memory": 85899345920, "bfloat16": true}]}', "",
         ("cuda:0", "ok", "H100, 80 GB, with bfloat16")),
    ],
)  # fmt: skip
def test_devices_and_a_torch_that_fails(code, out, err, expected, monkeypatch):
    monkeypatch.setattr(compute, "_load_torch", lambda: (code, out, err))
    name, state, said = expected
    monkeypatch.setattr(compute, "_PROBES", {"packages": lambda: iter(())})
    result = doctor()
    found = one(result, name)
    assert found.state == state
    assert said in found.found
    assert result.works is (state != "broken")


@pytest.mark.parametrize(("build", "said"), [(None, "for CPUs"), ("13.0", "finds no GPU")])
def test_a_gpu_that_torch_does_not_use(build, said, monkeypatch):
    monkeypatch.setattr(compute.shutil, "which", lambda name: name)
    found = compute._no_cuda(build)
    assert said in found.found
    assert found.state == "advice"


def test_a_torch_that_crashes_is_seen_from_outside(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("import os; os.abort()", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    code, _, _ = compute._load_torch()
    assert code not in (0, None)


def test_a_torch_that_hangs_is_given_up(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("import time; time.sleep(60)", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(compute, "_SECONDS", 0.5)
    assert compute._load_torch()[0] is None


@pytest.mark.usefixtures("without_torch")
def test_what_is_missing_is_named(monkeypatch, tmp_path):
    requirements = [
        "no-such-package>=2", "numpy>=999", "pandas>=1", "torch>=1; sys_platform == 'amiga'",
        "no-such-framework>=3; extra == 'large'",
    ]  # fmt: skip
    monkeypatch.setattr(compute, "requires", lambda name: requirements)
    monkeypatch.setattr(named, "user_cache_path", lambda *_, **__: tmp_path)
    monkeypatch.setattr(compute, "bundled_folder", lambda: tmp_path)
    monkeypatch.setattr(compute, "_SCRIPTS", {"Khitan": ("\U00018b00", "A Font", "fonts-a")})
    monkeypatch.setattr(compute, "files", lambda name: tmp_path)
    monkeypatch.setattr(webbrowser, "get", fail(webbrowser.Error))
    result = doctor()
    broken = [finding.name for finding in result.findings if finding.state == "broken"]
    assert broken == ["no-such-package", "default", "scripts"]
    assert not result.works
    assert one(result, "no-such-package").remedy == "pip install 'no-such-package>=2'"
    assert one(result, "numpy").remedy == "pip install 'numpy>=999'"
    assert one(result, "large").remedy == "pip install 'attnviz[large]'"
    assert one(result, "smollm2").remedy.startswith("Run 'python scripts/fetch_models.py smollm2'")
    assert one(result, "Khitan").remedy == "apt install fonts-a; on other systems, install A Font."
    assert one(result, "browser").state == "advice"
    assert "torch" not in {finding.name for finding in result.findings}


def fail(error):
    def raises(*_, **__):
        raise error

    return raises


@pytest.mark.usefixtures("without_torch")
def test_a_probe_that_fails_is_a_finding_and_the_others_go_on(monkeypatch):
    monkeypatch.setattr(compute, "version_of", fail(RuntimeError("no metadata")))
    monkeypatch.setattr(compute.shutil, "disk_usage", fail(OSError("no disk")))
    result = doctor()
    assert one(result, "packages").found == "not known: RuntimeError: no metadata"
    assert one(result, "models").found == "not known: OSError: no disk"
    assert one(result, "emoji").state in ("ok", "advice")
    assert result.works


@pytest.mark.usefixtures("without_torch")
@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [("HF_HUB_OFFLINE", True, "Unset HF_HUB_OFFLINE"), ("HF_HUB_CACHE", "/proc/1", "Set HF_HOME")],
)
def test_a_cache_of_the_hub_that_cannot_be_filled(name, value, remedy, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, name, value)
    monkeypatch.setattr(compute.os, "access", lambda path, mode: not str(path).startswith("/proc"))
    assert compute._hub_cache().remedy.startswith(remedy)


@pytest.mark.usefixtures("without_torch")
def test_the_command_prints_what_the_function_returns(capsys):
    assert run(["doctor", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == attnviz.doctor().about()
    assert err == ""
    assert run(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "attnviz 0" in out
    assert out.endswith("attnviz works on this machine.\n")


def test_exit_code_three_where_attnviz_cannot_work(monkeypatch, capsys):
    broken = DoctorResult((Finding("models", "default", "broken", "not\x1b[2J there", "Get it."),))
    monkeypatch.setattr(attnviz, "doctor", lambda: broken)
    assert run(["doctor"]) == 3
    out = capsys.readouterr().out
    assert "→ Get it." in out
    assert "\x1b" not in out
    assert out.endswith("attnviz cannot work on this machine: see default.\n")


def test_every_package_that_is_required_is_listed(checkup):
    base = [text for text in requires("attnviz") if "extra ==" not in text]
    required = {re.match(r"[\w-]+", text)[0] for text in base}
    listed = {finding.name for finding in checkup.findings if finding.group == "packages"}
    assert listed == required | {"attnviz", "Python", "system"}
