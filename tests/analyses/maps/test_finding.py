"""What maps show: families of heads and sentences, on weights set by hand and on the real model."""

from dataclasses import replace

import pytest
import torch

import attnviz
from attnviz.analyses.maps.plot import select_map
from attnviz.figures.claims import of_map
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
        (shifted(-1), "previous", "Words look at the word before them: 90%"),
        (shifted(1), "next", "Words look at the word after them: 90%"),
        (shifted(0), "itself", "Words look at themselves: 90%"),
        (shifted(8), "special", "Words rest on special tokens: 91%"),
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
    title = of_map(drawn).sentence
    assert title == (f"The rows sum to {said}, not to 1" if said else "No word stands out")
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


# Content words 2, 3, 5 and 7, function words 1, 4 and 6, special tokens 0 and 8; each other
# weight is small.
FIRST = {(2, 5): 0.6, (1, 4): 0.89, (0, 8): 0.95, (3, 3): 0.9}
ARABIC = ("[CLS]", "the", "##log", "left", "the", "القطار", "on", "time", "[SEP]")
CLAIMS = {
    "the largest between content words": (FIRST, {}, "“train” looks ahead to “station”: 60%"),
    "without special tokens": (
        FIRST,
        {"special": "remove"},
        "“train” looks ahead to “station”: 60%, special tokens aside",
    ),
    "function words that are seen first": (
        {(2, 5): 0.6, (4, 1): 0.91}, {}, "“the” looks back at another “the”: 91%",
    ),
    "across": ({(5, 2): 0.6}, {"boundary": (4, 4)}, "“station” looks across at “train”: 60%"),
    "in one text": ({(5, 2): 0.6}, {"boundary": (6, 6)}, "“station” looks back at “train”: 60%"),
    "a piece, and a word from right to left": (
        {(5, 2): 0.6},
        {"rows": ARABIC, "columns": ARABIC},
        "“\u2068القطار\u2069” looks back at “·log”: 60%",
    ),
    "a word of all": ({(n, 5): 0.6 for n in range(9)}, {}, "Words look mostly at “station”: 60%"),
}  # fmt: skip


@pytest.mark.parametrize("name", CLAIMS)
def test_the_sentence_of_a_map(drawn, name):
    cells, changes, sentence = CLAIMS[name]
    weights = torch.full((9, 9), 0.005)
    for cell, weight in cells.items():
        weights[cell] = weight
    finding = of_map(replace(drawn, weights=weights, **changes))
    assert finding.sentence == sentence
    assert finding.cell in cells or "mostly" in sentence


def test_a_link_leads_before_the_rest_of_a_head_from_half_of_the_attention_on(drawn):
    weights = shifted(-9)
    assert of_map(replace(drawn, weights=weights)).title == "Words rest on special tokens: 91%"
    for weight, title in ((0.7, "“station” looks back at “train”"), (0.4, "Words rest on")):
        weights[5] = (1 - weight) / 8
        weights[5, 2] = weight
        assert of_map(replace(drawn, weights=weights)).title.startswith(title)


def test_only_what_was_generated_is_claimed(drawn):
    weights = torch.full((9, 9), 0.005)
    weights[5, 2], weights[7, 3] = 0.9, 0.3  # station, train; time, left
    text = "the train left the station"
    made = replace(drawn.provenance, text=text, generated="on time")
    written = replace(drawn, weights=weights, provenance=made)
    assert written.generated_from == 6
    assert of_map(written).title == "“time” looks back at “left”"
    weights[7, 3] = 0.1
    finding = of_map(replace(written, weights=weights))
    assert finding.title == "No generated word stands out"
    assert finding.more == "No generated word gives another more than 10%; evenly it is 11%"
    other = replace(made, text="another text")
    assert replace(written, provenance=other).generated_from is None


def test_nothing_stands_out_of_even_weights(drawn):
    finding = of_map(replace(drawn, weights=torch.full((9, 9), 1 / 9)))
    assert finding.title == "No word stands out"
    assert finding.more == "No word gives another more than 11%; evenly it is 11%"
    assert finding.cell is None


@pytest.mark.parametrize("special", ["keep", "remove"])
def test_a_word_that_occurs_twice(model, special):
    result = model.attend("The cat sat on the mat because it was tired.")
    selected = select_map(result, find=("the#2", "mat"), special=special)
    words = list(selected.map.rows)
    second = words.index("the")  # the first is "The"
    finding = of_map(selected.map, selected.asked)
    assert finding.cell == (second, words.index("mat"))
    assert finding.share.startswith(f"{selected.map.weights[finding.cell]:.0%}")


def test_words_that_were_asked_for_and_hardly_look_at_each_other(drawn):
    weights = torch.full((9, 9), 0.2)
    weights[2, 5] = 0.1
    finding = of_map(replace(drawn, weights=weights / 2), (2, 5))
    assert finding.sentence == "“train” hardly looks ahead to “station”: 5%"


def test_families_agree_with_roles_of_a_survey(train):
    """The share is that of the survey's statistic on the same text."""
    maps = attnviz.head_maps(train)
    family, share = head_families(maps)[2]
    weights = train.weights(0, 2)[2:-1, 1:-2].diagonal()
    assert family.family == "previous"
    assert share == pytest.approx(weights.mean().item(), abs=1e-6)


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


def test_the_largest_weight_of_a_long_map_is_named_beside_its_cell(long_map):
    weights = torch.ones(61, 61)
    weights[12, 5], weights[40, 31] = 20, 30
    drawn = long_map(weights)
    finding = of_map(drawn)
    assert finding.sentence == "“w40” looks back at “w31”: 33%"
    ax = attnviz.plot.heatmap(drawn, width=89)
    assert "w40 → w31 33%" in [text.get_text() for text in ax.texts]
    even = torch.ones(61, 61)
    assert of_map(long_map(even)).title == "No word stands out"


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
    assert finding.title == "Repeated words look at the same word elsewhere: 60%"
    same = [[one == other for other in words] for one in words]
    assert torch.equal(finding.family, torch.tensor(same) & ~torch.eye(61, dtype=torch.bool))
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
