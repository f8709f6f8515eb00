"""Load the parts of a checkpoint folder with transformers: config, model and tokenizer.

Weights are read from safetensors only, and no code of a checkpoint runs. The model's class comes
from config.json and is one of transformers' own. Every weight of the model comes from the files:
a missing or misshapen tensor, NaN or infinity refuses the checkpoint.
"""

from __future__ import annotations

import copy
import json
import math
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars
from safetensors import safe_open
from transformers import CONFIG_MAPPING, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as progress_bars

from attnviz.errors import InputError, ModelError, one_line
from attnviz.models.devices import Placement
from attnviz.models.parameters import whole
from attnviz.runtime import libraries
from attnviz.runtime.compat import unset_attention_implementation
from attnviz.runtime.libraries import debugging, silence_logs, silence_rust
from attnviz.runtime.memory import MemoryBudget, is_out_of_memory

VOCABULARY_FILES = (
    "tokenizer.json",
    "tekken.json",
    "vocab.*",
    "vocab-*.json",
    "*.model",
    "*.spm",
    "*.tiktoken",
)
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
# Larger counts would fill the memory, or take forever, before a single weight is read.
_LARGEST_COUNTS = {"num_hidden_layers": 1_000, "num_layers": 1_000, "n_layer": 1_000,
                   "num_labels": 100_000}  # fmt: skip


# --- config.json


def read_json(name: str, path: Path) -> dict[str, Any]:
    """Return the object in a JSON file of the checkpoint `name`."""
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


def load_config(name: str, folder: Path) -> tuple[Any, Any]:
    """Return the config and the model class that config.json declares.

    Where the declared class is not made for the config's model_type, the type decides, as in
    AutoModel.
    """
    settings = read_json(name, folder / "config.json")
    for key, most in _LARGEST_COUNTS.items():
        count = settings.get(key)
        if isinstance(count, int) and count > most:
            raise ModelError(
                f"{name}: {key} in config.json is {count!r:.20}, and no known model has more than "
                f"{most:,}; use the config.json that was saved with these weights"
            )
    model_type, class_names = settings.get("model_type"), settings.get("architectures")
    class_name = class_names[0] if isinstance(class_names, list) and class_names else None
    declared: Any = getattr(transformers, class_name, None) if isinstance(class_name, str) else None
    if not (isinstance(declared, type) and issubclass(declared, PreTrainedModel)):
        declared = None
    is_known = isinstance(model_type, str) and model_type in CONFIG_MAPPING
    if "auto_map" in settings and not (is_known and declared):
        raise ModelError(
            f"{name}: wants remote code, which attnviz does not run (model_type "
            f"{model_type!r:.60}, class {class_name!r:.60}); use a model whose class is in "
            "transformers, or pass a loaded one"
        )
    if not is_known and (declared is None or model_type is not None):
        raise ModelError(
            f"{name}: expected a model_type that transformers {transformers.__version__} knows, "
            f"got {model_type!r:.60}; check config.json or upgrade transformers"
        )
    with translate(name, "config.json"):
        config_class = CONFIG_MAPPING[str(model_type)] if is_known else declared.config_class
        config = config_class.from_pretrained(str(folder), local_files_only=True)
        if declared is None or not isinstance(config, declared.config_class):
            declared = transformers.MODEL_MAPPING[type(config)]
    return config, declared[0] if isinstance(declared, tuple) else declared


# --- weights


@dataclass(frozen=True)
class Weights:
    """The files that hold the weights, the count of their numbers, and their size in bytes."""

    files: tuple[Path, ...]
    numbers: int
    size: int


def find_weights(name: str, folder: Path, extra_files: Sequence[str] = ()) -> Weights:
    """Return the safetensors files that transformers will read; their headers must be valid.

    Parameters
    ----------
    extra_files : sequence of str
        Files that the config's class reads beside the model, if they exist.
    """
    for pattern in ("adapter_config.json", "shard-*-model-*.safetensors"):
        if any(folder.glob(pattern)):  # loaded beside, or instead of, the files that are hashed
            raise ModelError(
                f"{name}: expected a whole model in model.safetensors, found {pattern}; "
                "merge all weights into one model and save_pretrained that"
            )
    names, index = ["model.safetensors"], folder / "model.safetensors.index.json"
    if not (folder / names[0]).is_file() and index.is_file():
        shards = read_json(name, index).get("weight_map")
        if isinstance(shards, dict) and shards:
            names = [str(shard) for shard in shards.values()]
    names += [file for file in extra_files if (folder / file).is_file()]
    files = tuple(folder / file for file in sorted(set(names)))
    numbers = sum(_count_numbers(name, file) for file in files)
    return Weights(files, numbers, sum(file.stat().st_size for file in files))


