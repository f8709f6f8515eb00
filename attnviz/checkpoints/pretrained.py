"""What transformers makes of a folder: a complete model and its tokenizer, silently, or one error.

The auto classes are used only for tokenizers and never with remote code; the model's class comes
from config.json and is one of transformers' own.
"""

import logging
import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars
from transformers import CONFIG_MAPPING, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as bars

from attnviz.checkpoints.files import VOCABULARY_FILES, one_line, read_json
from attnviz.errors import AttnvizError, ModelError
from attnviz.quiet import unlogged


def declared_class(name: str, folder: Path) -> tuple[Any, Any]:
    """Return the config, and the class that it declares if that is made for its model_type.

    If not, the type decides, as in AutoModel.
    """
    settings = read_json(name, folder / "config.json")
    kind, names = settings.get("model_type"), settings.get("architectures")
    named = names[0] if isinstance(names, list) and names else None
    declared: Any = getattr(transformers, named, None) if isinstance(named, str) else None
    if not (isinstance(declared, type) and issubclass(declared, PreTrainedModel)):
        declared = None
    known = isinstance(kind, str) and kind in CONFIG_MAPPING
    if "auto_map" in settings and not (known and declared):
        raise ModelError(
            f"{name}: wants remote code, which attnviz does not run (model_type {kind!r}, "
            f"class {named!r}); use a model whose class is in transformers"
        )
    if not known and (declared is None or kind is not None):
        raise ModelError(
            f"{name}: expected a model_type that transformers {transformers.__version__} knows, "
            f"got {kind!r}; check config.json or upgrade transformers"
        )
    with translated(name, "config.json"):
        config_class = CONFIG_MAPPING[str(kind)] if known else declared.config_class
        config = config_class.from_pretrained(str(folder), local_files_only=True)
        if declared is None or not isinstance(config, declared.config_class):
            declared = transformers.MODEL_MAPPING[type(config)]
    return config, declared[0] if isinstance(declared, tuple) else declared


def load_module(
    name: str, folder: Path, config: Any, model_class: Any, dtype: torch.dtype | None
) -> PreTrainedModel:
    """Build the model that config.json describes, every weight of it from the file."""
    # A file may ask for attention code from the hub, or for other weights than those hashed.
    config._attn_implementation = config.transformers_weights = None
    with translated(name, "the model"):
        module, report = model_class.from_pretrained(
            str(folder),
            config=config,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # only so that _complete can name them
        )
    return _complete(name, module, report).requires_grad_(False)  # type: ignore[no-any-return]


def move(name: str, module: Any, device: torch.device) -> PreTrainedModel:
    """Put a model that attnviz loaded on its device."""
    try:
        return module.to(device)  # type: ignore[no-any-return]
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"{name}: expected room for the weights on {device}, got {one_line(error)}; "
            "use device='cpu' or dtype='bfloat16'"
        ) from error


def _complete(name: str, module: Any, report: dict[str, Any]) -> Any:
    """Refuse random weights and lost layers.

    A file that holds nothing of the declared head (sentence-transformers writes such) gives the
    model below the head.
    """
    prefix = f"{module.base_model_prefix}."
    names, missing = set(module.state_dict()), set(report["missing_keys"])
    lost = _lost_layers(module, prefix, report["unexpected_keys"])
    head = {key for key in names if not key.startswith(prefix)} - set(module.all_tied_weights_keys)
    headless = head <= missing and not any(key.startswith(prefix) for key in missing)
    below = module.base_model
    if missing and headless and below is not module and isinstance(below, PreTrainedModel):
        module, missing = below, set()

    wrong = [
        f"{key} is {tuple(got)} in the file and {tuple(shape)} by the config"
        for key, got, shape in sorted(report["mismatched_keys"])
    ]
    wrong += [f"{key} is missing" for key in sorted(missing)]
    wrong += [f"the config has no layer for {key}" for key in lost]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise ModelError(
            f"{name}: expected the weights of the {type(module).__name__} in config.json, but "
            f"{', '.join(wrong[:3])}{more}; random weights are never shown: "
            "use the config.json that was saved with these weights"
        )
    return module


