"""Who follows the advice of an error message gets a model that can be used."""

import json
import re
import shutil
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch
import transformers as t
from safetensors.torch import load_file, save_file

import attnviz
from attnviz import InputError, ModelError

TEXT = "the train left the station"
CODE = re.compile(r"(?:import transformers|from safetensors)(?s:.*)")


@pytest.fixture(scope="module")
def sound(tokenizer, tmp_path_factory):
    """A classifier with its tokenizer, as a Trainer saves it."""
    folder = tmp_path_factory.mktemp("sound")
    torch.manual_seed(0)
    settings = {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = t.BertConfig(vocab_size=30522, intermediate_size=64, num_labels=3, **settings)
    t.BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def pickled(folder, name="pytorch_model.bin", prefix=""):
    weights = load_file(folder / "model.safetensors")
    torch.save({prefix + key: value for key, value in weights.items()}, folder / name)
    (folder / "model.safetensors").unlink()


def of_data_parallel(folder, prefix="module."):
    weights = load_file(folder / "model.safetensors")
    renamed = {prefix + key: value for key, value in weights.items()}
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})


def in_checkpoints(folder, left=()):
    for number in (500, 1000):
        shutil.copytree(folder, folder.with_name("copy"))
        folder.with_name("copy").rename(folder / f"checkpoint-{number}")
    for file in folder.iterdir():
        if file.is_file() and file.name not in left:
            file.unlink()


def renamed(folder):
    torch.save({}, folder / "optimizer.pt")
    (folder / "model.safetensors").rename(folder / "best.safetensors")


def follow(message, folder, new):
    """Do what a message says; return what it says to give."""
    if match := re.search(r"Give '(.+)'\.$", message):
        return match[1]
    if match := re.search(r"but (\S+)\. If it holds the weights, rename it to (\S+)\.$", message):
        (folder / match[1]).rename(folder / match[2])
        return folder
    if "give the folder that it lies in" in message:
        return folder
    code = CODE.search(message)[0]
    names = {"attnviz": attnviz, "old": str(folder), "new": str(new)}
    names["f"] = str(folder / "model.safetensors")
    exec(code, names)
    return names.get("model") or (new if "new" in code else folder)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("spoil", "asked"),
    [
        (pickled, ""),
        (lambda folder: pickled(folder, "best.pt"), ""),
        (lambda folder: pickled(folder, "best.pt"), "best.pt"),
        (of_data_parallel, ""),
        (lambda folder: of_data_parallel(folder, "_orig_mod."), ""),
        (in_checkpoints, ""),
        (lambda folder: in_checkpoints(folder, left=("config.json", "tokenizer.json")), ""),
        (renamed, ""),
    ],
)
def test_the_advice_is_followed(sound, tmp_path, spoil, asked):
    expected = load_file(sound / "model.safetensors")
    shutil.copytree(sound, tmp_path / "old")
    spoil(tmp_path / "old")
    source = tmp_path / "old" / asked
    for _ in range(4):  # one piece of advice may lead to the next
        try:
            model = attnviz.load(source)
            break
        except ModelError as error:
            source = follow(str(error), tmp_path / "old", tmp_path / "new")
    assert type(model.module).__name__ == "BertForSequenceClassification"
    for name, weights in model.module.state_dict().items():
        assert torch.equal(weights, expected[name])
    assert model.attend(TEXT).agreement.verdict == "verified"


