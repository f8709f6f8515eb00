"""The attention sink of a causal model stays readable in references, and is not measured."""

import pytest
from families import tiny

import attnviz

TEXT = "the bank was full of cash"


def test_without_a_bos_the_first_token_stays_readable_and_is_not_measured(without_bos):
    model = attnviz.load(tiny("llama"), tokenizer=without_bos)
    result = attnviz.shift("cash", TEXT, model=model, methods=["split"])
    assert result.sink == 0
    assert result.credit[0].isnan()
    assert 0 not in result.sources
    assert all(effect[0].isnan() for effect in result.causal.values())
    assert "the first token stays readable, so its part is not measured" in result.notes
    assert "the first token" in result.reference
    assert result.decomposition.credit_error < 1e-5
    assert result.plot() is not None


_EACH_MESSAGE = "{% for m in messages %}[CLS]{{ m.role }} {{ m.content }}[SEP]{% endfor %}"
_ONCE = "[CLS]{% for m in messages %}{{ m.role }} {{ m.content }}[SEP]{% endfor %}"


@pytest.mark.parametrize(
    ("template", "token"),
    [
        (None, "[CLS]"),
        (_ONCE, "[CLS]"),
        (_EACH_MESSAGE, "[unused7]"),
        ("{{ raise_exception('no system message') }}", "[CLS]"),
        ("{% if", "[CLS]"),
    ],
)
def test_a_token_that_begins_each_message_of_a_chat_does_not_begin_a_text(
    without_bos, template, token
):
    without_bos.bos_token, without_bos.chat_template = "[CLS]", template
    without_bos.eos_token = "[unused7]"
    model = attnviz.load(tiny("llama"), tokenizer=without_bos)
    result = attnviz.shift("cash", TEXT, model=model)
    assert f"read with {token} before it" in result.notes
    assert result.tokens[0] == result.words[0] == token
    assert result.sink is None
    assert result.special == (True, *[False] * 6)
    assert result.credit[1].abs() > 0


def test_a_bos_stands_before_the_reference_and_the_regions_too(without_bos):
    without_bos.bos_token = "[CLS]"
    model = attnviz.load(tiny("llama"), tokenizer=without_bos)
    result = attnviz.shift(
        "bank", "The mud was at the bank", reference="The tax was at the bank",
        toward={"one": ["mud at the bank"], "other": ["cash at the bank"]}, model=model,
    )  # fmt: skip
    assert result.decomposition.error < 1e-5
    assert result.replaced[2] == "tax"


def test_an_encoder_without_special_tokens_has_no_sink(without_bos):
    model = attnviz.load(tiny("bert"), tokenizer=without_bos)
    result = attnviz.shift("cash", TEXT, model=model)
    assert (result.sink, result.words[0]) == (None, "the")
