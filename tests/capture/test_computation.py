"""How a model computes, read before a run: hooks, forwards, adapters, quantization, config."""

import functools
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from families import tiny
from golden.saved_results import SAVED
from readable_text import visible_texts
from torch import nn
from torch.nn.utils import prune
from transformers import AttentionInterface, BertForMaskedLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.bert.modeling_bert import BertSelfOutput

import attnviz

TEXT = "the train left"


def steer(module, args, output):
    return output


class Steering:
    def __call__(self, module, args):
        return args

    def also(self, module, args, output):
        return output


@pytest.fixture
def bert():
    return tiny("bert")


@pytest.fixture(scope="module")
def steered(tokenizer):
    """A result of a model with a hook on its second layer."""
    module = tiny("bert")
    module.bert.encoder.layer[1].register_forward_hook(steer)
    return attnviz.load(module, tokenizer=tokenizer).attend(TEXT)


@pytest.fixture(scope="module")
def computation_of(tokenizer):
    """Return a function that reads how a module computes."""

    def read(module):
        return attnviz.load(module, tokenizer=tokenizer).attend(TEXT).provenance.computation

    return read


def caption(figure):
    return " ".join(text.get_text() for text, _ in visible_texts(figure)).replace("\n", " ")


# --- hooks


def test_a_hook_is_named_in_the_caption_the_page_the_data_and_the_terminal(steered):
    assert "read by BertForMaskedLM with 1 hook. " in caption(steered.plot().figure)
    data = json.loads(json.dumps(steered.about()))["provenance"]["computation"]
    assert data["hooks"] == [["bert.encoder.layer.1", f"{__name__}.steer"]]
    line = f"sdpa attention; hooks: {__name__}.steer on bert.encoder.layer.1"
    assert f"model as loaded: {line}" in steered._repr_html_()
    (result,) = attnviz.view(steered).data()["payload"]["results"]
    assert result["notes"] == [f"Model as loaded: {line}."]
    assert result["source"].endswith("read by BertForMaskedLM with 1 hook")


def test_a_plain_model_has_nothing_to_name(train):
    computation = train.provenance.computation
    assert (computation.changes, computation.summary) == ("", "sdpa attention")
    assert "read by all-MiniLM-L6-v2. " in caption(train.plot().figure)
    assert attnviz.view(train).data()["payload"]["results"][0]["notes"] == []


@pytest.mark.parametrize("mode", ["full", "streamed"])
def test_a_result_has_the_hooks_that_the_model_has_when_it_runs(mode, bert, tokenizer):
    model = attnviz.load(bert, tokenizer=tokenizer)
    handle = bert.bert.register_forward_hook(steer)
    assert model.attend(TEXT, mode=mode).provenance.with_changes == " with 1 hook"
    handle.remove()
    assert model.attend(TEXT, mode=mode).provenance.with_changes == ""


def test_every_kind_of_hook_is_named_by_where_its_code_is(bert, computation_of):
    bert.register_forward_pre_hook(Steering())
    bert.cls.register_forward_hook(functools.partial(Steering().also))
    handle = nn.modules.module.register_module_forward_hook(steer)
    try:
        computation = computation_of(bert)
    finally:
        handle.remove()
    assert computation.hooks == (
        ("*", f"{__name__}.steer"),
        ("", f"{__name__}.Steering"),
        ("cls", f"{__name__}.Steering.also"),
    )
    assert computation.changes == "3 hooks"
    assert f"hooks: {__name__}.steer on every module, " in computation.summary


def test_the_hooks_of_libraries_are_not_counted(bert, computation_of):
    bert(torch.tensor([[1, 2]]), output_attentions=True)
    bert.enable_input_require_grads()
    prune.l1_unstructured(bert.cls.predictions.transform.dense, "weight", 1)
    hooks = [hook for module in bert.modules() for hook in module._forward_hooks.values()]
    assert {hook.__module__.partition(".")[0] for hook in hooks} == {"transformers"}
    assert bert.cls.predictions.transform.dense._forward_pre_hooks
    assert computation_of(bert).hooks == ()


def test_a_model_is_read_as_it_is_while_another_thread_runs_it(bert, computation_of):
    """A run registers hooks, wraps functions, and changes the mode and the attention."""
    bert.train()
    bert.bert.encoder.register_forward_hook(steer)
    expected = computation_of(bert)
    with ThreadPoolExecutor(2) as threads:
        read = [*threads.map(computation_of, [bert] * 6)]
    assert read == [expected] * 6
    assert expected.summary.startswith("sdpa attention, in train mode; hooks: ")


# --- forwards


def patched(forward):
    @functools.wraps(forward)
    def run(*args, **kwargs):
        return forward(*args, **kwargs)

    return run