def _count_numbers(name: str, file: Path) -> int:
    """Return how many numbers a safetensors file holds, by its header."""
    if not file.is_file():
        pickles = sorted(path.name for path in file.parent.glob("*") if path.suffix in _PICKLES)
        instead = "no such file"
        if pickles:
            instead = f"only {pickles[0]:.60}, a pickle, which may run code"
        raise ModelError(
            f"{name}: expected the weights in {file.name:.60}, found {instead}; where you trust "
            "them, convert to safetensors: AutoModel.from_pretrained(old).save_pretrained(new)"
        )
    if not os.access(file, os.R_OK):
        raise ModelError(
            f"{name}: cannot read {file.name}: Permission denied; change its permissions"
        )
    try:
        with safe_open(file, framework="pt") as header:
            return sum(prod(header.get_slice(key).get_shape()) for key in header.keys())  # noqa: SIM118
    except Exception as error:
        if is_out_of_memory(error):
            raise weights_memory(name, torch.device("cpu")).shortage(file.stat().st_size) from error
        raise ModelError(
            f"{name}: {file.name} is truncated or corrupt ({one_line(error)}); "
            "get it again (from git with 'git lfs pull')"
        ) from error


def weights_memory(name: str, device: torch.device) -> MemoryBudget:
    """Return the memory requirement of a model's weights on a device."""
    elsewhere = "" if device.type == "cpu" else "device='cpu' (--device cpu), "
    ways = f"Use {elsewhere}dtype='bfloat16' (--dtype bfloat16), or a smaller model."
    return MemoryBudget(f"the weights of {name}", device, ways, ModelError)


# --- the model


def load_model(
    name: str,
    folder: Path,
    config: Any,
    model_class: Any,
    dtype: torch.dtype | None,
    weights: Weights,
    placement: Placement | None = None,
) -> PreTrainedModel:
    """Build the model that config.json describes and fill every weight of it from the files."""
    # A config may ask for attention code from the hub, for weights in other files than those that
    # are hashed, for patched classes, or for tuples as outputs.
    unset_attention_implementation(config)
    config.transformers_weights = config.fusion_config = None
    config.return_dict = True
    memory = weights_memory(name, torch.device("cpu"))
    with translate(name, "the model", memory), torch.device("meta"):
        skeleton = model_class(copy.deepcopy(config))
    device_map: dict[str, Any] = {}
    if placement is None:
        numbers = sum(parameter.numel() for parameter in skeleton.parameters())
        itemsize = weights.size / max(weights.numbers, 1) if dtype is None else dtype.itemsize
        memory.expect(round(numbers * itemsize))
    else:
        placement.expect_modules(name, skeleton)
        device_map = {"device_map": placement.device_map, "offload_folder": placement.folder}
    with translate(name, "the model", memory):
        try:
            module, report = model_class.from_pretrained(
                str(folder),
                config=config,
                dtype=dtype,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # only so that _expect_complete can name them
                **device_map,
            )
        except ValueError as error:
            if placement is None or "device_map" not in str(error):
                raise
            raise InputError(f"{name}: accelerate refuses this device_map: {error}") from error
    module = _expect_complete(name, module, report)
    _expect_finite(name, module)
    return module.requires_grad_(False)


def _expect_complete(name: str, module: Any, report: dict[str, Any]) -> PreTrainedModel:
    """Refuse random weights and lost layers; return the module whose weights were all loaded.

    A file that holds nothing of the declared head (sentence-transformers writes such files) gives
    the model below the head.
    """
    prefix = f"{module.base_model_prefix}."
    names, missing = set(module.state_dict()), set(report["missing_keys"])
    lost = _lost_layers(module, prefix, report["unexpected_keys"])
    head = {key for key in names if not key.startswith(prefix)} - set(module.all_tied_weights_keys)
    is_headless = head <= missing and not any(key.startswith(prefix) for key in missing)
    below = module.base_model
    if missing and is_headless and below is not module and isinstance(below, PreTrainedModel):
        module, missing = below, set()
    problems = [
        f"{key:.80} is {tuple(shape)} in the file and {tuple(expected)} by the config"
        for key, shape, expected in sorted(report["mismatched_keys"])
    ]
    problems += [f"{key:.80} is missing" for key in sorted(missing)]
    problems += [f"the config has no layer for {key:.80}" for key in lost]
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise ModelError(
            f"{name}: expected the weights of the {type(module).__name__} in config.json, but "
            f"{problems[0]}{more}; random weights are never shown: "
            "use the config.json that was saved with these weights"
        )
    return module  # type: ignore[no-any-return]


def _lost_layers(module: torch.nn.Module, prefix: str, unexpected: set[str]) -> list[str]:
    """Return the keys of the file that number a layer past the last one of the model."""
    layer_counts = {
        path.removeprefix(prefix): len(layers)
        for path, layers in module.named_modules()
        if isinstance(layers, torch.nn.ModuleList | torch.nn.Sequential)
    }

    def is_lost(key: str) -> bool:
        numbers = re.finditer(r"\.(\d+)(?=\.)", key)
        return any(int(n[1]) >= layer_counts.get(key[: n.start()], math.inf) for n in numbers)

    return sorted(key for key in unexpected if is_lost(key.removeprefix(prefix)))


