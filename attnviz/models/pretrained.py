"""What transformers makes of a folder: a complete model and its tokenizer, silently, or one error.

The auto classes are used only for tokenizers and never with remote code; the model's class comes
from config.json and is one of transformers' own.
"""

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

from attnviz.errors import ModelError
from attnviz.models.complete import complete, expect_finite, no_larger_than
from attnviz.models.devices import Placement
from attnviz.models.weight_files import (
    VOCABULARY_FILES,
    Weights,
    read_json,
    weights_room,
)
from attnviz.runtime import translate as failures
from attnviz.runtime.logs import debugging, hushed, unlogged
from attnviz.runtime.memory import Room

_COUNTED = re.compile(r"(^|_)(layers?|labels|depth)$")
_MOST_COUNTED = 50_000


def declared_class(name: str, folder: Path) -> tuple[Any, Any]:
    """Return the config, and the class that it declares if that is made for its model_type.

    If not, the type decides, as in AutoModel.
    """
    settings = read_json(name, folder / "config.json")
    _expect_countable(name, settings)
    kind, names = settings.get("model_type"), settings.get("architectures")
    named = names[0] if isinstance(names, list) and names else None
    declared: Any = getattr(transformers, named, None) if isinstance(named, str) else None
    if not (isinstance(declared, type) and issubclass(declared, PreTrainedModel)):
        declared = None
    known = isinstance(kind, str) and kind in CONFIG_MAPPING
    if "auto_map" in settings and not (known and declared):
        raise ModelError(
            f"{name}: wants remote code, which attnviz does not run (model_type "
            f"{kind!r:.60}, class {named!r:.60}); use a model whose class is in "
            "transformers, or pass a loaded one"
        )
    if not known and (declared is None or kind is not None):
        raise ModelError(
            f"{name}: expected a model_type that transformers {transformers.__version__} knows, "
            f"got {kind!r:.60}; check config.json or upgrade transformers"
        )
    with translated(name, "config.json"):
        config_class = CONFIG_MAPPING[str(kind)] if known else declared.config_class
        config = config_class.from_pretrained(str(folder), local_files_only=True)
        if declared is None or not isinstance(config, declared.config_class):
            declared = transformers.MODEL_MAPPING[type(config)]
    return config, declared[0] if isinstance(declared, tuple) else declared


def _expect_countable(name: str, settings: Any) -> None:
    """Refuse more layers or labels than there are anywhere: transformers would list them all."""
    if isinstance(settings, dict):
        for key, value in settings.items():
            if _COUNTED.search(key) and isinstance(value, int | float) and value > _MOST_COUNTED:
                raise ModelError(
                    f"{name}: expected {key:.80} up to {_MOST_COUNTED:,} in config.json, "
                    f"got {value!r:.20}; use the one that was saved with these weights"
                )
            _expect_countable(name, value)


def load_module(
    name: str,
    folder: Path,
    config: Any,
    model_class: Any,
    dtype: torch.dtype | None,
    weights: Weights,
    placement: Placement | None = None,
) -> PreTrainedModel:
    """Build the model that config.json describes, every weight of it from the file."""
    placed: dict[str, Any] = {}
    if placement is not None:
        placed = {"device_map": placement.device_map, "offload_folder": placement.folder}
    # A file may ask for attention code from the hub, for other weights than those hashed, for
    # classes that are patched, or for answers in another form.
    config._attn_implementation = config.transformers_weights = config.fusion_config = None
    config.return_dict = True
    room = weights_room(name, torch.device("cpu"))
    with translated(name, "the model", room), no_larger_than(name, weights):
        module, report = model_class.from_pretrained(
            str(folder),
            config=config,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # only so that `complete` can name them
            **placed,
        )
    module = complete(name, module, report)
    expect_finite(name, module)
    return module.requires_grad_(False)  # type: ignore[no-any-return]


def move(name: str, module: Any, device: torch.device) -> PreTrainedModel:
    """Put a model that attnviz loaded on its device."""
    room = weights_room(name, device)
    if device.type != "cpu":
        room.expect(sum(each.nbytes for each in [*module.parameters(), *module.buffers()]))
    with translated(name, "the model", room):
        return module.to(device)  # type: ignore[no-any-return]


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
    with translated(name, "the tokenizer"), hushed():
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
            f"{name}: {what} ({kind!r:.60}) wants remote code, which attnviz does not run; "
            f"pass {option} (an object of transformers, its folder or its hub name)"
        )


def has_vocabulary(folder: Path) -> bool:
    """Tell whether a tokenizer's vocabulary lies in `folder`."""
    return any(True for pattern in VOCABULARY_FILES for _ in folder.glob(pattern))


def check_rows(name: str, words: PreTrainedTokenizerBase | None, module: PreTrainedModel) -> None:
    """Refuse a tokenizer whose ids the embedding cannot look up."""
    rows = embedding_rows(module)
    if words is not None and rows is not None and len(words) > rows:
        raise ModelError(
            f"{name}: expected a tokenizer of at most {rows} entries, the rows "
            f"of the embedding, got {len(words)}; pass the tokenizer= of this model"
        )


def embedding_rows(module: PreTrainedModel) -> int | None:
    """Return how many ids the embedding has rows for; None where ids are looked up otherwise."""
    try:
        embedding = module.get_input_embeddings()
    except NotImplementedError:
        return None
    return len(embedding.weight) if isinstance(embedding, torch.nn.Embedding) else None


@contextmanager
def quiet() -> Iterator[None]:
    """Keep logs, progress bars and warnings off the terminal; then all is as it was."""
    shown, hub_hidden = bars.is_progress_bar_enabled(), are_progress_bars_disabled()
    with unlogged(), warnings.catch_warnings():
        if not debugging():
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
def translated(name: str, what: str, room: Room | None = None) -> Iterator[None]:
    """Turn whatever transformers raises over a bad folder into one line."""
    said = f"{name}: transformers {transformers.__version__} cannot load {what}"
    ways = "Check whether it is what was published, or free some memory."
    room = room or Room(f"{what} of {name}", torch.device("cpu"), ways, ModelError)
    with failures.translated(said, "; check the files of this checkpoint", room):
        yield
