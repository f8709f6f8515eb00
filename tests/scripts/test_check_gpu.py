"""The GPU check goes on after a failure, resumes, and can be rehearsed without a GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gpu import check

ROOT = Path(__file__).parents[2]
PRINT = "print('figures: {\"one\": 1}')"


@pytest.fixture
def parts(monkeypatch, tmp_path):
    """Run only small parts, one of which fails and one of which takes too long."""

    def part(code, seconds=60):
        return check.Part("a part", seconds, ["-c", code], ["-c", code])

    parts = {
        "fails": part("raise SystemExit(3)"),
        "is slow": part("import time; time.sleep(60)", seconds=1),
        "passes": part(PRINT),
    }
    monkeypatch.setattr(check, "PARTS", parts)
    monkeypatch.setattr(check, "FEWEST", 1)
    monkeypatch.setattr(sys, "argv", ["check.py", "--out", str(tmp_path)])
    return parts


def test_a_failure_does_not_stop_the_next_part(parts, tmp_path, capsys):
    assert check.main() == 1
    results = json.loads((tmp_path / "gpu.json").read_text())
    assert [results[name]["outcome"] for name in parts] == [
        "failed, exit code 3", "stopped after 1 s", "passed",
    ]  # fmt: skip
    assert results["passes"]["figures"] == {"one": 1}
    assert "one: 1" in capsys.readouterr().out


def test_a_part_that_has_passed_is_not_run_again(parts, tmp_path, monkeypatch):
    parts["is slow"] = parts["fails"]
    check.main()
    parts["fails"] = parts["is slow"] = check.Part("mended", 60, ["-c", PRINT], [])
    parts["passes"] = check.Part("broken since", 60, ["-c", "raise SystemExit(3)"], [])
    assert check.main() == 0
    (tmp_path / "passes.log").unlink()
    assert check.main() == 1


def test_an_unknown_part_is_one_line(parts, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [*sys.argv, "warp"])
    with pytest.raises(SystemExit, match="2"):
        check.main()
    assert "there is no part warp" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_part_can_be_rehearsed(tmp_path):
    """As in the README."""
    script = ROOT / "scripts" / "check_gpu.sh"
    environment = {"PYTHON": sys.executable, "OUT": str(tmp_path), "PATH": "/usr/bin:/bin"}
    environment["OMP_NUM_THREADS"] = "1"  # beside other tests
    done = subprocess.run(
        [str(script), "--rehearse", "heatmap"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "rehearsal.json").read_text())
    assert {name: result["outcome"] for name, result in results.items()} == {"heatmap": "passed"}
    assert (tmp_path / "heatmap.png").is_file()
