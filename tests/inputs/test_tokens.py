"""Texts that come as ids, as a tokenizer's output, or as messages: the same as the text itself."""

import copy

import numpy as np
import pytest
import torch
from families import tiny

import attnviz
from attnviz import InputError

TEXT = "the train left the unbelievable station, on time"
TEMPLATE = (
    "{% for m in messages %}[CLS] {{ m.role }}: {{ m.content }} [SEP]{% endfor %}"
    "{% if add_generation_prompt %}[CLS] assistant:{% endif %}"
)
CHAT = [
    {"role": "user", "content": "why did the train leave?"},
    {"role": "assistant", "content": "it was late"},
]
GIVEN = {
    "an encoding": lambda t: t(TEXT),
    "tensors": lambda t: t(TEXT, return_tensors="pt"),
    "arrays": lambda t: t(TEXT, return_tensors="np"),
    "padded": lambda t: t(TEXT, padding="max_length", max_length=40, return_tensors="pt"),
    "a mapping": lambda t: dict(t(TEXT)),
    "ids": lambda t: t(TEXT)["input_ids"],
    "a tuple": lambda t: tuple(t(TEXT)["input_ids"]),
    "a tensor": lambda t: torch.tensor(t(TEXT)["input_ids"]),
    "a row": lambda t: torch.tensor([t(TEXT)["input_ids"]]),
    "an array": lambda t: np.array(t(TEXT)["input_ids"]),
}


@pytest.fixture(scope="module")
def written(small):
    return small.attend(TEXT)


@pytest.fixture(scope="module")
def talking(tokenizer):
    """A decoder whose tokenizer has a chat template."""
    templated = copy.deepcopy(tokenizer)
    templated.chat_template = TEMPLATE
    return attnviz.load(tiny("llama"), tokenizer=templated)


@pytest.mark.parametrize("kind", GIVEN)
def test_ids_are_read_as_their_text(kind, small, tokenizer, written):
    result = small.attend(GIVEN[kind](tokenizer))
    assert result.records[0].query_axis == written.records[0].query_axis
    assert torch.equal(result.weights(), written.weights())
    assert result.provenance.text == TEXT
    assert result.notes == (f"read as {len(written.tokens)} token ids",)
    assert result.agreement.verdict == "verified"
    assert result.agreement.parts["positions"] == "verified"


@pytest.fixture(scope="module")
def exact_model(tokenizer):
    """Batches of different sizes differ in float32 by what a processor's library rounds."""
    return attnviz.load(tiny("bert").double(), tokenizer=tokenizer)


def test_rows_of_an_encoding_are_several_texts(exact_model, tokenizer):
    model, texts = exact_model, [TEXT, "the cat"]
    several = model.attend(tokenizer(texts, padding=True, return_tensors="pt"))
    for result, text in zip(several, texts, strict=True):
        assert result.provenance.text == text
        torch.testing.assert_close(
            result.weights(), model.attend(text).weights(), rtol=0, atol=1e-6
        )


def test_a_mask_of_any_type_and_rows_of_any_length(small, tokenizer):
    there = tokenizer("the train left", return_tensors="pt")
    ids, mask = there["input_ids"], there["attention_mask"]
    for of in (mask.bool(), mask.bfloat16(), mask.numpy(), mask[0].tolist(), None):
        assert small.attend({"input_ids": ids, "attention_mask": of}).tokens[1:3] == (
            "the",
            "train",
        )
    with pytest.raises(InputError, match="a mask of another shape than its ids"):
        small.attend({"input_ids": ids, "attention_mask": mask[:, :3]})
    with pytest.raises(InputError, match="a mask of another shape than its ids"):
        small.attend({"input_ids": ids, "attention_mask": 1})
    with pytest.raises(InputError, match="are whole numbers, one for each token"):
        small.attend(torch.tensor(5))
    with pytest.raises(InputError, match="holds a mask that hides tokens inside it"):
        small.attend([{"input_ids": ids, "attention_mask": [1, 0, 1, 1, 1]}])
    ragged = tokenizer(["the train left", "the train"])
    assert [len(result.tokens) for result in small.attend(ragged)] == [5, 4]
    assert len(small.attend(np.array(["the train", "left"]))) == 2
    labels = np.array(["a", "b", "c", "d", "e"])
    assert (
        small.attend(inputs={"input_ids": ids}, queries=labels).records[0].query_axis.labels[1]
        == "b"
    )


def test_texts_and_ids_in_one_list(exact_model, tokenizer):
    written = exact_model.attend(TEXT)
    mixed = exact_model.attend([TEXT, tokenizer(TEXT), tokenizer(TEXT)["input_ids"]])
    assert len({result.tokens for result in mixed}) == 1
    for result in mixed:
        torch.testing.assert_close(result.weights(), written.weights(), rtol=0, atol=1e-6)


def test_a_pair_of_ids_keeps_its_boundary(small, tokenizer):
    one, other = "the train left.", "it was late."
    result = small.attend(tokenizer(one, other))
    expected = small.attend(one, pair=other)
    assert (result.provenance.text, result.provenance.pair) == (one, other)
    assert result.records[0].query_axis == expected.records[0].query_axis
    assert torch.equal(result.weights(), expected.weights())
    assert attnviz.attention_map(result, layer=0, head=0).boundary == (6, 6)


