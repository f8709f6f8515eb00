"""The distance between heads, compared with scipy on the weights that the model returns."""

import copy

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon

import attnviz
from tests.analyses.survey.plain import plain_weights


@pytest.fixture(scope="module")
def some(texts):
    """Return three texts of different lengths, which form one batch."""
    return texts[2:5]


def words_of(model, text):
    """Return the token ids of a text, and the rows that are not special tokens."""
    read = model.tokenizer(text, return_special_tokens_mask=True)
    return read["input_ids"], np.array(read["special_tokens_mask"]) == 0


def divergence(P, Q):
    return jensenshannon(P.double().numpy(), Q.double().numpy(), base=2, axis=-1) ** 2


def test_head_distances_match_scipy(some, model):
    weights_of = plain_weights(model.module)
    of_rows = []
    for text in some:
        ids, words = words_of(model, text)
        weights = weights_of(ids)[:, words]
        of_rows.append(divergence(weights[:, None], weights[None]))
    expected = np.sqrt(np.concatenate(of_rows, axis=-1).mean(-1))
    found = attnviz.survey(some, model=model).distances
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-4)


def test_model_distances_match_scipy(some, model):
    module = copy.deepcopy(model.module)
    with torch.no_grad():
        module.encoder.layer[1].attention.self.query.weight[:64] *= 1.5
    other = attnviz.load(module, tokenizer=model.tokenizer)
    one_of, other_of = plain_weights(model.module), plain_weights(module)
    of_texts = []
    for text in some:
        ids, words = words_of(model, text)
        of_rows = divergence(one_of(ids)[:, words], other_of(ids)[:, words])
        of_texts.append(np.sqrt(of_rows.mean(-1)))
    found = attnviz.compare(some, models=(model, other)).apart
    assert found.max() > 0.1
    np.testing.assert_allclose(found.numpy(), np.mean(of_texts, axis=0), atol=1e-4)
