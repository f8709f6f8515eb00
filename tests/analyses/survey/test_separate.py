"""Surveys of models that cut, pool or join texts: each is read by itself, where tokens attend."""

import pytest
import torch
from families import tiny

import attnviz
from attnviz import InputError
from attnviz.analyses.survey.corpus import TextCorpus
from attnviz.analyses.survey.measure import shuffle
from attnviz.results import AttentionRecord
from tests.analyses.survey.test_statistics import by_definition

NAMES = ("distance", "previous", "same token", "separators", "entropy")


@pytest.fixture(scope="module")
def pooling(tokenizer):
    """A model whose second block reads pooled tokens."""
    return attnviz.load(tiny("funnel", torch.float32), tokenizer=tokenizer)


@pytest.fixture(scope="module")
def surveyed(pooling, texts):
    return attnviz.survey(texts[:2], model=pooling)


def of_tokens(result, length):
    return [one for one in result.records if one.size == (length, length)]


def expected(model, read, ids):
    """Return statistics by their definition of each head, (K, S), of one text alone."""
    special = read.encoding["special_tokens_mask"]
    stops = [token in (".", ",") for token in model.tokenizer.convert_ids_to_tokens(ids)]
    result = model.attend(inputs={"input_ids": torch.tensor([ids])})
    weights = torch.cat([record.weights() for record in of_tokens(result, len(ids))])
    heads = [by_definition(one.tolist(), ids, special, stops) for one in weights]
    return torch.tensor([[head[name] for name in NAMES] for head in heads])


def test_a_model_that_pools_tokens_is_surveyed_text_by_text(pooling, surveyed, texts):
    some, result = texts[:2], surveyed  # of different lengths
    assert result.agreement.verdict == "verified"
    reads = list(TextCorpus(pooling, some))
    columns = [result.of(name) for name in NAMES]
    own = torch.stack([expected(pooling, read, list(read.ids)) for read in reads])
    assert (result.mean[:, columns] - own.nanmean(0)).abs().max() < 1e-4
    orders = [shuffle(read.encoding, f"0 {read.number}")["input_ids"] for read in reads]
    shuffled = torch.stack([expected(pooling, *one) for one in zip(reads, orders, strict=True)])
    assert (result.shuffled[:, columns] - shuffled.nanmean(0)).abs().max() < 1e-4
    assert (own.nanmean(0) - shuffled.nanmean(0)).abs().max() > 1e-2


def test_what_is_not_measured_is_noted(pooling, surveyed, texts):
    first = pooling.attend(texts[0])
    length = len(first.records[0].query_axis)
    assert len(surveyed.heads) == sum(one.heads for one in of_tokens(first, length))
    assert len(surveyed.heads) < sum(one.heads for one in first.records)
    assert "each text was read by itself, and measured where tokens attend" in surveyed.notes
    assert not any("by itself" in one for one in attnviz.survey(texts[:2]).notes)  # batched


def test_a_wrong_scale_of_a_model_that_pools_is_found(pooling, texts, monkeypatch):
    weights = AttentionRecord.weights

    def wrong(record, **how):
        return weights(record, **how).sqrt()

    monkeypatch.setattr(AttentionRecord, "weights", wrong)
    assert attnviz.survey([texts[1]], model=pooling).agreement.verdict == "failed"


def test_checkpoints_that_pool_are_compared(pooling, tokenizer, texts):
    other = tiny("funnel", torch.float32)
    with torch.no_grad():
        other.encoder.blocks[0][0].attention.q_head.weight.mul_(2)
    result = attnviz.compare(texts[:2], models=[pooling, attnviz.load(other, tokenizer=tokenizer)])
    assert result.change.abs().max() > 1e-3


def test_a_model_that_reads_no_tokens_is_measured_by_positions(tokenizer, texts):
    hashing = attnviz.load(tiny("reformer", torch.float32), tokenizer=tokenizer)
    result = attnviz.survey(texts[:1], model=hashing)
    assert "no attention is between tokens: places are other positions" in result.notes
    (record, *_) = hashing.attend(texts[0]).records
    weights = record.weights()
    assert weights.shape[1:] != 2 * (len(record.query_axis),)
    entropy = torch.special.entr(weights).sum(-1).mean(-1)
    measured = result.mean[: record.heads, result.of("entropy")]
    assert (measured - entropy).abs().max() < 1e-4
    assert result.mean[:, result.of("same token")].isnan().all()
    with pytest.raises(InputError, match=r"No attention of .* is between the tokens"):
        attnviz.explore(texts[:2], model=hashing)
