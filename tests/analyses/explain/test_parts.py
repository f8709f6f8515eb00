"""Which sentence, passage or part of a text an answer comes from."""

import dataclasses
import math

import pytest
import torch
from families import tiny
from transformers import BertConfig, BertForSequenceClassification, LlamaModel

import attnviz
from attnviz import InputError
from attnviz.attribution.interventions import AttentionKnockout

SHORT = "the old train left.\n\nthe dog likes the bank.\n\na man"


@pytest.fixture(scope="module")
def decoder(bare_tokenizer):
    return attnviz.load(tiny("llama"), tokenizer=bare_tokenizer)


@pytest.fixture(scope="module")
def why(decoder):
    return attnviz.explain(SHORT, groups="passage", generate=4, model=decoder)


def log_probabilities(model, ids, answer, hidden=()):
    """Return those of the answer by the model itself, with the attention masked by hand."""
    every = torch.tensor([[*ids, *answer[:-1]]])
    T = every.shape[1]
    visible = torch.ones(T, T).tril().bool()
    for position in hidden:
        visible[[n for n in range(T) if n not in hidden], position] = False
    mask = torch.where(visible, 0.0, torch.finfo(torch.float32).min)[None, None]
    with torch.no_grad():
        logits = model.module(input_ids=every, attention_mask=mask).logits[0].double()
    rows = logits.log_softmax(-1)[len(ids) - 1 :]
    return rows[range(len(answer)), answer]


def test_an_effect_is_what_the_answer_loses_if_attention_to_the_passage_is_masked(decoder, why):
    assert (why.kind, why.number, why.parts) == ("answer", "log-probability", "passage")
    ids = decoder.tokenizer(SHORT).input_ids
    assert why.target.split() == [*why.answer]
    answer = decoder.module.generate(
        torch.tensor([ids]), max_new_tokens=4, do_sample=False, pad_token_id=0
    )[0, len(ids) :].tolist()
    whole = log_probabilities(decoder, ids, answer)
    assert why.value == pytest.approx(whole.sum().item(), abs=1e-4)
    for index in why.sources:
        lost = whole - log_probabilities(decoder, ids, answer, why.positions[index])
        assert why.by_answer[:, index].sum().item() == pytest.approx(lost.sum().item(), abs=1e-4)
        assert why.causal["knock-out"][index].item() == pytest.approx(lost.sum().item(), abs=1e-4)
    assert why.agreement.verdict == "verified"
    assert why.probability == pytest.approx(math.exp(why.value))


def test_the_effects_on_words_sum_to_that_on_the_answer_with_labels(why):
    torch.testing.assert_close(why.by_answer.sum(0), why.effect, equal_nan=True)
    assert why.labels()["answer"] == [*why.answer]
    frame = why.to_frame()
    assert frame["word"].tolist() == [*why.words]
    columns = [name for name in frame if name.startswith("answer ")]
    assert len(columns) == len(why.answer) == len(why.by_answer) > 1
    for name, word, lost in zip(columns, why.answer, why.by_answer, strict=True):
        assert name.startswith(f"answer {word}")
        assert frame[name].tolist() == pytest.approx(lost.tolist(), nan_ok=True)


def test_the_part_that_the_model_goes_on_from_is_not_hidden(why):
    assert why.words == ("the old train left.", "the dog likes the bank.", "a man")
    assert why.unmeasured == (2,)
    assert why.sources == [0, 1]
    assert math.isnan(why.causal["knock-out"][2])
    positions = [n for rows in why.positions for n in rows]
    assert positions == sorted({*positions})  # of the text alone, each in one part


def test_given_parts_keep_their_order_and_one_token_alone_is_not_measured(decoder):
    parts = ["the dog likes the bank.", "the", "train left."]
    why = attnviz.explain(SHORT, groups=parts, model=decoder, target="dog")
    assert why.words == ("the dog likes the bank.", "the", "train left.")
    assert why.unmeasured == (1,)  # the first token, which stays readable
    assert why.positions[1] == ()
    assert not any("not measured" in note for note in why.notes)


def test_a_target_is_no_part_of_a_source(tokenizer):
    model = attnviz.load(tiny("t5"), tokenizer=tokenizer)
    why = attnviz.explain(SHORT, groups="passage", decoder="the man", model=model)
    assert why.words == ("the old train left.", "the dog likes the bank.", "a man")
    assert why.unmeasured == ()


def test_a_similarity_masks_parts(model):
    text = "The dog likes the bank. A man sees the river."
    why = attnviz.explain(text, groups="sentence", similar_to="a river bank", model=model)
    assert [*why.causal] == ["mask"]
    assert why.headline == "Sentence 2 raises the similarity to “a river bank” most"
    assert "Masking sentence 2 lowers it by" in why.finding


def test_a_part_that_lowers_the_answer_is_named_so(why):
    lowers = torch.tensor([3.0, -4.0, float("nan")], dtype=torch.float64)
    other = dataclasses.replace(why, causal={"knock-out": lowers})
    assert other.headline == f"Passage 2 lowers {other.question} most"
    assert "Hiding passage 2 raises it by 4.00 nats; no other lowers it." in other.finding
    both = dataclasses.replace(why, causal={"knock-out": lowers - 3.1})
    assert "the next in this direction is passage 1 with 0.10." in both.finding


