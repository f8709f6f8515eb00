"""Every case of the catalogue through the public functions: the exception with the same code."""

import pytest

from robustness.catalogue import GROUPS

CASES = [
    pytest.param(group, name, case, id=f"{group}: {name}")
    for group, cases in GROUPS.items()
    for name, case in cases.items()
    if case.called is not None
]


@pytest.mark.parametrize(("group", "name", "case"), CASES)
def test_what_is_called_ends_as_promised(judge, group, name, case):
    judge(group, name, case, called=True)


def test_there_are_as_many_cases_as_were_promised():
    assert sum(map(len, GROUPS.values())) >= 220
