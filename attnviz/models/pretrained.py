"""Load the parts of a checkpoint folder with transformers: config, model, tokenizer, processors.

Weights are read from safetensors only, and no code of a checkpoint runs. The model's class comes
from config.json and is one of transformers' own. Every weight of the model comes from the files:
a missing or misshapen tensor, NaN or infinity refuses the checkpoint. Image processors are those
that compute with Pillow and NumPy, so that results do not depend on whether torchvision is there.
"""

from __future__ import annotations

import copy
import inspect
import json
import math
import os
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
import transformers
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars
from transformers import CONFIG_MAPPING, PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin
from transformers.feature_extraction_sequence_utils import SequenceFeatureExtractor
from transformers.image_processing_utils import BaseImageProcessor
from transformers.utils import logging as progress_bars

from attnviz.errors import InputError, ModelError, did_you_mean, one_line, require
from attnviz.io import check_folder
from attnviz.runtime import libraries
from attnviz.runtime.compat import unset_attention_implementation
from attnviz.runtime.libraries import MemoryBudget, debugging, one_device, silence_logs, whole

DeviceMap: TypeAlias = str | int | torch.device | Mapping[str, str | int | torch.device]
_STRATEGIES = ("auto", "balanced", "balanced_low_0", "sequential")  # by accelerate
VOCABULARY_FILES = (
    "tokenizer.json",
    "tekken.json",
    "vocab.*",
    "vocab-*.json",
    "*.model",
    "*.spm",
    "*.tiktoken",
)
# Larger counts would fill the memory, or take forever, before a single weight is read.
_LARGEST_COUNTS = dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer"), 1_000)
_LARGEST_COUNTS["num_labels"] = 100_000
_ARGUMENTS = {
    "text": ("input_ids",),
    "image": ("pixel_values",),
    "audio": ("input_features", "input_values"),
}
_CHANGING = {"Dense", "LayerNorm", "CNN", "LSTM", "WordWeights", "BoW", "WeightedLayerPooling"}
_POOLINGS = {"mean_tokens": "mean", "cls_token": "first", "lasttoken": "last"}
_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
_WEIGHTS = {
    "model.safetensors": ("*.safetensors",),
    "pytorch_model.bin": ("*.bin", "*.pt", "*.pth", "*.ckpt"),
}
_NO_WEIGHTS = re.compile(r"training_args|optimizer|scheduler|rng_state|.*-of-")
_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


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


@contextmanager
def translate(name: str, what: str, memory: MemoryBudget | None = None) -> Iterator[None]:
    """Turn any exception of a library that loads `what` into a one-line ModelError."""
    message = f"{name}: transformers {transformers.__version__} cannot load {what}"
    ways = "Check whether the file is what was published, or free some memory."
    memory = memory or MemoryBudget(f"{what} of {name}", torch.device("cpu"), ways, ModelError)
    advice = "Check the files of this checkpoint, or get them again (from git with 'git lfs pull')."
    with libraries.translate(memory, message, advice):
        yield


def read_json(name: str, path: Path) -> dict[str, Any]:
    """Return the object in a JSON file of the checkpoint `name`."""
    try:
        content = json.loads(path.read_bytes())
        problem = "it is not a JSON object"
    except FileNotFoundError:
        content, problem = None, "no such file"
    except (OSError, ValueError, RecursionError) as error:
        content, problem = None, one_line(error)
    if isinstance(content, dict):
        return content
    raise ModelError(
        f"{name}: {path.name} cannot be read: {problem}. Give a folder written by save_pretrained."
    )


def _refuse_remote_code(
    name: str, what: str, option: str, settings: dict[str, Any], class_name: object
) -> None:
    own_class = getattr(transformers, str(class_name), None)
    if "auto_map" in settings and not isinstance(own_class, type):
        raise ModelError(
            f"{name}: {what} ({class_name!r:.60}) wants remote code, which attnviz does not run. "
            f"Pass {option} (an object of transformers, its folder or its hub name)."
        )


