"""Compare two checkpoints: the report names the changed head and no other."""

import copy
import json

import numpy as np
import pytest
import torch
from families import tiny
from scipy.spatial.distance import jensenshannon

import attnviz
from attnviz.analyses.survey.aggregate import divergence
from attnviz.errors import InputError

LAYER, HEAD = 4, 3


@pytest.fixture(scope="module")
def changed(model, tmp_path_factory):
    """Return a folder with the bundled model in which one head has larger query weights."""
    folder = tmp_path_factory.mktemp("models") / "sharper"
    module = copy.deepcopy(model.module)
    width = module.config.hidden_size // module.config.num_attention_heads
    with torch.no_grad():
        query = module.encoder.layer[LAYER].attention.self.query
        query.weight[HEAD * width : (HEAD + 1) * width] *= 1.5
    module.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def found(texts, model, changed):
    return attnviz.compare(texts[:16], models=(model, changed))


@pytest.fixture(scope="module")
def small(tokenizer, tmp_path_factory):
    """Return a folder with a tiny model."""
    folder = tmp_path_factory.mktemp("models") / "small"
    tiny("bert").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_the_changed_head_is_found(found):
    heads = [str(head) for head in found.heads]
    assert heads[int(found.apart.argmax())] == f"{LAYER}.{HEAD}"
    assert found.apart_low.max() > 5 * found.apart.median()
    surely = {heads[n] for n in (found.p_value[0] < 0.01).any(1).nonzero().flatten().tolist()}
    later = {head for head in heads if head.startswith("5.")}  # downstream of the changed head
    assert f"{LAYER}.{HEAD}" in surely
    assert surely <= {f"{LAYER}.{HEAD}"} | later
    entropy = found.statistics.index("entropy")
    at = heads.index(f"{LAYER}.{HEAD}")
    assert found.change_high[0, at, entropy] < 0
    torch.testing.assert_close(
        found.change[0], found.mean.diff(dim=0)[0], atol=1e-6, rtol=0, equal_nan=True
    )


def test_unchanged_heads_are_exactly_equal(found):
    before = [n for n, head in enumerate(found.heads) if head.layer < LAYER]
    assert found.apart[before].max() == 0
    assert np.nanmax(np.abs(found.change[0, before].numpy())) == 0
    assert found.p_value[0, before].min() == 1


def test_the_divergence_matches_scipy():
    P, Q = torch.rand(2, 50, 7, generator=torch.Generator().manual_seed(0)).double()
    P, Q = P / P.sum(-1, keepdim=True), Q / Q.sum(-1, keepdim=True)
    expected = jensenshannon(P.numpy(), Q.numpy(), base=2, axis=1) ** 2
    np.testing.assert_allclose(divergence(P, Q).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("bert", "The heads differ: all-MiniLM-L6-v2 .BertModel. has 72, "),
        ("t5", "reads one text"),
    ],
)
def test_models_that_cannot_be_compared_are_refused(family, said, texts, model, tokenizer):
    other = attnviz.load(tiny(family, torch.float32), tokenizer=tokenizer)
    with pytest.raises(InputError, match=said):
        attnviz.compare(texts[:2], models=(model, other))


def test_another_vocabulary_is_refused(texts, small, tmp_path):
    vocabulary = json.loads((small / "tokenizer.json").read_text())
    ids = vocabulary["model"]["vocab"]
    ids["train"], ids["cat"] = ids["cat"], ids["train"]
    for path in small.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "tokenizer.json").write_text(json.dumps(vocabulary))
    with pytest.raises(InputError, match="make different tokens of text"):
        attnviz.compare(texts[:3], models=(small, tmp_path))
