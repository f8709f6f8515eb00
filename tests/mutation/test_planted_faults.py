"""Faults that are not in the table, and the verdict in undecidable cases."""

import random
from dataclasses import replace

import pytest
import torch
from captures import capture_texts, proof_of, report_of, restoring, verify
from families import TEXTS, TWO_SIDED, tiny
from faults import BY_NAME, hiding
from planting import DTYPES, LAYER, Fault, expect_caught
from transformers import AlbertModel, BertModel, ElectraModel

import attnviz
from attnviz import AttentionRecord
from attnviz.analyses.shift import compute
from attnviz.attribution import decomposition, deeplift
from attnviz.attribution.target import Readout


def of_the_token_before(values, heads):
    return values.repeat_interleave(heads // len(values), 0).roll(1, 1)


def of_the_next_head(values, heads):
    return values.repeat_interleave(heads // len(values), 0).roll(1, 0)


def of_heads_in_turn(values, heads):  # h mod G instead of h // (H / G)
    return values.repeat(heads // len(values), 1, 1)


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("family", "wrong", "heads"),
    [
        ("bert", of_the_token_before, {0, 1, 2, 3}),
        ("gpt2", of_the_token_before, {0, 1, 2, 3}),
        ("bert", of_the_next_head, {0, 1, 2, 3}),
        ("llama", of_the_next_head, {0, 2}),
        ("llama", of_heads_in_turn, {1, 2}),
        ("qwen3", of_heads_in_turn, {1, 2}),
    ],
)
def test_weights_that_mix_other_values_are_caught(
    family, wrong, heads, dtype, captured, honest, monkeypatch
):
    proofs = honest(family, dtype)
    fault = Fault(wrong.__name__, wrong, (family,), {"head output"}, heads)

    def mix(record, weights):
        return weights @ wrong(record.value.to(weights), record.heads)

    monkeypatch.setattr(AttentionRecord, "mix", mix)
    for each, of_text in zip(captured(family, dtype), proofs, strict=True):
        expect_caught(fault, each, of_text, LAYER, each.records[LAYER])


@pytest.mark.parametrize("dtype", DTYPES)
def test_only_the_faulty_head_is_named(dtype, captured):
    for each in captured("bert", dtype):
        records = list(each.records)
        value = records[LAYER].value.clone()
        value[2] = value[2].flip(-1)
        records[LAYER] = replace(records[LAYER], value=value)
        assert verify(records, each.references).first_difference.failed_heads == (2,)


@pytest.mark.parametrize("family", ["bert", "llama", "minilm"])
def test_the_head_that_adds_too_much_to_the_output_is_named(family, captured):
    for each in captured(family, torch.bfloat16):
        records = list(each.records)
        records[LAYER] = BY_NAME["output_of_one_head_two_per_cent_off"].plant(records[LAYER])
        report = verify(records, each.references)
        first = report.first_difference
        assert (first.layer, first.stage) == (LAYER, "output")
        assert first.strain < 1  # the sum of all heads does not show it
        assert first.slope_errors[2] == pytest.approx(-0.02, rel=0.1)
        assert "the slope of what head 2 adds is off by -" in report.summary()


def test_a_mask_that_leaves_nothing_to_compare_proves_nothing(captured):
    each = captured("bert", torch.float32)[0]
    records = list(each.records)
    records[LAYER] = hiding(records[LAYER], torch.ones(1, dtype=torch.bool))
    report = verify(records, each.references)
    assert report.verdict == "not proven"
    assert report.unproven == ("encoder layer 1",)


def test_nan_never_agrees(captured):
    for each in captured("bert", torch.float32):
        records = list(each.records)
        broken = records[LAYER].value.clone()
        broken[3, 0, 0] = torch.nan
        records[LAYER] = replace(records[LAYER], value=broken)
        first = verify(records, each.references).first_difference
        assert (first.stage, first.failed_heads, first.finite) == ("value", (3,), False)


def test_attention_too_flat_to_show_a_wrong_scale_is_not_proven(captured):
    each = captured("bert", torch.float32)[0]
    flat = [
        replace(record, query=torch.zeros_like(record.query), projection=None, input=None)
        for record in each.records
    ]
    uniform = [
        replace(
            reference,
            weights=record.weights(),
            scores=torch.zeros_like(reference.weights),
            head_output=None,
        )
        for record, reference in zip(flat, each.references, strict=True)
    ]
    report = verify(flat, uniform)
    assert report.verdict == "not proven"
    assert report.unproven == tuple(f"encoder layer {layer}" for layer in range(3))
    assert "NOT PROVEN" in report.summary()


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_small_values_are_compared_as_finely_as_large_ones(family, dtype, tokenizer):
    module = tiny(family, dtype)
    for name, parameter in module.named_parameters():
        if ".value." in name or ".v_proj." in name:
            parameter.detach().mul_(0.01)
    model = attnviz.load(module, tokenizer=tokenizer)
    (each,) = capture_texts(model, TEXTS[:1])
    assert verify(each.records, each.references).verdict == "verified"
    records = list(each.records)
    records[LAYER] = BY_NAME["wrong_heads_values"].plant(records[LAYER])
    assert verify(records, each.references).first_difference.stage == "value"


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("model_class", [AlbertModel, ElectraModel, BertModel])
def test_flat_attention_is_never_reported_as_different(model_class, dtype, tokenizer):
    # With the library's initialization, scores have a standard deviation of 0.025 and rounding
    # dominates.
    config = model_class.config_class(
        vocab_size=30522, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, embedding_size=16,
    )  # fmt: skip
    for seed in range(4):
        torch.manual_seed(seed)
        model = attnviz.load(model_class(config).to(dtype), tokenizer=tokenizer)
        assert model.attend(TEXTS[0]).agreement.first_difference is None


def test_the_drawn_map_is_the_verified_map(model, monkeypatch):
    weights = AttentionRecord.weights

    def of_the_next_head(self, head=None, *args, **kwargs):
        found = weights(self, head, *args, **kwargs)
        return found.roll(1, 0) if head is None else found

    monkeypatch.setattr(AttentionRecord, "weights", of_the_next_head)
    assert model.attend(TEXTS[2]).agreement.verdict == "failed"


# --- random texts


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
    captures = capture_texts(model, texts, **({"targets": targets} if family in TWO_SIDED else {}))
    at = chance.randrange(len(captures[0].records))
    for text, captured in zip(texts, captures, strict=True):
        proofs = [*map(proof_of, captured.records, captured.references)]
        record, report = captured.records[at], report_of(proofs)
        assert report.first_difference is None, f"{report.summary()}: {text!r} in {texts}"
        if record.place in report.unproven:  # one or two words in a tiny model
            assert family != "minilm"
            assert len(text.split()) < 3, f"{report.summary()}: {text!r} in {texts}"
            continue
        wrong = replace(record, scale=record.scale * 1.01)
        proofs[at] = proof_of(wrong, captured.references[at])
        first = report_of(proofs).first_difference
        assert (first.stack, first.layer) == (record.stack, record.layer)


# --- faults beside the maps: in the decomposition of a shift, and in the stages of a head


SENTENCE = "the train left the station on time"
PAIR = ["the bank was full of mud.", "the bank was full of cash."]
EXACT = 1e-5  # relative to the length of the shift, in float32


def error_of(model, tokenizer):
    """Return the difference between a shift and the sum of its contributions."""
    inputs = dict(tokenizer(PAIR, return_tensors="pt"))
    with restoring(model.module):
        return decomposition.decompose(Readout.word(model.module, [2]), inputs).error


def without_routing(monkeypatch):
    parts = decomposition._parts

    def fault(*given):
        value, routing = parts(*given)
        return value, torch.zeros_like(routing)

    monkeypatch.setattr(decomposition, "_parts", fault)


def without_head_2(monkeypatch):
    parts = decomposition._parts

    def fault(*given):
        value, routing = (part.clone() for part in parts(*given))
        value[2] = routing[2] = 0
        return value, routing

    monkeypatch.setattr(decomposition, "_parts", fault)


def norm_scale_one_percent_off(monkeypatch):
    original = deeplift.DeepLift.other

    def off(tracer, name, *call):
        result = original(tracer, name, *call)
        if name == "rsqrt":
            result.register_hook(lambda g: g * 1.01)
        return result

    monkeypatch.setattr(deeplift.DeepLift, "other", off)


def norm_that_is_differentiated(monkeypatch):
    def derivative(tracer, x, shape, weight, bias, eps):
        return torch.layer_norm(x, x.shape[-1:], weight, bias, eps)

    monkeypatch.setattr(deeplift.DeepLift, "normalize", derivative)


@pytest.mark.parametrize(
    ("fault", "least"),
    [
        (without_routing, 100),
        (without_head_2, 100),
        (norm_scale_one_percent_off, 10),
        (norm_that_is_differentiated, 100),
    ],
)
def test_parts_of_a_shift_that_do_not_add_up_are_detected(
    fault, least, model, tokenizer, monkeypatch
):
    assert error_of(model, tokenizer) < EXACT
    fault(monkeypatch)
    assert error_of(model, tokenizer) > least * EXACT


def test_parts_that_do_not_add_up_are_not_verified(tokenizer, monkeypatch):
    """Norms are left out here."""
    model = attnviz.load(tiny("gpt2"), tokenizer=tokenizer)
    assert attnviz.explain(SENTENCE, model=model).agreement.verdict == "verified"
    other = deeplift.DeepLift.other

    def without_norms(self, name, func, args, kwargs):
        if name == "layer_norm":
            return func(*args, **kwargs)
        return other(self, name, func, args, kwargs)

    monkeypatch.setattr(deeplift.DeepLift, "other", without_norms)
    result = attnviz.explain(SENTENCE, model=model)
    assert result.completeness_error > 1e-3
    assert not result.agreement.analysis[0].passed
    assert result.agreement.verdict == "failed"
    moved = attnviz.shift("station", SENTENCE, model=model)
    assert any("the parts miss the whole by" in note for note in moved.notes)
    assert "the sums of the parts are off by" in moved.agreement.summary()


def test_a_split_of_other_runs_is_not_verified(small, monkeypatch):
    """The ends of the split are those of the model as loaded, or the shift is not verified."""
    assert "off by" not in attnviz.shift("train", SENTENCE, model=small).agreement.summary()
    honest = compute.split_stream

    def other_ends(*args, **options):
        stream = honest(*args, **options)
        return replace(stream, total=stream.total + 0.01, bias=stream.bias + 0.01)

    monkeypatch.setattr(compute, "split_stream", other_ends)
    report = attnviz.shift("train", SENTENCE, model=small).agreement
    assert "the lengths of the shift are off by" in report.summary()


def test_the_faulty_stage_is_named(model):
    (captured,) = capture_texts(model, [SENTENCE])
    records = [replace(r, scale=r.scale * 1.01) if r.layer == 2 else r for r in captured.records]
    agreement = verify(records, captured.references)
    whole = model.attend(SENTENCE)
    result = attnviz.AttentionResult(tuple(records), agreement, whole.provenance)
    faulty = attnviz.steps(result, layer=2, head=4)
    passed = {stage.name for stage in faulty.stages if stage.passed}
    assert {"Q", "K", "V"} <= passed
    assert not passed & {"scores", "scaled scores", "weights"}
    assert all(stage.passed for stage in attnviz.steps(result, layer=1, head=4).stages[1:])
