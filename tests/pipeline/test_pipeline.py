"""From text to result: inputs, errors, and the metadata of the result."""

import gc
from dataclasses import replace
from importlib.metadata import PackageNotFoundError

import pytest
import torch
from families import tiny

import attnviz
from attnviz import InputError, ModelError, runtime
from attnviz.capture.tracing.arrange import Attention
from attnviz.inputs.text import max_tokens


def test_several_texts_give_one_result_each(model):
    short, long = model.attend(["a train", "the train left the station on time"])
    assert short.provenance.text == "a train"
    assert sum(short.record(0).key_axis.padding) == 5
    assert not any(long.record(0).key_axis.padding)
    assert attnviz.attention_map(short, layer=0, head=0).columns == ("[CLS]", "a", "train", "[SEP]")


def test_attnviz_runs_from_its_folder_without_being_installed(model, monkeypatch, tmp_path):
    def missing(name):
        raise PackageNotFoundError(name)

    runtime.version_of.cache_clear()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(runtime, "version", missing)
            result = model.attend("the train")
            attnviz.save_result(result, tmp_path / "result.safetensors")
    finally:
        runtime.version_of.cache_clear()
    loaded = attnviz.load_result(tmp_path / "result.safetensors")
    assert loaded.provenance.versions["attnviz"] == "(not installed)"


def test_ids_without_an_embedding_are_named(tokenizer):
    model = attnviz.load(tiny("bert"), tokenizer=tokenizer)
    embeddings = model.module.bert.embeddings
    embeddings.word_embeddings = torch.nn.Embedding(2000, 48)
    with pytest.raises(ModelError, match=r"from 101 to 3345, .* has rows 0–1999"):
        model.attend("the train")


def test_a_decoder_has_its_own_rows(tokenizer):
    module = tiny("marian")
    model = attnviz.load(module, tokenizer=tokenizer, target_tokenizer=tokenizer)
    embeddings = module.get_encoder().embed_tokens
    module.get_decoder().embed_tokens = torch.nn.Embedding(2000, embeddings.embedding_dim)
    with pytest.raises(ModelError, match=r"to 3345, but the embedding has rows 0–1999"):
        model.attend("the", target="the train left")


def test_float16_overflow_is_reported_with_a_fix(tokenizer):
    module = tiny("bert").half()
    with torch.no_grad():
        module.bert.encoder.layer[0].output.dense.weight.fill_(60_000)
    report = attnviz.load(module, tokenizer=tokenizer).attend("the train").agreement
    assert report.verdict == "failed"
    assert "(some numbers are not finite; try bfloat16 or float32)" in report.summary()


def test_a_run_leaves_nothing_behind(model):
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
    # RoBERTa's table of 64 positions starts after its padding index, 0.
    assert max_tokens(tiny(family), tokenizer) == limit


def test_reports_of_several_texts_are_merged(model, train):
    other = attnviz.attend("it was late", model=model)
    joined = attnviz.AgreementReport.joined(each.agreement for each in (train, other))
    assert joined.verdict == "verified"
    assert (joined.heads, joined.texts) == (72, 2)
    assert "72 heads on 2 texts" in joined.summary()
    assert joined.largest_difference() == max(
        each.agreement.largest_difference() for each in (train, other)
    )


def test_one_unproven_text_makes_the_merged_report_unproven(model, train):
    faulty = replace(train.agreement, unproven=("encoder layer 1",))
    joined = attnviz.AgreementReport.joined([train.agreement, faulty])
    assert joined.verdict == "not proven"
    check = replace(train.agreement.checks[4], failed_heads=(3,))
    failed = replace(train.agreement, checks=(check,))
    assert attnviz.AgreementReport.joined([train.agreement, failed]).verdict == "failed"


def test_only_reports_of_one_model_are_merged(train):
    other = replace(train.agreement, weights_sha256="another")
    with pytest.raises(InputError, match="can be joined, not of 2 models"):
        attnviz.AgreementReport.joined([train.agreement, other])
    with pytest.raises(InputError, match="can be joined, not of no model"):
        attnviz.AgreementReport.joined([])


def test_streamed_heads_keep_the_order_in_which_they_are_named(model):
    text = "the train left the station"
    natural = model.attend(text, mode="streamed", layers=[2], heads=[0, 1]).streamed[0]
    heads = [*range(11, -1, -1)]
    result = model.attend(text, mode="streamed", layers=[2], heads=heads)
    assert result.agreement.verdict == "verified"
    assert result.streamed[0].kept == tuple(heads)
    entropy = result.streamed[0].summary.entropy
    torch.testing.assert_close(entropy[[-1, -2]], natural.summary.entropy)
