"""What maps say they show, on weights set by hand: the first line that a terminal prints."""

import re
from dataclasses import replace

import pytest
import torch
from commands import succeeds
from matplotlib.text import Text
from rich.console import Console

import attnviz


def said(drawn):
    """Return the finding of a map."""
    console = Console(width=200)
    with console.capture() as printed:
        console.print(drawn)
    return printed.get().splitlines()[0]


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


PLAIN = {"special_rows": (False,) * 9, "special_columns": (False,) * 9}


@pytest.mark.parametrize(
    ("weights", "changes", "sentence"),
    [
        (shifted(-1), {}, "Words look at the word before them: 90%"),
        (shifted(1), {}, "Words look at the word after them: 90%"),
        (shifted(0), {}, "Words look at themselves: 90%"),
        (shifted(8), {}, "Words rest on special tokens: 91%"),
        (shifted(-9), {}, "Words rest on special tokens: 91%"),
        (shifted(-9), PLAIN, "Words rest on the first word: 90%"),
        (torch.full((9, 9), 1 / 9), {}, "No word stands out"),
        # Whatever a row holds, no title says that more than all of its attention goes anywhere.
        (shifted(-1) * 4, {}, "The rows sum to 4, not to 1"),
        (shifted(-1) / 8, {}, "No word stands out"),
        (shifted(-1) * torch.linspace(2, 4, 9)[:, None], {}, "The rows sum to 2 to 4, not to 1"),
    ],
)
def test_families_by_hand(drawn, weights, changes, sentence):
    assert said(replace(drawn, weights=weights, **changes)) == sentence


def test_just_below_the_least_weight_there_is_no_family(drawn):
    even = 1 / 9
    for excess, found in ((0.24, False), (0.27, True)):
        weights = torch.full((9, 9), (1 - even - excess) / 8)
        for i in range(8):
            weights[i, i + 1] = even + excess
        sentence = said(replace(drawn, weights=weights))
        assert sentence.startswith("Words look at the word after them") == found


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
    assert said(replace(drawn, weights=weights, **changes)) == sentence


def test_a_link_leads_before_the_rest_of_a_head_from_half_of_the_attention_on(drawn):
    weights = shifted(-9)
    for weight, sentence in ((0.7, "“station” looks back at “train”"), (0.4, "Words rest on")):
        weights[5] = (1 - weight) / 8
        weights[5, 2] = weight
        assert said(replace(drawn, weights=weights)).startswith(sentence)


def test_only_what_was_generated_is_claimed(drawn):
    weights = torch.full((9, 9), 0.005)
    weights[5, 2], weights[7, 3] = 0.9, 0.3  # station, train; time, left
    text = "the train left the station"
    made = replace(drawn.provenance, text=text, generated="on time")
    written = replace(drawn, weights=weights, provenance=made)
    assert written.generated_from == 6
    assert said(written).startswith("“time” looks back at “left”")
    weights[7, 3] = 0.1
    written = replace(written, weights=weights)
    assert said(written) == "No generated word stands out"
    more = "No generated word gives another more than 10%; evenly it is 11%"
    assert more in " ".join(text.get_text() for text in written.plot().figure.texts)
    other = replace(made, text="another text")
    assert replace(written, provenance=other).generated_from is None


@pytest.mark.parametrize("special", ["keep", "remove"])
def test_a_word_that_occurs_twice(special, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "The cat sat on the mat because it was tired."
    asked = "--find", "the#2:mat", "--special", special, "-o", "x.json"
    out = succeeds(capsys, "heatmap", text, *asked).out
    assert out.startswith("“the” ")  # the first is “The”
    assert "“mat”: " in out.splitlines()[0]


@pytest.fixture
def long_map(drawn):
    """Return a map of 61 words with some weights."""

    def of(weights, words=tuple(f"w{n}" for n in range(61))):
        side = replace(drawn.sides[0])
        return replace(
            drawn,
            weights=weights / weights.sum(1, keepdim=True),
            rows=words,
            columns=words,
            special_rows=(False,) * 61,
            special_columns=(False,) * 61,
            sides=(side, side),
            masked=None,
        )

    return of


def test_the_largest_weight_of_a_long_map_is_named_beside_its_cell(long_map):
    weights = torch.ones(61, 61)
    assert said(long_map(weights)) == "No word stands out"
    weights[12, 5], weights[40, 31] = 20, 30
    drawn = long_map(weights)
    assert said(drawn) == "“w40” looks back at “w31”: 33%"
    ax = attnviz.plot.heatmap(drawn, width=89)
    assert "w40 → w31 33%" in [text.get_text() for text in ax.texts]


@pytest.mark.parametrize("count", [24, 6])
def test_a_head_of_repeated_words(long_map, count):
    """Words that occur twice give .6 to the other occurrence; six occurrences prove little."""
    half = count // 2
    words = [f"w{n % half}" if n < count else f"w{n}" for n in range(61)]
    weights = torch.full((61, 61), 0.4 / 60)
    for n in range(count):
        weights[n, (n + half) % count] = 0.6
    sentence = said(long_map(weights, tuple(words)))
    expected = "Repeated words look at the same word elsewhere: 60%"
    assert (sentence == expected) == (count == 24)
    assert sentence.startswith("Repeated") == (count == 24)


def test_the_first_word_of_a_causal_model_is_no_finding(drawn):
    T = len(drawn.rows)
    weights = torch.zeros(T, T)
    weights[:, 0] = 0.45
    weights[range(T), range(T)] += 0.55
    weights[5, 2], weights[5, 5] = 0.5, 0.05
    masked = torch.ones(T, T).triu(1).bool()
    causal = replace(drawn, weights=weights, masked=masked, **PLAIN)
    assert "mostly" in said(causal)
    causal = replace(causal, starts_with_sink=True)
    assert "mostly" not in said(causal)
    assert causal.uninformative[:, 0].all()
    assert causal.uninformative_name == "of the first word"


def test_positions_without_words_are_called_positions():
    torch.manual_seed(0)
    attention = torch.nn.MultiheadAttention(16, num_heads=2, batch_first=True).eval()
    x = 8 * torch.randn(1, 5, 16)
    with attnviz.record() as recording:
        attention(x, x, x)
    figure = attnviz.plot.heatmap(recording.result(), layer=0, head=1).figure
    said = " ".join(text.get_text() for text in figure.findobj(Text))
    assert re.search(r"Position \d looks (ahead to|back at) position \d", said)
    assert "Each row is one position and splits 100% among those along the top." in said
    assert "word" not in said
    assert "Inputs: query (1 × 5 × 16), key" in said
