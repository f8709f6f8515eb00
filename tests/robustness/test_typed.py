"""Run every case on the command line: no traceback, the documented exit code, complete files."""

import pytest

from robustness.catalogue import GROUPS

CASES = [
    pytest.param(group, name, case, id=f"{group}: {name}")
    for group, cases in GROUPS.items()
    for name, case in cases.items()
    if case.typed is not None
]


@pytest.mark.parametrize(("group", "name", "case"), CASES)
def test_a_command_line_has_the_expected_outcome(check_case, group, name, case):
    check_case(group, name, case, called=False)
