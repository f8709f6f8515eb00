"""Models that are split across devices or offloaded. Every map equals that of a single device."""

import pytest
import torch
from families import TEXTS, tiny
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

import attnviz
from attnviz import InputError, ModelError, OutputError

TEXT = "the train left the station on time and nobody noticed that it was early"


def stages(result):
    return [(check.path, check.stage) for check in result.agreement.checks]


def test_a_tensor_parallel_model_is_refused_in_one_line(tokenizer):
    model = tiny("llama")
    model.lm_head.weight.full_tensor = lambda: None  # as on every DTensor
    with pytest.raises(InputError, match="tensor parallelism is not supported") as caught:
        attnviz.load(model, tokenizer=tokenizer)
    assert "\n" not in str(caught.value)


# --- on disk


@pytest.fixture
def folder(tmp_path, tokenizer):
    def write(family):
        model = tiny(family)
        model.save_pretrained(tmp_path / family)
        tokenizer.save_pretrained(tmp_path / family)
        return tmp_path / family

    return write


HALF = {
    "model.embed_tokens": "cpu",
    "model.layers.0": "disk",
    "model.layers.1": "cpu",
    "model.layers.2": "disk",
    "model.norm": "cpu",
    "model.rotary_emb": "cpu",
    "lm_head": "disk",
}


@pytest.mark.parametrize(
    ("family", "device_map", "mode"),
    [
        pytest.param(None, "disk", "full", marks=pytest.mark.long),
        ("llama", HALF, "full"),
        ("llama", HALF, "streamed"),
        ("llama", "auto", "full"),
        # Attention code of the model itself is traced across operators.
        ("bloom", {"": "disk"}, "full"),
        ("longformer", "disk", "full"),
    ],
    ids=lambda given: "half" if given is HALF else str(given),
)
def test_weights_on_disk_change_nothing(folder, tmp_path, family, device_map, mode):
    place = None if family is None else folder(family)
    alone = attnviz.load(place, device="cpu")
    spread = attnviz.load(place, device_map=device_map, offload_folder=tmp_path / "offloaded")
    offloaded = [name for name, each in spread.module.named_parameters() if each.is_meta]
    assert bool(offloaded) == (device_map != "auto")
    members = {name: vars(each).copy() for name, each in spread.module.named_modules()}

    texts = TEXTS if mode == "full" else [TEXT]
    for ours, expected in zip(*(m.attend(texts, mode=mode) for m in (spread, alone)), strict=True):
        for record, other in zip(ours.records, expected.records, strict=True):
            assert_close(record.weights(), other.weights(), atol=1e-6, rtol=0)
        for streamed, other in zip(ours.streamed, expected.streamed, strict=True):
            assert_close(streamed.summary.mean, other.summary.mean, atol=1e-6, rtol=0)
        assert ours.agreement.verdict == "verified", ours.agreement.summary()
        assert stages(ours) == stages(expected)
        assert ours.agreement.not_compared == expected.agreement.not_compared
        assert ours.provenance == expected.provenance

    assert [name for name, each in spread.module.named_parameters() if each.is_meta] == offloaded
    for name, each in spread.module.named_modules():
        assert vars(each).keys() == members[name].keys()
        assert all(vars(each)[key] is value for key, value in members[name].items())


def test_nan_on_disk_is_found(folder):
    place = folder("llama")
    file = place / "model.safetensors"
    weights = load_file(file)
    weights["model.layers.2.self_attn.v_proj.weight"][3, 1] = torch.nan
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"layers\.2\.self_attn\.v_proj\.weight holds NaN"):
        attnviz.load(place, device_map="disk")


BAD = {
    "no module": ({"device_map": {"": "cpu", "encoder.layr": "disk"}}, "Did you mean encoder"),
    "not all": ({"device_map": {"encoder": "disk"}}, "any device for the following parameters"),
    "no way to choose": ({"device_map": "evenly"}, "'balanced', 'balanced_low_0', 'sequential'"),
    "no device": ({"device_map": {"": "moon"}}, "'moon' is not a device"),
    "both": ({"device_map": "auto", "device": "cpu"}, "'cpu' and device_map 'auto' exclude"),
    "alone": ({"offload_folder": "anywhere"}, "add device_map='auto' (--device-map auto)"),
}  # fmt: skip


@pytest.mark.parametrize(("device_map", "message"), BAD.values(), ids=BAD)
def test_an_impossible_device_map_is_refused_in_one_line(device_map, message):
    with pytest.raises(InputError) as caught:
        attnviz.load(**device_map)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_offload_folder_is_no_file():
    with pytest.raises(OutputError, match=r"cannot be written: .* is not a folder"):
        attnviz.load(device_map="disk", offload_folder=__file__)


def test_accelerate_is_required(monkeypatch):
    monkeypatch.setattr("attnviz.errors.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"accelerate.*pip install 'attnviz\[large\]'"):
        attnviz.load(device_map="auto")


def test_a_model_object_is_not_moved(tokenizer):
    with pytest.raises(
        InputError, match="device_map cannot be used: a model object is never changed"
    ):
        attnviz.load(tiny("llama"), tokenizer=tokenizer, device_map="auto")
