"""Can a wrong picture be verified? Models that compute something else than what is recorded."""

from copy import deepcopy

import pytest
import torch
from families import TEXTS, tiny
from faults_in_models import (
    CHANGES,
    SITES,
    Drifting,
    Noise,
    local_attention,
    registered_attention_replaced,
    reversed_positions,
    without_a_head,
)
from planting import DTYPES
from torch import nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

import attnviz

TEXT = "the train left the station on time and nobody minded"


@pytest.fixture
def registered(monkeypatch):
    """Register a user's attention function for this test."""
    monkeypatch.setitem(AttentionInterface._global_mapping, "local", local_attention)
    monkeypatch.setitem(AttentionMaskInterface._global_mapping, "local", eager_mask)
    return "local"


@pytest.fixture
def copied(model):
    """Return a copy of the bundled model that a test may change."""
    return deepcopy(model.module).requires_grad_(True)


@pytest.fixture
def small():
    """Return a model of three layers that a test may change, with the modules of the bundled."""
    return tiny("bert").bert


def attend(module, tokenizer, text=TEXT, **options):
    return attnviz.load(module, tokenizer=tokenizer).attend(text, **options)


class Counting(nn.Module):
    """A module that counts its calls in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, hidden):
        self.calls += 1
        return hidden


def test_a_registered_attention_stays_and_is_recorded(registered, tokenizer):
    module = tiny("bert")
    module.set_attn_implementation(registered)
    result = attend(module, tokenizer)
    assert result.agreement.verdict == "verified"
    assert result.agreement.output.difference == 0
    weights = torch.stack([record.weights() for record in result.records])
    i = torch.arange(weights.shape[-1])
    assert not weights[..., (i[:, None] - i).abs() > 1].any()
    assert module.config._attn_implementation == registered


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_eager_attention_in_the_place_of_a_registered_one_is_caught(family, dtype, tokenizer):
    """Also in bfloat16 and in a short text, where the output of a whole model differs little."""
    module = tiny(family, dtype)
    with registered_attention_replaced(module, SITES[family]):
        for result in attend(module, tokenizer, TEXTS[1:]):
            assert result.agreement.parts["output"] == "failed"
            assert "the recorded run is not the model's" in result.agreement.summary()
    assert attend(module, tokenizer).agreement.verdict == "verified"


def test_eager_attention_that_is_not_the_loaded_one_is_named(tokenizer):
    """Torch's fused attention takes no sinks: with it, the model is another one."""
    module = tiny("gpt-oss")
    assert attend(module, tokenizer).agreement.verdict == "verified"
    module.config._attn_implementation_internal = "sdpa"
    report = attend(module, tokenizer).agreement
    assert report.verdict == "failed"
    assert "the recorded run is not the model's: its output differs" in report.summary()
    assert not any(check.failed_heads for check in report.checks)


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("text", [TEXT, f"{TEXT} " * 4], ids=["short", "streamed"])
@pytest.mark.parametrize("drawing", [Noise, Drifting])
def test_a_model_that_changes_from_run_to_run_is_not_verified(drawing, text, small, tokenizer):
    small.embeddings.dropout = drawing()
    options = {} if text == TEXT else {"mode": "streamed"}
    report = attend(small, tokenizer, text, **options).agreement
    assert report.verdict == "failed"
    assert "two runs of the model differ by" in report.summary()


def test_a_module_that_draws_by_choice_is_not_verified(tokenizer):
    """Stochastic layers that the user left in train mode."""
    module = tiny("bert")
    layer = module.bert.encoder.layer[1]
    layer.output.dropout = nn.Dropout(0.5).train()
    report = attend(module, tokenizer).agreement
    assert "two runs of the model differ by" in report.summary()
    layer.output.dropout.eval()
    assert attend(module, tokenizer).agreement.verdict == "verified"


def test_a_model_in_training_is_verified_in_eval_mode(small, tokenizer):
    small.train()
    assert attend(small, tokenizer).agreement.verdict == "verified"
    assert all(module.training for module in small.modules())


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("text", [[TEXT, "the bank"], "the bank"], ids=["a batch", "one text"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "qwen3", "gpt-oss", "mpt"])
def test_a_result_keeps_its_numbers_when_the_weights_change(family, text, tokenizer):
    module = tiny(family)
    results = attend(module, tokenizer, text)
    results = results if isinstance(text, list) else [results]
    before = deepcopy([result.records for result in results])
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.fill_(7)
    for result, records in zip(results, before, strict=True):
        for ours, copy in zip(result.records, records, strict=True):
            numbers = zip(tensors_of(ours), tensors_of(copy), strict=True)
            assert all(torch.equal(x, y) for x, y in numbers)


