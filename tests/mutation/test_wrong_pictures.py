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
    faster_rotation,
    local_attention,
    reversed_positions,
    without_a_head,
)
from torch import nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

import attnviz

TEXT = "the train left the station on time and nobody minded"


@pytest.fixture
def small():
    """Return a model of three layers that a test may change, with the modules of the bundled."""
    return tiny("bert").bert


def attend(module, tokenizer, text=TEXT, **options):
    return attnviz.load(module, tokenizer=tokenizer).attend(text, **options)


def test_a_registered_attention_stays_and_is_recorded(monkeypatch, tokenizer):
    monkeypatch.setitem(AttentionInterface._global_mapping, "local", local_attention)
    monkeypatch.setitem(AttentionMaskInterface._global_mapping, "local", eager_mask)
    module = tiny("bert")
    module.set_attn_implementation("local")
    result = attend(module, tokenizer)
    assert result.agreement.verdict == "verified"
    assert result.agreement.output.difference == 0
    weights = torch.stack([record.weights() for record in result.records])
    i = torch.arange(weights.shape[-1])
    assert not weights[..., (i[:, None] - i).abs() > 1].any()
    assert module.config._attn_implementation == "local"


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


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "qwen3", "gpt-oss", "mpt"])
def test_a_result_keeps_its_numbers_when_the_weights_change(family, tokenizer):
    module = tiny(family)
    results = attend(module, tokenizer, [TEXT, "the bank"])
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.fill_(7)
    for result in results:  # its digests are those of the numbers that it holds now
        assert result.checked_agreement.verdict == "verified"


def test_a_write_through_data_renews_the_sha256(small, tokenizer):
    model = attnviz.load(small, tokenizer=tokenizer)
    first = model.attend(TEXT).provenance.weights_sha256
    weight = small.encoder.layer[2].attention.self.key.weight
    weight.data.mul_(1.1)
    scaled = model.attend(TEXT).provenance.weights_sha256
    small.embeddings.word_embeddings.weight.detach().numpy()[777] = 0
    assert len({first, scaled, model.attend(TEXT).provenance.weights_sha256}) == 3


PROJECTIONS = {
    ("bert", "query"): "bert.encoder.layer.1.attention.self.query",
    ("bert", "value"): "bert.encoder.layer.1.attention.self.value",
    ("electra", "key"): "encoder.layer.1.attention.self.key",
    ("gemma2", "value"): "layers.1.self_attn.v_proj",
    ("gpt-neo", "value"): "h.1.attn.attention.v_proj",
    ("llama", "key"): "model.layers.1.self_attn.k_proj",
    ("mpnet", "value"): "encoder.layer.1.attention.attn.v",
    ("qwen2", "query"): "layers.1.self_attn.q_proj",
}


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("family", "stage"), PROJECTIONS)
def test_a_hook_that_changes_a_projection_is_caught(family, stage, change, tokenizer):
    """However large: far from the form of another layer is not another form."""
    module = tiny(family)
    module.get_submodule(PROJECTIONS[family, stage]).register_forward_hook(CHANGES[change])
    report = attend(module, tokenizer).agreement
    assert report.verdict == "failed"
    assert (report.first_difference.layer, report.first_difference.stage) == (1, stage)


def test_a_head_that_never_arrives_is_caught(tokenizer):
    module = tiny("llama")
    module.model.layers[1].self_attn.o_proj.register_forward_pre_hook(without_a_head)
    report = attend(module, tokenizer).agreement
    assert (report.first_difference.layer, report.first_difference.stage) == (1, "output")


def test_a_form_that_reproduces_no_layer_is_not_compared(tokenizer):
    """The weights follow from Q and K as the model has them, whatever made them."""
    module = tiny("llama")
    with faster_rotation(module, SITES["llama"]):
        report = attend(module, tokenizer).agreement
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


