"""Run the cases typed and called: no traceback, the documented exit code, complete files.

Of the cases that are typed and called, every other one is typed here and the rest called; with
`-m long`, the other way round.
"""

import pytest

from robustness.catalogue import GROUPS
from robustness.catalogue.case import in_turn


@pytest.mark.parametrize(("group", "name", "case"), in_turn(GROUPS, "typed"))
def test_a_command_line_has_the_expected_outcome(check_case, group, name, case):
    check_case(group, name, case, called=False)


@pytest.mark.parametrize(("group", "name", "case"), in_turn(GROUPS, "called"))
def test_a_call_has_the_expected_outcome(check_case, group, name, case):
    check_case(group, name, case, called=True)


def test_the_catalogue_has_enough_cases():
    assert sum(map(len, GROUPS.values())) >= 220
