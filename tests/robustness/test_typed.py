"""Every case of the catalogue on the command line: no traceback, the promised code, whole files."""

import pytest

from robustness.catalogue import GROUPS

CASES = [
    pytest.param(group, name, case, id=f"{group}: {name}")
    for group, cases in GROUPS.items()
    for name, case in cases.items()
    if case.typed is not None
]


@pytest.mark.parametrize(("group", "name", "case"), CASES)
def test_what_is_typed_ends_as_promised(judge, group, name, case):
    judge(group, name, case, called=False)
