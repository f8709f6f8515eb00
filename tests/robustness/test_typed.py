"""Run the cases on the command line: no traceback, the documented exit code, complete files.

Of the cases that are typed and called, every other one is typed here; see `test_called`.
"""

import pytest

from robustness.catalogue import GROUPS
from robustness.catalogue.case import in_turn

CASES = in_turn(GROUPS, "typed")


@pytest.mark.parametrize(("group", "name", "case"), CASES)
def test_a_command_line_has_the_expected_outcome(check_case, group, name, case):
    check_case(group, name, case, called=False)
