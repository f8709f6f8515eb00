"""Run the parts of the GPU check, each in a process of its own, and print a table of their results.

A part that fails does not stop the next. Its output is in OUT/PART.log, and all figures are in
OUT/gpu.json. A part that has passed is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
OURS = ROOT, ROOT / "scripts", ROOT / "tests"
SECONDS = 580  # of all parts
FEWEST = 5  # for which a part is begun
WORKERS = str(min(15, os.cpu_count() or 1))  # they compile kernels
MARK = "figures: "
TESTS = [
    "tests/differential/test_streaming_gpu.py",
    "tests/io/test_results_on_disk.py", "tests/models/test_checkpoints.py",
    "tests/robustness/test_memory.py", "tests/differential/test_on_cuda.py",
]  # fmt: skip
HEATMAP = [
    "-m", "attnviz", "heatmap", "the train left the station", "--device", "cuda",
    "-o", "{out}/heatmap.png",
]  # fmt: skip


class Part(NamedTuple):
    """One part: what it shows, its time limit in seconds, and its command."""

    shows: str
    seconds: int
    command: list[str]
    rehearsal: list[str]  # the command at a small size
    needs_triton: bool = False


def measure(*arguments: str) -> list[str]:
    """Return the command of a measurement."""
    return ["scripts/gpu/measure.py", *arguments]


def tests(*arguments: str) -> list[str]:
    """Return the command of tests that are marked `gpu`."""
    # The options of pyproject.toml are for a machine without a GPU. Each test is named as it ends,
    # so that a part that is stopped shows what failed.
    plain = ["-m", "pytest", "-o", "addopts=", "-p", "no:cacheprovider", "-W", "default", "-v"]
    return [*plain, "-ra", "--tb=short", "-m", "gpu", *arguments]


PARTS = {
    "versions": Part("what runs here", 30, measure("versions"), measure("versions")),
    "agreement": Part(
        "every head of the default model, in three precisions, and beside the CPU",
        90,
        measure("agreement"),
        measure("agreement", "--small"),
    ),
    "families": Part(
        "small models of every family, in three precisions",
        120,
        tests("-n", WORKERS, "--dist", "load", *TESTS[1:]),
        tests(TESTS[1], "-k", "bert and float32"),
    ),
    "heatmap": Part(
        "the first command of the README",
        40,
        HEATMAP,
        HEATMAP,
    ),
    "model-512": Part(
        "BERT-base beside the plain forward",
        60,
        measure("model", "--tokens", "512"),
        measure("model", "--tokens", "48", "--small"),
    ),
    **{
        f"maps-{tokens // 1024}k": Part(
            f"one layer of an 8B model at {tokens:,} tokens",
            seconds,
            measure("maps", "--tokens", str(tokens)),
            measure("maps", "--tokens", "128", "--small"),
            needs_triton=True,
        )
        for tokens, seconds in ((8192, 40), (32768, 50), (131072, 90))
    },
    "model-8k": Part(
        "two layers of an 8B model at 8,192 tokens, with the proof",
        60,
        measure("model", "--tokens", "8192", "--llama"),
        measure("model", "--tokens", "64", "--llama", "--small"),
    ),
    "kernels": Part(
        "kernels against float64",
        240,
        tests("-n", WORKERS, "--dist", "load", TESTS[0], "-k", "not RandomMaps"),
        tests("-x", TESTS[0], "-k", "test_rules and causal", "-m", ""),  # in the interpreter
        needs_triton=True,
    ),
    "random-maps": Part(
        "2,000 random maps against float64",
        560,
        tests("-n", WORKERS, "--dist", "load", TESTS[0], "-k", "RandomMaps"),
        tests("-x", TESTS[0], "-k", "RandomMaps and 99", "-m", ""),  # in the interpreter
        needs_triton=True,
    ),
}


def main() -> int:
    """Run the parts and return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--out", type=Path, default=Path("gpu-check"))
    parser.add_argument("--rehearse", action="store_true", help="simulate the device")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}. Use {', '.join(PARTS)}.")
    options.out.mkdir(parents=True, exist_ok=True)
    report = options.out / ("rehearsal.json" if options.rehearse else "gpu.json")
    results = json.loads(report.read_text()) if report.is_file() else {}
    start = time.monotonic()
    for name in options.parts or PARTS:
        log = options.out / f"{name}.log"
        if results.get(name, {}).get("outcome") == "passed" and log.is_file():
            continue
        left = SECONDS - (time.monotonic() - start)
        seconds = PARTS[name].seconds if options.rehearse else min(PARTS[name].seconds, left)
        print(f"{name}: {PARTS[name].shows}", flush=True)
        results[name] = run(PARTS[name], seconds, log, rehearse=options.rehearse)
        report.write_text(json.dumps(results, indent=2) + "\n")
    show(results)
    return int(any(result["outcome"] != "passed" for result in results.values()))


def run(part: Part, seconds: float, log: Path, *, rehearse: bool) -> dict[str, object]:
    """Run one part within a time limit; return its outcome and its figures."""
    if seconds < FEWEST:
        return {"outcome": "no time left", "seconds": 0, "figures": {}}
    if part.needs_triton and find_spec("triton") is None:
        return {"outcome": "left out: install triton", "seconds": 0, "figures": {}}
    command = [
        word.replace("{out}", str(log.parent.resolve()))
        for word in (part.rehearsal if rehearse else part.command)
    ]
    if rehearse:
        command = ["scripts/gpu/rehearsal.py", *command]
        seconds *= 5
    given = os.environ.get("PYTHONPATH")
    environment = os.environ | {
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join([*map(str, OURS), *filter(None, [given])]),
    }
    if rehearse:
        environment["TRITON_INTERPRET"] = "1"
    start = time.monotonic()
    with log.open("w") as output:
        try:
            code = subprocess.run(
                [sys.executable, *command], cwd=ROOT, env=environment, timeout=seconds,
                stdout=output, stderr=subprocess.STDOUT, check=False,
            ).returncode  # fmt: skip
            outcome = "passed" if code == 0 else f"failed, exit code {code}"
        except subprocess.TimeoutExpired:
            outcome = f"stopped after {seconds:.0f} s"
    figures: dict[str, object] = {}
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith(MARK):
            figures |= json.loads(line.removeprefix(MARK))
    return {"outcome": outcome, "seconds": time.monotonic() - start, "figures": figures}


def show(results: dict[str, dict[str, object]]) -> None:
    """Print a line for each part, and its figures below it."""
    print()
    for name, result in results.items():
        print(f"{name:12} {result['seconds']:6.1f} s  {result['outcome']}")
        figures = result["figures"]
        assert isinstance(figures, dict)
        for label, value in figures.items():
            print(f"{'':12} {label}: {value if isinstance(value, str) else f'{value:.3g}'}")


if __name__ == "__main__":
    sys.exit(main())