def test_the_advice_on_pictures_keeps_the_processor(tmp_path):
    config = t.ViTConfig(
        image_size=32, patch_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    t.ViTForImageClassification(config).save_pretrained(tmp_path / "old")
    t.ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(tmp_path / "old")
    pickled(tmp_path / "old")
    with pytest.raises(ModelError) as error:
        attnviz.load(tmp_path / "old")
    model = attnviz.load(follow(str(error.value), tmp_path / "old", tmp_path / "new"))
    result = model.attend(image=np.zeros((32, 32, 3), np.uint8))
    assert result.agreement.verdict == "verified"


def test_weights_alone_are_loaded_into_their_model(sound, tokenizer, tmp_path):
    shutil.copy(sound / "model.safetensors", tmp_path / "best.safetensors")
    shutil.copytree(sound, tmp_path / "copy")
    pickled(tmp_path / "copy", "best.pt")
    (tmp_path / "copy" / "best.pt").rename(tmp_path / "best.pt")
    for name in ("best.safetensors", "best.pt"):
        with pytest.raises(ModelError) as error:
            attnviz.load(tmp_path / name)
        model = t.BertForSequenceClassification(t.BertConfig.from_pretrained(sound))
        (code,) = re.findall(r"call (model\.load_state_dict\(.*\)), and pass", str(error.value))
        code = code.replace(repr(name), repr(str(tmp_path / name)))
        exec("import safetensors.torch, torch; " + code, {"model": model})
        loaded = attnviz.load(model.eval(), tokenizer=tokenizer)
        assert loaded.attend(TEXT).agreement.verdict == "verified"


@pytest.mark.filterwarnings("ignore")
def test_a_gguf_file_is_loaded(tmp_path):
    config = t.LlamaConfig(
        vocab_size=4, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, intermediate_size=32, max_position_embeddings=16,
    )  # fmt: skip
    model, old, new = t.LlamaForCausalLM(config), tmp_path / "old", tmp_path / "new"
    old.mkdir()
    write_gguf(model, old / "tiny.gguf")
    with pytest.raises(ModelError, match=r"tiny\.gguf' is a file of llama\.cpp") as error:
        attnviz.load(old / "tiny.gguf")
    loaded = follow(str(error.value), old, new)
    assert loaded.attend("a b a").agreement.parts["weights"] == "verified"
    t.LlamaConfig().save_pretrained(old)
    with pytest.raises(ModelError, match=r"but tiny\.gguf\. Load it"):
        attnviz.load(old)


def write_gguf(model, path):
    """Write a Llama as llama.cpp stores it, with a vocabulary of four words."""
    writer = gguf.GGUFWriter(path, "llama")
    config = model.config
    writer.add_block_count(1)
    writer.add_context_length(16)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<|endoftext|>", "a", "b", "ab"])
    writer.add_token_types([3, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 1)
    for name, tensor in model.state_dict().items():
        writer.add_tensor(names.get_name(name, (".weight",)), tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("file", ["../model.safetensors", "/etc/hosts", "a/b.safetensors"])
def test_an_index_names_no_files_outside_its_folder(sound, tmp_path, file):
    folder = shutil.copytree(sound, tmp_path / "folder")
    weights = folder / "model.safetensors"
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(load_file(weights), file)})
    )
    (folder / "a").mkdir()
    shutil.copy(weights, folder / "a" / "b.safetensors")
    weights.rename(tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=f"names '{file}', which is not in its folder"):
        attnviz.load(folder)


def test_adapters_of_virtual_tokens_are_refused(sound, tmp_path):
    settings = {"peft_type": "PROMPT_TUNING", "base_model_name_or_path": str(sound)}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError, match="Load any other one with peft, and pass the model"):
        attnviz.load(tmp_path)


REFUSED = "python -OO removes docstrings, which transformers needs. Use python -O."


def test_docstrings_are_asked_for(monkeypatch):
    monkeypatch.setattr(
        "attnviz.models.checkpoint.sys", SimpleNamespace(flags=SimpleNamespace(optimize=2))
    )
    with pytest.raises(InputError, match=f"^{re.escape(REFUSED)}$"):
        attnviz.verify(TEXT)


def falcon_with_alibi(attention):
    torch.manual_seed(0)
    settings = {"num_hidden_layers": 2, "num_attention_heads": 4, "alibi": True}
    config = t.FalconConfig(vocab_size=30522, hidden_size=32, **settings)
    config._attn_implementation = attention
    model = t.FalconModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=parameter[0].numel() ** -0.5)
    return model


def test_a_model_whose_fused_attention_computes_something_else_is_told_how_to_load_it(
    tokenizer, tmp_path
):
    model = falcon_with_alibi("sdpa")
    report = attnviz.load(model, tokenizer=tokenizer).attend(TEXT).agreement
    assert report.verdict == "failed"
    advice = re.search(r'load it with from_pretrained\(…, (\w+)="(\w+)"\)', report.summary())
    assert advice
    model.save_pretrained(tmp_path)
    again = t.FalconModel.from_pretrained(tmp_path, **{advice[1]: advice[2]})
    assert attnviz.load(again, tokenizer=tokenizer).attend(TEXT).agreement.verdict == "verified"


def test_a_model_that_eager_attention_does_not_mend_is_told_nothing_of_it(tokenizer):
    model = falcon_with_alibi("sdpa")
    model.h[0].mlp.register_forward_hook(lambda *given: given[2] + torch.rand(32))
    report = attnviz.load(model, tokenizer=tokenizer).attend(TEXT).agreement
    assert report.verdict == "failed"
    assert "eager" not in report.summary()