def load_config(name: str, folder: Path) -> tuple[Any, Any]:
    """Return the config and the model class of config.json; as in AutoModel, the type decides."""
    if not (folder / "config.json").is_file() and (inner := _inner_checkpoint(folder)):
        raise ModelError(f"{name}: there is no config.json, but a checkpoint in it. Give {inner}.")
    settings = read_json(name, folder / "config.json")
    for key, most in _LARGEST_COUNTS.items():
        count = settings.get(key)
        if isinstance(count, int) and count > most:
            raise ModelError(
                f"{name}: {key} in config.json is {count!r:.20}, and no known model has more than "
                f"{most:,}. Use the config.json that was saved with these weights."
            )
    model_type, class_names = settings.get("model_type"), settings.get("architectures")
    class_name = class_names[0] if isinstance(class_names, list) and class_names else None
    declared: Any = getattr(transformers, str(class_name), None)
    if not (isinstance(declared, type) and issubclass(declared, PreTrainedModel)):
        declared = None
    is_known = isinstance(model_type, str) and model_type in CONFIG_MAPPING
    if "auto_map" in settings and not (is_known and declared):
        raise ModelError(
            f"{name}: wants remote code, which attnviz does not run (model_type "
            f"{model_type!r:.60}, class {class_name!r:.60}). Use a model whose class is in "
            "transformers, or pass a loaded one."
        )
    if not is_known and (declared is None or model_type is not None):
        raise ModelError(
            f"{name}: transformers {transformers.__version__} does not know the model_type "
            f"{model_type!r:.60}. Check model_type in config.json, or run pip install --upgrade "
            "transformers."
        )
    with translate(name, "config.json"):
        config_class = CONFIG_MAPPING[str(model_type)] if is_known else declared.config_class
        config = config_class.from_pretrained(str(folder), local_files_only=True)
        if declared is None or not isinstance(config, declared.config_class):
            declared = transformers.MODEL_MAPPING[type(config)]
    return config, declared[0] if isinstance(declared, tuple) else declared


_MAX_HEADER = 20_000_000  # bytes: 200,000 tensors; millions of empty ones take minutes to read


def find_weights(name: str, folder: Path, extra_files: Sequence[str] = ()) -> list[Path]:
    """Return the safetensors files that transformers will read, by name, with `extra_files`."""
    for pattern in ("adapter_config.json", "shard-*-model-*.safetensors"):
        if any(folder.glob(pattern)):  # loaded beside, or instead of, the files that are hashed
            raise ModelError(
                f"{name}: {pattern} keeps weights outside of model.safetensors. "
                "Merge all weights into one model and save_pretrained that."
            )
    names, index = {"model.safetensors"}, folder / "model.safetensors.index.json"
    if not (folder / "model.safetensors").is_file() and index.is_file():
        shards = read_json(name, index).get("weight_map")
        if isinstance(shards, dict) and shards:
            names = set(map(str, shards.values()))
    for file in sorted(names):
        if Path(file).name != file:
            raise ModelError(
                f"{name}: {index.name} names {file!r:.80}, which is not in its folder. Get the "
                "checkpoint again, from a source that you trust."
            )
        if not (folder / file).is_file():
            raise ModelError(f"{name}: there is no {file:.60}{_other_weights(folder)}")
    names |= {file for file in extra_files if (folder / file).is_file()}
    files = [folder / file for file in sorted(names)]
    for path in files:
        with translate(name, "the weights"), path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
        if _MAX_HEADER < length < path.stat().st_size:
            raise ModelError(
                f"{name}: the header of {path.name} takes {length:,} bytes, and that of a model at "
                f"most {_MAX_HEADER:,}. Get the file again, from a source that you trust."
            )
    return files


def _inner_checkpoint(folder: Path) -> str | None:
    """Return the latest checkpoint of a Trainer, or another one, in a folder."""
    inner = {file.parent for file in folder.glob("*/*config.json")}
    inner = {one for one in inner if any(one.glob("*model*.safetensors"))}
    latest = max(inner, key=lambda one: (len(one.name), one.name), default=None)
    return None if latest is None else repr(str(latest))


def _other_weights(folder: Path) -> str:
    """Return which weights a folder has instead of safetensors, and how to convert them."""
    if inner := _inner_checkpoint(folder):
        return f", but a checkpoint in the folder. Give {inner}."
    for name in ("model.safetensors", "pytorch_model.bin"):
        others = [file.name for kind in _WEIGHTS[name] for file in folder.glob(kind)]
        others = [file for file in others if not _NO_WEIGHTS.match(file)]
        if len(others) == 1 and others[0] != name:
            return f", but {others[0]:.60}. If it holds the weights, rename it to {name}."
    if gguf := next(folder.glob("*.gguf"), None):
        return f", but {gguf.name:.60}. {gguf_advice(gguf)}"
    classes = read_json(folder.name, folder / "config.json").get("architectures")
    model = classes[0] if isinstance(classes, list) and classes else "AutoModel"
    model = model if hasattr(transformers, str(model)) else "AutoModel"
    has_processor = any((folder / file).is_file() for file in _PROCESSOR_FILES)
    processor = "AutoProcessor" if has_processor else "AutoTokenizer"
    return (
        ", and attnviz reads no pickles. Convert a checkpoint that you trust: import transformers "
        f"as t; t.{model}.from_pretrained(old).save_pretrained(new); t.{processor}"
        ".from_pretrained(old).save_pretrained(new)"
    )


