"""The files used in cases: texts, images, audio, worked examples, and unusable paths."""

from __future__ import annotations

import json
import re
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
import transformers
from media import processor_of, seeing
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import attnviz

Make = Callable[[Path], object]


def prepare(folder: Path, named: str) -> None:
    """Create everything that a command line or a call uses."""
    for name, make in {**FILES, **MODELS}.items():
        if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", named):
            make(folder / name)


def text(content: str) -> Make:
    """Return a function that writes a text."""
    return lambda path: path.write_bytes(content.encode())


def folder(mode: int = 0o700) -> Make:
    """Return a function that creates a folder."""
    return lambda path: (path.mkdir(), path.chmod(mode))


def link(target: str) -> Make:
    """Return a function that creates a link."""
    return lambda path: path.symlink_to(target)


def picture(width: int, height: int, mode: str = "RGB") -> Make:
    """Return a function that writes an image."""

    def make(path: Path) -> None:
        pixels = np.arange(width * height * 3, dtype=np.uint64) * 7 % 251
        image = Image.fromarray(pixels.astype(np.uint8).reshape(height, width, 3))
        image.convert(mode).save(path)

    return make


def frames(path: Path) -> None:
    """Write an animation of three frames."""
    several = [Image.new("RGB", (40, 40), (80 * n, 10, 10)) for n in range(3)]
    several[0].save(path, save_all=True, append_images=several[1:])


def truncated(make: Make) -> Make:
    """Return a function that writes the first half of a file."""

    def cut(path: Path) -> None:
        make(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return cut


def bomb(path: Path) -> None:
    """Write a PNG of a few bytes that claims to have 60,000 × 60,000 pixels."""

    def chunk(name: bytes, body: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(name + body))
        return struct.pack(">I", len(body)) + name + body + checksum

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000)))
        + chunk(b"IEND", b"")
    )  # fmt: skip


def sound(seconds: float) -> Make:
    """Return a function that writes a tone."""
    tone = np.sin(np.arange(int(seconds * 16_000)) / 20) / 2
    return lambda path: soundfile.write(path, tone, 16_000)


def result(path: Path) -> None:
    """Save the complete result of a run."""
    attnviz.save_result(attnviz.attend("the train", model=saved("bert")), path)


# --- models


WORDS = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "a", "of", "in", "on", "at", ",", ".",
    "!", "?", "#", "$", "%", "{", "}", "<", ">", "/", "\\", "[", "]", "(", ")", "=", "0", "1",
    "2", "train", "left", "station", "home", "went", "bank", "mud", "cash", "river", "money",
    "full", "was", "##s", "##ed", "script", "frac",
]  # fmt: skip
_SMALL = {
    "vocab_size": len(WORDS),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "initializer_range": 0.2,
    "max_position_embeddings": 64,
}
_IDS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}


def tokenizer(more: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """Return a word-piece tokenizer of a few words, and of letters that spell all others."""
    letters = [prefix + chr(code) for code in range(97, 123) for prefix in ("", "##")]
    entries = {word: code for code, word in enumerate(dict.fromkeys((*WORDS, *letters, *more)))}
    pieces = Tokenizer(models.WordPiece(entries, unk_token="[UNK]", max_input_chars_per_word=100))
    pieces.normalizer = normalizers.BertNormalizer()
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pieces.decoder = decoders.WordPiece()
    pieces.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )  # fmt: skip
    specials = {
        f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")
    }
    return PreTrainedTokenizerFast(tokenizer_object=pieces, **specials)


@cache
def saved(family: str) -> Path:
    """Return the folder of a valid tiny model, which is created once."""
    place = Path(tempfile.mkdtemp(prefix="attnviz-models-")) / family
    torch.manual_seed(0)
    small = {**_SMALL, "vocab_size": len(tokenizer())}
    model, reader = FAMILIES[family](small)
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and any(part in name for part in ("q_proj", "k_proj", "query", "key")):
            torch.nn.init.normal_(weight, 0.0, 0.5)  # attention that is not uniform
    model.save_pretrained(place)
    for one in reader:
        one.save_pretrained(place)
    return place


def _family(kind: str, ending: str = "Model", **more: Any) -> Callable[[dict[str, Any]], Any]:
    def make(small: dict[str, Any]) -> Any:
        config = getattr(transformers, f"{kind}Config")(**{**small, **_IDS, **more})
        return getattr(transformers, f"{kind}{ending}")(config), [tokenizer()]

    return make


def _t5(small: dict[str, Any]) -> Any:
    config = transformers.T5Config(
        vocab_size=small["vocab_size"], d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=3,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config), [tokenizer()]


def _of_media(family: str, small: dict[str, Any]) -> Any:
    return seeing(family, tokenizer()).module, [processor_of(family, tokenizer())]


def _resnet(_: dict[str, Any]) -> Any:
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    config = transformers.ResNetConfig(embedding_size=4, hidden_sizes=[4, 4], depths=[1, 1])
    reader = ViTImageProcessorPil(size={"height": 32, "width": 32})
    return transformers.ResNetModel(config), [reader]


FAMILIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "bert": _family("Bert"),
    "gpt": _family("GPT2", "LMHeadModel"),
    "llama": _family("Llama", "ForCausalLM", num_key_value_heads=1),
    "fnet": _family("FNet", num_hidden_layers=1),
    "t5": _t5,
    "vit": partial(_of_media, "vit"),
    "resnet": _resnet,
    "wav2vec2": partial(_of_media, "wav2vec2"),
}


# --- models with a defect


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

FILES: dict[str, Make] = {
    # texts
    "words.txt": text("the train left the station"),
    "bom.txt": text("\ufeffthe train left"),
    "binary.txt": lambda path: path.write_bytes(bytes(range(256)) * 4),
    "nul.txt": text("the train\0left"),
    "100000.txt": text("train " * 100_000),
    "huge.txt": sparse_file(2**26 + 1),
    "folder.txt": folder(),
    "sentences.txt": text("the train left\n\nthe train went home\n"),
    # images
    "photo.png": picture(60, 40),
    "dot.png": picture(1, 1),
    "line.png": picture(20_000, 1),
    "clear.png": picture(40, 40, "RGBA"),
    "cmyk.jpg": picture(40, 40, "CMYK"),
    "deep.png": picture(40, 40, "I;16"),
    "moving.gif": frames,
    "empty.png": text(""),
    "half.png": truncated(picture(60, 40)),
    "bomb.png": bomb,
    # audio
    "tone.wav": sound(1.0),
    "silence.wav": sound(0.0),
    "click.wav": sound(0.005),
    "half.wav": truncated(sound(1.0)),
    # worked examples
    "own.json": text(
        '{"tokens": ["a", "b"], "X": [[1, 0], [0, 1]], "W_q": [[1, 0], [0, 1]], '
        '"W_k": [[1, 0], [0, 1]], "W_v": [[1, 1], [0, 1]]}'
    ),
    # results
    "kept.safetensors": result,
    # output locations
    "old.png": picture(2, 2),
    "old.json": text('{"old": 1}'),
    "afolder": folder(),
    "locked": folder(0o500),
    "sealed": folder(0o000),
    "link.png": link("real.png"),
    "null.png": link("/dev/null"),
    "nowhere.png": link("no/such/folder/real.png"),
    "loop.png": link("loop.png"),
}
