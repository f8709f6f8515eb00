"""Numbers, names, lists and types as text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from attnviz.results.arguments import checked


def a_number(value: float) -> None: ...
def a_list(value: Sequence[int]) -> None: ...
def a_list_of_pairs(value: Sequence[tuple[int, int]]) -> None: ...


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (a_number, "a number"),
        (a_list, "a list of whole numbers"),
        (a_list_of_pairs, "a list of pairs of whole numbers"),
    ],
)
def test_the_type_of_an_argument_is_named_in_words(function, kind):
    with pytest.raises(ValueError, match=f"value must be {kind}, not "):
        checked(function)(object())
