"""Merge word pieces into words: positions, weights, and special tokens."""

import pytest
import torch
from torch import tensor

import attnviz
from attnviz import InputError, attention_map, head_maps
from attnviz.results import Axis
from attnviz.results.axis import (
    find_words,
    locate,
    make_axis,
    merge,
    token_groups,
)

# "[CLS] unhappy cats [SEP]", with "unhappy" in two pieces.
PIECES = make_axis(
    labels=["[CLS]", "un", "##happy", "cats", "[SEP]", "[PAD]"],
    offsets=[(0, 0), (0, 2), (2, 7), (8, 12), (0, 0), (0, 0)],
    special=[True, False, False, False, True, True],
    padding=[False] * 5 + [True],
    segments=[0] * 6,
    texts=["unhappy cats"],
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the train left", ["the", "train", "left"]),
        ("  two  blanks ", ["two", "blanks"]),
        ("I don't, they do.", ["I", "don't", ",", "they", "do", "."]),
        ("pay $5.50!", ["pay", "$", "5.50", "!"]),
        ("the\ntrain\tleft", ["the", "train", "left"]),
        ("привет, мир", ["привет", ",", "мир"]),
        ("漢字", ["漢", "字"]),
        ("cafe\N{COMBINING ACUTE ACCENT}s", ["cafe\N{COMBINING ACUTE ACCENT}s"]),
        ("one 👩‍👩‍👧 family", ["one", "👩‍👩‍👧", "family"]),
        ("", []),
        (" ", []),
    ],
)
def test_words_are_what_a_reader_calls_words(text, words):
    assert [text[start:end] for start, end in find_words(text)] == words


def test_pieces_belong_to_the_word_they_overlap_and_special_tokens_do_not():
    assert PIECES.words == (None, 0, 0, 1, None, None)
    assert PIECES.word_labels == ("unhappy", "cats")


def test_the_same_word_in_both_texts_of_a_pair_stays_two_words():
    axis = make_axis(
        labels=["cats", "[SEP]", "cats"],
        offsets=[(0, 4), (0, 0), (0, 4)],
        special=[False, True, False],
        padding=[False] * 3,
        segments=[0, 0, 1],
        texts=["cats", "cats"],
    )
    assert axis.words == (0, None, 1)
    assert token_groups(axis).boundary() == 2


def test_without_offsets_every_piece_is_separate():
    axis = make_axis(["un", "##happy"], None, [False] * 2, [False] * 2, [0, 0], ["unhappy"])
    assert token_groups(axis).labels == ("un", "##happy")


def test_blanks_between_special_tokens_are_of_the_word_before_them():
    text = "<s>ask\n</s>\n<s>say"
    labels = ["<s>", "ask", "\n", "</s>", "\n", "<s>", "say"]
    offsets = [(0, 3), (3, 6), (6, 7), (7, 11), (11, 12), (12, 15), (15, 18)]
    special = [label[0] == "<" for label in labels]
    axis = make_axis(labels, offsets, special, [False] * 7, [0] * 7, [text])
    assert axis.words == (None, 0, 0, None, 0, None, 1)
    assert axis.word_labels == ("ask", "say")


def test_a_piece_of_blanks_belongs_to_the_word_after_it():
    axis = make_axis(["▁", "cats"], [(0, 1), (1, 5)], [False] * 2, [False] * 2, [0, 0], [" cats"])
    assert axis.words == (0, 0)


def test_padding_is_left_out_and_pieces_of_a_word_are_joined():
    joined = token_groups(PIECES)
    assert joined.labels == ("[CLS]", "unhappy", "cats", "[SEP]")
    assert joined.positions == ((0,), (1, 2), (3,), (4,))
    assert joined.special == (True, False, False, True)
    assert token_groups(PIECES, words=False).labels == ("[CLS]", "un", "##happy", "cats", "[SEP]")


def test_merging_sums_columns_and_averages_rows_as_clark_et_al_2019():
    weights = tensor(
        [
            [0.10, 0.20, 0.30, 0.40, 0.00],
            [0.20, 0.10, 0.10, 0.40, 0.20],  # un
            [0.40, 0.30, 0.10, 0.00, 0.20],  # ##happy
            [0.00, 0.50, 0.25, 0.25, 0.00],
            [0.25, 0.25, 0.00, 0.25, 0.25],
        ]
    )
    merged = merge(weights, token_groups(PIECES), token_groups(PIECES))
    expected = tensor(
        [
            [0.10, 0.50, 0.40, 0.00],
            [0.30, 0.30, 0.20, 0.20],
            [0.00, 0.75, 0.25, 0.00],
            [0.25, 0.25, 0.25, 0.25],
        ]
    )
    torch.testing.assert_close(merged, expected)


