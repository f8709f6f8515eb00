"""Random texts raise no false alarm, and a scale off by 1 % in any layer is always caught."""

import random
from dataclasses import replace

import pytest
from families import TWO_SIDED, tiny
from fault_table import strain_of
from planting import DTYPES, NO_PROVENANCE, prove_each

import attnviz
from attnviz import agreement
from attnviz.agreement.compare import model_values, prove
from attnviz.capture.capture import capture
from attnviz.inputs.batch import Inputs, encode

TINY = ("bert", "gpt2", "llama", "t5", "reformer")


@pytest.fixture(scope="module")
def random_text(tokenizer):
    """Return a function of a random generator and a maximum length that returns random words."""
    words = sorted(word for word in tokenizer.get_vocab() if word.isalpha())
    return lambda chance, longest: " ".join(chance.choices(words, k=chance.randint(1, longest)))


@pytest.fixture
def check_batches(tokenizer, random_text, tally):
    """Return a check of random batches: verified without a fault, caught with a fault.

    longest : maximum number of words per text.
    """

    def of(family, dtype, batches, longest=40):
        module = None if family == "minilm" else tiny(family, dtype)
        model = attnviz.load(module, dtype=dtype, tokenizer=tokenizer)
        for number in range(batches):
            chance = random.Random(f"{family} {number}")
            several = range(chance.randint(1, 4))
            texts, targets_text = (
                [random_text(chance, longest) for _ in several] for _ in range(2)
            )
            targets = {"targets": targets_text} if family in TWO_SIDED else {}
            batch = encode(model.checkpoint, Inputs(texts, **targets))
            captures = capture(model.module, batch.inputs, batch.axes)
            layer_index = chance.randrange(len(captures[0].records))
            for text, each in enumerate(captures):
                few = family != "minilm" and len(texts[text].split()) < 3
                _check_text(each, layer_index, dtype, tally, f"{texts[text]!r} in {texts}", few)

    return of


def _check_text(captured, layer_index, dtype, tally, description, is_short):
    honest = prove_each(captured)
    report = agreement.report(honest, "", "", **NO_PROVENANCE)
    assert report.first_difference is None, f"{report.summary()}: {description}"
    tally.honest(report.checks, dtype)
    record = captured.records[layer_index]
    if record.place in report.unproven:  # one or two words in a tiny model, and the report says so
        assert is_short, f"{report.summary()}: {description}"
        return
    wrong = replace(record, scale=record.scale * 1.01)
    expected = model_values(wrong, captured.references[layer_index])
    (honest[layer_index],) = prove([(wrong, expected)])
    report = agreement.report(honest, "", "", **NO_PROVENANCE)
    first = report.first_difference
    assert report.verdict == "failed", f"layer {layer_index}: {description}"
    assert (first.stack, first.layer) == (record.stack, record.layer)
    tally.figure("planted", first.stage, dtype, strain_of(first))


@pytest.mark.parametrize("dtype", DTYPES)
def test_batches_of_the_real_model(dtype, check_batches):
    check_batches("minilm", dtype, 1, longest=20)


@pytest.mark.pairs(each=1)  # each model in one dtype, in turn
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", TINY)
def test_batches_of_tiny_models(family, dtype, check_batches):
    check_batches(family, dtype, 1, longest=20)


@pytest.mark.parametrize("dtype", DTYPES[::2])
def test_streamed_texts(dtype, check_streamed):
    check_streamed(dtype, 1, longest=100)


@pytest.fixture
def check_streamed(tokenizer, random_text, tally):
    """Return a check of random streamed texts."""

    def of(dtype, texts, longest=300):
        model = attnviz.load(dtype=dtype)
        for number in range(texts):
            text = random_text(random.Random(number), longest)
            report = attnviz.verify(text, model=model, mode="streamed", truncate=True)
            assert report.verdict == "verified", f"{report.summary()}: {text!r}"
            tally.honest(report.checks, dtype)

    return of
