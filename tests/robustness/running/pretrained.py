"""The models used in cases: valid ones, and ones with a defect."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from robustness.running.families import saved, tokenizer


def copy(family: str) -> Callable[[Path], None]:
    """Return a function that copies a valid model."""
    return lambda path: shutil.copytree(saved(family), path) and None


def damaged(spoil: Callable[[Path], object], family: str = "bert") -> Callable[[Path], None]:
    """Return a function that copies a valid model and damages it."""

    def make(path: Path) -> None:
        shutil.copytree(saved(family), path)
        spoil(path)

    return make


def config(family: str = "bert", **lies: Any) -> Callable[[Path], None]:
    """Return a function that creates a model with a changed config."""

    def lie(path: Path) -> None:
        file = path / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | lies))

    return damaged(lie, family)


def file(name: str, content: bytes) -> Callable[[Path], None]:
    """Return a function that creates a model with one file replaced."""
    return damaged(lambda path: (path / name).write_bytes(content))


def without(*names: str) -> Callable[[Path], None]:
    """Return a function that creates a model with missing files."""
    return damaged(lambda path: [(path / name).unlink() for name in names])


def weights(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Return a function that creates a model with other bytes as weights."""

    def edit(path: Path) -> None:
        file = path / "model.safetensors"
        file.write_bytes(change(file.read_bytes()))

    return damaged(edit)


def tensors(
    change: Callable[[dict[str, torch.Tensor]], object], family: str = "bert"
) -> Callable[[Path], None]:
    """Return a function that creates a model with other tensors."""

    def edit(path: Path) -> None:
        file = path / "model.safetensors"
        weights_by_name = load_file(file)
        change(weights_by_name)
        save_file(weights_by_name, file, metadata={"format": "pt"})

    return damaged(edit, family)


_QUERY = "encoder.layer.1.attention.self.query.weight"


def _fill(value: float, name: str = _QUERY) -> Callable[[Path], None]:
    return tensors(lambda found: found[name].fill_(value))


def _own_code(path: Path) -> None:
    settings = json.loads((path / "config.json").read_text())
    settings |= {
        "model_type": "mine",
        "auto_map": {"AutoModel": "mine.Mine", "AutoConfig": "mine.C"},
    }
    (path / "config.json").write_text(json.dumps(settings))
    (path / "mine.py").write_text("open('ran', 'w').write('foreign code ran')")


def _minus_3_tokens(path: Path) -> None:
    file = path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": -3}))


def sparse_file(size: int) -> Callable[[Path], None]:
    """Return a function that creates a sparse file of this size."""

    def make(path: Path) -> None:
        with path.open("wb") as file:
            file.truncate(size)

    return make


def _closed(mode: int, name: str = ".") -> Callable[[Path], None]:
    return damaged(lambda path: (path / name).chmod(mode))


MODELS: dict[str, Callable[[Path], Any]] = {
    "tiny": copy("bert"),
    "zug-ü-列車": copy("bert"),
    "gpt": copy("gpt"),
    "llama": copy("llama"),
    "t5": copy("t5"),
    "vit": copy("vit"),
    "wav2vec2": copy("wav2vec2"),
    "fnet": copy("fnet"),
    "resnet": copy("resnet"),
    "a-file": lambda path: path.write_text("{}"),
    "a-broken-link": lambda path: path.symlink_to("no-such-folder"),
    "not-to-be-listed": _closed(0o333),
    "not-to-be-entered": _closed(0o444),
    "unreadable-weights": _closed(0o000, "model.safetensors"),
    "wants-a-package": config(
        quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}
    ),
    "at-most-minus-3-tokens": damaged(_minus_3_tokens),
    # the weights
    "without-config": without("config.json"),
    "without-weights": without("model.safetensors"),
    "truncated": weights(lambda kept: kept[:-1000]),
    "huge-header": weights(lambda kept: (2**62).to_bytes(8, "little") + kept[8:]),
    "git-lfs": weights(lambda kept: b"version https://git-lfs.github.com/spec/v1\nsize 90\n"),
    "no-tensors": weights(lambda kept: (2).to_bytes(8, "little") + b"{}"),
    "missing-tensor": tensors(lambda found: found.pop(_QUERY)),
    "nan": _fill(float("nan")),
    "nan-unused": tensors(
        lambda found: found["embeddings.word_embeddings.weight"][-1].fill_(float("nan"))
    ),
    "flat": _fill(0.0),
    "overflowing": tensors(lambda found: found[_QUERY].mul_(10_000)),
    # the config
    "config-no-json": file("config.json", b"{"),
    "config-nested": file("config.json", b"[" * 100_000),
    "no-type": file("config.json", b"{}"),
    "unknown-type": config(model_type="nonesuch", architectures=["Nonesuch"]),
    "type-with-escape": config(model_type="\x1b[31mred\n", architectures=["\x07"]),
    "lies-about-heads": config(num_attention_heads=4),
    "heads-do-not-divide": config(num_attention_heads=3),
    "no-heads": config(num_attention_heads=0),
    "lies-about-width": config(hidden_size=32),
    "no-width": config(hidden_size=0),
    "negative-width": config(hidden_size=-16),
    "more-layers": config(num_hidden_layers=3),
    "fewer-layers": config(num_hidden_layers=1),
    "layers-a-word": config(num_hidden_layers="two"),
    "fewer-words": config(vocab_size=20),
    "other-family": config(model_type="gpt2", architectures=["GPT2Model"]),
    "other-activation": config(hidden_act="nonesuch"),
    "eager-elsewhere": config(_attn_implementation="kernels-community/nonesuch"),
    # custom code
    "own-code": damaged(_own_code),
    # the tokenizer
    "without-tokenizer": without("tokenizer.json", "tokenizer_config.json"),
    "tokenizer-no-json": file("tokenizer.json", b"{"),
    "larger-tokenizer": damaged(
        lambda path: tokenizer(tuple(f"word{n}" for n in range(1000))).save_pretrained(path)
    ),
    "vit-without-processor": damaged(
        lambda path: [each.unlink() for each in path.glob("*processor*")], "vit"
    ),
}
