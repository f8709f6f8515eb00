"""The data in a page equal the verified data, up to the error that the page states."""

import base64
import hashlib
import itertools
import json
import re
import sys
import zlib

import numpy as np
import pytest
import torch
from families import TEXTS, tiny
from linear_models import hybrid
from media import picture, seeing

import attnviz
from attnviz import InputError

SENTENCE = " ".join(TEXTS[0:2])
FAMILIES = [
    *("bert", "gpt2", "llama", "mistral", "gemma2", "gpt-oss", "t5", "bart"),
    *("bloom", "deberta", "longformer"),
]


def numbers(about, blocks):
    """Decode as a reader of the page does, without the package."""
    data = zlib.decompress(base64.b64decode(blocks[about["block"]]), -15)
    size, planes = np.prod(about["shape"]), 1 + (about["levels"] > 255)
    planes = np.frombuffer(data, np.uint8, planes * size)
    planes = planes.reshape(-1, size).astype(int)
    code = sum(plane << 8 * at for at, plane in enumerate(planes))
    *first, m, n = about["shape"]
    by_column = about["kind"] != "linear"
    code = code.reshape(*first, n, m).swapaxes(-1, -2) if by_column else code.reshape(*first, m, n)
    scale = np.array(about["scale"])
    scale = scale[:, None, None] if scale.ndim else scale
    if about["kind"] != "root":
        return scale * (code - (about["levels"] + 1) // 2)
    return scale * (code / about["levels"]) ** 2


def by_the_rule(Q, K, rule):
    """Compute the formula independently, with the page's description of masks."""
    scores = Q @ K.T * rule["scale"]
    if rule["softCap"]:
        scores = rule["softCap"] * np.tanh(scores / rule["softCap"])
    i, j = np.arange(len(Q))[:, None] + rule["offset"], np.arange(len(K))
    hidden = np.isin(j, rule["hidden"])[None]
    if rule["before"] is not None:
        hidden = hidden | (j < i - rule["before"])
    if rule["after"] is not None:
        hidden = hidden | (j > i + rule["after"])
    scores = np.where(hidden, -np.inf, scores)
    if rule["sink"] is not None:
        sink = np.broadcast_to(rule["sink"], len(Q))[:, None]
        scores = np.concatenate([scores, sink], 1)
    with np.errstate(invalid="ignore"):  # a row without keys has no weights
        odds = np.exp(scores - scores.max(1, keepdims=True))
    return np.nan_to_num(odds / odds.sum(1, keepdims=True))[:, : len(K)]


def outputs(record):
    """Return what each head computes, (H, m, d_v), and their output, from the weights on."""
    value = record.value.repeat_interleave(record.heads // record.key_heads, 0)
    heads = record.weights() @ value
    matrix, bias = record.projection.output.weight, record.projection.output.bias
    return heads, heads.transpose(0, 1).flatten(1) @ matrix + (0 if bias is None else bias)


def in_float64(record, head):
    return record.weights(head, dtype=torch.float64).numpy()


def travelled(data, result=0, every=1):
    """Yield (stack, layer, head, weights, error) of every head whose full map is in the page.

    The weights of all but the first of so many heads are left out.
    """
    payload, blocks, count = data["payload"], data["blocks"], itertools.count()
    for stack in payload["results"][result]["stacks"]:
        for layer in stack["layers"]:
            for head, exact in zip(layer["heads"], layer["exact"], strict=True):
                if exact is None:
                    continue
                ways = []
                if next(count) % every:
                    exact = {"error": exact["error"]}
                if "map" in exact:
                    ways.append(numbers(exact["map"], blocks))
                if "rule" in exact and not exact["rule"]["added"]:
                    Q, K = (numbers(exact[name], blocks) for name in ("query", "key"))
                    ways.append(by_the_rule(Q, K, exact["rule"]))
                yield stack["name"], layer["layer"], head, ways, exact["error"]


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("size", [0.125, 8.0])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_of_every_family(family, size, tokenizer):
    model = attnviz.load(tiny(family), tokenizer=tokenizer)
    target = {"target": "le train est parti"} if family in ("t5", "bart") else {}
    result = attnviz.attend(TEXTS[0], model=model, **target)
    seen = 0
    for stack, layer, head, ways, error in travelled(attnviz.view(result, size=size).data()):
        P = in_float64(result.stack(stack).record(layer), head)
        assert np.abs(ways[0] - P).max() <= error + 1e-12
        assert error <= 1e-3
        assert all(((W == 0) == (P == 0)).all() for W in ways[:1])
        for W in ways:  # both, if the page has both
            assert np.abs(W - P).max() <= 1e-3
        seen += 1
    assert seen == sum(record.heads for record in result.records)


@pytest.mark.parametrize("size", [0.125, 8.0])
def test_signed_weights_of_linear_attention_are_in_the_page(size, tokenizer):
    model = hybrid(["linear_attention", "full_attention", "linear_attention"])
    result = attnviz.load(model, tokenizer=tokenizer).attend(TEXTS[0])
    data = attnviz.view(result, size=size).data()
    stacks = data["payload"]["results"][0]["stacks"]
    signed = {stack["name"]: stack["signed"] for stack in stacks}
    assert signed == {"decoder": False, "linear": True}
    assert any("Linear attention has no softmax" in note for note in data["payload"]["notes"])
    linear = [head for head in travelled(data) if head[0] == "linear"]
    assert len(linear) == 4
    for stack, layer, head, (W,), error in linear:
        M = in_float64(result.stack(stack).record(layer), head)
        assert np.abs(W - M).max() <= error + 1e-9
        assert (np.sign(W) == np.sign(M)).all()
    with pytest.raises(InputError, match="Steps need attention with a softmax"):
        attnviz.view(result.stack("linear"), show="steps")


@pytest.fixture(scope="module")
def sixty_four(model):
    """Return the page of a sentence of exactly 64 tokens."""
    result = attnviz.attend(
        "the train left the station on time . " * 7 + "it was so early today .", model=model
    )
    assert len(result.records[0].query_axis) == 64
    return attnviz.view(result)


def test_sixty_four_tokens_take_half_a_megabyte(sixty_four, tmp_path):
    sixty_four.save(tmp_path / "view.html")
    assert (tmp_path / "view.html").stat().st_size <= 500_000
    error = max(error for *_, error in travelled(sixty_four.data(), every=100))
    assert 0 < error <= 1e-3


@pytest.fixture(scope="module")
def medium(model):
    """Return a text of which a small page holds some heads only."""
    text = "the train left the station on time and nobody noticed that it was early . " * 15
    return attnviz.attend(text, model=model)


def test_the_last_cells_of_a_pooled_map_may_be_smaller(model):
    text = "the train left the station . " * 19 + "early"
    result = attnviz.attend(text, model=model, truncate=True)
    n = len(result.records[0].query_axis)
    data = attnviz.view(result).data()
    layer = data["payload"]["results"][0]["stacks"][0]["layers"][1]["pooled"]
    assert layer["cell"] == 2
    assert n % 2  # the last row and column hold a single token
    maps = numbers(layer["maps"], data["blocks"])
    P = np.pad(result.record(1).weights().numpy(), ((0, 0), (0, 1), (0, 1)))
    summed = P.reshape(12, n // 2 + 1, 2, n // 2 + 1, 2).sum((2, 4))
    expected = summed / ([[2]] * (n // 2) + [[1]])
    np.testing.assert_allclose(maps, expected, atol=expected.max() / 1000)
    np.testing.assert_allclose(maps.sum(-1), 1, atol=0.02)


def test_the_second_text_of_a_pair_begins_where_its_first_token_stands(small):
    result = attnviz.attend("the train left", pair="it was early", model=small)
    (axis,) = attnviz.view(result).data()["payload"]["results"][0]["axes"]
    assert axis["labels"][axis["second"]] == "it"
    assert axis["special"] == [0, 4, 8]


def test_the_sentences_of_a_longer_text_begin_at_their_first_tokens(model):
    def starts(*texts, **how):
        (axis,) = attnviz.view(model.attend(*texts, **how)).data()["payload"]["results"][0]["axes"]
        return [axis["labels"][position] for position in axis.get("sentences", ())]

    assert starts("Dr. Smith left. Nobody knew why. She waited.") == ["dr", "nobody", "she"]
    assert starts("One left. It rained.", pair="Gulls sat there.") == ["one", "it", "gu"]
    assert starts("One left. It rained.") == []  # too few for a map of their own
    assert starts("غادر القطار. توقف المطر. عاد الرجل.") == []


def test_values_and_outputs_follow_from_the_model(tokenizer, model):
    llama = attnviz.load(tiny("llama"), tokenizer=tokenizer).attend("the train left")
    for result in (attnviz.attend("the train left", model=model), llama):
        data = attnviz.view(result).data()
        blocks = data["blocks"]
        (stack,) = data["payload"]["results"][0]["stacks"]
        for record, layer in zip(result, stack["layers"], strict=True):
            shared = record.heads // record.key_heads
            for head, exact in zip(layer["heads"], layer["exact"], strict=True):
                V = numbers(exact["value"], blocks)
                expected = record.value[head // shared].numpy()
                np.testing.assert_allclose(V, expected, atol=np.abs(expected).max() / 250)
            output = numbers(layer["output"], blocks)
            expected = outputs(record)[1].numpy()
            np.testing.assert_allclose(output, expected, atol=np.abs(expected).max() / 250)


def test_values_are_left_out_where_they_do_not_fit(sixty_four):
    (stack,) = sixty_four.data()["payload"]["results"][0]["stacks"]
    exact = [head for layer in stack["layers"] for head in layer["exact"]]
    assert not any("value" in head for head in exact)
    assert all("output" not in layer for layer in stack["layers"])


def test_the_first_generated_position_follows_the_prompt(tokenizer):
    llama = attnviz.load(tiny("llama"), tokenizer=tokenizer)
    for prompt in ("the train left", "the the the"):
        result = llama.attend(prompt, generate=2)
        (axis,) = attnviz.view(result).data()["payload"]["results"][0]["axes"]
        assert axis["generated"] == len(llama.attend(prompt).record(0).query_axis)
    (axis,) = attnviz.view(llama.attend("the train")).data()["payload"]["results"][0]["axes"]
    assert axis["generated"] is None
    t5 = attnviz.load(tiny("t5"), tokenizer=tokenizer).attend("the train left", generate=2)
    axes = attnviz.view(t5).data()["payload"]["results"][0]["axes"]
    assert [axis["generated"] for axis in axes] == [None, None]  # its decoder has no prompt


SIZES = [*(pytest.param(size, marks=pytest.mark.long) for size in (0.6, 0.4)), 1.1]


@pytest.mark.parametrize("size", SIZES)
def test_maps_that_do_not_fit_are_pooled_with_a_note(medium, tmp_path, size):
    page = attnviz.view(medium, size=size)
    page.save(tmp_path / "view.html")
    assert size * 0.9 < (tmp_path / "view.html").stat().st_size / 1e6 <= size
    data = page.data()
    found = list(travelled(data, every=100))
    assert 0 < len(found) < 72
    assert len(json.dumps(data)) <= size * 1e6
    best = attnviz.rank_heads(medium).scores[: len(found)]
    assert {(layer, head) for _, layer, head, *_ in found} == {(s.layer, s.head) for s in best}
    assert f"Exact weights of {len(found)} of 72 heads" in " ".join(data["payload"]["notes"])


def test_a_streamed_text_shows_pooled_maps_and_exact_layers(model):
    text = "the train left the station on time and nobody noticed that it was early . " * 12
    found = attnviz.attend(text, model=model, mode="streamed", layers=[0, 3])
    data = attnviz.view(found).data()
    heads = list(travelled(data, every=7))
    assert {(layer, head) for _, layer, head, *_ in heads} == {
        (layer, head) for layer in (0, 3) for head in range(12)
    }
    for _, layer, head, ways, error in heads[::7]:
        P = in_float64(found.layer(layer).record, head)
        assert np.abs(ways[0] - P).max() <= error + 1e-12
    pooled = attnviz.attend(text[: len(text) // 2], model=model, mode="streamed")
    data = attnviz.view(pooled).data()
    assert not list(travelled(data))
    notes = " ".join(data["payload"]["notes"])  # no size restores what was not stored
    assert "exact=[layer]" in notes
    assert "size=" not in notes


def test_the_page_runs_one_script_and_loads_nothing(train, tmp_path):
    attnviz.view(train).save(tmp_path / "view.html")
    page = (tmp_path / "view.html").read_text("utf-8")
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page).group(1)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    (script,) = scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert re.search(r"script-src ([^;]*)", policy).group(1) == f"'sha256-{digest}'"
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", page)


def test_comparisons_ignore_padding(small):
    short, full = attnviz.attend(["the train left", "the train left the station"], model=small)
    alone = attnviz.attend("the train left", model=small)
    aligned = attnviz.view(short, compare=full).data()["payload"]["aligned"]
    pairs = [(n, n) for n in range(4)] + [(4, 6)]  # the last is [SEP]
    assert aligned == {"encoder": [pairs, pairs]}
    lengths = [
        len(each["axes"][0]["labels"])
        for each in attnviz.view(short, compare=alone).data()["payload"]["results"]
    ]
    assert lengths == [5, 5]


def test_texts_of_different_lengths_are_aligned_by_their_words(small):
    def align(*texts):
        page = attnviz.view(
            *[attnviz.attend(text, model=small) for text in texts[:1]],
            compare=attnviz.attend(texts[1], model=small),
        ).data()["payload"]
        queries, keys = page["aligned"]["encoder"]
        assert queries == keys
        names = [result["axes"][0]["labels"] for result in page["results"]]
        return [(names[0][a], names[1][b]) for a, b in queries]

    assert align("the old train left", "The train left early today") == [
        ("[CLS]", "[CLS]"), ("the", "the"), ("train", "train"), ("left", "left"),
        ("[SEP]", "[SEP]"),
    ]  # fmt: skip
    assert align("a train left the unfathomable station", "a ship left the station today")[:3] == [
        ("[CLS]", "[CLS]"), ("a", "a"), ("train", "ship"),  # in the same place
    ]  # fmt: skip
    assert align("the old train left", "train left the station") == [
        ("[CLS]", "[CLS]"), ("train", "train"), ("left", "left"), ("[SEP]", "[SEP]"),
    ]  # fmt: skip  # as many tokens, at other places
    with pytest.raises(InputError, match="share no word"):
        align("train", "ships and boats")
    long = [attnviz.attend("the train left " * n, model=small) for n in (30, 31)]
    with pytest.raises(InputError, match=r"same shape.* on 92 and .* on 95"):
        attnviz.view(long[0], compare=long[1])


def test_the_requested_layer_is_shown_first_with_several_stacks(tokenizer):
    result = seeing("swin", tokenizer).attend(image=picture())
    payload = attnviz.view(result, layer=1, show="head").data()["payload"]
    named = {stack["name"]: stack for stack in payload["results"][0]["stacks"]}
    assert [layer["layer"] for layer in named[payload["start"]["stack"]]["layers"]] == [1]


def test_every_head_is_visible_for_any_encoder_and_decoder_length(tokenizer):
    model = attnviz.load(tiny("bart"), tokenizer=tokenizer)
    text = "the train left the station on time . " * 10
    result = attnviz.attend(text, model=model, target="le train est parti")
    stacks = attnviz.view(result, size=0.136).data()["payload"]["results"][0]["stacks"]
    layers = [layer for stack in stacks for layer in stack["layers"]]
    assert not all(all(layer["exact"]) for layer in layers)  # some are only pooled
    assert all(layer["pooled"] or all(layer["exact"]) for layer in layers)


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("text", TEXTS[:3])
@pytest.mark.parametrize("size", [0.2, 0.5])
def test_the_stated_error_is_not_exceeded(model, text, size):
    data = attnviz.view(attnviz.attend(text, model=model), size=size).data()
    said = re.search(r"within (\S+) of", " ".join(data["payload"]["notes"])).group(1)
    worst = max(error for *_, error in travelled(data, every=100))
    assert worst <= float(said) <= 1.1 * worst


# --- the Python side of the widget; tests/browser/test_jupyter.py covers the other side


@pytest.fixture
def view(train):
    return attnviz.view(train, layer=4, head=7, show="head", words=False)


def test_it_starts_like_the_view(view):
    widget = view.widget()
    assert widget.selection == {
        "view": "head", "stack": "encoder", "layer": 4, "heads": [7],
        "query": None, "key": None, "words": False,
    }  # fmt: skip
    assert {"payload": widget.payload, "blocks": widget.blocks} == view.data()


def test_its_selection_can_be_set_in_part(view):
    widget = view.widget()
    widget.selection = {"layer": 2, "heads": [0, 3], "key": None}
    assert widget.selection == {"layer": 2, "heads": [0, 3], "key": None}


@pytest.mark.parametrize(
    "wrong", [{"head": 3}, {"heads": 3}, {"layer": "5"}, {"query": 1.5}, {"words": 1}]
)
def test_an_invalid_selection_is_refused(view, wrong):
    widget = view.widget()
    before = widget.selection
    with pytest.raises(attnviz.InputError, match=r"A selection cannot have '.* keys are view, "):
        widget.selection = wrong
    assert widget.selection == before


def test_without_anywidget_the_error_says_what_to_install(view, monkeypatch):
    monkeypatch.delitem(sys.modules, "attnviz.interactive.widget", raising=False)
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(attnviz.InputError, match=r"pip install 'attnviz\[widget\]'"):
        view.widget()
    assert view._repr_html_().startswith("<iframe")
