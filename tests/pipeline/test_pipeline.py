"""From text to result: what is read, what is refused, and what the result says of itself."""

import gc
from dataclasses import replace

import pytest
import torch
from families import tiny

import attnviz
from attnviz.capture.attention_call import Attention
from attnviz.errors import InputError, ModelError
from attnviz.inputs import max_tokens


def test_a_text_gives_one_record_per_layer(train):
    assert len(train) == 6
    assert [record.layer for record in train] == [0, 1, 2, 3, 4, 5]
    assert {record.heads for record in train} == {12}
    assert train.weights(layer=3).shape == (12, 9, 9)
    assert train.weights(layer=3, head=11).shape == (9, 9)


def test_every_row_sums_to_one(train):
    for record in train:
        torch.testing.assert_close(record.weights().sum(-1), torch.ones(12, 9))


def test_the_axis_says_what_every_position_is(train):
    axis = train.record(0).query_axis
    words = ("the", "train", "left", "the", "station", "on", "time")
    assert axis.labels == ("[CLS]", *words, "[SEP]")
    assert axis.word_labels == words
    assert axis.special == (True, *[False] * 7, True)
    assert not any(axis.padding)


def test_pieces_know_their_word_as_it_was_typed(model):
    axis = model.attend("Unbelievable playfulness, isn't it?").record(0).query_axis
    assert axis.word_labels == ("Unbelievable", "playfulness", ",", "isn't", "it", "?")
    assert axis.labels[1:4] == ("unbelievable", "playful", "##ness")
    assert axis.words[1:5] == (0, 1, 1, 2)


def test_a_pair_is_two_segments(pair):
    axis = pair.record(0).query_axis
    assert axis.segments == (0,) * 9 + (1,) * 5
    assert pair.provenance.pair == "it arrived too late"


def test_a_typed_special_token_is_text(model):
    axis = model.attend("a [SEP] b [PAD]").record(0).query_axis
    assert sum(axis.special) == 2
    assert "".join(axis.word_labels) == "a[SEP]b[PAD]"


def test_several_texts_give_a_result_each(model):
    short, long = model.attend(["a train", "the train left the station on time"])
    assert short.provenance.text == "a train"
    assert sum(short.record(0).key_axis.padding) == 5
    assert not any(long.record(0).key_axis.padding)
    assert attnviz.attention_map(short, layer=0, head=0).columns == ("[CLS]", "a", "train", "[SEP]")


def test_attend_and_the_method_are_one(model, train):
    again = attnviz.attend("the train left the station on time", model=model)
    assert torch.equal(again.weights(2), train.weights(2))
    assert torch.equal(model.attend(train.provenance.text).weights(2), train.weights(2))
    assert attnviz.verify(train.provenance.text, model=model).verdict == "verified"


def test_a_result_says_where_it_comes_from(train):
    provenance = train.provenance
    assert provenance.model == "all-MiniLM-L6-v2"
    assert provenance.weights_sha256.startswith("53aa51172d14")
    assert provenance.dtype == "float32"
    assert set(provenance.versions) == {"attnviz", "torch", "transformers"}
    assert train.agreement.weights_sha256 == provenance.weights_sha256


@pytest.mark.parametrize("text", ["", "  \n\t", "\u200b"])
def test_a_text_without_a_word_is_refused(model, text):
    with pytest.raises(InputError, match="at least one word"):
        model.attend(text)


def test_what_is_no_text_is_refused(model):
    with pytest.raises(InputError, match="to be a string, or a list of them, got int"):
        model.attend([3])
    with pytest.raises(InputError, match="at least one text, got none"):
        model.attend([])
    with pytest.raises(InputError, match=r"valid Unicode, got '\\udcff"):
        model.attend("\udcff oh")
    with pytest.raises(InputError, match="a pair for each of 2 texts, got 1"):
        model.attend(["a", "b"], pair=["c"])


def test_a_text_too_long_is_refused_or_cut(model):
    long = "word " * 600
    with pytest.raises(InputError, match=r"at most 512 tokens.*got 602.*--truncate"):
        model.attend(long)
    assert len(model.attend("word " * 300, truncate=True).record(0).query_axis) == 302