def test_a_replaced_forward_is_named_by_where_its_code_is(bert, tokenizer):
    query = bert.bert.encoder.layer[0].attention.self.query
    query.forward = patched(query.forward)
    result = attnviz.load(bert, tokenizer=tokenizer).attend(TEXT)
    place = "bert.encoder.layer.0.attention.self.query"
    name = f"{__name__}.patched.<locals>.run"
    assert result.provenance.computation.forwards == ((place, name),)
    assert "read by BertForMaskedLM with 1 replaced forward. " in caption(result.plot().figure)


def test_the_forward_of_another_module_is_a_replaced_one(bert, computation_of):
    first, second = bert.bert.encoder.layer[:2]
    first.intermediate.dense.forward = second.intermediate.dense.forward
    second.intermediate.dense.forward = second.intermediate.dense.forward
    place, name = (
        "bert.encoder.layer.0.intermediate.dense",
        "torch.nn.modules.linear.Linear.forward",
    )
    assert computation_of(bert).forwards == ((place, name),)


def test_a_forward_that_is_replaced_in_a_class_is_counted_in_every_module(
    bert, monkeypatch, computation_of
):
    monkeypatch.setattr(BertSelfOutput, "forward", patched(BertSelfOutput.forward))
    assert computation_of(bert).changes == "3 replaced forwards"


def test_a_class_of_the_user_has_the_forward_that_it_defines(bert, computation_of):
    class Output(BertSelfOutput):
        def forward(self, *args):
            return super().forward(*args)

    bert.bert.encoder.layer[0].attention.output.__class__ = Output
    assert computation_of(bert).forwards == ()


# --- attention, config


def test_the_attention_is_that_of_the_model_as_loaded(bert, tokenizer):
    AttentionInterface.register("of_the_user", sdpa_attention_forward)
    for name in ("eager", "of_the_user"):
        bert.set_attn_implementation(name)
        result = attnviz.load(bert, tokenizer=tokenizer).attend(TEXT)
        assert result.provenance.computation.attention == name


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    folder = tmp_path_factory.mktemp("models") / "bert"
    tiny("bert").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_model_has_the_config_of_its_folder(folder, computation_of):
    module = BertForMaskedLM.from_pretrained(folder, dtype="float64", attn_implementation="eager")
    module.config.use_cache = module.config.return_dict = False
    module.config.id2label = {0: "no", 1: "yes"}
    assert computation_of(module).config == {}
    assert attnviz.load(folder, device="cpu").attend(TEXT).provenance.with_changes == ""


def test_a_changed_config_is_named_with_both_values(folder, tokenizer):
    module = BertForMaskedLM.from_pretrained(folder, hidden_act="relu")
    module.config.layer_norm_eps = 0.5
    result = attnviz.load(module, tokenizer=tokenizer).attend(TEXT)
    computation = result.provenance.computation
    assert computation.config == {
        "hidden_act": ("gelu", "relu"),
        "layer_norm_eps": ("1e-12", "0.5"),
    }
    assert "read by bert with a changed config. " in caption(result.plot().figure)
    line = "sdpa attention; changed config: hidden_act gelu → relu, layer_norm_eps 1e-12 → 0.5"
    assert computation.summary == line


def test_a_config_that_is_written_again_is_read_again(tmp_path, bert, computation_of):
    bert.save_pretrained(tmp_path)
    bert.config.name_or_path = str(tmp_path)
    assert computation_of(bert).config == {}
    file = tmp_path / "config.json"
    file.write_text(file.read_text().replace('"gelu"', '"relu"'))
    assert computation_of(bert).config == {"hidden_act": ("relu", "gelu")}
    bert.config.hidden_act = "relu"
    assert computation_of(bert).config == {}


def test_without_a_config_of_the_same_model_nothing_is_compared(folder, bert, computation_of):
    bert.config.hidden_act = "relu"
    for name in ("", "no/such-model", str(folder / "none")):
        bert.config.name_or_path = name
        assert computation_of(bert).config == {}
    bert.config.name_or_path = str(folder)
    assert [*computation_of(bert).config] == ["hidden_act"]
    gpt2 = tiny("gpt2")
    gpt2.config.name_or_path = str(folder)
    assert computation_of(gpt2).config == {}


# --- saved, and in the captions of other figures


def test_it_is_saved_and_a_file_without_it_loads(steered, tmp_path):
    computation = replace(
        steered.provenance.computation,
        training=True,
        forwards=(("", "a.b"),) * 2,
        adapters=("x",),
        quantized={"dynamic int8": 5, "Linear4bit": 1},
        config={"rope_parameters.rope_theta": ("10000.0", "1.0")},
    )
    assert computation.changes == (
        "1 adapter, 1 hook, 2 replaced forwards, 6 quantized layers, a changed config"
    )
    saved = replace(steered, provenance=replace(steered.provenance, computation=computation))
    attnviz.save_result(saved, tmp_path / "result.safetensors")
    assert attnviz.load_result(tmp_path / "result.safetensors").provenance == saved.provenance
    older = attnviz.load_result(SAVED / "result-bert.safetensors")
    assert older.provenance.computation is None
    assert older.provenance.with_changes == ""
    assert "as loaded:" not in older._repr_html_()