def _lost_layers(module: torch.nn.Module, prefix: str, unexpected: set[str]) -> list[str]:
    """Return the keys of the file that number a layer past the last one of the model."""
    stacks = {
        name.removeprefix(prefix): len(stack)
        for name, stack in module.named_modules()
        if isinstance(stack, torch.nn.ModuleList | torch.nn.Sequential)
    }

    def is_lost(key: str) -> bool:
        numbers = re.finditer(r"\.(\d+)(?=\.)", key)
        return any(int(n[1]) >= stacks.get(key[: n.start()], math.inf) for n in numbers)

    return sorted(key for key in unexpected if is_lost(key.removeprefix(prefix)))


def load_tokenizer(name: str, folder: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of `folder`, or refuse: transformers would make up five entries."""
    nothing = ModelError(
        f"{name}: expected tokenizer files, found no vocabulary; "
        "pass tokenizer= (a tokenizer, its folder or its hub name)"
    )
    found, described = has_vocabulary(folder), folder / "tokenizer_config.json"
    if not found and not described.is_file():
        raise nothing
    settings = read_json(name, described) if described.is_file() else {}
    kind = settings.get("tokenizer_class")
    refuse_remote_code(name, "the tokenizer", "tokenizer=", settings, kind)
    with translated(name, "the tokenizer"):
        tokenizer: PreTrainedTokenizerBase = transformers.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    files = tokenizer.vocab_files_names.values()  # none where the vocabulary is bytes or characters
    if files and not found and not any((folder / file).is_file() for file in files):
        raise nothing
    return tokenizer


def refuse_remote_code(
    name: str, what: str, option: str, settings: dict[str, Any], kind: object
) -> None:
    """Refuse settings that name code of their own and no class of transformers."""
    if "auto_map" in settings and not isinstance(getattr(transformers, str(kind), None), type):
        raise ModelError(
            f"{name}: {what} ({kind!r}) wants remote code, which attnviz does not run; "
            f"pass {option} (an object of transformers, its folder or its hub name)"
        )


def has_vocabulary(folder: Path) -> bool:
    """Tell whether a tokenizer's vocabulary lies in `folder`."""
    return any(True for pattern in VOCABULARY_FILES for _ in folder.glob(pattern))


def check_rows(name: str, words: PreTrainedTokenizerBase | None, module: PreTrainedModel) -> None:
    """Refuse a tokenizer whose ids the embedding cannot look up."""
    if words is None:
        return
    try:
        embedding = module.get_input_embeddings()
    except NotImplementedError:
        return
    if isinstance(embedding, torch.nn.Embedding) and len(words) > len(embedding.weight):
        raise ModelError(
            f"{name}: expected a tokenizer of at most {len(embedding.weight)} entries, the rows "
            f"of the embedding, got {len(words)}; pass the tokenizer= of this model"
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Keep logs, progress bars and warnings off the terminal; then all is as it was."""
    shown, hub_hidden = bars.is_progress_bar_enabled(), are_progress_bars_disabled()
    with unlogged(), warnings.catch_warnings():
        if not logging.getLogger("attnviz").isEnabledFor(logging.DEBUG):
            warnings.simplefilter("ignore")
        try:
            if shown:
                bars.disable_progress_bar()  # type: ignore[no-untyped-call]
            yield
        finally:
            if shown:
                bars.enable_progress_bar()  # type: ignore[no-untyped-call]
            if hub_hidden:
                disable_progress_bars()


@contextmanager
def translated(name: str, what: str) -> Iterator[None]:
    """Turn whatever transformers raises over a bad folder into one line."""
    try:
        yield
    except AttnvizError:
        raise
    except Exception as error:
        raise ModelError(
            f"{name}: transformers {transformers.__version__} cannot load {what} "
            f"({one_line(error)}); check the files of this checkpoint"
        ) from error