def test_ids_without_a_row_are_named(tokenizer):
    model = attnviz.load(tiny("bert"), tokenizer=tokenizer)
    embeddings = model.module.bert.embeddings
    embeddings.word_embeddings = torch.nn.Embedding(2000, 48)
    with pytest.raises(ModelError, match=r"Expected ids from 0 to 1999, .* from 101 to 3345"):
        model.attend("the train")


def test_a_decoder_has_rows_of_its_own(tokenizer):
    module = tiny("marian")
    model = attnviz.load(module, tokenizer=tokenizer)
    embeddings = module.get_encoder().embed_tokens
    module.get_decoder().embed_tokens = torch.nn.Embedding(2000, embeddings.embedding_dim)
    with pytest.raises(ModelError, match=r"Expected ids from 0 to 1999, .* to 3345"):
        model.attend("the", target="the train left")


def test_what_a_model_raises_is_one_line(tokenizer):
    module = tiny("bert")
    model = attnviz.load(module, tokenizer=tokenizer)
    module.bert.embeddings.token_type_embeddings = torch.nn.Embedding(0, 48)
    said = r"Expected BertForMaskedLM to run on this input, but it fails \("
    for mode in ("full", "streamed"):
        with pytest.raises(ModelError, match=said):
            model.attend("the train left", mode=mode)


def test_what_is_infinite_in_float16_is_told_with_the_way_out(tokenizer):
    module = tiny("bert").half()
    with torch.no_grad():
        module.bert.encoder.layer[0].output.dense.weight.fill_(60_000)
    report = attnviz.load(module, tokenizer=tokenizer).attend("the train").agreement
    assert report.verdict == "failed"
    assert "(some numbers are not finite; try bfloat16 or float32)" in report.summary()


def test_nothing_of_a_run_is_left_behind(model):
    def held():
        return sum(type(each) is Attention for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = held()
        model.attend("the train left the station")
        assert held() == before
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("family", "limit"), [("bert", 512), ("roberta", 63), ("gpt2", 64), ("llama", 64)]
)
def test_the_longest_text_that_a_model_reads(family, limit, tokenizer):
    # RoBERTa's table of 64 positions starts behind its padding index, 0.
    assert max_tokens(tiny(family), tokenizer) == limit


@pytest.mark.parametrize("layer", [-1, 6])
def test_a_layer_that_is_not_there(train, layer):
    with pytest.raises(InputError, match=f"layer from 0 to 5, got {layer}"):
        train.weights(layer)


@pytest.mark.parametrize("head", [-1, 12])
def test_a_head_that_is_not_there(train, head):
    with pytest.raises(InputError, match=f"head from 0 to 11, got {head}"):
        train.weights(0, head)


def test_weights_that_were_changed_since_have_another_fingerprint(tokenizer):
    module = tiny("bert")
    model = attnviz.load(module, tokenizer=tokenizer)
    first = model.attend("a train").provenance.weights_sha256
    assert model.attend("a train").provenance.weights_sha256 == first
    with torch.no_grad():
        module.bert.encoder.layer[0].attention.self.query.weight.add_(1.0)
    changed = model.attend("a train")
    assert changed.provenance.weights_sha256 == changed.agreement.weights_sha256 != first


def test_the_reports_of_several_texts_join_into_one(model, train):
    other = attnviz.attend("it was late", model=model)
    joined = attnviz.AgreementReport.joined(each.agreement for each in (train, other))
    assert joined.verdict == "verified"
    assert (joined.heads, joined.texts) == (72, 2)
    assert "72 heads on 2 texts" in joined.summary()
    assert joined.largest_difference() == max(
        each.agreement.largest_difference() for each in (train, other)
    )


def test_one_text_that_is_not_proven_spoils_a_joined_report(model, train):
    faulty = replace(train.agreement, unproven=("encoder layer 1",))
    joined = attnviz.AgreementReport.joined([train.agreement, faulty])
    assert joined.verdict == "not proven"
    check = replace(train.agreement.checks[4], failed_heads=(3,))
    failed = replace(train.agreement, checks=(check,))
    assert attnviz.AgreementReport.joined([train.agreement, failed]).verdict == "failed"


def test_only_reports_of_one_model_join(train):
    other = replace(train.agreement, weights_sha256="another")
    with pytest.raises(InputError, match="Expected reports of one model, got 2 different models"):
        attnviz.AgreementReport.joined([train.agreement, other])
    with pytest.raises(InputError, match="Expected reports of one model, got none"):
        attnviz.AgreementReport.joined([])
