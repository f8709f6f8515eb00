"""The attention sink of a causal model stays readable in references, and is not measured."""

import copy

import pytest
from families import tiny

import attnviz
from attnviz.attribution.deeplift import DeepLift
from attnviz.attribution.interventions import AttentionKnockout
from attnviz.attribution.reference import first_token, gate_of, read

TEXT = "the bank was full of cash"


@pytest.fixture
def without_bos(bare_tokenizer):
    """A tokenizer that adds no special tokens, and has no BOS token yet."""
    assert bare_tokenizer.bos_token is None
    return copy.deepcopy(bare_tokenizer)


def test_the_gate_keeps_the_sink():
    gate = gate_of((False, False, False), sink=0)
    assert gate.tolist() == [[True, False, False], [True, True, False], [True, False, True]]


@pytest.mark.parametrize("bos", [None, "[CLS]"])
@pytest.mark.parametrize("analysis", ["shift", "explain"])
def test_no_run_hides_the_sink(analysis, bos, without_bos, monkeypatch):
    """Neither in references nor in knocked-out words. The parts add up, even if one does."""
    seen = {DeepLift: [], AttentionKnockout: []}

    def watch(tracer):
        softmax = tracer.softmax

        def watched(self, original, scores, options):
            weights = softmax(self, original, scores, options)
            seen[tracer].append(weights[..., 0].min())
            return weights

        monkeypatch.setattr(tracer, "softmax", watched)

    watch(DeepLift)
    watch(AttentionKnockout)
    without_bos.bos_token = bos
    model = attnviz.load(tiny("llama"), tokenizer=without_bos)
    words = ("cash",) if analysis == "shift" else ()
    getattr(attnviz, analysis)(*words, TEXT, methods="partial-split", model=model)
    assert all(weights and min(weights) > 0 for weights in seen.values())


def test_without_a_bos_the_first_token_stays_readable_and_is_not_measured(without_bos):
    model = attnviz.load(tiny("llama"), tokenizer=without_bos)
    reading = read(model, TEXT)
    assert (reading.bos, reading.sink) == (None, 0)
    result = attnviz.shift("cash", TEXT, model=model, methods=["split"])
    assert result.sink == 0
    assert result.credit[0].isnan()
    assert 0 not in result.sources
    assert all(effect[0].isnan() for effect in result.causal.values())
    assert "the first token stays readable, so its part is not measured" in result.notes
    assert "the first token" in result.reference
    assert result.decomposition.credit_error < 1e-5
    assert result.plot() is not None


def test_a_bos_is_read_before_the_text(without_bos):
    without_bos.bos_token = "[CLS]"
    model = attnviz.load(tiny("llama"), tokenizer=without_bos)
    result = attnviz.shift("cash", TEXT, model=model)
    assert result.sink is None
    assert result.words[0] == "[CLS]"
    assert result.special == (True, *[False] * 6)
    assert "read with [CLS] before it" in result.notes
    assert result.credit[1].abs() > 0


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
    assert without_bos.convert_ids_to_tokens(first_token(without_bos)) == token
    model = attnviz.load(tiny("llama"), tokenizer=without_bos)
    assert f"read with {token} before it" in read(model, TEXT).notes


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
    reading = read(model, TEXT)
    assert (reading.bos, reading.sink) == (None, None)
