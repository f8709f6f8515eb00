"""Head ranking and word-pair search, on weights set by hand."""

from dataclasses import replace

import pytest
import torch
from figures.sentences.maps import relations

import attnviz
from attnviz import InputError, attention_map, find_heads, head_maps, rank_heads

WORDS = ("[CLS]", "the", "train", "left", ",", "station")


def record_of(*heads, layer=0, words=WORDS):
    """Return a record of given weights (T, T)."""
    return attnviz.from_weights({layer: torch.stack(heads)}, list(words)).records[0]


def head_with(**cells):
    """Return uniform rows, except for cells given as query_key=weight; the rest is shared."""
    weights = torch.full((len(WORDS), len(WORDS)), 1 / len(WORDS))
    for name, weight in cells.items():
        query, key = (WORDS.index(word) for word in name.split("_"))
        weights[query] = (1 - weight) / (len(WORDS) - 1)
        weights[query, key] = weight
    return weights


def result_of(*records):
    return replace(attnviz.from_weights(torch.eye(1), ["a"]), records=records)


def content_mass(record):
    """Return what heads are ranked by, (H,)."""
    scores = {one.head: one.score for one in rank_heads(result_of(record))}
    return torch.tensor([scores[head] for head in range(record.heads)])


@pytest.mark.parametrize("label", ["don't", "don’t", "The", "WITH", ",", "[SEP]"])
def test_words_without_content_are_known_in_any_spelling(label):
    weights = torch.rand(4, 4, generator=torch.Generator().manual_seed(0)).softmax(-1)
    mass = {
        word: content_mass(record_of(weights, words=("train", "left", "station", word))).item()
        for word in (label, "the", "river")
    }
    assert (mass[label] == pytest.approx(mass["the"])) == (label[0] != "[")
    assert mass[label] != pytest.approx(mass["river"])


def test_a_text_of_function_words_is_all_content():
    weights = torch.rand(4, 4, generator=torch.Generator().manual_seed(0)).softmax(-1)
    mass = [
        content_mass(record_of(weights, words=("[CLS]", *words, "."))).item()
        for words in (("to", "be"), ("train", "left"))
    ]
    assert mass[0] == pytest.approx(mass[1])


def by_hand(record):
    """Return the content mass of each head, pair by pair."""
    maps = head_maps(result_of(record))
    return relations(maps, maps.weights)


def test_content_mass_is_the_weight_of_content_words_beyond_what_distance_and_key_explain():
    torch.manual_seed(0)
    random = torch.rand(6, 6).softmax(-1)
    record = record_of(head_with(train_left=0.75, left_station=0.6), random)
    assert content_mass(record).tolist() == pytest.approx(by_hand(record), abs=1e-6)


def test_the_first_word_of_a_causal_model_does_not_count():
    words = ("train", "left", "station", "river", "bank")
    mask = torch.full((2, 5, 5), -torch.inf).triu(1)
    resting, relating = torch.eye(5), torch.eye(5)
    resting[3] = torch.tensor([1.0, 0, 0, 0, 0])  # one word rests there, others do not
    relating[4] = torch.tensor([0.4, 0, 0, 0.6, 0])
    record = replace(record_of(resting + 1e-6, relating + 1e-6, words=words), mask=mask)
    first, second = content_mass(record).tolist()
    assert first < 1e-5
    assert second == pytest.approx(0.6 / 5, abs=1e-3)
    unmasked = content_mass(replace(record, mask=None))
    assert unmasked[0] > 0.1


def test_masked_pairs_explain_nothing():
    torch.manual_seed(0)
    causal = record_of(torch.rand(6, 6).softmax(-1))
    causal = replace(causal, mask=torch.full((1, 6, 6), -torch.inf).triu(1))
    assert causal.readable().tolist() == torch.ones(6, 6).tril().bool().tolist()
    causal.mask[0, 4, 2] = -torch.inf  # a pair at the distance of station and left
    (expected,), (unmasked,) = by_hand(causal), by_hand(replace(causal, mask=None))
    assert content_mass(causal).item() == pytest.approx(expected, abs=1e-6)
    assert expected != pytest.approx(unmasked, abs=1e-3)


