"""Random texts raise no false alarm, and a scale 1 % off in any one layer is always caught."""

import random
from dataclasses import replace

import pytest
from families import TWO_SIDED, tiny
from planted import DTYPES, TOLD, prove_each
from tally import strain_of

import attnviz
from attnviz import agreement
from attnviz.agreement.compare import model_values, prove
from attnviz.capture import capture
from attnviz.inputs import encode

TINY = ("bert", "gpt2", "llama", "t5")


@pytest.fixture(scope="module")
def random_text(tokenizer):
    """Return a text of random words, by a source of chance and the longest that it may be."""
    words = sorted(word for word in tokenizer.get_vocab() if word.isalpha())
    return lambda chance, longest: " ".join(chance.choices(words, k=chance.randint(1, longest)))


@pytest.fixture
def look(tokenizer, random_text, tally):
    """Return what sees random batches of a model: verified as they are, caught with a fault.

    longest : how many words a text has at most.
    """

    def of(family, dtype, batches, longest=40):
        module = None if family == "minilm" else tiny(family, dtype)
        model = attnviz.load(module, dtype=dtype, tokenizer=tokenizer)
        for number in range(batches):
            chance = random.Random(f"{family} {number}")
            several = range(chance.randint(1, 4))
            texts, said = ([random_text(chance, longest) for _ in several] for _ in range(2))
            targets = {"targets": said} if family in TWO_SIDED else {}
            batch = encode(model.checkpoint, texts, **targets)
            captures = capture(model.module, batch.inputs, batch.axes)
            at = chance.randrange(len(captures[0].records))
            for text, each in enumerate(captures):
                few = family != "minilm" and len(texts[text].split()) < 3
                _look_at_text(each, at, dtype, tally, f"{texts[text]!r} in {texts}", few)

    return of


def _look_at_text(captured, at, dtype, tally, which, few):
    honest = prove_each(captured)
    report = agreement.report(honest, "", "", **TOLD)
    assert report.first_difference is None, f"{report.summary()}: {which}"
    tally.honest(report.checks, dtype)
    record = captured.records[at]
    if record.place in report.unproven:  # a word or two in a tiny model: and the report says so
        assert few, f"{report.summary()}: {which}"
        return
    wrong = replace(record, scale=record.scale * 1.01)
    honest[at] = prove(wrong, model_values(wrong, captured.references[at]))
    report = agreement.report(honest, "", "", **TOLD)
    first = report.first_difference
    assert report.verdict == "failed", f"layer {at}: {which}"
    assert (first.stack, first.layer) == (record.stack, record.layer)
    tally.figure("planted", first.stage, dtype, strain_of(first))


@pytest.mark.parametrize("dtype", DTYPES)
def test_batches_of_the_real_model(dtype, look):
    look("minilm", dtype, 8, longest=20)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", TINY)
def test_batches_of_tiny_models(family, dtype, look):
    look(family, dtype, 2, longest=20)


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES)
def test_200_batches_of_the_real_model(dtype, look):
    look("minilm", dtype, 200)


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", TINY)
def test_25_batches_of_tiny_models(family, dtype, look):
    look(family, dtype, 25)


@pytest.mark.parametrize("dtype", DTYPES)
def test_streamed_texts(dtype, streams):
    streams(dtype, 1)


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES)
def test_8_streamed_texts(dtype, streams):
    streams(dtype, 8)


@pytest.fixture
def streams(tokenizer, random_text, tally):
    """Return what sees random texts as they are streamed."""

    def of(dtype, texts):
        model = attnviz.load(dtype=dtype)
        for number in range(texts):
            text = random_text(random.Random(number), 300)
            report = attnviz.verify(text, model=model, mode="streamed", truncate=True)
            assert report.verdict == "verified", f"{report.summary()}: {text!r}"
            tally.honest(report.checks, dtype)

    return of
