"""Random texts raise no false alarm, and a scale off by 1 % in any layer is always caught."""

import random
from dataclasses import replace

import pytest
from families import TWO_SIDED, tiny
from planting import DTYPES, NO_PROVENANCE, prove_each

import attnviz
from attnviz import agreement
from attnviz.agreement.compare import model_values, prove
from attnviz.capture.capture import capture
from attnviz.inputs.batch import Inputs, encode


@pytest.fixture(scope="module")
def random_text(tokenizer):
    """Return a function of a random generator and a maximum length that returns random words."""
    words = sorted(word for word in tokenizer.get_vocab() if word.isalpha())
    return lambda chance, longest: " ".join(chance.choices(words, k=chance.randint(1, longest)))


@pytest.mark.pairs(each=1)  # each model in one dtype, in turn
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["minilm", "bert", "gpt2", "llama", "t5", "reformer"])
def test_a_batch_is_verified_without_a_fault_and_caught_with_one(
    family, dtype, tokenizer, random_text
):
    module = None if family == "minilm" else tiny(family, dtype)
    model = attnviz.load(module, dtype=dtype, tokenizer=tokenizer)
    chance = random.Random(f"{family} 0")
    several = range(chance.randint(1, 4))
    texts, targets = ([random_text(chance, 20) for _ in several] for _ in range(2))
    inputs = Inputs(texts, targets=targets) if family in TWO_SIDED else Inputs(texts)
    batch = encode(model.checkpoint, inputs)
    captures = capture(model.module, batch.inputs, batch.axes)
    at = chance.randrange(len(captures[0].records))
    for text, captured in zip(texts, captures, strict=True):
        proofs, record = prove_each(captured), captured.records[at]
        report = agreement.report(proofs, "", "", **NO_PROVENANCE)
        assert report.first_difference is None, f"{report.summary()}: {text!r} in {texts}"
        if record.place in report.unproven:  # one or two words in a tiny model
            assert family != "minilm"
            assert len(text.split()) < 3, f"{report.summary()}: {text!r} in {texts}"
            continue
        wrong = replace(record, scale=record.scale * 1.01)
        (proofs[at],) = prove([(wrong, model_values(wrong, captured.references[at]))])
        first = agreement.report(proofs, "", "", **NO_PROVENANCE).first_difference
        assert (first.stack, first.layer) == (record.stack, record.layer)


@pytest.mark.parametrize("dtype", DTYPES[::2])
def test_streamed_texts(dtype, random_text):
    text = random_text(random.Random(0), 100)
    report = attnviz.verify(text, model=attnviz.load(dtype=dtype), mode="streamed", truncate=True)
    assert report.verdict == "verified", f"{report.summary()}: {text!r}"
