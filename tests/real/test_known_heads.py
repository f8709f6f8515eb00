"""Heads that are known from the literature, counted by numpy on captured weights."""

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.real
PERIOD = 24


@pytest.fixture(scope="module")
def repeated(smollm2):
    """The weights of texts of random tokens that occur twice, and their number of tokens."""
    generator = torch.Generator().manual_seed(0)
    draws = torch.randint(1_000, 40_000, (1, PERIOD), generator=generator)
    several = smollm2.attend([ids.repeat(2).tolist() for ids in draws])
    return [result.weights() for result in several]


def mean_weight(weights, head, offset):
    """Return the mean weight from the second half to the keys at an offset, by numpy alone."""
    layer, number = head
    rows = np.arange(PERIOD, 2 * PERIOD)
    maps = [np.asarray(one)[layer, number] for one in weights]
    return np.mean([one[rows, rows + offset] for one in maps])


def test_an_induction_head_looks_behind_the_first_occurrence(repeated):
    assert mean_weight(repeated, (18, 6), 1 - PERIOD) >= 0.85
    assert mean_weight(repeated, (18, 6), -PERIOD) < 0.05


@pytest.mark.parametrize(("head", "least"), [((16, 0), 0.9), ((11, 1), 0.8)])
def test_a_previous_token_head(repeated, head, least):
    assert mean_weight(repeated, head, -1) >= least


def test_the_first_token_is_a_sink(repeated):
    share = np.mean([np.asarray(one)[:, :, 1:, 0].mean(-1) > 0.5 for one in repeated])
    assert 0.3 < share < 0.7
