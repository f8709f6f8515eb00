"""Models that one device does not hold: two processes, a disk. Every map is that of one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from families import FAMILIES, FURTHER, TEXTS, VOCABULARY, tiny
from ranks import FAULTS, TEXT
from safetensors.torch import load_file, save_file
from torch.testing import assert_close
from transformers import LlamaConfig, LlamaForCausalLM

import attnviz
from attnviz.app import run
from attnviz.errors import InputError, ModelError

# Grouped queries; one matrix for Q, K and V; latent attention; heads that every process has all of.
PLANNED = ("llama", "gpt-neox", "deepseek-v3", "phi3")
IN_FLOAT32 = ["minilm-float32", "llama-float32"]
SHARED = [f"{family}-float64" for family in ("minilm", *PLANNED)] + IN_FLOAT32
EXACT = {"atol": 1e-12, "rtol": 0}
# Processes add up what each makes of its heads: in float32 they round in another order, and
# sharp attention makes the most of it. (One process that reads a text in a batch, or with other
# threads, differs from itself by as much: on MiniLM by 1.6e-6.)
ROUNDED = {"atol": 1e-5, "rtol": 0}


def model_of(name):
    family, _, dtype = name.rpartition("-")
    if family == "minilm":
        return attnviz.load(dtype=dtype).module
    return tiny(family, getattr(torch, dtype))


def one_process(folder, tokenizer, dtype="auto"):
    model = type(model_of(folder.name)).from_pretrained(folder, dtype=dtype)
    return attnviz.load(model, tokenizer=tokenizer)


def two_processes(folder, names, tokenizer):
    """Have two processes share each of these models; they write what they see into the folder."""
    tokenizer.save_pretrained(folder)
    for name in names:
        model_of(name).save_pretrained(folder / name)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 48, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 1, "intermediate_size": 64}
    LlamaForCausalLM(LlamaConfig(**sizes, **heads)).save_pretrained(folder / "one key head")
    here = Path(__file__).parent
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join([str(here.parents[1]), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, *run, str(here / "ranks.py"), str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, tokenizer):
    return two_processes(tmp_path_factory.mktemp("ranks"), SHARED, tokenizer)


@pytest.fixture(scope="module", params=range(2))
def said(ranks, request):
    """What one of two processes said."""
    return json.loads((ranks / f"{request.param}.json").read_text())


def stages(result):
    return [(check.path, check.stage) for check in result.agreement.checks]


def expect_same(found, alone, near):
    for ours, single in zip(found, alone, strict=True):
        assert (ours.heads, ours.key_heads) == (single.heads, single.key_heads)
        assert single.weights().std(-1).max() > 0.2, "attention this flat would hide a fault"
        assert_close(ours.weights(), single.weights(), **near)
        assert ours.projection.output.weight.equal(single.projection.output.weight)
    assert found.agreement.verdict == "verified", found.agreement.summary()
    assert stages(found) == stages(alone)
    assert found.agreement.not_compared == alone.agreement.not_compared == ()
    assert found.agreement.heads == alone.agreement.heads
    assert found.provenance.weights_sha256 == alone.provenance.weights_sha256


@pytest.mark.parametrize("name", SHARED)
def test_every_process_has_all_heads_in_order(ranks, tokenizer, name):
    alone = one_process(ranks / name, tokenizer).attend(TEXT)
    for rank in range(2):
        found = attnviz.load_result(ranks / f"{name}.{rank}.safetensors")
        expect_same(found, alone, EXACT if name.endswith("64") else ROUNDED)


@pytest.mark.parametrize("name", IN_FLOAT32)
def test_two_processes_are_as_near_to_float64_as_one(ranks, tokenizer, name):
    exact = one_process(ranks / name, tokenizer, torch.float64).attend(TEXT)
    alone = one_process(ranks / name, tokenizer).attend(TEXT)
    shared = attnviz.load_result(ranks / f"{name}.0.safetensors")

    def error(found):
        pairs = zip(found, exact, strict=True)
        return max((one.weights() - other.weights()).abs().max() for one, other in pairs)

    assert error(shared) <= 1.5 * error(alone)
    if name.startswith("minilm"):
        assert error(alone) < 2e-6


@pytest.mark.long
def test_every_family_with_a_plan_for_tensor_parallel(tmp_path, tokenizer):
    """Some 60; `cohere` does not run so: transformers shards its heads, and not their norms."""
    names = [
        f"{family}-float32"  # some experts know no other
        for family in [*FAMILIES, *FURTHER]
        if family != "cohere" and tiny(family).config.get_text_config().base_model_tp_plan
    ]
    two_processes(tmp_path, names, tokenizer)
    for name in names:
        alone = one_process(tmp_path / name, tokenizer).attend(TEXT)
        expect_same(attnviz.load_result(tmp_path / f"{name}.1.safetensors"), alone, ROUNDED)
    assert len(names) > 50


def test_streamed_and_generated_maps_of_two_processes(ranks, tokenizer):
    model = one_process(ranks / "llama-float64", tokenizer)
    alone, long = model.attend(TEXT, generate=3), model.attend(TEXT, mode="streamed")
    for rank in range(2):
        generated = attnviz.load_result(ranks / f"generated.{rank}.safetensors")
        streamed = attnviz.load_result(ranks / f"streamed.{rank}.safetensors")
        assert generated.provenance.generated == alone.provenance.generated
        for ours, single in zip(generated, alone, strict=True):
            assert_close(ours.weights(), single.weights(), **EXACT)
        for ours, single in zip(streamed.streamed, long.streamed, strict=True):
            for kept in ("mean", "largest", "entropy", "received", "lse"):
                near = {"atol": 1e-6, "rtol": 1e-6}  # they are sums in float32
                assert_close(getattr(ours.summary, kept), getattr(single.summary, kept), **near)
        for found, single in ((generated, alone), (streamed, long)):
            assert found.agreement.verdict == "verified", found.agreement.summary()
            assert stages(found) == stages(single)


def test_processes_may_write_one_file_at_once(ranks):
    assert attnviz.load_result(ranks / "all.safetensors").agreement.verdict == "verified"


@pytest.mark.parametrize("mode", ["full", "streamed"])
@pytest.mark.parametrize("fault", FAULTS)
def test_heads_gathered_wrong_are_caught(said, fault, mode):
    assert said[f"{fault}, {mode}"].startswith(
        "ModelError: Expected the heads of model.layers.0.self_attn from all processes to be 48"
        if fault == "one lost"
        else "NOT VERIFIED: differs from the model's own attention first at decoder layer 0"
    ), said


def test_what_processes_cannot_share_is_refused_in_one_line(said):
    assert said["uneven"] == (
        "InputError: one key head: expected a number of processes that divides its 1 key heads, "
        "got 2; start another number (torchrun --nproc-per-node)"
    )
    assert said["shift"].startswith("ModelError: Expected a model that one process holds")


def test_input_is_seen_where_a_plan_wraps_the_attention_itself(tokenizer):
    model = tiny("llama")

    def wrapped(forward):
        return lambda *args, **kwargs: forward(*args, **kwargs)

    for layer in model.model.layers:
        layer.self_attn.forward = wrapped(layer.self_attn.forward)
    agreement = attnviz.load(model, tokenizer=tokenizer).attend(TEXT).agreement
    assert agreement.verdict == "verified"
    assert agreement.not_compared == ()


# --- on the disk


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
        (None, "disk", "full"),
        (None, "disk", "streamed"),
        ("llama", HALF, "full"),
        ("llama", "auto", "full"),
        # What they compute by themselves is followed from operator to operator.
        ("bloom", {"": "disk"}, "full"),
        ("longformer", "disk", "full"),
    ],
    ids=lambda given: "half" if given is HALF else str(given),
)
def test_weights_on_the_disk_change_nothing(folder, tmp_path, family, device_map, mode):
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
        for kept, other in zip(ours.streamed, expected.streamed, strict=True):
            assert_close(kept.summary.mean, other.summary.mean, atol=1e-6, rtol=0)
        assert ours.agreement.verdict == "verified", ours.agreement.summary()
        assert stages(ours) == stages(expected)
        assert ours.agreement.not_compared == expected.agreement.not_compared
        assert ours.provenance == expected.provenance

    assert [name for name, each in spread.module.named_parameters() if each.is_meta] == offloaded
    for name, each in spread.module.named_modules():
        assert vars(each).keys() == members[name].keys()
        assert all(vars(each)[key] is value for key, value in members[name].items())


def test_an_object_on_the_disk_has_the_sha256_of_one_in_memory(folder, tokenizer):
    place = folder("llama")
    whole = LlamaForCausalLM.from_pretrained(place)
    spread = LlamaForCausalLM.from_pretrained(place, device_map=HALF)
    ours, expected = (attnviz.load(each, tokenizer=tokenizer) for each in (spread, whole))
    assert ours.checkpoint.sha256 == expected.checkpoint.sha256
    assert ours.attend(TEXT).provenance == expected.attend(TEXT).provenance
    shifts = [attnviz.shift("train", TEXT, model=model) for model in (ours, expected)]
    assert_close(*(found.decomposition.credit for found in shifts), atol=1e-6, rtol=0)


def test_what_is_no_number_is_found_on_the_disk(folder):
    place = folder("llama")
    file = place / "model.safetensors"
    weights = load_file(file)
    weights["model.layers.2.self_attn.v_proj.weight"][3, 1] = torch.nan
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"layers\.2\.self_attn\.v_proj\.weight holds NaN"):
        attnviz.load(place, device_map="disk")


BAD = {
    "no module": ({"device_map": {"": "cpu", "encoder.layr": "disk"}}, "mean encoder.layer"),
    "not all": ({"device_map": {"encoder": "disk"}}, "leaves out embeddings.word_embeddings"),
    "no way to choose": ({"device_map": "evenly"}, "'balanced', 'balanced_low_0', 'sequential'"),
    "no device": ({"device_map": {"": "moon"}}, "got 'moon'"),
    "both": ({"device_map": "auto", "device": "cpu"}, "got both ('cpu' and 'auto')"),
    "alone": ({"offload_folder": "anywhere"}, "add device_map='auto' (--device-map auto)"),
    "below a file": ({"device_map": "disk", "offload_folder": __file__}, "that can be written"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "message"), BAD.values(), ids=BAD)
def test_a_place_that_cannot_be_is_refused_in_one_line(given, message):
    with pytest.raises(InputError) as caught:
        attnviz.load(**given)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_accelerate_is_asked_for(monkeypatch):
    monkeypatch.setattr("attnviz.models.devices.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"accelerate.*pip install 'attnviz\[large\]'"):
        attnviz.load(device_map="auto")


def test_a_model_object_is_not_placed_anew(tokenizer):
    with pytest.raises(InputError, match="got a model object, which is never changed"):
        attnviz.load(tiny("llama"), tokenizer=tokenizer, device_map="auto")


# --- on the command line


def test_the_command_line_places_a_model(tmp_path, capsys):
    kept = str(tmp_path / "kept.safetensors")
    placed = ["--device-map", "disk", "--offload-folder", str(tmp_path / "offloaded")]
    assert run(["verify", TEXT, *placed, "-o", kept]) == 0
    assert "verified: 72 heads" in capsys.readouterr().out
    for typed, message in (
        (["verify", TEXT, "--device-map", "evenly"], "'balanced', 'balanced_low_0', 'sequential'"),
        (["senses", "bank", *placed, "--device", "cpu"], "got both ('cpu' and 'disk')"),
        (["shift", "train", TEXT, *placed[2:]], "add device_map='auto'"),
        (["heads", "--result", kept, *placed[:2]], "a --result or --device-map, got both"),
    ):
        assert run(typed) == 2
        said = capsys.readouterr()
        assert message in said.err
        assert len(said.err.splitlines()) == 1, said.err
