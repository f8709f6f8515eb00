"""What maps show: families of heads and sentences, on weights set by hand and on the real model."""

import re
from dataclasses import replace

import pytest
import torch

import attnviz
from attnviz.analyses.maps.plot import select_map
from attnviz.figures.claims import of_heads, of_map
from attnviz.heads import head_families


@pytest.fixture
def drawn(train):
    """Return a map of 9 tokens whose weights a test sets."""
    return attnviz.attention_map(train, layer=0, head=0)


def shifted(distance, weight=0.9):
    """Return weights of which most go to the key at a distance, [SEP] for the rest."""
    weights = torch.full((9, 9), (1 - weight) / 8)
    for i in range(9):
        weights[i, min(8, max(0, i + distance))] = weight
    return weights


@pytest.mark.parametrize(
    ("weights", "name", "title"),
    [
        (shifted(-1), "previous", "Words attend to the previous word: 90% of their attention"),
        (shifted(1), "next", "Words attend to the next word: 90% of their attention"),
        (shifted(0), "itself", "Words attend to the word itself: 90% of their attention"),
        (shifted(8), "special", "Words rest on special tokens: 91% of their attention"),
    ],
)
def test_families_by_hand(drawn, weights, name, title):
    drawn = replace(drawn, weights=weights)
    ((family, share),) = head_families(drawn)
    assert family.family == name
    assert share == pytest.approx(0.9, abs=0.02)
    assert of_map(drawn).title == title
    assert of_map(drawn).cell is None


@pytest.mark.parametrize(("factor", "said"), [(4, "4"), (0.125, None)])
def test_rows_that_sum_to_more_than_1_are_no_shares(drawn, factor, said):
    """Whatever a row holds, no title says that more than all of its attention goes anywhere."""
    drawn = replace(drawn, weights=shifted(-1) * factor)
    title = of_map(drawn).title
    assert title == "The rows sum to 4, not to 1" if said else "%" in title
    uneven = replace(drawn, weights=torch.rand(9, 9, generator=torch.manual_seed(0)) * 3)
    assert of_map(uneven).title.startswith("The rows sum to ")
    assert all(found is None or found[1] <= 1 for found in head_families(uneven))


def test_just_below_the_least_weight_there_is_no_family(drawn):
    even = 1 / 9
    for excess, found in ((0.24, None), (0.27, "next")):
        weights = torch.full((9, 9), (1 - even - excess) / 8)
        for i in range(8):
            weights[i, i + 1] = even + excess
        (family,) = head_families(replace(drawn, weights=weights))
        assert (family and family[0].family) == found


def test_the_first_word_is_a_family_only_where_it_is_no_special_token(drawn):
    weights = shifted(-9)
    assert head_families(replace(drawn, weights=weights))[0][0].family == "special"
    nothing = (False,) * 9
    plain = replace(drawn, weights=weights, special_rows=nothing, special_columns=nothing)
    assert head_families(plain)[0][0].family == "first"


def test_the_finding_is_the_largest_weight_between_content_words(drawn):
    weights = torch.full((9, 9), 0.005)
    weights[2, 5] = 0.6  # train, station
    weights[1, 4] = 0.9  # function words
    weights[0, 8] = 0.95  # special tokens
    weights[3, 3] = 0.9  # a word itself
    finding = of_map(replace(drawn, weights=weights))
    assert finding.cell == (2, 5)
    assert finding.title == "“train” gives “station” 60% of its attention"
    removed = attnviz.AttentionMap if False else replace(drawn, weights=weights, special="remove")
    assert of_map(removed).title.endswith("of its attention, special tokens aside")


def test_a_word_that_all_words_attend_to(drawn):
    weights = torch.full((9, 9), 0.05)
    weights[:, 5] = 0.6
    assert of_map(replace(drawn, weights=weights)).title == (
        "Words attend mostly to “station”: 60% of their attention"
    )


def test_nothing_stands_out_of_even_weights(drawn):
    finding = of_map(replace(drawn, weights=torch.full((9, 9), 1 / 9)))
    assert finding.title == (
        "No content word stands out: none gets more than 11% of another's attention (evenly 11%)"
    )