def gguf_advice(file: Path) -> str:
    """Return how to load a file of llama.cpp, which lies in the folder `old`."""
    source = f"from_pretrained(old, gguf_file={file.name!r:.60})"
    return (
        "Load it in Python (pip install gguf): import transformers as t; model = attnviz.load("
        f"t.AutoModelForCausalLM.{source}, tokenizer=t.AutoTokenizer.{source})"
    )


def device_map_options(
    device_map: DeviceMap | None, folder: str | os.PathLike[str] | None, device: str | torch.device
) -> dict[str, Any]:
    """Return the keywords of `from_pretrained` that place a model; none without a device map."""
    if device_map is None:
        if folder is None:
            return {}
        raise InputError(
            "offload_folder needs a device map: add device_map='auto' (--device-map auto)."
        )
    if device != "auto":
        raise InputError(
            f"device {str(device)!r} and device_map {device_map!r:.80} exclude each other: "
            "leave one of them out."
        )
    require("accelerate", "large", "device_map needs")
    options: dict[str, Any] = {"device_map": device_map, "offload_folder": None}
    if isinstance(device_map, Mapping):
        options["device_map"] = {str(path): _place(place) for path, place in device_map.items()}
    elif device_map not in _STRATEGIES:
        options["device_map"] = {"": _place(device_map, *_STRATEGIES)}
    if folder is not None:
        options["offload_folder"] = os.path.expanduser(folder)  # noqa: PTH111
        check_folder(options["offload_folder"])
    return options


def _place(place: Any, *others: str) -> str | int:
    """Return a device, GPUs by number, or "disk"; others : what a refusal names beside these."""
    if place == "disk":
        return "disk"
    try:
        device = one_device(f"cuda:{place}" if type(place) is int and place >= 0 else place)
    except InputError as error:
        choices = ", ".join(map(repr, ("disk", *others)))
        what = "A device_map" if others else "A place"
        raise InputError(f"{error} {what} may also be {choices}.") from error
    return device.index or 0 if device.type == "cuda" else device.type


def load_model(
    name: str,
    folder: Path,
    config: Any,
    model_class: Any,
    files: Sequence[Path],
    dtype: torch.dtype | None,
    placement: dict[str, Any],
) -> PreTrainedModel:
    """Build the model that config.json describes and fill every weight of it from the files."""
    # A config may ask for attention code from the hub, for weights in other files than those that
    # are hashed, for patched classes, or for tuples as outputs.
    unset_attention_implementation(config)
    config.transformers_weights = config.fusion_config = None
    config.return_dict = True
    memory = _weights_memory(name, torch.device("cpu"))
    with translate(name, "the model", memory), torch.device("meta"):
        skeleton = model_class(copy.deepcopy(config))
    if not placement:
        numbers = sum(parameter.numel() for parameter in skeleton.parameters())
        size = sum(file.stat().st_size for file in files)
        memory.expect(max(numbers, size) if dtype is None else numbers * dtype.itemsize)
    elif isinstance(device_map := placement["device_map"], dict):
        # Accelerate itself refuses a map that leaves modules out.
        paths = [path for path, _ in (*skeleton.named_modules(), *skeleton.named_parameters())]
        for path in (path for path in device_map if path not in paths):
            hint = did_you_mean(path, paths)
            raise InputError(f"{name} has no module {path!r:.80} (device_map). {hint}")
    with translate(name, "the model", memory):
        try:
            module, report = model_class.from_pretrained(
                str(folder),
                config=config,
                dtype=dtype,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # only so that _expect_complete can name them
                **_LOCAL,
                **placement,
            )
        except ValueError as error:
            if not placement or "device_map" not in str(error):
                raise
            raise InputError(f"{name}: accelerate refuses this device_map: {error}") from error
    module = _expect_complete(name, module, report)
    expect_finite(name, module)
    return module.requires_grad_(False)


