"""Run every case through the public functions: exceptions have the same exit code."""

import pytest

from robustness.catalogue import GROUPS

CASES = [
    pytest.param(group, name, case, id=f"{group}: {name}")
    for group, cases in GROUPS.items()
    for name, case in cases.items()
    if case.called is not None
]


@pytest.mark.parametrize(("group", "name", "case"), CASES)
def test_a_call_has_the_expected_outcome(check_case, group, name, case):
    check_case(group, name, case, called=True)


def test_the_catalogue_has_enough_cases():
    assert sum(map(len, GROUPS.values())) >= 220