def test_one_content_word_relates_to_nothing():
    weights = torch.full((1, 2, 2), 0.5)
    assert content_mass(record_of(*weights, words=("[CLS]", "hello"))).tolist() == [0.0]


def test_heads_rank_by_content_mass_over_all_layers():
    sink = head_with(train_the=0.9)
    result = result_of(
        record_of(sink, head_with(train_left=0.5), layer=0),
        record_of(head_with(train_left=0.9), sink, layer=1),
    )
    ranking = rank_heads(result)
    assert [(s.layer, s.head) for s in ranking.scores[:2]] == [(1, 0), (0, 1)]
    assert ranking.best == ranking.scores[0]
    assert len(ranking.scores) == 4


def test_heads_with_half_of_their_weight_on_special_tokens_rank_last():
    resting = head_with(train_left=0.9)
    resting[[1, 3, 4, 5]] = torch.tensor([0.95, 0.01, 0.01, 0.01, 0.01, 0.01])
    reading = head_with(train_left=0.3)
    result = result_of(record_of(reading, resting))
    resting_score, reading_score = rank_heads(result).scores[::-1]
    assert (resting_score.head, resting_score.resting) == (1, True)
    assert (reading_score.head, reading_score.resting) == (0, False)
    assert resting_score.score > reading_score.score
    said = caption(result)
    assert "layer 0, head 0. " in said
    assert "of all heads with under half of their weight on sinks" in said
    said = caption(result, head=1)
    assert "layer 0, head 1. " in said
    assert "of those asked for this one has" in said


def caption(result, **asked):
    """Return what a map says below its title, with its layer and head."""
    figure = attnviz.plot.heatmap(result, **asked).figure
    return " ".join(" ".join(text.get_text() for text in figure.texts).split()).lower()


@pytest.fixture
def two_layers():
    best, good, poor = (head_with(train_left=w) for w in (0.9, 0.5, 0.1))
    return result_of(record_of(poor, good, layer=0), record_of(best, poor, layer=1))


@pytest.mark.parametrize(
    ("asked", "chosen", "among"),
    [
        ({}, (1, 0), "of all heads"),
        ({"layer": 0}, (0, 1), "of those asked for"),
        ({"head": 1}, (0, 1), "of those asked for"),
        ({"layer": 1, "head": 1}, (1, 1), None),
    ],
)
def test_missing_choices_use_the_best_head(two_layers, asked, chosen, among):
    said = caption(two_layers, **asked)
    assert "layer {}, head {}. ".format(*chosen) in said
    assert ("this one has the largest weight between" in said) == (among is not None)
    assert among is None or among in said


def test_layers_that_differ_in_their_positions_have_no_mean():
    longer = record_of(torch.full((7, 7), 1 / 7), layer=1, words=(*WORDS, "left"))
    result = result_of(record_of(head_with(), layer=0), longer)
    with pytest.raises(InputError, match="differ in their positions"):
        attention_map(result, layer=[0, 1], head=0)


def test_find_heads_ranks_by_the_weight_between_two_words():
    close, far, above_the = (
        head_with(train_station=0.8),
        head_with(train_left=0.8),
        head_with(train_the=0.02),
    )
    found = find_heads(
        result_of(record_of(far, close), record_of(above_the, layer=1)),
        query="train",
        key="station",
    )
    assert (found.query, found.key, found.others) == ("train", "station", ("the",))
    assert [(h.layer, h.head) for h in found.scores] == [(0, 1), (1, 0), (0, 0)]
    assert found.scores[0].score == pytest.approx(0.8)
    assert [h.rank for h in found.scores] == [1, 1, 2]
    # A tie does not count: in the head "far", "the" weighs as much as "station".
    assert found.above_function_words == found.scores[:2]
    assert found.first == found.scores[:2]
    assert found.best.score == pytest.approx(0.8)