def move(name: str, module: Any, device: torch.device) -> PreTrainedModel:
    """Move a model that attnviz loaded to its device."""
    memory = _weights_memory(name, device)
    if device.type != "cpu":
        memory.expect(sum(tensor.nbytes for tensor in [*module.parameters(), *module.buffers()]))
    with translate(name, "the model", memory):
        return module.to(device)  # type: ignore[no-any-return]


def _weights_memory(name: str, device: torch.device) -> MemoryBudget:
    elsewhere = "" if device.type == "cpu" else "device='cpu' (--device cpu), "
    ways = f"Use {elsewhere}dtype='bfloat16' (--dtype bfloat16), or a smaller model."
    return MemoryBudget(f"the weights of {name}", device, ways, ModelError)


def _expect_complete(name: str, module: Any, report: dict[str, Any]) -> PreTrainedModel:
    """Refuse random weights and lost layers; return the model, or what is below a lost head."""
    prefix = f"{module.base_model_prefix}."
    names, missing = set(module.state_dict()), set(report["missing_keys"])
    problems = [
        f"{key:.80} is {tuple(shape)} in the file and {tuple(expected)} by the config"
        for key, shape, expected in sorted(report["mismatched_keys"])
    ]
    lost_layers = _lost_layers(module, prefix, report["unexpected_keys"])
    head = {key for key in names if not key.startswith(prefix)} - set(module.all_tied_weights_keys)
    is_headless = head <= missing and not any(key.startswith(prefix) for key in missing)
    below = module.base_model
    if missing and is_headless and below is not module and isinstance(below, PreTrainedModel):
        module, missing = below, set()
    if missing and (added := _added_prefix(missing, report["unexpected_keys"])):
        raise ModelError(
            f"{name}: every weight in the file is named {added!r} and then as in the model, as "
            "training code saves a wrapped model. Take it off: from safetensors.torch import "
            "load_file, save_file; save_file({k.removeprefix("
            f"{added!r}): v for k, v in load_file(f).items()}}, f, {{'format': 'pt'}})"
        )
    problems += [f"{key:.80} is missing" for key in sorted(missing)]
    problems += [f"the config has no layer for {key:.80}" for key in lost_layers]
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise ModelError(
            f"{name}: the weights are not those of the {type(module).__name__} in config.json: "
            f"{problems[0]}{more}. Use the config.json that was saved with these weights."
        )
    return module  # type: ignore[no-any-return]


def _added_prefix(missing: set[str], unexpected: set[str]) -> str | None:
    """Return what stands before every name of a file that its model lacks there."""
    shortest = min(unexpected, key=len, default="")
    for key in missing:
        prefix = shortest.removesuffix(key)
        if prefix != shortest and {prefix + other for other in missing} <= unexpected:
            return prefix
    return None


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


def expect_finite(name: str, module: PreTrainedModel) -> None:
    """Refuse weights that hold NaN or infinity."""
    for key, tensor in module.named_parameters():
        if not (tensor.is_floating_point() and tensor.numel() and tensor.element_size() > 1):
            continue
        if not all(bound.isfinite() for bound in whole(module, key, tensor).aminmax()):
            dtype = str(tensor.dtype).removeprefix("torch.")
            is_narrow = tensor.element_size() < torch.float32.itemsize
            wider = ", or load it in float32 (dtype='float32', --dtype float32)"
            raise ModelError(
                f"{name}: weights should be finite, but {key:.80} holds NaN or infinity as "
                f"{dtype}. Get the file again{wider if is_narrow else ''}."
            )


def embedding_of(module: PreTrainedModel) -> torch.nn.Embedding | None:
    """Return the input embedding; None where the model has no such table."""
    try:
        embedding = module.get_input_embeddings()
    except (NotImplementedError, AttributeError):  # or it looks for it where it is not, as FSMT
        return None
    return embedding if isinstance(embedding, torch.nn.Embedding) else None


def embedding_rows(module: PreTrainedModel) -> int | None:
    """Return the number of rows of the input embedding; None where the model has no such table."""
    embedding = embedding_of(module)
    return None if embedding is None else len(embedding.weight)


def outside_embedding(module: Any, ids: torch.Tensor) -> str | None:
    """Return in words that some ids have no row in the embedding; None if all have one."""
    rows = embedding_rows(module)
    if rows is None or bool(((ids >= 0) & (ids < rows)).all()):
        return None
    return f"go from {int(ids.min())} to {int(ids.max())}, but the embedding has rows 0–{rows - 1}"


