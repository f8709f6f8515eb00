"""Run the cases: no traceback, the documented exit code, complete files."""

import pytest

from robustness.catalogue import GROUPS
from robustness.catalogue.case import parameters


@pytest.mark.parametrize(("group", "name", "case"), parameters(GROUPS))
def test_a_case_has_the_expected_outcome(check_case, group, name, case):
    check_case(group, name, case)


def test_the_catalogue_has_enough_cases():
    assert sum(map(len, GROUPS.values())) >= 220
