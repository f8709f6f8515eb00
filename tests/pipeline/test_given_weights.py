"""Weights that the user gives: every shape, everything that shows them, and what refuses them."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import attnviz
from attnviz import InputError

EVEN, SHARP = [[0.5, 0.5], [0.5, 0.5]], [[1.0, 0.0], [0.25, 0.75]]
TOKENS = ["a", "b"]
MARK = "weights given by the user, not verified"


@pytest.fixture(scope="module")
def given(train):
    return attnviz.from_weights(train.weights(), train.tokens, model="My model")


class Output:
    """What a transformers model returns."""

    def __init__(self, attentions):
        self.attentions = attentions


LAYER = torch.tensor([EVEN, SHARP])
SHAPES = {
    "a list": (SHARP, (1, 1)),
    "a map": (np.array(SHARP), (1, 1)),
    "another byte order": (np.array(SHARP, dtype=">f4"), (1, 1)),
    "heads": (LAYER, (1, 2)),
    "a list of maps": ([torch.tensor(EVEN), torch.tensor(SHARP)], (1, 2)),
    "a list of arrays": ([np.array(EVEN), np.array(SHARP)], (1, 2)),
    "layers": (torch.stack([LAYER] * 3), (3, 2)),
    "nested lists": ([[EVEN, SHARP]] * 3, (3, 2)),
    "attentions": ((LAYER[None],) * 3, (3, 2)),
    "stacked attentions": (torch.stack((LAYER[None],) * 3), (3, 2)),
    "layers without a batch": ([LAYER] * 3, (3, 2)),
    "an output": (Output((LAYER[None],) * 3), (3, 2)),
    "a cache": (
        {f"blocks.{n}.attn.hook_pattern": LAYER[None] for n in (1, 0)}
        | {"blocks.0.attn.hook_q": LAYER[None] * 7},
        (2, 2),
    ),
    "numbered": ({0: LAYER, 1: LAYER}, (2, 2)),
    "half precision": (LAYER.bfloat16().requires_grad_(), (1, 2)),
    "integers": (torch.eye(2, dtype=torch.int64), (1, 1)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_is_read(name):
    weights, shape = SHAPES[name]
    result = attnviz.from_weights(weights, TOKENS)
    assert result.weights().shape == (*shape, 2, 2)
    last = torch.eye(2) if name == "integers" else torch.tensor(SHARP)
    assert torch.equal(result.weights()[-1, -1].float(), last)
    assert result.layers == (*range(shape[0]),)
    assert result.agreement.summary() == MARK


def test_the_layers_of_a_mapping_keep_their_numbers():
    result = attnviz.from_weights({"encoder.layer.3.attention": LAYER, 7: LAYER}, TOKENS)
    assert result.layers == (3, 7)
    assert attnviz.attention_map(result, layer=7, head=1).layer == 7
    with pytest.raises(InputError, match=r"layer 0 is out of range: an unnamed .* layers 3, 7\.$"):
        result.weights(0)


def test_weights_to_other_keys():
    result = attnviz.from_weights([[0.5, 0.2, 0.3]], ["a"], keys=["x", "y", "</s>"])
    assert result.stacks == ("cross",)
    drawn = attnviz.attention_map(result, layer=0, head=0, special="remove")
    assert drawn.columns == ("x", "y")
    assert drawn.weights.sum().item() == pytest.approx(1)
    attnviz.plot.heatmap(result)


def test_nothing_is_shared_with_the_array():
    array = np.array(SHARP)
    result = attnviz.from_weights(array, TOKENS)
    array[:] = 0
    assert result.weights().sum() == 2


def test_the_numbers_are_those_of_the_model(given, train):
    assert torch.equal(given.weights(), train.weights())
    assert (given.tokens, given.layers, given.heads) == (train.tokens, train.layers, train.heads)
    ours, theirs = attnviz.rank_heads(train), attnviz.rank_heads(given)
    assert [score.head for score in ours] == [score.head for score in theirs]
    assert given.to_frame().equals(train.to_frame())
    for layer in (0, 5):
        one, other = (attnviz.attention_map(r, layer=layer, head=3) for r in (given, train))
        assert torch.equal(one.weights, other.weights)
    assert torch.equal(attnviz.head_maps(given).weights, attnviz.head_maps(train).weights)


def captions(figure):
    return " ".join(text.get_text() for text in figure.findobj(lambda a: hasattr(a, "get_text")))


def test_every_figure_says_that_it_is_not_verified(given):
    sentence = MARK[0].upper() + MARK[1:]
    for figure in (attnviz.plot.heatmap(given).figure, attnviz.plot.heads(given)):
        assert sentence in captions(figure)
        assert "My model" in captions(figure)
    import matplotlib.pyplot as plt

    _, ax = plt.subplots()
    attnviz.plot.heatmap(given, ax=ax)
    assert "NOT VERIFIED" in ax.get_title("left")


def test_the_page_says_that_it_is_not_verified(given):
    payload = attnviz.view(given).data()["payload"]
    (shown,) = payload["results"]
    assert (shown["verdict"], shown["summary"]) == ("not verified", MARK)
    assert [note.split()[-1] for note in payload["notes"]] == ["given."]
    heads = [head for layer in shown["stacks"][0]["layers"] for head in layer["exact"]]
    assert len(heads) == 72
    assert all(head["map"] and "query" not in head for head in heads)


def test_a_small_page_has_no_queries_either(given):
    payload = attnviz.view(given, size=0.4).data()["payload"]
    heads = [
        head for layer in payload["results"][0]["stacks"][0]["layers"] for head in layer["exact"]
    ]
    assert all(head is None or "query" not in head for head in heads)


def test_the_verdict_is_its_own(given, tmp_path):
    assert given.agreement.verdict == given.checked_agreement.verdict == "not verified"
    assert set(given.agreement.parts.values()) == {"not compared"}
    assert attnviz.verify(given) == given.agreement
    drawn = attnviz.attention_map(given, layer=0, head=0)
    altered = replace(drawn, weights=drawn.weights * 2)
    assert altered.checked_agreement.summary() == MARK
    drawn.save(tmp_path / "map.json")
    assert json.loads((tmp_path / "map.json").read_text())["agreement"]["verdict"] == "not verified"
    assert "planted" not in given._repr_html_()


def test_a_saved_result_stays_unverified(given, tmp_path):
    given.save(tmp_path / "given.safetensors")
    again = attnviz.load_result(tmp_path / "given.safetensors")
    assert torch.equal(again.weights(), given.weights())
    assert again.checked_agreement.summary() == MARK
    assert again.tokens == given.tokens


def test_rows_that_do_not_sum_to_1_are_said():
    result = attnviz.from_weights([[0.5, 0.2], [0.3, 0.7]], TOKENS)
    assert result.notes == ("rows sum to 0.7 to 1, not to 1",)
    assert "rows sum to 0.7 to 1" in captions(attnviz.plot.heatmap(result).figure).lower()
    assert attnviz.from_weights(LAYER * 1.01, TOKENS).notes
    assert not attnviz.from_weights([LAYER], TOKENS).notes


WRONG = {
    "negative": ([[-0.5, 1.5], [1, 0]], {}, "negative: -0.5 in layer 0, head 0, row 0, column 0"),
    "nan": (
        [[0.5, float("nan")], [1, 0]],
        {},
        "no number: nan in layer 0, head 0, row 0, column 1",
    ),
    "ragged": ([[0.5, 0.5], [1]], {}, "an array of numbers, not list"),
    "text": ("abc", {}, "an array of numbers, not str"),
    "no layers": ({}, {}, "There are no weights"),
    "flat": ([1, 0], {}, "shape (2,) cannot be read. Give (T, T), (heads, T, T)"),
    "a batch": ((torch.stack([LAYER] * 2),), {}, "Choose one in each layer: layer[:1]"),
    "few tokens": (SHARP, {"tokens": ["a"]}, "2 × 2, but there are 1 tokens"),
    "numbers": (SHARP, {"tokens": [1, 2]}, "tokens must be strings, not 1"),
    "not square": ([[0.5, 0.2, 0.3]], {}, "queries and keys differ. Give the labels of both"),
    "no layer": ({"attention": SHARP}, {}, "'attention' names no layer"),
    "no attentions": (Output(None), {}, "Run the model with output_attentions=True"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_read_is_refused_in_one_line(name):
    weights, options, message = WRONG[name]
    with pytest.raises(InputError) as caught:
        attnviz.from_weights(weights, **{"tokens": TOKENS, **options})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        attnviz.steps,
        lambda given: attnviz.view(given, show="steps"),
        lambda given: given.records[0].scores(),
    ],
)
def test_what_needs_queries_and_keys_refuses(call, given):
    with pytest.raises(InputError, match=r"need the queries and keys of a model.*Run the model"):
        call(given)


def test_a_text_is_not_a_result(given):
    for call in (attnviz.attend, lambda text: attnviz.shift("train", text)):
        with pytest.raises(InputError, match=r"must be a string.*not AttentionResult"):
            call(given)
