"""Properties that hold for every input. `pytest -m long tests/property` tries forty times as many.

That runs every property, on 100,000 inputs in total, and prints the number for each. Without it a
few fixed examples run. A slow property declares its cost: see `slower`.
"""

import re
from pathlib import Path

import pytest


def pytest_collection_modifyitems(config, items):
    for item in items:
        is_property = Path(__file__).parent in item.path.parents
        if is_property and is_long(config) and getattr(item.obj, "is_hypothesis_test", False):
            item.add_marker("long")


def is_long(config):
    return config.option.markexpr == "long"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item, call):
    if call.when == "call":
        counts = re.findall(r"(\d+) passing", getattr(item, "hypothesis_statistics", ""))
        item.user_properties.append(("inputs", sum(map(int, counts))))


def pytest_terminal_summary(terminalreporter, config):
    if not is_long(config):
        return
    counts = [
        (dict(report.user_properties).get("inputs", 0), report.nodeid)
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
    ]
    terminalreporter.section("inputs that passed")
    for count, name in sorted(counts, reverse=True):
        terminalreporter.line(f"{count:9,}  {name}")
    terminalreporter.line(f"{sum(count for count, _ in counts):9,}  in {len(counts)} properties")