def tensors_of(record):
    """Return every tensor in a record."""
    values = [*vars(record).values()]
    for value in values:
        values += value if isinstance(value, tuple) else []
        values += vars(value).values() if hasattr(value, "__dataclass_fields__") else []
    return [value for value in values if isinstance(value, torch.Tensor)]


def test_buffers_of_the_model_are_restored(small, tokenizer):
    small.embeddings.dropout = counting = Counting()
    attend(small, tokenizer)
    assert counting.calls == 0


def test_a_write_through_data_renews_the_sha256(small, tokenizer):
    model = attnviz.load(small, tokenizer=tokenizer)
    first = model.attend(TEXT).provenance.weights_sha256
    weight = small.encoder.layer[2].attention.self.key.weight
    weight.data.mul_(1.1)
    scaled = model.attend(TEXT).provenance.weights_sha256
    small.embeddings.word_embeddings.weight.detach().numpy()[777] = 0
    assert len({first, scaled, model.attend(TEXT).provenance.weights_sha256}) == 3


# Of layer 1 of eleven families.
PROJECTIONS = {
    "bert": {name: f"bert.encoder.layer.1.attention.self.{name}" for name in ("query", "value")},
    "distilbert": {"query": "transformer.layer.1.attention.q_lin"},
    "electra": {"key": "encoder.layer.1.attention.self.key"},
    "gemma2": {"value": "layers.1.self_attn.v_proj"},
    "gpt-neo": {"value": "h.1.attn.attention.v_proj"},
    "llama": {"key": "model.layers.1.self_attn.k_proj", "value": "model.layers.1.self_attn.v_proj"},
    "mistral": {"query": "layers.1.self_attn.q_proj"},
    "mpnet": {"value": "encoder.layer.1.attention.attn.v"},
    "qwen2": {"query": "layers.1.self_attn.q_proj"},
    "qwen3": {"value": "layers.1.self_attn.v_proj"},
    "roberta": {"query": "encoder.layer.1.attention.self.query"},
}


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    ("family", "stage"),
    [(family, stage) for family in PROJECTIONS for stage in PROJECTIONS[family]],
)
def test_a_hook_that_changes_a_projection_is_caught(family, stage, change, tokenizer):
    """However large: far from the form of another layer is not another form."""
    module = tiny(family)
    module.get_submodule(PROJECTIONS[family][stage]).register_forward_hook(CHANGES[change])
    report = attend(module, tokenizer).agreement
    assert report.verdict == "failed"
    assert (report.first_difference.layer, report.first_difference.stage) == (1, stage)


@pytest.mark.parametrize(
    ("family", "path"),
    [
        ("bert", "bert.encoder.layer.1.attention.output.dense"),
        ("llama", "model.layers.1.self_attn.o_proj"),
    ],
)
def test_a_head_that_never_arrives_is_caught(family, path, tokenizer):
    module = tiny(family)
    module.get_submodule(path).register_forward_pre_hook(without_a_head)
    report = attend(module, tokenizer).agreement
    assert (report.first_difference.layer, report.first_difference.stage) == (1, "output")


def test_a_form_that_reproduces_no_layer_is_not_compared(tokenizer, monkeypatch):
    """The weights follow from Q and K as the model has them, whatever made them."""
    from transformers.models.llama import modeling_llama

    rotate = modeling_llama.apply_rotary_pos_emb

    def faster(query, key, cos, sin, **options):
        angles = torch.atan2(sin, cos) * 1.5
        return rotate(query, key, angles.cos(), angles.sin(), **options)

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", faster)
    report = attend(tiny("llama"), tokenizer).agreement
    assert report.verdict == "verified"
    assert {stage for _, stage, _ in report.not_compared} == {"query", "key"}
    assert report.parts["projections"] == "not compared"


def test_a_form_that_is_not_known_is_not_compared(tokenizer):
    """A projection that does more than multiply (an adapter) is no fault."""
    module = tiny("bert")
    attention = module.bert.encoder.layer[1].attention.self
    attention.query = nn.Sequential(attention.query, nn.Tanh())
    report = attend(module, tokenizer).agreement
    assert report.verdict == "verified"
    assert {stage for _, stage, _ in report.not_compared} == {"query", "key", "value", "output"}


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("text", [TEXT, [TEXT, "the bank"]], ids=["one text", "a batch"])
@pytest.mark.parametrize(
    ("family", "path"),
    [
        ("bert", "bert.encoder.layer.0"),
        ("llama", "model.layers.0"),
        ("roberta", "encoder.layer.0"),
    ],
)
def test_rows_that_are_not_their_tokens_are_caught(family, path, text, tokenizer):
    module = tiny(family)
    model = attnviz.load(module, tokenizer=tokenizer)
    results = model.attend(text if isinstance(text, list) else [text])
    assert {result.agreement.parts["positions"] for result in results} == {"verified"}
    module.get_submodule(path).register_forward_pre_hook(reversed_positions, with_kwargs=True)
    report = model.attend(TEXT).agreement
    assert report.verdict == "failed"
    assert report.parts["positions"] == "failed"
    assert "the rows are not the tokens: a change at position" in report.summary()


