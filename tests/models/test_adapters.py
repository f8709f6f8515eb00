"""Folders that hold only a LoRA adapter: read with their base, or refused in one line."""

import json
import sys
from importlib.util import find_spec

import pytest
import torch
from families import TEXTS, tiny
from safetensors.torch import load_file, save_file

import attnviz
from attnviz import InputError, ModelError

pytestmark = [
    pytest.mark.skipif(find_spec("peft") is None, reason="needs peft"),
    pytest.mark.filterwarnings(
        "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
    ),
]
LAYER = 2  # the last one: no other layer depends on it


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tokenizer):
    """Return a base, an adapter that was trained to attend to the first token, and its model."""
    import peft

    place = tmp_path_factory.mktemp("adapters")
    base = tiny("mistral", torch.float32)
    base.save_pretrained(place / "base")
    tokenizer.save_pretrained(place / "base")
    base = type(base).from_pretrained(place / "base", attn_implementation="eager")
    torch.manual_seed(0)
    targets = [f"layers.{LAYER}.self_attn.{name}_proj" for name in "qk"]
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets)
    model = peft.get_peft_model(base, config)
    optimizer = torch.optim.Adam((one for one in model.parameters() if one.requires_grad), 0.1)
    inputs = tokenizer(TEXTS[0], return_tensors="pt")
    for _ in range(20):
        weights = model(input_ids=inputs["input_ids"], output_attentions=True).attentions[LAYER]
        loss = -weights[..., 1:, 0].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval().save_pretrained(place / "lora")
    return place / "base", place / "lora", model


@pytest.fixture
def folder(trained, tmp_path):
    """Return a copy of the adapter that a test may damage."""
    copy = tmp_path / "lora"
    copy.mkdir()
    for file in trained[1].iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def edit(folder, **settings):
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def refusal(folder):
    with pytest.raises(ModelError) as raised:
        attnviz.load(folder)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_an_adapter_is_read_with_its_base(trained, tokenizer):
    base, folder, model = trained
    loaded = attnviz.load(folder)
    result = loaded.attend(TEXTS[0])
    assert result.agreement.verdict == "verified"
    assert (loaded.name, result.provenance.with_changes) == ("lora", " with 1 adapter")
    assert loaded.notes == ("the base model of the adapter is base",)
    theirs = attnviz.load(model, tokenizer=tokenizer).attend(TEXTS[0])
    before = attnviz.load(base).attend(TEXTS[0])
    for n, record in enumerate(result.records):
        torch.testing.assert_close(record.weights(), theirs.records[n].weights())
        is_same = torch.equal(record.weights(), before.records[n].weights())
        assert is_same == (n != LAYER)
    digests = {one.provenance.weights_sha256 for one in (result, before)}
    assert len(digests) == 2


def test_adapters_that_do_not_fit_are_refused(folder):
    weights = load_file(folder / "adapter_model.safetensors")
    key = next(iter(weights))
    more = weights | {key.replace(f".{LAYER}.", ".7."): weights[key].clone()}
    save_file(more, folder / "adapter_model.safetensors")
    assert "the adapter does not fit" in refusal(folder)
    fewer = {name: tensor for name, tensor in weights.items() if name != key}
    save_file(fewer, folder / "adapter_model.safetensors")
    assert f"{key.removesuffix('.weight')}" in refusal(folder)
    save_file(weights | {key: weights[key] * torch.nan}, folder / "adapter_model.safetensors")
    assert "holds NaN" in refusal(folder)
    save_file(weights | {key: weights[key][:, :3].clone()}, folder / "adapter_model.safetensors")
    assert "cannot load the adapter" in refusal(folder)


def test_adapters_of_other_kinds_and_without_a_base_are_refused(folder, tmp_path):
    for settings, message in {
        "IA3": ({"peft_type": "IA3"}, "is one of LoRA"),
        "no base": ({"base_model_name_or_path": None}, "names base_model_name_or_path"),
        "lost base": ({"base_model_name_or_path": str(tmp_path / "x")}, "There is no folder"),
        "itself": ({"base_model_name_or_path": str(folder)}, "is an adapter, too"),
    }.values():
        before = (folder / "adapter_config.json").read_text()
        edit(folder, **settings)
        assert message in refusal(folder)
        (folder / "adapter_config.json").write_text(before)
    with pytest.raises(InputError, match=r"device_map cannot be used: .* is a LoRA adapter"):
        attnviz.load(folder, device_map="auto")
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    assert "with adapter_model.safetensors" in refusal(folder)


def test_no_module_that_an_adapter_names_is_imported(folder, tmp_path, monkeypatch):
    (tmp_path / "named_by_a_file.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    edit(folder, megatron_config={"a": 1}, megatron_core="named_by_a_file")
    assert attnviz.load(folder).attend(TEXTS[0]).agreement.verdict == "verified"


def test_without_peft_the_remedy_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    message = refusal(folder)
    assert "cannot load the adapter (ModuleNotFoundError: import of peft" in message
    assert message.endswith("Install what is missing.")
