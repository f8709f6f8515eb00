"""Numbers, names, lists and types as text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from attnviz.errors import printable
from attnviz.inputs.spelling import pieces_in
from attnviz.results import AnalysisCheck, cell_sizes, row_shares
from attnviz.results.arguments import checked
from attnviz.results.text import fraction, numbered, raised, ranges, selection
from attnviz.runtime.libraries import MemoryBudget


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.344, ".34"), (-0.05, "−.05"), (1.0, "1.00"), (-0.001, "0"), (float("nan"), "")],
)
def test_a_part_of_a_whole_has_two_decimals(value, text):
    assert fraction(value) == text


def test_words_that_occur_several_times_are_numbered():
    assert numbered(["The", "cat", "the"]) == ("The#1", "cat", "the#2")
    assert [*map(raised, ("the#12", "#1", "C#"))] == ["the¹²", "#1", "C#"]


def test_three_numbers_in_a_row_are_a_range():
    assert ranges((0, 1, 2, 5, 7, 8)) == "0–2, 5, 7, 8"
    assert selection("encoder", (0, 1, 2), (5,)) == "Mean of layers 0–2, head 5"
    assert selection("cross", (3,), (5,)) == "Cross-attention, layer 3, head 5"


@pytest.mark.parametrize(
    ("share", "text"), [(0.4414, "44\xa0%"), (0.999, "100\xa0%"), (0.00008, "0.008\xa0%")]
)
def test_a_share_has_two_significant_digits(share, text):
    assert AnalysisCheck("states", share, 1e-6).reason == f"the states are off by {text}"


@pytest.mark.parametrize(("size", "text"), [(3 * 2**29, "1.5 GB"), (5 * 2**20, "5 MB")])
def test_a_size_of_memory_has_a_unit(size, text):
    memory = MemoryBudget("it", torch.device("meta"), "Use less.")
    assert f"At least {text} is needed for it" in str(memory.shortage(size))


def test_a_long_axis_is_cut_into_cells():
    assert cell_sizes(7, 3).tolist() == [3, 3, 1]


def test_shares_of_signed_weights_are_those_of_their_sizes():
    weights = torch.tensor([[3.0, -1.0], [0.0, 0.0]])
    assert row_shares(weights).tolist() == [[0.75, 0.25], [0.0, 0.0]]


def test_special_tokens_are_in_no_region_of_a_text():
    spans = [(0, 0), (0, 2), (2, 6), (7, 9), (0, 0)]
    assert pieces_in(spans, (0, 6)) == (1, 2)


def test_a_message_is_one_line_that_steers_no_terminal():
    assert printable("two\nlines\x1b[2J") == "two lines\N{REPLACEMENT CHARACTER}[2J"


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