def test_sentences_and_given_parts_are_hidden_alike(decoder):
    parts = [["the old train left.", "the dog likes the bank."], "sentence"]
    given, sentences = (
        attnviz.explain(SHORT, groups=by, model=decoder, target="dog") for by in parts
    )
    assert (given.parts, sentences.parts) == ("part", "sentence")
    assert sentences.words[:2] == given.words
    assert torch.equal(given.causal["knock-out"], sentences.causal["knock-out"][:2])
    assert given.decomposition is sentences.decomposition is None


def test_a_classifier_is_explained_by_the_sentences_of_a_pair(tokenizer):
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        num_labels=3, initializer_range=0.3,
    )  # fmt: skip
    module = BertForSequenceClassification(config).eval()
    model = attnviz.load(module, tokenizer=tokenizer)
    first, second = "the dog left. the bank is old.", "a man likes the river."
    why = attnviz.explain(first, pair=second, groups="sentence", model=model)
    assert why.words == ("the dog left.", "the bank is old.", "a man likes the river.")
    assert (why.kind, why.unmeasured, [*why.causal]) == ("class", (), ["knock-out"])
    encoded = tokenizer(first, second, return_tensors="pt")
    T = encoded.input_ids.shape[1]
    for n in why.sources:
        rows = [*why.positions[n]]
        visible = torch.ones(T, T).bool()
        visible[:, rows] = False
        visible[torch.tensor(rows)[:, None], torch.tensor(rows)] = True
        with torch.no_grad():
            logits = [
                module(**{**encoded, "attention_mask": mask}).logits[0].double()
                for mask in (encoded.attention_mask, visible[None, None])
            ]
        (whole, without), top = logits, logits[0].topk(2).indices
        difference = (whole - without)[top]
        lost = (
            difference[0] - difference[1]
            if why.against
            else (whole.log_softmax(-1) - without.log_softmax(-1))[top[0]]
        )
        assert why.causal["knock-out"][n].item() == pytest.approx(lost.item(), abs=1e-4)


def test_a_result_is_saved_and_drawn(why, tmp_path):
    attnviz.save_result(why, tmp_path / "why.safetensors")
    loaded = attnviz.load_result(tmp_path / "why.safetensors")
    assert torch.equal(loaded.by_answer.nan_to_num(), why.by_answer.nan_to_num())
    assert loaded.headline == why.headline
    texts = [text.get_text() for text in why.plot().findobj(lambda one: hasattr(one, "get_text"))]
    assert {*why.answer, "in all"} <= {*texts}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"groups": ["no such part"]}, "'no such part' is not in the text"),
        ({"groups": "chapter"}, "'chapter' is not in the text"),
        ({"groups": []}, "The text has 0 such parts"),
        ({"groups": "passage", "text": "one passage"}, "The text has 1 passage"),
        ({"groups": "passage", "reference": "mask"}, "parts of a text are hidden"),
        ({"groups": "passage", "methods": "rollout"}, "methods cannot be used"),
        ({"groups": ["the old", "old train"]}, "overlap. Name each word once"),
        ({"groups": "passages"}, "Did you mean"),
        ({"groups": "passage", "word": "dog"}, "word cannot be used"),
        ({"groups": "passage", "generate": 2, "target": "dog"}, "the whole answer is explained"),
    ],
)
def test_what_cannot_be_is_said(decoder, arguments, message):
    with pytest.raises(InputError, match=message):
        attnviz.explain(**({"text": SHORT, "model": decoder} | arguments))


def test_ten_passages_take_twelve_forwards_of_the_prompt(decoder, monkeypatch):
    text = "\n\n".join([*["the old bank."] * 10, "a man"])
    sizes, forward = [], LlamaModel.forward

    def counted(self, input_ids=None, **more):
        sizes.append(input_ids.shape)
        return forward(self, input_ids, **more)

    monkeypatch.setattr(LlamaModel, "forward", counted)
    why = attnviz.explain(text, groups="passage", generate=2, model=decoder)
    T = len(decoder.tokenizer(text).input_ids)
    assert len(why.sources) == 10
    assert sum(count for count, tokens in sizes if tokens >= T) == 12
    assert sum(count * tokens for count, tokens in sizes if tokens < T) < T


@pytest.mark.parametrize("fault", [1.01, 0.0])
def test_other_numbers_than_those_of_the_model_are_not_verified(decoder, monkeypatch, fault):
    softmax = AttentionKnockout.softmax

    def planted(self, original, scores, options):
        return softmax(self, original, scores * fault, options)

    monkeypatch.setattr(AttentionKnockout, "softmax", planted)
    why = attnviz.explain(SHORT, groups="passage", generate=4, model=decoder)
    assert why.agreement.verdict == "failed"


def test_the_verdict_names_what_was_compared(why):
    assert why.agreement.verdict == "verified"
    summary = why.agreement.summary()
    assert summary.startswith("verified: input, logits and the output of the model as loaded (")
    assert summary.endswith(" agree; not compared: weights, positions")
    assert why.agreement.parts["weights"] == "not compared"


def test_a_title_claims_nothing_of_words_that_were_not_changed(decoder):
    why = attnviz.explain("the dog likes the bank", model=decoder)
    effects = torch.zeros(len(why.words))
    effects[2] = 2.0
    options = {
        "causal": {"replace": effects},
        "special": (False,) * len(effects),
        "decomposition": None,
        "methods": {},
    }
    sure = dataclasses.replace(why, unmeasured=(3,), **options)
    assert sure.headline.endswith(" most")
    unsure = dataclasses.replace(why, unmeasured=(0, 3), **options)
    assert unsure.headline == f"{sure.headline} of the words after {sure.name(0)}"