@pytest.fixture(scope="module")
def merged_words(model):
    """A text with a word of several pieces ("tokenization")."""
    return attnviz.attend("the tokenization left the station", model=model)


def test_a_map_shows_the_merged_weights_of_the_head_and_says_so(merged_words):
    drawn = attention_map(merged_words, layer=2, head=3)
    assert drawn.columns == ("[CLS]", "the", "tokenization", "left", "the", "station", "[SEP]")
    side = token_groups(merged_words.record(2).key_axis)
    torch.testing.assert_close(drawn.weights, merge(merged_words.weights(2, 3), side, side))
    torch.testing.assert_close(drawn.weights.sum(1), torch.ones(7))
    assert drawn.notes == ("word pieces merged (columns summed, rows averaged)",)


def test_pieces_have_the_models_weights_without_a_note(merged_words):
    drawn = attention_map(merged_words, layer=2, head=3, words=False)
    assert drawn.columns[2:4] == ("token", "##ization")
    assert torch.equal(drawn.weights, merged_words.weights(2, 3))
    assert drawn.notes == ()


def test_several_heads_are_averaged(train):
    drawn = attention_map(train, layer=1, head=[0, 5])
    torch.testing.assert_close(drawn.weights, train.weights(1)[[0, 5]].mean(0))
    assert drawn.heads == (0, 5)


def test_hidden_special_tokens_leave_the_other_weights_as_they_are(train):
    kept, hidden = (attention_map(train, layer=1, head=0, special=how) for how in ("keep", "hide"))
    assert hidden.rows == hidden.columns == kept.rows[1:-1]
    assert torch.equal(hidden.weights, kept.weights[1:-1, 1:-1])
    lost = 1 - kept.weights[1:-1, 1:-1].sum(1).mean().item()
    assert hidden.notes == (
        f"[CLS], [SEP] hidden ({lost:.0%} of the weight), rows not renormalized",
    )


def test_removed_special_tokens_leave_rows_that_sum_to_one(train):
    hidden, removed = (
        attention_map(train, layer=1, head=0, special=how) for how in ("hide", "remove")
    )
    expected = hidden.weights / hidden.weights.sum(1, keepdim=True)
    torch.testing.assert_close(removed.weights, expected)
    torch.testing.assert_close(removed.weights.sum(1), torch.ones(7))
    assert "[CLS], [SEP] removed" in removed.notes[0]
    assert removed.notes[0].endswith("rows renormalized to 1")


def test_the_maps_of_all_heads_are_the_maps_of_each(train):
    maps = head_maps(train, special="remove")
    assert maps.weights.shape == (6, 12, 7, 7)
    one = attention_map(train, layer=4, head=7, special="remove")
    torch.testing.assert_close(maps.weights[4, 7], one.weights)
    assert head_maps(train, layer=4).layers == (4,)


def test_the_boundary_of_a_pair_lies_before_its_second_text(pair):
    drawn = attention_map(pair, layer=0, head=0)
    row, column = drawn.boundary
    assert (row, column) == (9, 9)
    assert drawn.rows[row - 1 : row + 1] == ("[SEP]", "it")
    row, _ = attention_map(pair, layer=0, head=0, special="remove").boundary
    assert row == 7


def side_of(*labels):
    count = len(labels)
    flags = (False,) * count
    words = tuple(range(count))
    return token_groups(
        Axis(labels, words, labels, special=flags, padding=flags, segments=(0,) * count)
    )


def test_a_word_is_found_in_any_case():
    assert locate("train", side_of("The", "Train", "left")) == 1


def test_a_word_that_occurs_twice_must_be_numbered():
    side = side_of("the", "train", "left", "the")
    assert locate("the#1", side) == 0
    assert locate("the#2", side) == 3
    with pytest.raises(InputError, match=r"'the' occurs 2 times. Say which: the#1 or the#2"):
        locate("the", side)
    with pytest.raises(InputError, match="the#3 is out of range: 'the' occurs 2 times"):
        locate("the#3", side)


def test_a_missing_word_is_refused_with_suggestions():
    with pytest.raises(InputError, match=r"'trian' is not a word .* Did you mean train\?"):
        locate("trian", side_of("the", "train", "left"))
    with pytest.raises(InputError, match=r"Its words are the, train, left\."):
        locate("xyz", side_of("the", "train", "left", "the"))
