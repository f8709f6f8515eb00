"""The check of every architecture, run on a handful of them as people run it."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from architectures import results
from architectures.compare import compare, difference
from architectures.results import reason, state
from architectures.tiny_models import build

ROOT = Path(__file__).parents[2]
EXPECTED = {
    "bert": ("agrees", "interface", 2),
    "bloom": ("agrees", "operators", 2),
    "t5": ("agrees", "interface", 6),
    "vit": ("agrees", "interface", 2),
    "mamba": ("no attention", None, 0),
}


@pytest.mark.slow
def test_a_handful_is_checked_and_the_second_run_does_only_what_is_missing(tmp_path):
    kept = tmp_path / "results.jsonl"
    script = [sys.executable, str(ROOT / "scripts" / "check_architectures.py"), *EXPECTED]
    done = subprocess.run(
        [*script, "--results", str(kept)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "are still to be checked: no table is written" in " ".join(done.stderr.split())
    assert list(tmp_path.iterdir()) == [kept]
    found = results.read(kept)
    for name, expected in EXPECTED.items():
        one = found[name]
        assert (state(one, 1e-5), one.get("reached"), one["attentions"]) == expected
        assert one["softmaxes"] == one["attentions"]
        assert one["others"] == {}


def test_a_fault_is_seen(monkeypatch):
    model, inputs = build("bert")
    monkeypatch.setattr("architectures.compare.difference", lambda record, reference: difference(
        type(record)(**vars(record) | {"scale": record.scale * 1.01}), reference
    ))  # fmt: skip
    found = {"architecture": "bert"} | compare(model, inputs)
    assert found["difference"] > 1e-4
    assert state(found, 1e-5) == "differs"


def test_what_is_not_run_or_not_read_says_why():
    missing = "ImportError: DinatModel requires the natten library but it was not found in your"
    one = {"architecture": "dinat", "reason": missing}
    assert state(one, 1e-5) == "not run"
    assert reason(one) == "needs the package natten, which was not installed"
    unread = {"architecture": "x", "unread": "a row sees scores that are no product"}
    assert state(unread, 1e-5) == "not read"
    assert reason(unread) == "a row sees scores that are no product"