def test_words_that_were_asked_for(model):
    result = model.attend("The cat sat on the mat because it was tired.")
    selected = select_map(result, find=("it", "cat"))
    weight = selected.ranking.heads[0].score
    assert selected.finding.title == f"“it” gives “cat” {weight:.0%} of its attention"
    words = selected.map.rows
    assert selected.finding.cell == (words.index("it"), words.index("cat"))


@pytest.mark.parametrize("special", ["keep", "remove"])
def test_a_word_that_occurs_twice(model, special):
    result = model.attend("The cat sat on the mat because it was tired.")
    selected = select_map(result, find=("the#2", "mat"), special=special)
    words = list(selected.map.rows)
    second = words.index("the")  # the first is "The"
    assert selected.finding.cell == (second, words.index("mat"))
    shown = selected.map.weights[selected.finding.cell]
    assert f"{shown:.0%} of its attention" in selected.finding.title


def test_a_part_without_the_words_that_were_asked_for(model):
    result = model.attend("The cat sat on the mat because it was tired.")
    selected = select_map(result, find=("the#2", "mat"), rows=slice(0, 4))
    assert selected.asked is None
    assert "the#2" not in selected.finding.title


def test_the_reach_of_a_long_text(model):
    result = model.attend(" ".join(f"{word} {n}" for n in range(30) for word in ("train", "left")))
    drawn = attnviz.attention_map(result, layer=0, head=0)
    n = len(drawn.rows)
    distance = (torch.arange(n)[:, None] - torch.arange(n)).abs()
    band = (distance <= 6).float()
    drawn = replace(drawn, weights=band / band.sum(-1, keepdim=True))
    finding = of_map(drawn)
    assert finding.title == "Half of this head's attention between words stays within 3 words"
    assert finding.reach == 3
    ax = attnviz.plot.heatmap(drawn)
    assert len(ax.lines) == 2


def test_the_real_model_has_a_head_of_the_previous_word(train):
    maps = attnviz.head_maps(train)
    names = [family and family[0].family for family in head_families(maps)]
    assert names[2] == "previous"  # layer 0, head 2
    assert of_heads(maps) == (
        f"Of the 72 heads, {names.count('special')} rest on special tokens, "
        f"{names.count('previous')} attend to the previous word, "
        f"{names.count('next')} to the next word"
    )


def test_families_agree_with_roles_of_a_survey(train):
    """The share is that of the survey's statistic on the same text."""
    maps = attnviz.head_maps(train)
    family, share = head_families(maps)[2]
    weights = train.weights(0, 2)[2:-1, 1:-2].diagonal()
    assert family.family == "previous"
    assert share == pytest.approx(weights.mean().item(), abs=1e-6)


MODES = {"streamed": {"cells": 20}, "full": {}}


@pytest.fixture(scope="module")
def letter(model):
    text = "the old station master wrote a letter to his sister in the city, and she kept it. " * 6
    runs = (attnviz.attend(text, model=model, mode=mode, **more) for mode, more in MODES.items())
    return tuple(runs)


@pytest.mark.parametrize("layer", range(6))
@pytest.mark.parametrize("head", [0, 3, 8, 11])
def test_a_pooled_map_says_how_far_half_of_the_attention_goes(letter, layer, head):
    streamed, full = letter
    drawn = attnviz.attention_map(streamed, layer=layer, head=head)
    title, cell = of_map(drawn).title, drawn.sides[0].cell
    assert cell > 1
    weights = full.record(layer).weights(head).double()
    if title.startswith("About"):
        share = float(weights[:, :cell].sum(1).mean())
        said = float(re.match(r"About (\d+)%", title)[1]) / 100
        assert said == pytest.approx(share, abs=1 / len(drawn.rows))
        assert title.endswith(f"attention goes to the first {cell} tokens")
    else:
        within = int(re.match(r"At least half .* stays within ([\d,]+) tokens$", title)[1])
        places = torch.arange(len(weights))
        near = (places[:, None] - places).abs() < within
        assert float((weights * near).sum() / len(weights)) >= 0.5
        nearer = (places[:, None] - places).abs() <= within - 2 * cell
        assert float((weights * nearer).sum() / len(weights)) < 0.5 + 2 / len(drawn.rows)