def pooling_of(name: str, module: PreTrainedModel) -> str | None:
    """Return which states a model of sentence-transformers pools: "mean", "first" or "last".

    None if it is no such model. InputError if the cosine of its embeddings needs more than that.
    """
    folder = Path(module.name_or_path or "")
    file, modules = folder / "1_Pooling" / "config.json", folder / "modules.json"
    if not (file.is_file() and modules.is_file()):
        return None
    used = (mode for mode, is_used in read_json(name, file).items() if is_used is True)
    modes = [mode.split("pooling_mode_")[-1] for mode in used if mode.startswith("pooling_mode_")]
    found = [_POOLINGS.get(mode) for mode in modes]
    others = _CHANGING.intersection(re.findall(r"(\w+)\"", modules.read_text("utf-8")))
    if len(found) != 1 or found[0] is None or others:
        raise InputError(
            f"{name} does more than to pool the mean, the first or the last of its states, so its "
            "similarities cannot be explained. Choose another model."
        )
    return found[0]


def embedded_tokens(module: PreTrainedModel) -> float:
    """Return the most tokens of a text that a model of sentence-transformers reads."""
    file = Path(module.name_or_path or "") / "sentence_bert_config.json"
    return (read_json(str(file), file) if file.is_file() else {}).get("max_seq_length") or math.inf


@dataclass(frozen=True, eq=False)
class Processors:
    """The processor of each kind of input; None where the model takes no such input."""

    tokenizer: PreTrainedTokenizerBase | None = None
    decoder: PreTrainedTokenizerBase | None = None  # of the decoder, if another
    image: BaseImageProcessor | None = None
    audio: SequenceFeatureExtractor | None = None
    multimodal: ProcessorMixin | None = None  # puts placeholders for other inputs into the text

    @classmethod
    def of(cls, processor: Any) -> Processors:
        """Return the processors that a processor object of transformers holds."""
        if isinstance(processor, BaseImageProcessor):
            return cls(image=processor)
        if isinstance(processor, SequenceFeatureExtractor):
            return cls(audio=processor)
        if not isinstance(processor, ProcessorMixin):
            raise InputError(
                "processor should be a processor, an image processor or a feature extractor of "
                f"transformers, not {type(processor).__name__}."
            )
        audio = getattr(processor, "feature_extractor", None)
        audio = audio or getattr(processor, "audio_processor", None)
        return cls(
            tokenizer=getattr(processor, "tokenizer", None),
            image=getattr(processor, "image_processor", None),
            audio=audio if isinstance(audio, SequenceFeatureExtractor) else None,
            multimodal=processor,
        )


def input_kinds(model: Any) -> tuple[str, ...]:
    """Return which of "text", "image" and "audio" a model, or a class of models, takes."""
    return kinds_among(forward_parameters(model))


def kinds_among(arguments: Collection[str]) -> tuple[str, ...]:
    """Return which of "text", "image" and "audio" the arguments of a forward hold, by name."""
    return tuple(kind for kind, names in _ARGUMENTS.items() if not set(names).isdisjoint(arguments))


