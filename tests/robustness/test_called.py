"""Run the cases through the public functions: exceptions have the same exit code.

Of the cases that are typed and called, every other one is called here and the rest typed in
`test_typed`; with `-m long`, the other way round.
"""

import pytest

from robustness.catalogue import GROUPS
from robustness.catalogue.case import in_turn

CASES = in_turn(GROUPS, "called")


@pytest.mark.parametrize(("group", "name", "case"), CASES)
def test_a_call_has_the_expected_outcome(check_case, group, name, case):
    check_case(group, name, case, called=True)


def test_the_catalogue_has_enough_cases():
    assert sum(map(len, GROUPS.values())) >= 220
