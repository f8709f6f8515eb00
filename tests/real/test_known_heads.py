"""Heads that are known from the literature, counted by numpy on captured weights."""

import numpy as np
import pytest
import torch

import attnviz

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


@pytest.fixture(scope="module")
def words(smollm2):
    """Words of one token each, which a text of words does not join."""
    tokenizer, drawn = smollm2.tokenizer, torch.Generator().manual_seed(1)
    words = []
    for token in torch.randperm(40_000, generator=drawn).tolist():
        word = tokenizer.decode([token])
        is_word = word[0] == " " and word[1:].isalpha() and word.isascii()
        if is_word and tokenizer.encode(f"a{word}", add_special_tokens=False)[1:] == [token]:
            words.append(word)
        if len(words) == 20 * PERIOD:
            return words
    raise AssertionError("too few words")


@pytest.mark.long
def test_a_survey_names_the_heads_that_numpy_counts(smollm2, words):
    """On texts that played no part in finding them, above even weights and shuffled tokens."""
    texts = ["The" + "".join(2 * words[n : n + PERIOD]) for n in range(0, len(words), PERIOD)]
    result = attnviz.survey(texts, model=smollm2)
    assert result.agreement.verdict == "verified"
    weights = [smollm2.attend(text).weights() for text in texts]
    names = [str(name) for name in result.heads]
    for name, statistic, role, offset, least in (
        ("18.6", "induction", "induction", 1 - PERIOD, 0.85),
        ("16.0", "previous", "previous token", -1, 0.9),
        ("11.1", "previous", "previous token", -1, 0.8),
    ):
        place = names.index(name), result.of(statistic)
        first = 1 + PERIOD if statistic == "induction" else 1
        head = tuple(int(part) for part in name.split("."))
        rows = np.arange(first, 1 + 2 * PERIOD)
        counted = np.mean([np.asarray(one)[*head, rows, rows + offset] for one in weights])
        assert result.mean[place].item() == pytest.approx(counted, abs=1e-4)
        low, high = result.low[place].item(), result.high[place].item()
        print(f"{name} {statistic}: {counted:.3f} ({low:.3f} to {high:.3f})")
        assert counted >= least
        assert low > result.even[place]
        assert result.p_even[place] < 0.05
        if role == "induction":  # the token before is there in any order
            assert low > result.shuffled[place]
            assert result.p_shuffled[place] < 0.05
        assert result.roles[names.index(name)] == role