def forward_parameters(model: Any) -> list[str]:
    """Return the names that the forward of a model, or of a class of models, takes.

    Where a user's class hands its arguments on, those of the class that it extends follow.
    """
    classes = (model if isinstance(model, type) else type(model)).__mro__
    inherited = (vars(cls)["forward"] for cls in classes if "forward" in vars(cls))
    names: dict[str, None] = {}
    for forward in (model.forward, *inherited):
        if isinstance(forward, torch.ScriptMethod):  # compiled by torch.jit, without names
            break
        parameters = inspect.signature(forward).parameters.values()
        several = [p for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        names |= {p.name: None for p in parameters if p not in several and p.name != "self"}
        if not several or getattr(forward, "__module__", "").startswith("transformers."):
            break
    return list(names)


def main_input(model: Any) -> str:
    """Return the name of the main input of a model, the first of several."""
    name = getattr(model, "main_input_name", None) or forward_parameters(model)[:1] or ""
    return name if isinstance(name, str) else str(name[0])


def count_inputs(model: Any, inputs: Mapping[str, Any]) -> int:
    """Return the number of inputs in a batch, by the main one; each choice of a question counts."""
    if not isinstance(model, PreTrainedModel):
        return batch_size(model, inputs.values())
    shapes = {n: value.shape for n, value in inputs.items() if isinstance(value, torch.Tensor)}
    names = (main_input(model), "input_ids", "inputs_embeds", *shapes)
    for name in (name for name in names if shapes.get(name)):
        axes = {"input_ids": 1, "inputs_embeds": 2}.get(name, len(shapes[name]) - 1)
        if shapes.get("attention_mask") == shapes[name][:-1]:  # a token is several codes
            axes = len(shapes[name]) - 1
        return shapes[name][:-axes].numel() if axes else shapes[name][0]
    return 1


def batch_size(module: torch.nn.Module, inputs: Iterable[Any]) -> int:
    """Return the number of inputs in the batch that any module reads, by the first tensor."""
    tensors = [x for x in inputs if isinstance(x, torch.Tensor) and x.dim() > 1]
    if not tensors:
        return 1
    first = min(tensors, key=lambda x: x.dtype == torch.bool)  # a mask is of no batch
    own = (one for one in module.modules() if isinstance(one, torch.nn.MultiheadAttention))
    kinds = "torch.nn.modules.activation", "torch.nn.modules.transformer"  # no containers of others
    if type(module).__module__ in kinds and (attention := next(own, None)):
        return first.shape[0 if attention.batch_first else 1] if first.dim() > 2 else 1
    return len(first)


def has_text_decoder(model: Any, config: Any = None) -> bool:
    """Return whether a model has a decoder that takes a separate text; config : of a class."""
    config = getattr(model, "config", None) if config is None else config
    has_decoder = getattr(config, "is_encoder_decoder", False) or hasattr(model, "text_decoder")
    return bool(has_decoder) and "decoder_input_ids" in forward_parameters(model)


def load_processors(name: str, folder: Path, kinds: tuple[str, ...]) -> Processors:
    """Load the processors for images and sounds that `folder` holds."""
    files = [folder / file for file in _PROCESSOR_FILES if (folder / file).is_file()]
    if not files or kinds in ((), ("text",)):
        return Processors()
    for file in files:
        settings = read_json(name, file)
        keys = ("processor_class", "image_processor_type", "feature_extractor_type")
        class_name = next((settings[key] for key in keys if key in settings), None)
        _refuse_remote_code(name, "the processor", "processor=", settings, class_name)

    def load(auto_class: Any, **options: Any) -> Any:
        with translate(name, "the processor"):
            return auto_class.from_pretrained(str(folder), **_LOCAL, **options)

    multimodal = load(transformers.AutoProcessor) if "text" in kinds else None
    is_multimodal = isinstance(multimodal, ProcessorMixin)
    processors = Processors.of(multimodal) if is_multimodal else Processors()
    if "image" in kinds:
        # Before 5.20, transformers.AutoImageProcessor is a stub where torchvision is missing.
        from transformers.models.auto.image_processing_auto import AutoImageProcessor

        processors = replace(processors, image=load(AutoImageProcessor, backend="pil"))
    if "audio" in kinds and processors.audio is None:
        processors = replace(processors, audio=load(transformers.AutoFeatureExtractor))
    return processors


def load_tokenizer(name: str, folder: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of `folder`; without a vocabulary transformers would make one up."""
    no_vocabulary = ModelError(
        f"{name}: there are no tokenizer files with a vocabulary. "
        "Pass tokenizer= (a tokenizer, its folder or its hub name)."
    )
    is_there, settings_file = has_vocabulary(folder), folder / "tokenizer_config.json"
    if not is_there and not settings_file.is_file():
        raise no_vocabulary
    settings = read_json(name, settings_file) if settings_file.is_file() else {}
    tokenizer_class = settings.get("tokenizer_class")
    _refuse_remote_code(name, "the tokenizer", "tokenizer=", settings, tokenizer_class)
    with translate(name, "the tokenizer"):
        tokenizer: PreTrainedTokenizerBase = transformers.AutoTokenizer.from_pretrained(
            str(folder), **_LOCAL
        )
    # A tokenizer of bytes or characters names no vocabulary files.
    files = tokenizer.vocab_files_names.values()
    if files and not is_there and not any((folder / file).is_file() for file in files):
        raise no_vocabulary
    return tokenizer


def has_vocabulary(folder: Path) -> bool:
    """Return whether `folder` holds the vocabulary of a tokenizer."""
    return any(True for pattern in VOCABULARY_FILES for _ in folder.glob(pattern))