@pytest.mark.parametrize(
    ("family", "path"),
    [
        ("bert", "bert.encoder.layer.0"),
        ("llama", "model.layers.0"),
        ("roberta", "encoder.layer.0"),
    ],
)
def test_rows_that_are_not_their_tokens_are_caught(family, path, tokenizer):
    module = tiny(family)
    model = attnviz.load(module, tokenizer=tokenizer)
    results = model.attend([TEXT, "the bank"])
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


# Experts whose routing amplifies rounding; values that are clipped, whose rounding is that of the
# numbers before; and windows, so that no query reads the last padded keys.
ROUNDED = {
    "amplified": ("dbrx", torch.bfloat16, [TEXTS[0]]),
    "clipped": ("dbrx", torch.float32, ["A sudden check with the rook would lose the queen."]),
    "unread": (
        "longformer",
        torch.bfloat16,
        [
            "A mouse squeaked behind the kitchen wall.",
            "Behind it a stiff spring pushes the valve shut.",
            "Their best pitcher won twenty games.",
        ],
    ),
}


@pytest.mark.parametrize(("family", "dtype", "texts"), ROUNDED.values(), ids=ROUNDED)
def test_rounding_is_no_false_alarm(family, dtype, texts, tokenizer):
    for result in attend(tiny(family, dtype), tokenizer, texts):
        assert result.agreement.verdict == "verified", result.agreement.summary()


@pytest.mark.parametrize("text", [TEXT, f"{TEXT} " * 4], ids=["whole", "streamed"])
def test_a_vocabulary_that_is_not_the_model_s_is_named(text, model, tokenizer):
    options = {} if text == TEXT else {"mode": "streamed"}
    copied = deepcopy(model.module).requires_grad_(True)
    assert not attend(copied, tokenizer, text, **options).notes
    embedding = copied.embeddings.word_embeddings.weight
    with torch.no_grad():
        embedding[1000:] = embedding[1000:].roll(1, 0)  # another order of the ordinary tokens
    result = attend(copied, tokenizer, text, **options)
    assert result.agreement.parts["positions"] == "not compared"
    said = [result.agreement.summary(), *result.notes]
    assert any("this may be the tokenizer of another model" in one for one in said)


def test_words_of_the_right_tokenizer_match(model):
    texts = [
        "I don't know: 3.5 % of £20, naïve café, ﬁne ½ €",
        "北京 is in China; Москва, Αθήνα, 東京タワー 🙂👍🏽",
        "tab\tand  two spaces\nand a line; a_b, C++ and #hashtag @name",
        "co\u00adoperate, सुंदर",
    ]
    for result in model.attend(texts):
        assert all("it read [UNK]" in note for note in result.notes)
        assert result.agreement.parts["positions"] == "verified"


def exchanged(module, args, kwargs):
    """Exchange two positions of a layer's input."""
    order = [0, 1, 5, 3, 4, 2, *range(6, 100)]
    args = tuple(
        x[:, order[: x.shape[1]]] if isinstance(x, torch.Tensor) and x.dim() == 3 else x
        for x in args
    )
    return args, kwargs


@pytest.mark.parametrize(("layer", "positions"), [(0, "sample"), (1, "all"), (2, "sample")])
def test_two_positions_that_are_exchanged_are_caught(layer, positions, small, tokenizer):
    small.encoder.layer[layer].register_forward_pre_hook(exchanged, with_kwargs=True)
    report = attend(small, tokenizer, positions=positions).agreement
    assert "the rows are not the tokens" in report.summary()
    assert f"encoder layer {layer}" in report.summary()


def test_positions_that_move_in_batches_of_one_size_only_are_caught(small, tokenizer):
    def exchange_alone(module, args, kwargs):
        states = args[0] if args else kwargs["hidden_states"]
        return exchanged(module, args, kwargs) if len(states) == 1 else None

    small.encoder.layer[0].register_forward_pre_hook(exchange_alone, with_kwargs=True)
    said = attend(small, tokenizer).agreement.summary()
    assert "in encoder layer 0 is another one in a batch of another size" in said


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