def test_a_forward_that_reverses_positions_on_its_way_is_caught(tokenizer):
    """The output of the model is the same, and every map is mirrored."""
    module = tiny("bert")
    layer = module.bert.encoder.layer[0]
    forward = layer.attention.forward

    def mirrored(hidden_states, *args, **kwargs):
        output = forward(hidden_states.flip(1), *args, **kwargs)
        return (output[0].flip(1), *output[1:])

    layer.attention.forward = mirrored
    report = attend(module, tokenizer).agreement
    assert report.output.passed
    assert report.parts["positions"] == "failed"


def test_fused_attention_that_differs_from_eager_is_named(tokenizer):
    """Transformers' eager Falcon adds ALiBi twice; its fused attention adds it once."""
    module = tiny("falcon")
    assert attend(module, tokenizer).agreement.verdict == "verified"
    module.config._attn_implementation_internal = "sdpa"
    assert "the recorded run is not the model's" in attend(module, tokenizer).agreement.summary()


def test_a_model_that_amplifies_rounding_is_no_false_alarm(tokenizer):
    """A mixture of experts with sharp attention: what one rounding step changes is measured."""
    report = attend(tiny("dbrx").to(torch.bfloat16), tokenizer, TEXTS[0]).agreement
    assert report.verdict == "verified", report.summary()


def test_the_rounding_of_clipped_values_is_no_false_alarm(tokenizer):
    """It is that of the numbers before the clip."""
    text = "A sudden check with the rook would lose the queen."
    assert attend(tiny("dbrx"), tokenizer, text).agreement.verdict == "verified"


def test_keys_that_no_query_reads_are_no_false_alarm(tokenizer):
    """Longformer reads a window, so that the last padded keys are in no product."""
    texts = [
        "A mouse squeaked behind the kitchen wall.",
        "Behind it a stiff spring pushes the valve shut.",
        "Their best pitcher won twenty games.",
    ]
    results = attend(tiny("longformer", torch.bfloat16), tokenizer, texts)
    assert [result.agreement.verdict for result in results] == ["verified"] * 3


@pytest.mark.parametrize("family", ["bert", "llama", "gpt-oss", "mistral", "bart", "t5"])
def test_every_position_of_an_unchanged_model_is_verified(family, tokenizer):
    module = tiny(family)
    target = {"target": "the bank"} if module.config.is_encoder_decoder else {}
    report = attend(module, tokenizer, positions="all", **target).agreement
    assert report.positions.passed
    assert report.positions.tokens == len(f"{TEXT} {' '.join(target.values())}".split())
    assert report.verdict == "verified"


class ReversedOffsets:
    """A tokenizer whose offsets are those of the tokens in reversed order."""

    def __call__(self, *args, **options):
        encoding = super().__call__(*args, **options)
        if "offset_mapping" in encoding:
            encoding["offset_mapping"] = encoding["offset_mapping"][::-1]
        return encoding


def test_offsets_that_are_not_those_of_the_tokens_are_named(small, tokenizer):
    wrong = deepcopy(tokenizer)
    wrong.__class__ = type("Wrong", (ReversedOffsets, type(tokenizer)), {})
    result = attend(small, wrong)
    assert result.agreement.parts["positions"] == "not compared"
    said = "POSITIONS NOT VERIFIED: the tokenizer's offsets do not match its tokens"
    assert result.agreement.summary().startswith(said)
    assert result.agreement.verdict == "positions not verified"


@pytest.mark.parametrize("text", [TEXT, f"{TEXT} " * 4], ids=["whole", "streamed"])
def test_a_vocabulary_that_is_not_the_model_s_is_named(text, copied, tokenizer):
    options = {} if text == TEXT else {"mode": "streamed"}
    assert not attend(copied, tokenizer, text, **options).notes
    embedding = copied.embeddings.word_embeddings.weight
    with torch.no_grad():
        embedding[1000:] = embedding[1000:].roll(1, 0)  # another order of the ordinary tokens
    result = attend(copied, tokenizer, text, **options)
    assert result.agreement.parts["positions"] == "not compared"
    said = [result.agreement.summary(), *result.notes]
    assert any("this may be the tokenizer of another model" in one for one in said)


