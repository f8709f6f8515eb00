"""`scripts/bench.py models` measures an analysis in its own process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from benchmarks import models
from benchmarks.measuring import ENTRY


def test_the_texts_of_the_survey_differ():
    texts = models.texts()
    assert len(set(texts)) == models.SURVEYED == 100


@pytest.mark.long
def test_a_process_prints_its_times_and_its_peak():
    command = [sys.executable, str(ENTRY), "memory", "models", "attend", "minilm", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    one = json.loads(done.stdout.splitlines()[-1])
    assert one["seconds"] > one["forward"] > 0
    assert 0.1 < one["gigabytes"] < models.LIMIT
