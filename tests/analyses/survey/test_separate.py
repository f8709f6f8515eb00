"""Surveys of models that cut, pool or join texts: each is read by itself, where tokens attend."""

import pytest
import torch
from families import tiny

import attnviz
from attnviz import AttentionRecord, InputError
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


def expected(model, text):
    """Return statistics by their definition of each head, (K, S), of one text alone."""
    read = model.tokenizer(text, return_special_tokens_mask=True)
    ids, special = read["input_ids"], read["special_tokens_mask"]
    stops = [token in (".", ",") for token in model.tokenizer.convert_ids_to_tokens(ids)]
    records = of_tokens(model.attend(text), len(ids))
    weights = torch.cat([record.weights() for record in records])
    heads = [by_definition(one.tolist(), ids, special, stops) for one in weights]
    return torch.tensor([[head[name] for name in NAMES] for head in heads])


def test_a_model_that_pools_tokens_is_surveyed_text_by_text(pooling, surveyed, texts):
    assert surveyed.agreement.verdict == "verified"
    columns = [surveyed.of(name) for name in NAMES]
    own = torch.stack([expected(pooling, text) for text in texts[:2]])  # of different lengths
    assert (surveyed.mean[:, columns] - own.nanmean(0)).abs().max() < 1e-4
    assert (surveyed.shuffled - surveyed.mean)[:, columns].abs().max() > 1e-2


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