def test_special_tokens_and_the_query_itself_do_not_compete():
    sink = head_with(train_station=0.1)
    sink[2] = torch.tensor([0.5, 0.05, 0.2, 0.05, 0.1, 0.1])
    (head,) = find_heads(result_of(record_of(sink)), query="train", key="station").scores
    assert head.rank == 1


def test_a_word_that_the_model_did_not_read_is_refused(model):
    result = model.attend("the 🍕 left the station")
    assert "[UNK]" in result.tokens
    for query, key in (("🍕", "station"), ("station", "🍕")):
        with pytest.raises(InputError, match="The model has no token for '🍕', or for a part"):
            find_heads(result, query=query, key=key)
    for analysis in (
        lambda: attnviz.steps(result, word="🍕"),
        lambda: attnviz.shift("🍕", "the 🍕 left the station", model=model),
        lambda: attnviz.ablate("the 🍕 left the station", word="🍕", model=model),
        lambda: attnviz.ablate("the 🍕 left", word="left", knock_out="🍕", model=model),
        lambda: attnviz.senses(
            "🍕", {"one": ["a 🍕", "my 🍕 is"], "two": ["the 🍕", "x 🍕"]}, model=model
        ),
    ):
        with pytest.raises(InputError, match="The model has no token for '🍕', or for a part"):
            analysis()


def test_the_head_of_an_image_relates_patches_by_what_they_show():
    places = [(row, column) for row in range(4) for column in range(4)]
    shows = torch.tensor([(row * 5 + column * 3) % 7 % 3 for row, column in places])
    alike = (shows[:, None] == shows).float() + 1e-3
    to_one_patch, to_the_right = torch.full((2, 16, 16), 1e-3)
    to_one_patch[:, 5] = 1.0
    for n, (row, column) in enumerate(places):
        to_the_right[n, places.index((row, min(column + 1, 3)))] = 1.0
    maps = [
        weights / weights.sum(1, keepdim=True) for weights in (to_one_patch, to_the_right, alike)
    ]
    record = record_of(*maps, words=tuple(str(place) for place in places))
    side = replace(record.query_axis, patches=tuple(places), words=(None,) * 16)
    ranking = rank_heads(result_of(replace(record, query_axis=side, key_axis=side)))
    assert ranking.meaning == "weight between patches beyond what distance and key explain"
    assert ranking.best.head == 2
    scores = {score.head: score.score for score in ranking.scores}
    assert scores[2] > 2 * max(scores[0], scores[1]), scores


@pytest.mark.parametrize(
    ("labels", "sink"), [(("train", "left"), True), (("[CLS]", "left"), False)]
)
def test_a_causal_map_starts_with_a_sink_unless_a_special_token_is_there(labels, sink):
    words = (*labels, "station")
    mask = torch.full((1, 3, 3), -torch.inf).triu(1)
    record = replace(record_of(torch.rand(3, 3) + 0.1, words=words), mask=mask)
    result = result_of(record)
    assert head_maps(result).starts_with_sink == sink
    assert attention_map(result, layer=0, head=0, special="remove").starts_with_sink == sink
    assert not attention_map(result, layer=0, head=0, columns=slice(1, 3)).starts_with_sink
    assert not head_maps(result_of(replace(record, mask=None))).starts_with_sink


@pytest.mark.parametrize("mode", ["full", "streamed"])
def test_layer_minus_1_is_the_last(mode):
    result = attnviz.attend("the train left the station", mode=mode, layers=[-1, 0])
    assert result.layers == (0, 5)
    assert attnviz.attention_map(result, layer=[-1, 5], head=3).layers == (5,)
    assert attnviz.head_maps(result, layer=-1).layers == (5,)
    assert attnviz.rank_heads(result).of_layer(-1).best.layer == 5
    with pytest.raises(attnviz.InputError, match="layer -7 is out of range"):
        attnviz.attention_map(result, layer=-7, head=0)
