"""The span of a text that answers a question, and the words that it comes from."""

import pytest
import torch
from transformers import BertConfig, BertForQuestionAnswering

import attnviz
from attnviz import InputError

QUESTION = "Where is the tower?"
CONTEXT = "The tower stands in Paris, near the old river. What is it made of, and by whom?"


@pytest.fixture(scope="module")
def answers(tokenizer):
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        initializer_range=0.5,
    )  # fmt: skip
    return attnviz.load(BertForQuestionAnswering(config).eval(), tokenizer=tokenizer)


def of_spans(answers, masked=()):
    """Return the log-probability of each span of the second text, by first and last position."""
    encoded = answers.tokenizer(QUESTION, CONTEXT, return_tensors="pt")
    encoded.input_ids[0, [*masked]] = answers.tokenizer.mask_token_id
    with torch.no_grad():
        outputs = answers.module(**encoded)
    first = encoded.token_type_ids[0].tolist().index(1)
    inside = range(first, encoded.input_ids.shape[1] - 1)
    logits = {
        (n, m): (outputs.start_logits[0, n] + outputs.end_logits[0, m]).item()
        for n in inside for m in inside if n <= m < n + 30
    }  # fmt: skip
    whole = torch.tensor([*logits.values()]).double().logsumexp(0).item()
    return {span: logit - whole for span, logit in logits.items()}


def positions_of(answers, phrase):
    """Return the first and the last position of a phrase in the second text."""
    ids = answers.tokenizer(QUESTION, CONTEXT).input_ids
    found = answers.tokenizer(phrase, add_special_tokens=False).input_ids
    starts = [n for n in range(len(ids)) if ids[n : n + len(found)] == found]
    return starts[-1], starts[-1] + len(found) - 1


def test_the_most_probable_span_is_explained(answers):
    why = attnviz.explain(QUESTION, pair=CONTEXT, model=answers, methods=())
    spans = of_spans(answers)
    best = max(spans, key=spans.get)
    assert (why.kind, why.number, why.against) == ("span", "log-probability", None)
    assert why.value == pytest.approx(spans[best], abs=1e-5)
    assert best == positions_of(answers, why.target)
    assert why.target in CONTEXT
    assert why.completeness_error < 1e-5
    assert why.agreement.verdict == "verified"
    assert why.plot().axes


def test_an_effect_is_what_a_span_loses_if_the_word_is_masked(answers):
    options = {"pair": CONTEXT, "model": answers, "methods": ()}
    why = attnviz.explain(QUESTION, target="the tower", **options)
    parts = attnviz.explain(QUESTION, target="the tower", groups=["old", "Where"], **options)
    assert why.target == "The tower"  # of the text, not of the question
    span = positions_of(answers, "The tower")
    assert {*why.causal} == {"mask", "replace"}  # the states of a hidden word would still count
    for word in ("old", "Where"):
        index = why.words.index(word)
        lost = why.value - of_spans(answers, why.positions[index])[span]
        assert why.causal["mask"][index] == pytest.approx(lost, abs=1e-4)
        part = parts.words.index(word)
        assert parts.causal["mask"][part] == pytest.approx(lost, abs=1e-4)


def test_two_spans_are_compared_by_their_logits(answers):
    why = attnviz.explain(
        QUESTION, pair=CONTEXT, target="in Paris", against="river", model=answers, methods=()
    )
    spans = of_spans(answers)
    one, other = (spans[positions_of(answers, text)] for text in ("in Paris", "river"))
    assert why.number == "difference"
    assert why.value == pytest.approx(one - other, abs=1e-4)


@pytest.mark.parametrize("target", ["is", "in London", "Where is"])
def test_a_span_is_of_whole_words_of_the_second_text(target, answers):
    if target == "is":  # not that of "Paris", which stands before it
        why = attnviz.explain(QUESTION, pair=CONTEXT, target=target, model=answers, methods=())
        assert why.value == pytest.approx(of_spans(answers)[positions_of(answers, "is")], abs=1e-5)
        return
    with pytest.raises(InputError, match=f"{target}' is not in the text"):
        attnviz.explain(QUESTION, pair=CONTEXT, target=target, model=answers)
