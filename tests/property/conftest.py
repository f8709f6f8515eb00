"""What holds for every input. `pytest -m long tests/property` tries forty times as many.

That runs every property, on 100,000 inputs in all, and tells how many each has seen. Without it a
few come up, the same each time. A property that takes long to try names its cost: see `costing`.
"""

import re
from pathlib import Path

import pytest


def pytest_collection_modifyitems(config, items):
    for item in items:
        mine = Path(__file__).parent in item.path.parents
        if mine and is_long(config) and getattr(item.obj, "is_hypothesis_test", False):
            item.add_marker("long")


def is_long(config):
    return config.option.markexpr == "long"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item, call):
    if call.when == "call":
        told = re.findall(r"(\d+) passing", getattr(item, "hypothesis_statistics", ""))
        item.user_properties.append(("inputs", sum(map(int, told))))


def pytest_terminal_summary(terminalreporter, config):
    if not is_long(config):
        return
    seen = [
        (dict(report.user_properties).get("inputs", 0), report.nodeid)
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
    ]
    terminalreporter.section("inputs that passed")
    for count, name in sorted(seen, reverse=True):
        terminalreporter.line(f"{count:9,}  {name}")
    terminalreporter.line(f"{sum(count for count, _ in seen):9,}  in {len(seen)} properties")
