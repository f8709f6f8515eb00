"""Results as data: arrays, tables, short summaries; wrong types in one line."""

import numpy as np
import pandas as pd
import pytest
import seaborn as sns
import torch
from golden.saved_results import SAVED
from media import picture, seeing

import attnviz
from attnviz import InputError

TEXT = "the train left the station on time"
MAIN = {
    "map": "weights", "maps": "weights", "steps": "weights", "senses": "vectors",
    "shift": "value", "survey": "mean", "compare": "change",
}  # fmt: skip


@pytest.fixture(scope="module")
def padded(model):
    """The shorter of two texts of one batch, which is padded."""
    return attnviz.attend(["the train left the station on time", "it playacts"], model=model)[1]


def test_the_weights_of_all_layers(train):
    weights = train.weights()
    assert weights.shape == (6, 12, 9, 9)
    for layer in range(6):
        assert torch.equal(weights[layer], train.weights(layer))
        assert torch.equal(weights[layer, 3], train.records[layer].weights(3))
    assert torch.equal(train.weights(head=3), weights[:, 3])
    assert np.array_equal(np.asarray(train), weights.numpy())
    assert np.asarray(train, dtype=np.float64).dtype == np.float64


def test_the_labels_are_those_of_the_weights(train, padded):
    assert train.tokens == ("[CLS]", *TEXT.split(), "[SEP]")
    assert (train.layers, train.heads) == ((*range(6),), (*range(12),))
    assert padded.tokens == ("[CLS]", "it", "play", "##act", "##s", "[SEP]")
    assert padded.words == ("[CLS]", "it", "playacts", "[SEP]")
    assert padded.weights().shape[2:] == padded.weights(0).shape[1:] == (6, 6)
    assert torch.equal(padded.weights(2, 3), padded.records[2].weights(3)[:6, :6])


def test_a_long_table(train):
    frame = train.to_frame()
    assert list(frame) == [
        "layer", "head", "query_position", "query", "key_position", "key", "weight"
    ]  # fmt: skip
    assert len(frame) == 6 * 12 * 9 * 9
    row = frame[(frame["layer"] == 4) & (frame["head"] == 7) & (frame["query_position"] == 2)]
    assert set(row["query"]) == {"train"}
    assert row["weight"].tolist() == train.weights(4, 7)[2].tolist()
    assert row["key"].tolist() == list(train.tokens)
    assert len(train.to_frame(layer=2)) == 12 * 9 * 9
    assert "layer" not in train.to_frame(layer=2)


def test_a_wide_table_is_what_seaborn_takes(train):
    wide = train.to_frame(layer=0, head=3)
    assert wide.index.tolist() == wide.columns.tolist() == list(train.tokens)
    assert np.array_equal(wide.to_numpy(), train.weights(0, 3).numpy())
    drawn = attnviz.attention_map(train, layer=0, head=3)
    assert drawn.to_frame().equals(wide)
    ax = sns.heatmap(wide)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key", "query")


def test_tables_of_words(padded):
    wide = padded.to_frame(layer=1, head=2, words=True)
    assert wide.columns.tolist() == list(padded.words)
    drawn = attnviz.attention_map(padded, layer=1, head=2)
    assert np.array_equal(wide.to_numpy(), drawn.weights.numpy())


@pytest.mark.parametrize("name", MAIN)
def test_arrays_of_other_results(name):
    result = attnviz.load_result(SAVED / f"{name}.safetensors")
    expected = result.to_arrays()[MAIN[name]].numpy()
    assert np.array_equal(np.asarray(result), expected, equal_nan=True)
    copy = np.array(result)
    copy[...] = 7
    assert np.array_equal(np.asarray(result), expected, equal_nan=True)


def test_pandas_takes_maps_rankings_and_stages(train):
    drawn = attnviz.attention_map(train, layer=0, head=3)
    assert np.array_equal(pd.DataFrame(drawn), drawn.weights)
    ranking = attnviz.rank_heads(train)
    frame, matrix = ranking.to_frame(), pd.DataFrame(ranking)
    assert matrix.shape == (6, 12)
    assert len(frame) == len(ranking) == 72
    for layer, head, score in frame.itertuples(index=False):
        assert matrix.loc[layer, head] == score
    stage = attnviz.steps(train)["Q"]
    assert np.array_equal(pd.DataFrame(stage), stage.values)


def test_heads_of_a_ranking_that_lacks_some_are_nan(train):
    part = attnviz.rank_heads(train).of_layer(4)
    assert np.asarray(part).shape == (1, 12)
    streamed = attnviz.attend("the train left", model=attnviz.load(), mode="streamed", heads=[2])
    ranking = np.asarray(attnviz.rank_heads(streamed))
    assert np.isfinite(ranking[:, 2]).all()
    assert np.isnan(ranking[:, :2]).all()
    assert set(attnviz.head_maps(streamed).to_frame()["head"]) == {2}


def test_layers_that_differ_need_a_choice(tokenizer):
    swin = seeing("swin", tokenizer).attend(image=picture())
    with pytest.raises(InputError, match=r"Choose one: layer=0, for example\.$"):
        swin.weights()
    assert len(swin.to_frame(layer=0)) == swin.weights(0).numel()


def test_a_streamed_text_has_no_whole_maps(model):
    long = model.attend(TEXT, mode="streamed")
    for numbers in (long.weights, long.to_frame):
        with pytest.raises(InputError, match='ask for whole maps: attend\\(text, mode="full"'):
            numbers()
    assert len(long.tokens) == 9
    assert long.heads == (*range(12),)


def test_only_public_names_are_listed():
    assert attnviz.load  # of a module that is in the package from now on
    assert sorted(dir(attnviz)) == sorted(attnviz.__all__)


def test_a_notebook_prints_a_result_once(monkeypatch, capsys):
    """A console of rich in Jupyter prints there by itself, beside what it returns."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert "cat" in attnviz.example("cat")._repr_html_()
    assert capsys.readouterr().out == ""


WRONG = {
    "rows": (lambda r: attnviz.attention_map(r, layer=0, head=0, rows=(0, 3)), "rows must be a"),
    "row": (lambda r: attnviz.attention_map(r, layer=0, head=0, rows=slice("a")), "rows must be"),
    "wide": (
        lambda r: attnviz.attention_map(r, layer=0, head=0).to_frame(wide="yes"),
        "wide must be True or False",
    ),
    "a stage": (lambda r: attnviz.steps(r)["scaled"], "Did you mean scaled scores"),
    "a numbered stage": (lambda r: attnviz.steps(r)[0], "0 is not a stage of this head. Use X, Q"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_type_is_answered_in_one_line(name, train):
    call, message = WRONG[name]
    with pytest.raises(InputError) as caught:
        call(train)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