@pytest.fixture
def long_map(drawn):
    """Return a map of 61 words with some weights."""

    def of(weights):
        labels = tuple(f"w{n}" for n in range(61))
        side = replace(drawn.sides[0])
        return replace(
            drawn,
            weights=weights / weights.sum(1, keepdim=True),
            rows=labels,
            columns=labels,
            special_rows=(False,) * 61,
            special_columns=(False,) * 61,
            sides=(side, side),
            masked=None,
        )

    return of


def test_a_few_words_that_all_read_are_the_finding_of_a_long_map(long_map):
    weights = torch.ones(61, 61)
    weights[:, [5, 30, 55]] = torch.tensor([21.0, 20.0, 19.0])
    weights[12, 5], weights[40, 30], weights[20, 55] = 99, 98, 97
    weights[50, 10] = 200  # the largest of all, of another key
    finding = of_map(long_map(weights))
    assert finding.title == (
        "3 of 61 words (“w5”, “w30”, “w55”) get 51% of this head's attention between words"
    )
    assert finding.examples == ((12, 5), (40, 30), (20, 55))
    weights = torch.ones(61, 61)
    weights[:, [5, 30, 55]] = 4.0  # 17% of the attention: the largest weights say more
    weights[12, 5], weights[40, 31] = 20, 30
    finding = of_map(long_map(weights))
    assert finding.title == (
        "“w40” gives “w31” 30% of its attention, the most between content words"
    )
    assert finding.examples[:2] == ((40, 31), (12, 5))
    even = torch.ones(61, 61)
    assert of_map(long_map(even)).title == "This head's attention spreads evenly over the words"


def test_a_head_of_repeated_words(long_map):
    """Eight words or more occur twice; each query gives .6 to the other occurrence."""
    words = [f"w{n % 12}" if n < 24 else f"w{n}" for n in range(61)]
    weights = torch.full((61, 61), 0.4 / 60)
    for n in range(24):
        weights[n, (n + 12) % 24] = 0.6
    for n in range(24, 61):
        weights[n, 40] = 0.6
    drawn = replace(long_map(weights), rows=tuple(words), columns=tuple(words))
    finding = of_map(drawn)
    assert (
        finding.title == "Repeated words attend to the same word elsewhere: 60% of their attention"
    )
    assert 1 < len(finding.examples) <= 4
    for row, column in finding.examples:
        assert row != column
        assert words[row] == words[column]
    one = ["w0" if n < 24 else word for n, word in enumerate(words)]  # no other word is repeated
    drawn = replace(drawn, rows=tuple(one), columns=tuple(one))
    ((row, column),) = of_map(drawn).examples
    assert row != column
    assert one[row] == one[column] == "w0"
    few = [f"w{n % 3}" if n < 6 else f"w{n}" for n in range(61)]  # six occurrences prove little
    weights = torch.full((61, 61), 0.4 / 60)
    for n in range(6):
        weights[n, (n + 3) % 6] = 0.6
    other = of_map(replace(long_map(weights), rows=tuple(few), columns=tuple(few)))
    assert "repeated" not in other.title


def test_the_first_word_of_a_causal_model_is_no_finding(drawn):
    T = len(drawn.rows)
    weights = torch.zeros(T, T)
    weights[:, 0] = 0.45
    weights[range(T), range(T)] += 0.55
    weights[5, 2], weights[5, 5] = 0.5, 0.05
    masked = torch.ones(T, T).triu(1).bool()
    plain = replace(drawn, weights=weights, special_rows=(False,) * T, special_columns=(False,) * T)
    causal = replace(plain, masked=masked)
    assert "mostly" in of_map(causal).title
    causal = replace(causal, starts_with_sink=True)
    assert "mostly" not in of_map(causal).title
    assert causal.uninformative[:, 0].all()
    assert causal.uninformative_name == "of the first word"
