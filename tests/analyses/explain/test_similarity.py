"""Why two texts are similar: the cosine of their embeddings, explained by words."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from families import tiny
from torch.nn.functional import cosine_similarity
from transformers import BertConfig, BertModel

import attnviz
from attnviz import InputError

TEXT = "I would like to return these shoes because they are too small."
OTHER = "Refund for footwear"


@pytest.fixture(scope="module")
def why(model):
    return attnviz.explain(TEXT, similar_to=OTHER, model=model, methods=("partial-split",))


@torch.no_grad()
def cosine(model, text, other=OTHER, rows=slice(None)):
    """Return the cosine of both texts, in float64, from the states of the module itself."""
    tokens = (model.tokenizer(one, return_tensors="pt") for one in (text, other))
    embeddings = [model.module(**one).last_hidden_state[0, rows].double().mean(0) for one in tokens]
    return cosine_similarity(*embeddings, dim=0).item()


def test_the_number_is_the_cosine_of_the_pooled_states(why, model):
    assert (why.kind, why.number, why.target) == ("similarity", "similarity", OTHER)
    assert why.value == pytest.approx(cosine(model, TEXT), abs=1e-6)
    masked = " ".join([model.tokenizer.mask_token] * (len(why.tokens) - 2))
    assert why.baseline == pytest.approx(cosine(model, masked), abs=1e-5)
    assert why.credit.nansum().item() <= why.total + 1e-6  # rounding
    assert why.decomposition.credit.sum().item() == pytest.approx(why.total, abs=1e-5)
    assert why.agreement.verdict == "verified"
    assert "similarity" in why.agreement.summary()


def test_an_effect_is_what_the_text_without_the_word_loses(why, model):
    assert {*why.causal} == {"mask", "delete", "replace"}  # no knock-out: a word is in the mean
    for index in why.sources:
        words = [word for n, word in enumerate(why.words[1:-1], 1) if n != index]
        lost = cosine(model, TEXT) - cosine(model, " ".join(words))
        assert why.causal["delete"][index].item() == pytest.approx(lost, abs=1e-5)


def test_the_word_with_the_same_meaning_is_named(why):
    assert why.headline == f"“shoes” raises the similarity to “{OTHER}” most"
    assert why.names[why.first(why.methods["partial-split"])] == "shoes"
    assert "0.03 with all words masked" in why.finding
    assert "points of cosine" in why.finding


def test_the_word_that_a_hand_made_model_shares_is_the_only_one_that_counts(model):
    tokenizer = model.tokenizer
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32,
    )  # fmt: skip
    module = BertModel(config, add_pooling_layer=False).eval()
    with torch.no_grad():  # blocks that add nothing: an embedding is the mean of those of words
        for name, parameter in module.named_parameters():
            if "output.dense" in name or "position" in name or "token_type" in name:
                parameter.zero_()
        table = module.embeddings.word_embeddings.weight
        for word in ("[CLS]", "[SEP]"):
            table[tokenizer.convert_tokens_to_ids(word)] = 0
        table[:, :2], river = 0, tokenizer.convert_tokens_to_ids("river")  # orthogonal to others
        table[river] = torch.tensor([9.0, -9.0] + [0.0] * 62)
    hand_made = attnviz.load(module, tokenizer=tokenizer)
    why = attnviz.explain("we sat near the old river", similar_to="river", model=hand_made)
    assert why.headline == "“river” raises the similarity to “river” most"
    assert "as no pooling is known" in " ".join(why.notes)
    credit = dict(zip(why.names, why.credit.tolist(), strict=True))
    assert all(credit["river"] > 3 * abs(of) for name, of in credit.items() if name != "river")


@pytest.mark.parametrize(
    ("mode", "rows"), [("cls_token", slice(1)), ("lasttoken", slice(-1, None))]
)
def test_the_states_are_pooled_as_the_files_of_the_model_say(tmp_path, model, mode, rows):
    folder = with_pooling(tmp_path, model, {f"pooling_mode_{mode}": True})
    why = attnviz.explain("a river", similar_to="a stream", model=folder, methods=())
    expected = cosine(model, "a river", "a stream", rows)
    assert why.value == pytest.approx(expected, abs=1e-6)


def test_a_pooling_of_another_kind_is_refused(tmp_path, model):
    folder = with_pooling(tmp_path, model, {"pooling_mode_max_tokens": True})
    with pytest.raises(InputError, match="does more than to pool the mean, the first or the last"):
        attnviz.explain("a river", similar_to="a stream", model=folder)


def with_pooling(tmp_path, model, modes):
    """Return a folder with the bundled model and another configuration of its pooling."""
    folder = tmp_path / "model"
    shutil.copytree(Path(model.module.name_or_path), folder)
    known = {"word_embedding_dimension": 384, "include_prompt": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(known | modes))
    return str(folder)


def test_an_embedding_that_another_layer_changes_is_refused(tmp_path, model):
    folder = Path(with_pooling(tmp_path, model, {"pooling_mode_mean_tokens": True}))
    modules = json.loads((folder / "modules.json").read_text())
    modules[2]["type"] = "sentence_transformers.models.Dense"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(InputError, match="does more than to pool"):
        attnviz.explain("a river", similar_to="a stream", model=str(folder))


def test_a_cosine_is_no_probability(tokenizer):
    module = tiny("bert")
    module.config.problem_type = "multi_label_classification"
    labels = attnviz.load(module, tokenizer=tokenizer)
    why = attnviz.explain("a river", similar_to="a stream", model=labels, methods=())
    assert why.probability != why.probability
    assert "probability" not in why.finding


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("", "In the other text: The text is empty"),
        (["a river", "a stream"], "In the other text: explain reads one text"),
        ("a stream " * 400, "In the other text: The text has 802 tokens"),
    ],
)
def test_a_second_text_that_cannot_be_read_is_refused_as_such(model, other, said):
    with pytest.raises(InputError, match=said):
        attnviz.explain("a river", similar_to=other, model=model)


def test_both_texts_are_cut_if_they_may_be(tokenizer):
    module = tiny("bert")
    module.config.max_position_embeddings = 6
    short = attnviz.load(module, tokenizer=tokenizer)
    texts = "the old river and the bank", "a stream and a river bank"
    first, second = (" ".join(text.split()[:4]) for text in texts)
    cut = attnviz.explain(texts[0], similar_to=texts[1], model=short, truncate=True)
    assert cut.value == attnviz.explain(first, similar_to=second, model=short).value


@pytest.mark.parametrize(
    "given", [{"target": "a"}, {"against": "a"}, {"generate": 2}, {"number": "logit"}]
)
def test_what_belongs_to_a_prediction_is_refused_by_name(model, given):
    (name,) = given
    with pytest.raises(InputError, match=f"{name} cannot be used: a similarity is explained"):
        attnviz.explain(TEXT, similar_to=OTHER, model=model, **given)