def test_what_is_left_out_of_ids_is_said(small, tokenizer):
    ids = tokenizer(TEXT)["input_ids"]
    padded = {"input_ids": [0, 0, *ids], "attention_mask": [0, 0, *[1] * len(ids)]}
    decoder = attnviz.load(tiny("gpt2"), tokenizer=tokenizer)
    typed = decoder.attend({"input_ids": ids, "token_type_ids": [0] * len(ids)})
    for result, said in (
        (decoder.attend(padded), "left out 2 padding tokens before the text"),
        (decoder.attend(inputs=padded), "left out 2 padding tokens before the text"),
        (typed, "token_type_ids left out: the model has no table of segments"),
    ):
        assert said in result.notes
        assert said in result.agreement.input.differs
    split = small.attend(ids, special_tokens="split")
    assert "special tokens of token ids and chats are kept, not split" in split.notes


def test_ids_are_a_reference_and_begin_a_target(small, tokenizer):
    text, other = "the train left the station", "the bank left the station"
    ids = tokenizer(other)["input_ids"]
    expected = attnviz.shift("left", text, reference=other, model=small)
    for given in (torch.tensor(ids), tokenizer(other)):
        shifted = attnviz.shift("left", text, reference=given, model=small)
        assert torch.equal(shifted.raw_attention, expected.raw_attention)
    decoder = attnviz.load(tiny("t5"), tokenizer=tokenizer)
    first = attnviz.explain(text, decoder=[101, 2009], model=decoder)
    again = attnviz.explain(text, decoder=torch.tensor([101, 2009]), model=decoder)
    assert torch.equal(first.credit.nan_to_num(), again.credit.nan_to_num())


def test_ids_that_the_tokenizer_would_not_choose(small, tokenizer):
    pieces = ["[CLS]", "the", "pl", "##ay", "left", "[SEP]"]
    assert tokenizer.tokenize("play") == ["play"]
    result = small.attend(tokenizer.convert_tokens_to_ids(pieces))
    assert list(result.tokens) == pieces
    assert result.words == ("[CLS]", "the", "play", "left", "[SEP]")
    assert result.agreement.verdict == "verified"


def test_a_mask_token_is_a_word_and_padding_is_not_read(small, tokenizer):
    ids = tokenizer("the [MASK] left")["input_ids"]
    result = small.attend(ids)
    expected = small.attend("the [MASK] left", special_tokens="parse")
    assert result.records[0].query_axis.special == (True, False, False, False, True)
    assert result.tokens == expected.tokens
    assert torch.equal(result.weights(), expected.weights())


def test_ids_are_cut_and_streamed(tokenizer):
    module = tiny("bert")
    module.config.max_position_embeddings = 12
    model = attnviz.load(module, tokenizer=tokenizer)
    ids = [101, *tokenizer("the", add_special_tokens=False)["input_ids"] * 600, 102]
    with pytest.raises(InputError, match=r"has 602 tokens, and .* can read at most 12"):
        model.attend(ids)
    cut = model.attend(ids, truncate=True)
    assert len(cut.tokens) == 12
    assert cut.provenance.cut_from == 602
    streamed = model.attend(tokenizer(TEXT), mode="streamed")
    assert streamed.tokens == model.attend(TEXT).tokens


def test_a_chat_goes_through_the_template(talking):
    result = talking.attend(CHAT)
    text = "[CLS] user: why did the train leave? [SEP][CLS] assistant: it was late [SEP]"
    assert result.provenance.text == text
    assert result.tokens == tuple(
        text.replace(":", " :").replace("?", " ?").replace("][", "] [").split()
    )
    special = result.records[0].query_axis.special
    assert [label for label, flag in zip(result.tokens, special, strict=True) if flag] == [
        "[CLS]", "[SEP]", "[CLS]", "[SEP]",
    ]  # fmt: skip
    assert result.notes == ("a chat of 2 messages, by the tokenizer's template",)
    assert result.agreement.verdict == "verified"


def test_a_chat_asks_for_an_answer_only_where_tokens_are_generated(talking):
    assert talking.attend(CHAT[:1]).tokens[-1] == "[SEP]"
    answered = talking.attend(CHAT[:1], generate=3)  # the last one is not read
    assert answered.tokens[-5:-2] == ("[CLS]", "assistant", ":")
    assert len(answered.tokens) == len(talking.attend(CHAT[:1]).tokens) + 5


WRONG = {
    "no template": (lambda m, t: m.attend(CHAT), "has no chat template, so it reads no messages"),
    "large ids": (lambda m, t: m.attend([99999]), "99999 is not a token id of BertForMaskedLM"),
    "negative ids": (lambda m, t: m.attend([-1]), "-1 is not a token id"),
    "special ids": (lambda m, t: m.attend([101, 102]), "leave no token but special ones"),
    "floats": (lambda m, t: m.attend(torch.tensor([1.5])), "are whole numbers, one for each"),
    "three dimensions": (
        lambda m, t: m.attend(torch.zeros(1, 1, 1, dtype=torch.int64)), "are whole numbers",
    ),
    "truth values": (lambda m, t: m.attend([True]), "must be a string, not bool"),
    "a mapping": (lambda m, t: m.attend({"a": 1}), "takes no argument 'a'"),
    "one message": (lambda m, t: m.attend(CHAT[0]), "A chat is a list of messages."),
    "an image": (
        lambda m, t: m.attend({"input_ids": [[101, 1996]], "pixel_values": 0}),
        "takes no argument 'pixel_values'",
    ),
    "a pair": (lambda m, t: m.attend(t(TEXT), pair="x"), "read alone, without the pair"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_other_input_is_refused_in_one_line(name, small, tokenizer):
    call, message = WRONG[name]
    with pytest.raises(InputError) as caught:
        call(small, tokenizer)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_template_that_refuses_is_one_line(talking):
    strict = copy.deepcopy(talking.tokenizer)
    strict.chat_template = "{{ raise_exception('roles must alternate') }}"
    model = attnviz.load(talking.module, tokenizer=strict)
    with pytest.raises(InputError, match=r"refuses these messages: roles must alternate\."):
        model.attend(CHAT)