@pytest.mark.parametrize(
    "text",
    [
        "I don't know: 3.5 % of £20, naïve café, ﬁne ½ €",
        "北京 is in China; Москва, Αθήνα, 東京タワー 🙂👍🏽",
        "tab\tand  two spaces\nand a line; a_b, C++ and #hashtag @name",
        "co\u00adoperate, सुंदर",
    ],
)
def test_words_of_the_right_tokenizer_match(text, model):
    result = model.attend(text)
    assert all("it read [UNK]" in note for note in result.notes)
    assert result.agreement.parts["positions"] == "verified"


def test_a_text_of_one_repeated_token_is_checked_with_its_neighbor(tokenizer):
    """Also that of the first token of the vocabulary, which has no token before it."""
    other = deepcopy(tokenizer)
    other.pad_token = None  # which is the first token, and special
    other.__class__ = type("First", (OnlyFirst, type(tokenizer)), {})
    result = attend(tiny("gpt2"), other, "!")  # its label does not fit, so the check is not shown
    assert result.agreement.verdict == "positions not verified"


def exchanged(module, args, kwargs):
    """Exchange two positions of a layer's input."""
    order = [0, 1, 5, 3, 4, 2, *range(6, 100)]
    args = tuple(
        x[:, order[: x.shape[1]]] if isinstance(x, torch.Tensor) and x.dim() == 3 else x
        for x in args
    )
    return args, kwargs


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("positions", ["sample", "all"])
def test_two_positions_that_are_exchanged_are_caught(positions, layer, small, tokenizer):
    small.encoder.layer[layer].register_forward_pre_hook(exchanged, with_kwargs=True)
    report = attend(small, tokenizer, positions=positions).agreement
    assert "the rows are not the tokens" in report.summary()
    assert f"encoder layer {layer}" in report.summary()


@pytest.mark.parametrize("layer", [0, pytest.param(2, marks=pytest.mark.long)])
def test_positions_that_move_in_batches_of_one_size_only_are_caught(layer, small, tokenizer):
    def exchange_alone(module, args, kwargs):
        states = args[0] if args else kwargs["hidden_states"]
        return exchanged(module, args, kwargs) if len(states) == 1 else None

    small.encoder.layer[layer].register_forward_pre_hook(exchange_alone, with_kwargs=True)
    said = attend(small, tokenizer).agreement.summary()
    assert f"in encoder layer {layer} is another one in a batch of another size" in said


def test_a_text_too_long_for_all_layers_says_so(tokenizer):
    report = attend(tiny("bert"), tokenizer, f"{TEXT} " * 12).agreement
    assert report.verdict == "verified"
    assert (report.positions.layers, report.positions.tokens) == (1, report.positions.of)
    assert "positions in the first layer" in report.summary()


@pytest.mark.parametrize("layers", [[0, 1, 2], [1]], ids=["all", "one"])
def test_an_output_that_no_attention_moves_proves_nothing(layers, small, tokenizer):
    """A gate or W^O of zeros hides what fused attention computes."""
    assert attend(small, tokenizer).agreement.output.moved > 1e-3
    for layer in layers:
        small.encoder.layer[layer].attention.output.dense.weight.data.zero_()
    report = attend(small, tokenizer).agreement
    assert report.verdict == "not proven"
    assert [path.split(".")[2] for path in report.output.blind] == [*map(str, layers)]
    assert (
        "NOT PROVEN: the output would show no other attention in encoder.layer" in report.summary()
    )


@pytest.mark.parametrize(
    ("family", "name"),
    [("bert", "bert.embeddings.position_ids"), ("llama", "model.rotary_emb.inv_freq")],
)
def test_a_changed_buffer_is_named_and_in_the_fingerprint(family, name, tokenizer):
    module = tiny(family)
    plain = attend(module, tokenizer).provenance
    assert not plain.with_changes
    buffer = module.get_buffer(name)
    buffer.copy_(buffer.flip(-1))
    for source in (module, deepcopy(module)):
        changed = attend(source, tokenizer).provenance
        assert changed.with_changes == " with 1 changed buffer"
        assert changed.computation.buffers == (name,)
        assert changed.weights_sha256 != plain.weights_sha256


class OnlyFirst:
    """A tokenizer whose tokens are all the first of the vocabulary."""

    def __call__(self, *args, **options):
        encoding = super().__call__(*args, **options)
        encoding["input_ids"] = [0] * len(encoding["input_ids"])
        return encoding


@pytest.mark.parametrize("options", [{"mode": "streamed"}, {"top": 2}, {"cells": 5}], ids=str)
def test_positions_of_a_streamed_text_are_refused(options, model):
    with pytest.raises(attnviz.InputError, match="of a streamed text cannot be checked"):
        model.attend(TEXT, positions="all", **options)