def _expect_finite(name: str, module: PreTrainedModel) -> None:
    """Refuse weights that hold NaN or infinity."""
    for key, tensor in module.named_parameters():
        if not (tensor.is_floating_point() and tensor.numel() and tensor.element_size() > 1):
            continue
        if not all(bound.isfinite() for bound in whole(module, key, tensor).aminmax()):
            dtype = str(tensor.dtype).removeprefix("torch.")
            is_narrow = tensor.element_size() < torch.float32.itemsize
            wider = ", or load it in float32 (dtype='float32', --dtype float32)"
            raise ModelError(
                f"{name}: expected finite weights, but {key:.80} holds NaN or infinity as {dtype}; "
                f"get the file again{wider if is_narrow else ''}"
            )


def move(name: str, module: Any, device: torch.device) -> PreTrainedModel:
    """Move a model that attnviz loaded to its device."""
    memory = weights_memory(name, device)
    if device.type != "cpu":
        memory.expect(sum(tensor.nbytes for tensor in [*module.parameters(), *module.buffers()]))
    with translate(name, "the model", memory):
        return module.to(device)  # type: ignore[no-any-return]


# --- the tokenizer


def load_tokenizer(name: str, folder: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of `folder`.

    Raises
    ------
    ModelError
        There is no vocabulary (transformers would make up one of five entries), or it needs
        remote code.
    """
    no_vocabulary = ModelError(
        f"{name}: expected tokenizer files, found no vocabulary; "
        "pass tokenizer= (a tokenizer, its folder or its hub name)"
    )
    is_there, settings_file = has_vocabulary(folder), folder / "tokenizer_config.json"
    if not is_there and not settings_file.is_file():
        raise no_vocabulary
    settings = read_json(name, settings_file) if settings_file.is_file() else {}
    tokenizer_class = settings.get("tokenizer_class")
    refuse_remote_code(name, "the tokenizer", "tokenizer=", settings, tokenizer_class)
    with translate(name, "the tokenizer"), silence_rust():
        tokenizer: PreTrainedTokenizerBase = transformers.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    # A tokenizer of bytes or characters names no vocabulary files.
    files = tokenizer.vocab_files_names.values()
    if files and not is_there and not any((folder / file).is_file() for file in files):
        raise no_vocabulary
    return tokenizer


def has_vocabulary(folder: Path) -> bool:
    """Tell whether `folder` holds the vocabulary of a tokenizer."""
    return any(True for pattern in VOCABULARY_FILES for _ in folder.glob(pattern))


def expect_vocabulary_fits(
    name: str, tokenizer: PreTrainedTokenizerBase | None, module: PreTrainedModel
) -> None:
    """Raise ModelError if the tokenizer has more entries than the embedding has rows."""
    rows = embedding_rows(module)
    if tokenizer is not None and rows is not None and len(tokenizer) > rows:
        raise ModelError(
            f"{name}: expected a tokenizer of at most {rows} entries, the rows "
            f"of the embedding, got {len(tokenizer)}; pass the tokenizer= of this model"
        )


def embedding_rows(module: PreTrainedModel) -> int | None:
    """Return the number of rows of the input embedding; None where the model has no such table."""
    try:
        embedding = module.get_input_embeddings()
    except NotImplementedError:
        return None
    return len(embedding.weight) if isinstance(embedding, torch.nn.Embedding) else None


# --- shared by all of them


def refuse_remote_code(
    name: str, what: str, option: str, settings: dict[str, Any], class_name: object
) -> None:
    """Raise ModelError if the settings name code of their own and no class of transformers."""
    if "auto_map" in settings and not isinstance(
        getattr(transformers, str(class_name), None), type
    ):
        raise ModelError(
            f"{name}: {what} ({class_name!r:.60}) wants remote code, which attnviz does not run; "
            f"pass {option} (an object of transformers, its folder or its hub name)"
        )


@contextmanager
def translate(name: str, what: str, memory: MemoryBudget | None = None) -> Iterator[None]:
    """Turn whatever transformers raises while it loads `what` into a one-line ModelError."""
    message = f"{name}: transformers {transformers.__version__} cannot load {what}"
    ways = "Check whether the file is what was published, or free some memory."
    memory = memory or MemoryBudget(f"{what} of {name}", torch.device("cpu"), ways, ModelError)
    with libraries.translate(memory, message, "; check the files of this checkpoint"):
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Keep logs, progress bars and warnings off the terminal, and restore the settings after."""
    is_shown, is_hub_hidden = progress_bars.is_progress_bar_enabled(), are_progress_bars_disabled()
    with silence_logs(), warnings.catch_warnings():
        if not debugging():
            warnings.simplefilter("ignore")
        try:
            if is_shown:
                progress_bars.disable_progress_bar()  # type: ignore[no-untyped-call]
            yield
        finally:
            if is_shown:
                progress_bars.enable_progress_bar()  # type: ignore[no-untyped-call]
            if is_hub_hidden:
                disable_progress_bars()
